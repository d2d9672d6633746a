// gate_up: h = silu(g) u, with g and u scaled by 1 / rms of their row. Weight rows are stored in the order layout.gate_up_rows(): gate
// and up of one column side by side, and a thread holds 16 neighbouring columns of every 64 (in bf16 8 of every 32), 16 bytes of a store.
// For int8 results the order is
// layout.hadamard_rows(): a thread holds 32 neighbouring columns of every 128, which a Hadamard transform mixes in registers.
#pragma once
#include "gemm.cuh"
#include "row_factors.cuh"

namespace boundgen {

struct GateUpParams {  // mirrored by library.GateUpParams
  const float* partials;    // [m, 8]
  void* h;                  // [m, n / 2] of Out
  const float* scales;      // [groups + 1]: g, u per unit of the accumulator and of 1 / rms; what h is multiplied with before it is e4m3
  const float* row_scales;  // [m]: what an int8 value of the activations stands for
  float* block_scales;      // [n / 256, m]: what an int8 value of h stands for
  float inv_width, eps;     // 1 / hidden size
  int rows;                 // m
};

template <int BN, class Elem, class Out> struct GateUp {
  static_assert(BN % 128 == 0, "a thread stores 16 columns of every 64");
  static_assert(BN == 256 || !Out::kGrouped, "a block of 128 columns is one tile");
  using Params = GateUpParams;
  struct Shared {};
  static __device__ __forceinline__ void prepare(const Params&, Shared&) {}

  RowFactor<Elem> factor;
  float gate_scale, up_scale, quantise;
  __device__ __forceinline__ void begin(const Params&, const Fragment&) {}
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    factor.load(p.partials, p.row_scales, f);
    const int group = Elem::kGrouped ? f.col0 / 256 * 2 : 0;  // 128 rows of gate, 128 of up
    gate_scale = __ldg(p.scales + group);
    up_scale = Elem::kGrouped ? __ldg(p.scales + group + 1) : gate_scale;
    quantise = Out::kBytes == 2 || Out::kGrouped ? 1.f : __ldg(p.scales + num_groups<Elem>(f.n));
  }
  __device__ __forceinline__ void store(const Params& p, const Shared&, const Fragment& f, float (&acc)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float r = factor.value(i, p.inv_width, p.eps), gate = r * gate_scale, up = r * up_scale;
      if constexpr (Out::kGrouped) {
        store_blocks(p, f, i, acc + 2 * i, gate, up);
      } else {
#pragma unroll
        for (int g = 0; g < BN / 128; g++) {
          const bool stored = f.valid[i] && f.col0 + 128 * g < f.n;
          const float* a = acc + 64 * g + 2 * i;
          const size_t offset = static_cast<size_t>(f.row[i]) * (f.n / 2) + (f.col0 + 128 * g) / 2 + 16 / Out::kBytes * f.q;
          if constexpr (Out::kBytes == 1) store8(static_cast<uint8_t*>(p.h) + offset, a, gate, up, stored);
          else store16(static_cast<__nv_bfloat16*>(p.h) + offset, a, gate, up, stored);
        }
      }
    }
  }
  // silu(g) u = g u (1 + tanh(g / 2)) / 2: one special-function instruction; its error (2^-11) is below that of 8 bits.
  __device__ __forceinline__ void store8(uint8_t* out, const float* a, float gate, float up, bool valid) const {
    const float half = 0.5f * gate, product = half * up * quantise;
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
  // The 32 columns of this thread through a Hadamard transform (its 1 / sqrt(32) goes into the scale), then one scale for the 128 of the quad.
  __device__ __forceinline__ void store_blocks(const Params& p, const Fragment& f, int i, const float* a, float gate, float up) const {
    constexpr float kLargest = 127.f, kNorm = 0.17677669529663687f, kLeast = 1e-9f;
    const float half = 0.5f * gate, product = half * up;
    float h[32], peak = 0.f;  // without `product`: it goes into the scale
#pragma unroll
    for (int j = 0; j < 32; j++) {
      const float g = a[4 * j], u = a[4 * j + 1], gu = g * u;
      h[j] = fmaf(gu, tanh_approx(g * half), gu);
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
#pragma unroll
      for (int j = 0; j < 32; j++)
        if (!(j & d)) {
          const float low = h[j], high = h[j + d];
          h[j] = low + high;
          h[j + d] = low - high;
          if (d == 16) peak = fmaxf(peak, fabsf(low) + fabsf(high));  // the larger one of the two
        }
    peak = fmaxf(quad_max(peak) * fabsf(product), kLeast);
    const float s = __fdividef(kLargest, peak) * product;
    uint32_t o[8];
#pragma unroll
    for (int z = 0; z < 8; z++) o[z] = Out::pack4(h[4 * z] * s, h[4 * z + 1] * s, h[4 * z + 2] * s, h[4 * z + 3] * s);
    if (!f.valid[i]) return;
    uint8_t* out = static_cast<uint8_t*>(p.h) + static_cast<size_t>(f.row[i]) * (f.n / 2) + f.col0 / 2 + 16 * f.q;
    *reinterpret_cast<uint4*>(out) = make_uint4(o[0], o[1], o[2], o[3]);
    *reinterpret_cast<uint4*>(out + 64) = make_uint4(o[4], o[5], o[6], o[7]);
    if (f.q == 0) p.block_scales[static_cast<size_t>(f.col0 / 256) * p.rows + f.row[i]] = peak * (kNorm / kLargest);
  }
  // silu(g) u = g u / (1 + exp(-g)), exact enough for bf16 at the far negative side too. Two columns share a reciprocal: 1 / a =
  // b / (a b); the exponent is cut so that a b stays finite (what it cuts is 2^-60 and rounds to nothing beside its row).
  __device__ __forceinline__ void store16(__nv_bfloat16* out, const float* a, float gate, float up, bool valid) const {
    const float exponent = -1.4426950408889634f * gate, product = gate * up;
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
        *reinterpret_cast<uint4*>(out + 32 * z) = make_uint4(pack_bf16(h[0], h[1]), pack_bf16(h[2], h[3]), pack_bf16(h[4], h[5]), pack_bf16(h[6], h[7]));
    }
  }
};

}  // namespace boundgen
