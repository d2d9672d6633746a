// Pieces of the attention kernel: its parameters, the loads that run ahead, and one warpgroup's softmax and output.
#pragma once
#include "launch.cuh"
#include "numbers.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

namespace boundgen {

constexpr float kMasked = -1e30f;  // finite, so that a row never subtracts infinities

struct AttentionParams {  // the tensor maps bring their alignment along
  CUtensorMap qkv, constant;
  const int4* items;   // two a work item, see Item
  const int* offsets;  // block b takes items offsets[b] .. offsets[b + 1] - 1
  void* out;           // [tokens, num_q D]
  const float* scales; // [num_q]: what a head's output is multiplied with before it is quantised
  int num_q, num_kv, constant_rows;
};

// Rows of the segment, the item's first token in it and first q head | kv head << 16; then what the segment continues: rows of its
// parent, and how many of the constant prefix (lengths 0: none).
struct Item {
  int start, length, token, q_head, kv_head, parent, parent_length, constant;
  __device__ __forceinline__ Item(const int4* items, int i) {
    const int4 own = __ldg(items + 2 * i), before = __ldg(items + 2 * i + 1);
    start = own.x, length = own.y, token = own.z, q_head = own.w & 0xffff, kv_head = own.w >> 16;
    parent = before.x, parent_length = before.y, constant = before.z;
  }
  // Its keys come in blocks of 64: `constants` of the constant prefix, up to `before` of the parent, then the segment's own, up to `last`.
  __device__ __forceinline__ int constants() const { return (constant + 63) >> 6; }
  __device__ __forceinline__ int before() const { return constants() + ((parent_length + 63) >> 6); }
  __device__ __forceinline__ int last() const { return before() + (token >> 6); }
  // How many keys of a block that is not the last every query sees; 64 or more: all.
  __device__ __forceinline__ int seen(int block) const {
    return block < constants() ? constant - 64 * block : block < before() ? parent_length - 64 * (block - constants()) : 64;
  }
};

template <int D> struct AttentionLayout {
  static constexpr int kHead = 64 * D * 2;  // 64 rows of one head: D / 64 boxes of 8 KiB
  static constexpr int kQuery = 2 * kHead, kStage = 2 * kHead;  // a stage: keys, then values
  static constexpr int kShared = kQuery + 2 * kStage + 1024;
};

template <int D> struct Loads {  // what thread 0 does; its cursor runs ahead of the consumers. Items are read again rather than kept: registers are short
  const AttentionParams& p;
  uint32_t base, q_full;
  int next, block = 0;
  __device__ __forceinline__ Loads(const AttentionParams& p_, uint32_t base_, uint32_t bars, int first) : p(p_), base(base_), q_full(bars), next(first) {}
  __device__ __forceinline__ void head(uint32_t dst, const CUtensorMap* map, int column_head, int row, uint32_t bar) const {
#pragma unroll
    for (int c = 0; c < D / 64; c++) load_tile(dst + c * 8192, map, (column_head * D + c * 64) * 2, row, bar);
  }
  __device__ __forceinline__ void query(int item) const {
    const Item i(p.items, item);
    barrier_expect(q_full, AttentionLayout<D>::kQuery);
    head(base, &p.qkv, i.q_head, i.start + i.token, q_full);
    head(base + AttentionLayout<D>::kHead, &p.qkv, i.q_head + 1, i.start + i.token, q_full);  // past an odd group: a neighbour's head, not stored
  }
  // The next block of keys and values, if any, into stage s: of the constant prefix, of the parent, then of the segment up to the
  // item's diagonal. Rows behind a prefix' end are its neighbours': finite, and masked.
  __device__ __forceinline__ void key_value(int s, int end) {
    if (next >= end) return;
    const Item i(p.items, next);
    const CUtensorMap* map = &p.qkv;
    int row = 64 * block, key = p.num_q + i.kv_head, value = key + p.num_kv, value_shift = 0;
    if (block < i.constants()) {
      map = &p.constant;
      key = value = i.kv_head;
      value_shift = p.constant_rows;
    } else if (block < i.before()) {
      row += i.parent - 64 * i.constants();
    } else {
      row += i.start - 64 * i.before();
    }
    const uint32_t dst = base + AttentionLayout<D>::kQuery + s * AttentionLayout<D>::kStage, k_full = q_full + 8 + 8 * s, v_full = q_full + 24 + 8 * s;
    barrier_expect(k_full, AttentionLayout<D>::kHead);
    head(dst, map, key, row, k_full);
    barrier_expect(v_full, AttentionLayout<D>::kHead);
    head(dst + AttentionLayout<D>::kHead, map, value, row + value_shift, v_full);
    if (block++ == i.last()) {
      block = 0;
      next++;
    }
  }
};

// One row pair of a warpgroup's 64 x D output, softmax state included. Rows row and row + 8 of the item.
template <int D> struct Accumulator {
  float o[D / 2], peak[2], total[2];
  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0.f;
    peak[0] = peak[1] = kMasked;
    total[0] = total[1] = 0.f;
  }
  // scores: base-2 logits of 64 keys. Leaves the packed probabilities, and rescales what was summed before.
  __device__ __forceinline__ void softmax(const float (&s)[32], uint32_t (&probabilities)[16], bool started) {
    float a = s[0], b = s[2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      a = fmaxf(a, fmaxf(s[4 * i], s[4 * i + 1]));
      b = fmaxf(b, fmaxf(s[4 * i + 2], s[4 * i + 3]));
    }
    a = fmaxf(peak[0], quad_max(a));
    b = fmaxf(peak[1], quad_max(b));
    const float fade0 = exp2_approx(peak[0] - a), fade1 = exp2_approx(peak[1] - b);
    peak[0] = a;
    peak[1] = b;
    float sum0 = 0.f, sum1 = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float e0 = exp2_approx(s[4 * i] - a), e1 = exp2_approx(s[4 * i + 1] - a);
      const float e2 = exp2_approx(s[4 * i + 2] - b), e3 = exp2_approx(s[4 * i + 3] - b);
      sum0 += e0 + e1;
      sum1 += e2 + e3;
      probabilities[2 * i] = pack_bf16(e0, e1);
      probabilities[2 * i + 1] = pack_bf16(e2, e3);
    }
    total[0] = total[0] * fade0 + sum0;
    total[1] = total[1] * fade1 + sum1;
    if (started) {
#pragma unroll
      for (int i = 0; i < D / 8; i++) {
        o[4 * i] *= fade0;
        o[4 * i + 1] *= fade0;
        o[4 * i + 2] *= fade1;
        o[4 * i + 3] *= fade1;
      }
    }
  }
  // A head's outputs are stored in the order layout.attention_columns(): 16 bytes of each lane of a quad, side by side, then the next 16.
  template <class Out> __device__ __forceinline__ void store(void* out, size_t offset, int q, size_t row_stride, float scale, bool valid0, bool valid1) {
    const float f[2] = {scale / quad_sum(total[0]), scale / quad_sum(total[1])};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool valid = i ? valid1 : valid0;
      uint8_t* dst = static_cast<uint8_t*>(out) + (offset + i * 8 * row_stride) * Out::kBytes + 16 * q;
#pragma unroll
      for (int z = 0; z < D * Out::kBytes / 64; z++) {
        uint32_t u[4];
#pragma unroll
        for (int y = 0; y < 4; y++) {
          if constexpr (Out::kBytes == 1) {
            const float* v = o + 32 * z + 8 * y + 2 * i;
            u[y] = Out::pack4(v[0] * f[i], v[1] * f[i], v[4] * f[i], v[5] * f[i]);
          } else {
            const float* v = o + 16 * z + 4 * y + 2 * i;
            u[y] = pack_bf16(v[0] * f[i], v[1] * f[i]);
          }
        }
        if (valid) *reinterpret_cast<uint4*>(dst + 64 * z) = make_uint4(u[0], u[1], u[2], u[3]);
      }
    }
  }
};

