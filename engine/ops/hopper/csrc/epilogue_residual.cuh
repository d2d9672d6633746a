// o and down: x = x + y, kept in bf16, quantised for the next product, and its row's sum of squares for the next RMSNorm.
// Weight rows are stored in the order layout.residual_rows(), so that a thread holds 8 neighbouring columns of every 32.
#pragma once
#include "gemm.cuh"

namespace boundgen {

template <int BN> struct Residual {
  static_assert(BN % 32 == 0, "a thread stores 8 columns of every 32");
  struct Params {  // mirrored by library.ResidualParams
    const __nv_bfloat16* x;  // [m, n]
    __nv_bfloat16* x_out;    // [m, n], may be x itself
    uint8_t* x8;             // [m, n] e4m3, or null: the next product is in bf16 and reads x_out
    float* partials;         // [m, 8]: slot i holds columns [i BN, (i+1) BN); the rest zeros
    const float* scales;     // [2]: y per unit of the accumulator; what x is multiplied with before it is quantised
  };
  struct Shared {};
  static __device__ __forceinline__ void prepare(const Params&, Shared&) {}

  uint4 old[2][BN / 32];
  float scale, quantise;
  __device__ __forceinline__ void begin(const Params&, const Fragment&) {}
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    scale = __ldg(p.scales);
    quantise = __ldg(p.scales + 1);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const __nv_bfloat16* x = p.x + static_cast<size_t>(f.safe[i]) * f.n + f.col0 + 8 * f.q;
#pragma unroll
      for (int g = 0; g < BN / 32; g++)
        old[i][g] = f.col0 + 32 * g < f.n ? __ldcg(reinterpret_cast<const uint4*>(x + 32 * g)) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void store(const Params& p, const Shared&, const Fragment& f, float (&acc)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const size_t offset = static_cast<size_t>(f.row[i]) * f.n + f.col0 + 8 * f.q;
      float squares = 0.f;
#pragma unroll
      for (int g = 0; g < BN / 32; g++) {
        const bool inside = f.col0 + 32 * g < f.n;  // a ragged last tile: zeros outside, and nothing stored. Predicates, no branches
        const float* a = acc + 16 * g + 2 * i;
        const uint4 o = old[i][g];
        const float v[8] = {fmaf(a[0], scale, bf16_low(o.x)), fmaf(a[1], scale, bf16_high(o.x)), fmaf(a[4], scale, bf16_low(o.y)),
                            fmaf(a[5], scale, bf16_high(o.y)), fmaf(a[8], scale, bf16_low(o.z)), fmaf(a[9], scale, bf16_high(o.z)),
                            fmaf(a[12], scale, bf16_low(o.w)), fmaf(a[13], scale, bf16_high(o.w))};
#pragma unroll
        for (int z = 0; z < 8; z++) squares = fmaf(v[z], v[z], squares);
        if (f.valid[i] && inside) {
          *reinterpret_cast<uint4*>(p.x_out + offset + 32 * g) =
              make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
          if (p.x8)
            *reinterpret_cast<uint2*>(p.x8 + offset + 32 * g) =
                make_uint2(E4m3::pack4(v[0] * quantise, v[1] * quantise, v[2] * quantise, v[3] * quantise),
                           E4m3::pack4(v[4] * quantise, v[5] * quantise, v[6] * quantise, v[7] * quantise));
        }
      }
      squares = quad_sum(squares);
      if (!f.valid[i]) continue;
      float* slots = p.partials + static_cast<size_t>(f.row[i]) * kPartials;
      const int tile = f.col0 / BN;
      if (f.q == 0) slots[tile] = squares;
      if (f.col0 + BN >= f.n) {  // readers add all the slots: each lane of the quad clears its two behind the last tile
        if (2 * f.q > tile) slots[2 * f.q] = 0.f;
        if (2 * f.q + 1 > tile) slots[2 * f.q + 1] = 0.f;
      }
    }
  }
};

// 1 / rms of a row from its partial sums, in two steps so that the loads run under the last products.
struct RowFactor {
  float4 a[2], b[2];
  __device__ __forceinline__ void load(const float* partials, const Fragment& f) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float4* p = reinterpret_cast<const float4*>(partials + static_cast<size_t>(f.safe[i]) * kPartials);
      a[i] = __ldcg(p);
      b[i] = __ldcg(p + 1);
    }
  }
  __device__ __forceinline__ float value(int i, float inv_width, float eps) const {
    const float sum = ((a[i].x + a[i].y) + (a[i].z + a[i].w)) + ((b[i].x + b[i].y) + (b[i].z + b[i].w));
    return rsqrtf(fmaf(sum, inv_width, eps));
  }
};

}  // namespace boundgen
