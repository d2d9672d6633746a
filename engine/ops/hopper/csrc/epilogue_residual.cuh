// o and down: x = x + y, kept in bf16, quantised for the next product, and its row's sum of squares for the next RMSNorm.
// Weight rows are stored in the order layout.residual_rows(), so that a thread holds 8 neighbouring columns of every 32.
#pragma once
#include "gemm.cuh"
#include "row_factors.cuh"

namespace boundgen {

struct ResidualParams {  // mirrored by library.ResidualParams
  const __nv_bfloat16* x;     // [m, n]
  __nv_bfloat16* x_out;       // [m, n], may be x itself
  uint8_t* x8;                // [m, n] of Out, or null: the next product is in bf16 and reads x_out
  float* partials;            // [m, 8]: slot i holds columns [i BN, (i+1) BN); the rest zeros
  const float* scales;        // [groups + 1]: y per unit of the accumulator; what x (in int8: over its rms before) is multiplied with for x8
  const float* before;        // [m, 8]: partial sums of squares of x; int8 alone
  float* row_scales;          // [m]: what an int8 value of x8 stands for
  const float* block_scales;  // [k / 128, m] of the activations, where Elem has blocks
  float inv_width, eps;       // 1 / n
  int rows;                   // m
};

template <int BN, class Elem, class Out> struct Residual {
  static_assert(BN % 32 == 0, "a thread stores 8 columns of every 32");
  using Params = ResidualParams;
  struct Shared {};
  static __device__ __forceinline__ void prepare(const Params&, Shared&) {}

  uint4 old[2][BN / 32];
  GroupScales<BN, Elem> weight;
  float quantise;
  float2 before[2];
  __device__ __forceinline__ void begin(const Params&, const Fragment&) {}
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    weight.load(p.scales, f);
    quantise = p.x8 ? __ldg(p.scales + num_groups<Elem>(f.n)) : 1.f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if constexpr (Out::kGrouped)  // each lane of a quad takes two of the eight
        before[i] = p.x8 ? __ldcg(reinterpret_cast<const float2*>(p.before + static_cast<size_t>(f.safe[i]) * kPartials + 2 * f.q)) : make_float2(0.f, 0.f);
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
      float squares = 0.f, factor = quantise;
      if constexpr (Out::kGrouped) {  // the row's length before stands for its length now
        factor *= rsqrtf(fmaf(quad_sum(before[i].x + before[i].y), p.inv_width, p.eps));
        if (p.x8 && f.valid[i] && f.q == 0 && f.col0 == 0) p.row_scales[f.row[i]] = __fdividef(1.f, factor);
      }
#pragma unroll
      for (int g = 0; g < BN / 32; g++) {
        const bool inside = f.col0 + 32 * g < f.n;  // a ragged last tile: zeros outside, and nothing stored. Predicates, no branches
        const float* a = acc + 16 * g + 2 * i;
        const float scale = weight.at(32 * g);
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
            *reinterpret_cast<uint2*>(p.x8 + offset + 32 * g) = make_uint2(Out::pack4(v[0] * factor, v[1] * factor, v[2] * factor, v[3] * factor),
                                                                          Out::pack4(v[4] * factor, v[5] * factor, v[6] * factor, v[7] * factor));
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

}  // namespace boundgen