template <int D> __device__ __forceinline__ void score(float (&s)[32], uint64_t q, uint64_t k) {
  mma_fence();
#pragma unroll
  for (int i = 0; i < D / 16; i++) mma_scores(s, q + (i & 3) * 2 + (i >> 2) * 512, k + (i & 3) * 2 + (i >> 2) * 512, i != 0);
  mma_commit();
  mma_wait<0>();
  mma_results(s);
}
template <int D> __device__ __forceinline__ void accumulate(float (&o)[D / 2], const uint32_t (&p)[16], uint64_t v) {
  mma_fence();
#pragma unroll
  for (int i = 0; i < 4; i++) mma_values(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v + 128 * i, 1);
  mma_commit();
  mma_wait<0>();
  mma_results(o);
}
// Keys of a block, the thread's first one `key`, after `last0` and `last1` of its two rows. On the diagonal that hides the next segment's
// rows too.
__device__ __forceinline__ void mask_after(float (&s)[32], int key, int last0, int last1) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int n = key + 8 * i;
    if (n > last0) s[4 * i] = kMasked;
    if (n + 1 > last0) s[4 * i + 1] = kMasked;
    if (n > last1) s[4 * i + 2] = kMasked;
    if (n + 1 > last1) s[4 * i + 3] = kMasked;
  }
}

}  // namespace boundgen
