// Causal attention over packed segments and their prefixes (see attention.py for the formula). A work item is 64 tokens of one segment
// and two q heads of one kv head, one warpgroup a q head; its keys come in blocks of 64, each of one prefix or of the segment itself.
// Blocks are persistent and take the items that plan_kernel dealt them. TMA loads run ahead across items: two key/value buffers and the
// next q. Probabilities stay in registers (they are the second product's A operand). Two blocks fit an SM. No block waits for another one.
#include "attention_tile.cuh"

namespace boundgen {

template <int D, class Out> __global__ void __launch_bounds__(256, 2) attention_kernel(const __grid_constant__ AttentionParams p) {
  using Layout = AttentionLayout<D>;
  extern __shared__ uint8_t raw[];
  __shared__ __align__(8) uint64_t barriers[8];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u, q_full = shared_address(barriers), k_full = q_full + 8, v_full = q_full + 24,
                 free_ = q_full + 40, q_free = q_full + 56;
  if (threadIdx.x == 0) {
    barrier_init(q_full, 1);
    barrier_init(q_free, 2);
    for (int s = 0; s < 2; s++) {
      barrier_init(k_full + 8 * s, 1);
      barrier_init(v_full + 8 * s, 1);
      barrier_init(free_ + 8 * s, 2);
    }
    barrier_init_fence();
    prefetch_map(&p.qkv);
    prefetch_map(&p.constant);
  }
  __syncthreads();
  allow_dependents();
  // The work list may be read before the wait: plan_kernel never lets a dependent start early, so it ended before the kernel ahead of us began.
  const int first = __ldg(p.offsets + blockIdx.x), end = __ldg(p.offsets + blockIdx.x + 1);
  if (first >= end) {
    wait_for_predecessors();
    return;
  }
  Loads<D> loads(p, base, q_full, first);
  wait_for_predecessors();
  if (threadIdx.x == 0) {
    loads.query(first);
    loads.key_value(0, end);
    loads.key_value(1, end);
  }
  __syncwarp();
  const int group = threadIdx.x >> 7, thread = threadIdx.x & 127, lane = thread & 31, q = lane & 3, lane_row = (thread >> 5) * 16 + (lane >> 2);
  const uint64_t query = operand_descriptor(base + group * Layout::kHead);
  int done = 0;
  for (int i = first; i < end; i++) {
    Accumulator<D> acc;
    acc.reset();
    barrier_wait(q_full, (i - first) & 1);
    const Item item(p.items, i);
    const int blocks = item.last() + 1;
    for (int block = 0; block < blocks; block++, done++) {
      const bool diagonal = block + 1 == blocks;
      const int seen = item.seen(block), s = done & 1, parity = (done >> 1) & 1;
      const uint32_t stage = base + Layout::kQuery + s * Layout::kStage;
      float scores[32];
      barrier_wait(k_full + 8 * s, parity);
      score<D>(scores, query, operand_descriptor(stage));
      if (diagonal && i + 1 < end) {  // q is read: the next item's may come
        if (thread == 0) barrier_arrive(q_free);
        if (threadIdx.x == 0) {
          barrier_wait(q_free, (i - first) & 1);
          loads.query(i + 1);
        }
        __syncwarp();
      }
      if (diagonal) mask_after(scores, 2 * q, lane_row, lane_row + 8);
      else if (seen < 64) mask_after(scores, 2 * q, seen - 1, seen - 1);
      uint32_t probabilities[16];
      acc.softmax(scores, probabilities, block > 0);
      barrier_wait(v_full + 8 * s, parity);
      accumulate<D>(acc.o, probabilities, operand_descriptor(stage + Layout::kHead, 512));
      if (thread == 0) barrier_arrive(free_ + 8 * s);
      if (threadIdx.x == 0 && loads.next < end) {
        barrier_wait(free_ + 8 * s, parity);
        loads.key_value(s, end);
      }
      __syncwarp();
    }
    const int head = item.q_head + group, r = item.token + lane_row;
    const bool mine = head < (item.kv_head + 1) * (p.num_q / p.num_kv);
    const float scale = __ldg(p.scales + min(head, p.num_q - 1));
    const size_t stride = static_cast<size_t>(p.num_q) * D;
    acc.template store<Out>(p.out, (item.start + r) * stride + head * D, q, stride, scale, mine && r < item.length, mine && r + 8 < item.length);
  }
}

struct AttentionCall {  // mirrored by library.AttentionCall
  const void* qkv;
  const void* constant;
  const void* items;
  const void* offsets;
  void* out;
  const void* scales;
  int tokens, constant_rows, num_q, num_kv, head_dim, output, num_blocks, dependent;
  cudaStream_t stream;
};

template <int D, class Out> static int launch_attention(const AttentionCall& c) {
  AttentionParams p = {};
  int e = encode_map(&p.qkv, c.qkv, c.tokens, (c.num_q + 2 * c.num_kv) * D * 2, 64);
  p.constant = p.qkv;  // never read then
  if (!e && c.constant) e = encode_map(&p.constant, c.constant, 2 * c.constant_rows, c.num_kv * D * 2, 64);
  if (e) return e;
  p.items = static_cast<const int4*>(c.items);
  p.offsets = static_cast<const int*>(c.offsets);
  p.out = c.out;
  p.scales = static_cast<const float*>(c.scales);
  p.num_q = c.num_q;
  p.num_kv = c.num_kv;
  p.constant_rows = c.constant_rows;
  const auto kernel = attention_kernel<D, Out>;
  const cudaError_t r = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, AttentionLayout<D>::kShared);
  if (r != cudaSuccess) return r;
  Attributes attributes;
  if (c.dependent) attributes.dependent();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(c.num_blocks);
  config.blockDim = dim3(256);
  config.dynamicSmemBytes = AttentionLayout<D>::kShared;
  config.stream = c.stream;
  config.attrs = attributes.list;
  config.numAttrs = attributes.count;
  return cudaLaunchKernelEx(&config, kernel, p);
}

template <class Out> static int launch_attention(const AttentionCall& c) {
  return c.head_dim == 128 ? launch_attention<128, Out>(c) : c.head_dim == 64 ? launch_attention<64, Out>(c) : kErrorNoVariant;
}

}  // namespace boundgen

using namespace boundgen;
extern "C" __attribute__((visibility("default"))) int attention(const AttentionCall* c) {
  if (c->output == E4m3::kCode) return launch_attention<E4m3>(*c);
  if (c->output == Int8::kCode) return launch_attention<Int8>(*c);
  if (c->output == Bf16::kCode) return launch_attention<Bf16>(*c);
  return kErrorNoVariant;
}
