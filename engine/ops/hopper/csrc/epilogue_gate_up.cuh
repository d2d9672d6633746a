// gate_up: h = silu(g) u, with g and u scaled by 1 / rms of their row. Weight rows are stored in the order layout.gate_up_rows(): gate
// and up of one column side by side, and a thread holds 16 neighbouring columns of every 64.
#pragma once
#include "epilogue_residual.cuh"

namespace boundgen {

template <int BN, class Out> struct GateUp {
  static_assert(BN % 128 == 0, "a thread stores 16 columns of every 64");
  struct Params {  // mirrored by library.GateUpParams
    const float* partials;  // [m, 8]
    void* h;                // [m, n / 2] of Out
    const float* scales;    // [2]: g, u per unit of the accumulator and of 1 / rms; what h is multiplied with before it is quantised
    float inv_width, eps;   // 1 / hidden size
  };
  struct Shared {};
  static __device__ __forceinline__ void prepare(const Params&, Shared&) {}

  RowFactor factor;
  float scale, quantise;
  __device__ __forceinline__ void begin(const Params&, const Fragment&) {}
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    factor.load(p.partials, f);
    scale = __ldg(p.scales);
    quantise = __ldg(p.scales + 1);
  }
  __device__ __forceinline__ void store(const Params& p, const Shared&, const Fragment& f, float (&acc)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float r = factor.value(i, p.inv_width, p.eps) * scale;
#pragma unroll
      for (int g = 0; g < BN / 128; g++) {
        const bool stored = f.valid[i] && f.col0 + 128 * g < f.n;
        const float* a = acc + 64 * g + 2 * i;
        const size_t offset = static_cast<size_t>(f.row[i]) * (f.n / 2) + (f.col0 + 128 * g) / 2 + 16 * f.q;
        if constexpr (Out::kBytes == 1) store8(static_cast<uint8_t*>(p.h) + offset, a, r, stored);
        else store16(static_cast<__nv_bfloat16*>(p.h) + offset, a, r, stored);
      }
    }
  }
  // silu(g) u = g u (1 + tanh(g / 2)) / 2: one special-function instruction; its error (2^-11) is below that of 8 bits.
  __device__ __forceinline__ void store8(uint8_t* out, const float* a, float r, bool valid) const {
    const float half = 0.5f * r, product = half * r * quantise;
    uint32_t o[4];
#pragma unroll
    for (int z = 0; z < 4; z++) {
      float h[4];
#pragma unroll
      for (int y = 0; y < 4; y++) {
        const float g = a[16 * z + 4 * y], u = a[16 * z + 4 * y + 1], gu = g * u * product;
        h[y] = fmaf(gu, tanh_approx(g * half), gu);
      }
      o[z] = Out::pack4(h[0], h[1], h[2], h[3]);
    }
    if (valid) *reinterpret_cast<uint4*>(out) = make_uint4(o[0], o[1], o[2], o[3]);
  }
  // silu(g) u = g u / (1 + exp(-g)), exact enough for bf16 at the far negative side too. Two columns share a reciprocal: 1 / a =
  // b / (a b); the exponent is cut so that a b stays finite (what it cuts is 2^-60 and rounds to nothing beside its row).
  __device__ __forceinline__ void store16(__nv_bfloat16* out, const float* a, float r, bool valid) const {
    const float exponent = -1.4426950408889634f * r, product = r * r;
#pragma unroll
    for (int z = 0; z < 2; z++) {
      float h[8];
#pragma unroll
      for (int y = 0; y < 8; y += 2) {
        const float* v = a + 32 * z + 4 * y;
        const float d0 = 1.f + exp2_approx(fminf(v[0] * exponent, 60.f)), d1 = 1.f + exp2_approx(fminf(v[4] * exponent, 60.f));
        const float inverse = __fdividef(product, d0 * d1);
        h[y] = v[0] * v[1] * (d1 * inverse);
        h[y + 1] = v[4] * v[5] * (d0 * inverse);
      }
      if (valid)
        *reinterpret_cast<uint4*>(out + 8 * z) = make_uint4(pack_bf16(h[0], h[1]), pack_bf16(h[2], h[3]), pack_bf16(h[4], h[5]), pack_bf16(h[6], h[7]));
    }
  }
};

}  // namespace boundgen
