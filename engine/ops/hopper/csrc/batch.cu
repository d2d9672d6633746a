// Two small kernels at the start of a forward pass: the attention's work list, and rows of the residual stream with their 8-bit copy
// and sums of squares (from the embedding, or from a residual that another path computed).
#include "launch.cuh"
#include "numbers.cuh"
#include "pipeline.cuh"

namespace boundgen {

constexpr int kPlanThreads = 1024, kMaxTiles = 1024, kMaxClasses = kMaxTiles + 64;  // segments of up to 65,536 tokens, prefixes included

struct PlanCall {  // mirrored by library.PlanCall
  const int* cu_seqlens;  // [samples + 1]
  const int* prefixes;    // [samples, 2]: the segment's parent (-1: none), rows of the constant prefix; or null
  int4* items;            // two an item: see attention_tile.cuh
  int* offsets;           // [num_blocks + 1]
  int samples, tokens, num_q, num_kv, num_blocks;
  cudaStream_t stream;
};

struct Before {  // what a segment continues
  int parent, parent_length, constant;
  __device__ __forceinline__ Before(const PlanCall& c, int s) : parent(0), parent_length(0), constant(0) {
    if (!c.prefixes) return;
    const int p = c.prefixes[2 * s];
    constant = c.prefixes[2 * s + 1];
    if (p < 0) return;
    parent = c.cu_seqlens[p];
    parent_length = c.cu_seqlens[p + 1] - parent;
  }
  __device__ __forceinline__ int blocks() const { return ((constant + 63) >> 6) + ((parent_length + 63) >> 6); }
};

// Items, those of most keys first, dealt to the blocks in snake order: item i goes to block i % B in even rounds and B - 1 - i % B in odd
// ones. An item's class is how many blocks of 64 keys it reads, less one: those of the segment's prefixes and the tiles before its own, so
// that a segment has one tile in each class of its span. Rows past the last segment (a bucket's padding) become segments of up to 64 tokens:
// every output row is written, none with garbage that the next layer's value product (0 x NaN) could spread. plan.py holds the same in Python.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(PlanCall c) {
  extern __shared__ int spans[];  // [samples]: first class | end << 16
  __shared__ int change[kMaxClasses + 1], ahead[kMaxClasses + 1], num_classes;
  if (threadIdx.x == 0) num_classes = 0;
  for (int k = threadIdx.x; k <= kMaxClasses; k += kPlanThreads) change[k] = 0;
  __syncthreads();
  wait_for_predecessors();
  for (int s = threadIdx.x; s < c.samples; s += kPlanThreads) {
    const int tiles = min((c.cu_seqlens[s + 1] - c.cu_seqlens[s] + 63) >> 6, kMaxTiles);
    const int begin = min(Before(c, s).blocks(), kMaxClasses - tiles), end = begin + tiles;
    spans[s] = begin | end << 16;
    atomicAdd(change + begin, 1);
    atomicSub(change + end, 1);
    if (tiles) atomicMax(&num_classes, end);
  }
  __syncthreads();
  // ahead[k]: tiles of class k or more. A span that begins or ends at m counts in all classes from m on.
  for (int k = threadIdx.x; k <= num_classes; k += kPlanThreads) {
    int sum = 0;
    for (int m = 0; m < num_classes; m++) sum += change[m] * (num_classes - max(k, m));
    ahead[k] = sum;
  }
  __syncthreads();
  const int ratio = c.num_q / c.num_kv, pairs = (ratio + 1) / 2, units = c.num_kv * pairs, padding = c.cu_seqlens[c.samples];
  const int real = ahead[0] * units, total = real + ((c.tokens - padding + 63) >> 6) * units;
  const int full = total / c.num_blocks, rest = total % c.num_blocks, from = full & 1 ? c.num_blocks - rest : 0;  // the last round deals to from .. from + rest - 1
  auto extra = [&](int b) { return min(max(b - from, 0), rest); };
  auto place = [&](int i, int start, int length, int token, int4 before) {
    const int round = i / c.num_blocks, p = i % c.num_blocks, b = round & 1 ? c.num_blocks - 1 - p : p, unit = i % units, kv = unit / pairs;
    int4* item = c.items + 2 * (b * full + extra(b) + round);
    item[0] = make_int4(start, length, token, (kv * ratio + 2 * (unit % pairs)) | (kv << 16));
    item[1] = before;
  };
  for (int b = threadIdx.x; b <= c.num_blocks; b += kPlanThreads) c.offsets[b] = b * full + extra(b);
  const int lane = threadIdx.x & 31;
  for (int s = threadIdx.x >> 5; s < c.samples; s += kPlanThreads / 32) {
    const int start = c.cu_seqlens[s], length = c.cu_seqlens[s + 1] - start, begin = spans[s] & 0xffff, end = spans[s] >> 16;
    const Before before(c, s);
    for (int k = begin; k < end; k++) {
      int rank = 0;  // earlier segments with a tile of this class
      for (int j = lane; j < s; j += 32) rank += (spans[j] & 0xffff) <= k && k < spans[j] >> 16;
      rank = __reduce_add_sync(~0u, rank);
      for (int unit = lane; unit < units; unit += 32)
        place((ahead[k + 1] + rank) * units + unit, start, length, 64 * (k - begin), make_int4(before.parent, before.parent_length, before.constant, 0));
    }
  }
  for (int z = threadIdx.x; z < total - real; z += kPlanThreads) {
    const int start = padding + 64 * (z / units);
    place(real + z, start, min(64, c.tokens - start), 0, make_int4(0, 0, 0, 0));
  }
}

