// qkv: every row scaled by 1 / rms, a bias added where there is one; q and k heads normed (where the model does) and rotated, v heads
// stored as they are. q carries log2(e) / sqrt(head size), so that the attention needs neither. Weight rows are stored in the order
// layout.qkv_rows(): a thread holds the columns c and c + D/2 of a head side by side, which rope combines, and 8 neighbours of each.
#pragma once
#include "gemm.cuh"
#include "row_factors.cuh"

namespace boundgen {

struct QkvParams {  // mirrored by library.QkvParams
  const float* partials;          // [m, 8]
  __nv_bfloat16* out;             // [m, n]
  const float* scales;            // [groups + 1]: y per unit of the accumulator and of 1 / rms
  const float* head_weight;       // [2, D]: what q, k heads are multiplied with before rope
  const float* bias;              // [n] in the stored order, or null
  const __nv_bfloat16* cosines;   // [positions, D / 2]
  const __nv_bfloat16* sines;     // [positions, D / 2]
  const long long* positions;     // [m]
  const float* row_scales;        // [m]: what an int8 value of the activations stands for
  float inv_width, eps, head_eps; // 1 / hidden size
  int num_q, num_kv, head_norm;
};

template <int BN, int D, class Elem> struct Qkv {
  static_assert(BN % D == 0 && (D == 64 || D == 128), "whole heads in a tile");
  static constexpr int kGroups = D / 64;  // groups of 8 columns a thread holds in each half of a head
  using Params = QkvParams;
  struct Shared {
    float weight[3 * D];  // q's, k's, and ones for v
  };
  static __device__ __forceinline__ void prepare(const Params& p, Shared& shared) {
    for (int i = threadIdx.x; i < 3 * D; i += kGemmThreads) shared.weight[i] = i < 2 * D ? p.head_weight[i] : 1.f;
  }

  RowFactor<Elem> factor;
  GroupScales<BN, Elem> weight;
  int position[2];
  uint4 c[2][kGroups], s[2][kGroups];  // asked for early: they come from far
  __device__ __forceinline__ void begin(const Params& p, const Fragment& f) {  // the tables' addresses hang on these loads
    position[0] = static_cast<int>(__ldg(p.positions + f.safe[0]));
    position[1] = static_cast<int>(__ldg(p.positions + f.safe[1]));
  }
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    factor.load(p.partials, p.row_scales, f);
    weight.load(p.scales, f);
    load_angles(p, f, 0);
    load_angles(p, f, 1);
  }
  __device__ __forceinline__ void load_angles(const Params& p, const Fragment& f, int i) {
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      const int offset = position[i] * (D / 2) + 32 * g + 8 * f.q;
      c[i][g] = __ldg(reinterpret_cast<const uint4*>(p.cosines + offset));
      s[i][g] = __ldg(reinterpret_cast<const uint4*>(p.sines + offset));
    }
  }
  __device__ __forceinline__ void store(const Params& p, const Shared& shared, const Fragment& f, float (&acc)[BN / 2]) {
    const int rotated = (p.num_q + p.num_kv) * D;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float row = factor.value(i, p.inv_width, p.eps);
#pragma unroll
      for (int h = 0; h < BN / D; h++) {
        const float r = row * weight.at(h * D);
        const int col = f.col0 + h * D, kind = col < p.num_q * D ? 0 : col < rotated ? 1 : 2;
        __nv_bfloat16* out = p.out + static_cast<size_t>(f.row[i]) * f.n + col + 8 * f.q;
        const bool biased = p.bias && col < f.n;
        if (biased) add_bias(p.bias + col + 2 * f.q, acc + h * (D / 2) + 2 * i, r);
        rotate(p, shared.weight + kind * D + 8 * f.q, kind < 2, out, acc + h * (D / 2) + 2 * i, biased ? 1.f : r,
               f.valid[i] && col < f.n, c[i], s[i]);
      }
    }
  }
  static __device__ __forceinline__ void add_bias(const float* bias, float* a, float r) {
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      const float2 b = __ldg(reinterpret_cast<const float2*>(bias + 8 * j));
      a[4 * j] = fmaf(a[4 * j], r, b.x);
      a[4 * j + 1] = fmaf(a[4 * j + 1], r, b.y);
    }
  }
  // One head of one row. A v head goes the same way with weight 1 and angle 0, which changes no bit: the epilogue's code has to stay
  // small, since it is what the instruction cache holds least of.
  __device__ __forceinline__ void rotate(const Params& p, const float* weight, bool rotated, __nv_bfloat16* out, const float* a, float r, bool valid,
                                         const uint4 (&c)[kGroups], const uint4 (&s)[kGroups]) const {
    float total = r;
    if (p.head_norm && rotated) {
      float squares = 0.f;
#pragma unroll
      for (int j = 0; j < D / 8; j++) squares += a[4 * j] * a[4 * j] + a[4 * j + 1] * a[4 * j + 1];
      total = r * rsqrtf(fmaf(quad_sum(squares) * (1.f / D), r * r, p.head_eps));
    }
    constexpr uint32_t kOne = 0x3f803f80;  // bf16 1, 1
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      const uint32_t cg[4] = {c[g].x, c[g].y, c[g].z, c[g].w}, sg[4] = {s[g].x, s[g].y, s[g].z, s[g].w};
      uint32_t lower[4], upper[4];
#pragma unroll
      for (int z = 0; z < 4; z++) {
        const float2 w1 = *reinterpret_cast<const float2*>(weight + 32 * g + 2 * z), w2 = *reinterpret_cast<const float2*>(weight + D / 2 + 32 * g + 2 * z);
        const float* b = a + 32 * g + 8 * z;
        const uint32_t cz = rotated ? cg[z] : kOne, sz = rotated ? sg[z] : 0;
        const float x0 = b[0] * total * w1.x, y0 = b[1] * total * w2.x, x1 = b[4] * total * w1.y, y1 = b[5] * total * w2.y;
        lower[z] = pack_bf16(x0 * bf16_low(cz) - y0 * bf16_low(sz), x1 * bf16_high(cz) - y1 * bf16_high(sz));
        upper[z] = pack_bf16(y0 * bf16_low(cz) + x0 * bf16_low(sz), y1 * bf16_high(cz) + x1 * bf16_high(sz));
      }
      if (valid) {
        *reinterpret_cast<uint4*>(out + 32 * g) = make_uint4(lower[0], lower[1], lower[2], lower[3]);
        *reinterpret_cast<uint4*>(out + D / 2 + 32 * g) = make_uint4(upper[0], upper[1], upper[2], upper[3]);
      }
    }
  }
};

}  // namespace boundgen