struct RowsCall {  // mirrored by library.RowsCall
  const __nv_bfloat16* source;  // [rows, width], or [vocabulary, width] with ids
  const long long* ids;         // [rows], or null
  __nv_bfloat16* x;             // [rows, width]; null without ids
  uint8_t* x8;                  // [rows, width] of `output`, or null
  float* partials;              // [rows, 8]
  const float* scales;          // [1]: what x is multiplied with before it is e4m3
  float* row_scales;            // [rows]: what an int8 value stands for, a 127th of the row's largest; null unless int8
  int rows, width, output;      // output: E4m3::kCode or Int8::kCode
  cudaStream_t stream;
};

template <class Out> __device__ __forceinline__ uint2 pack8(const float (&v)[8], float scale) {
  return make_uint2(Out::pack4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale), Out::pack4(v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale));
}

__global__ void __launch_bounds__(256) rows_kernel(RowsCall c) {  // a warp a row
  const int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  allow_dependents();
  wait_for_predecessors();
  if (row >= c.rows) return;
  const size_t offset = static_cast<size_t>(row) * c.width;
  const __nv_bfloat16* source = c.source + (c.ids ? static_cast<size_t>(c.ids[row]) * c.width : offset);
  const float scale = c.scales ? __ldg(c.scales) : 1.f;
  const bool whole = c.x8 && c.output == Int8::kCode;
  float squares = 0.f, peak = 0.f;
  for (int col = 8 * lane; col < c.width; col += 256) {
    const uint4 u = *reinterpret_cast<const uint4*>(source + col);
    const float v[8] = {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y), bf16_low(u.z), bf16_high(u.z), bf16_low(u.w), bf16_high(u.w)};
#pragma unroll
    for (int i = 0; i < 8; i++) squares = fmaf(v[i], v[i], squares);
    if (c.x) *reinterpret_cast<uint4*>(c.x + offset + col) = u;
    if (whole) {
#pragma unroll
      for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(v[i]));
    } else if (c.x8) {
      *reinterpret_cast<uint2*>(c.x8 + offset + col) = pack8<E4m3>(v, scale);
    }
  }
  if (whole) {  // once more over the row, now that its largest value is known
#pragma unroll
    for (int d = 16; d; d >>= 1) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, d));
    const float step = fmaxf(__fdiv_rn(peak, 127.f), 1e-12f), inverse = __frcp_rn(step);
    for (int col = 8 * lane; col < c.width; col += 256) {
      const uint4 u = *reinterpret_cast<const uint4*>(source + col);
      const float v[8] = {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y), bf16_low(u.z), bf16_high(u.z), bf16_low(u.w), bf16_high(u.w)};
      *reinterpret_cast<uint2*>(c.x8 + offset + col) = pack8<Int8>(v, inverse);
    }
    if (lane == 0) c.row_scales[row] = step;
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) squares += __shfl_xor_sync(~0u, squares, d);
  if (lane < 8) c.partials[static_cast<size_t>(row) * 8 + lane] = lane ? 0.f : squares;
}

}  // namespace boundgen

using namespace boundgen;
extern "C" __attribute__((visibility("default"))) int plan(const PlanCall* c) {
  plan_kernel<<<1, kPlanThreads, c->samples * sizeof(int), c->stream>>>(*c);
  return cudaGetLastError();
}
extern "C" __attribute__((visibility("default"))) int rows(const RowsCall* c) {
  rows_kernel<<<(c->rows + 7) / 8, 256, 0, c->stream>>>(*c);
  return cudaGetLastError();
}

struct ClearCall {  // mirrored by library.ClearCall
  void* data;
  int bytes;
  cudaStream_t stream;
};
// A memset, so that no kernel after it can start before it has ended.
extern "C" __attribute__((visibility("default"))) int clear(const ClearCall* c) { return cudaMemsetAsync(c->data, 0, c->bytes, c->stream); }
