// qkv: every row scaled by 1 / rms, a bias added where there is one; q and k heads normed (where the model does) and rotated, v heads
// stored as they are. q carries log2(e) / sqrt(head size), so that the attention needs neither. Weight rows are stored in the order
// layout.qkv_rows(): a thread holds the columns c and c + D/2 of a head side by side, which rope combines, and 8 neighbours of each.
#pragma once
#include "epilogue_residual.cuh"

namespace boundgen {

template <int BN, int D> struct Qkv {
  static_assert(BN % D == 0 && (D == 64 || D == 128), "whole heads in a tile");
  static constexpr int kGroups = D / 64;  // groups of 8 columns a thread holds in each half of a head
  struct Params {  // mirrored by library.QkvParams
    const float* partials;          // [m, 8]
    __nv_bfloat16* out;             // [m, n]
    const float* scales;            // [1]: y per unit of the accumulator and of 1 / rms
    const float* head_weight;       // [2, D]: what q, k heads are multiplied with before rope
    const float* bias;              // [n] in the stored order, or null
    const __nv_bfloat16* cosines;   // [positions, D / 2]
    const __nv_bfloat16* sines;     // [positions, D / 2]
    const long long* positions;     // [m]
    float inv_width, eps, head_eps; // 1 / hidden size
    int num_q, num_kv, head_norm;
  };
  struct Shared {
    float weight[2 * D];
  };
  static __device__ __forceinline__ void prepare(const Params& p, Shared& shared) {
    if (threadIdx.x < 2 * D) shared.weight[threadIdx.x] = p.head_weight[threadIdx.x];
  }

  RowFactor factor;
  float scale;
  int position[2];
  uint4 c[2][kGroups], s[2][kGroups];
  __device__ __forceinline__ void begin(const Params& p, const Fragment& f) {  // the tables' addresses hang on these loads
    position[0] = static_cast<int>(__ldg(p.positions + f.safe[0]));
    position[1] = static_cast<int>(__ldg(p.positions + f.safe[1]));
  }
  __device__ __forceinline__ void load(const Params& p, const Fragment& f) {
    factor.load(p.partials, f);
    scale = __ldg(p.scales);
    if (f.col0 >= (p.num_q + p.num_kv) * D) return;
#pragma unroll
    for (int i = 0; i < 2; i++)
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
      float r = factor.value(i, p.inv_width, p.eps) * scale;
      if (p.bias) {
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
          const int col = f.col0 + 8 * j + 2 * f.q;
          const float2 b = col < f.n ? __ldg(reinterpret_cast<const float2*>(p.bias + col)) : make_float2(0.f, 0.f);
          acc[4 * j + 2 * i] = fmaf(acc[4 * j + 2 * i], r, b.x);
          acc[4 * j + 2 * i + 1] = fmaf(acc[4 * j + 2 * i + 1], r, b.y);
        }
        r = 1.f;
      }
#pragma unroll
      for (int h = 0; h < BN / D; h++) {
        const int col = f.col0 + h * D;
        const bool stored = f.valid[i] && col < f.n;
        __nv_bfloat16* out = p.out + static_cast<size_t>(f.row[i]) * f.n + col + 8 * f.q;
        const float* a = acc + h * (D / 2) + 2 * i;
        if (col < rotated) rotate(p, shared.weight + (col < p.num_q * D ? 0 : D) + 8 * f.q, out, a, r, stored, c[i], s[i]);
        else copy(out, a, r, stored);
      }
    }
  }
  __device__ __forceinline__ void rotate(const Params& p, const float* weight, __nv_bfloat16* out, const float* a, float r, bool valid,
                                         const uint4 (&c)[kGroups], const uint4 (&s)[kGroups]) const {
    float f_head = r;
    if (p.head_norm) {
      float squares = 0.f;
#pragma unroll
      for (int j = 0; j < D / 8; j++) squares += a[4 * j] * a[4 * j] + a[4 * j + 1] * a[4 * j + 1];
      f_head = r * rsqrtf(fmaf(quad_sum(squares) * (1.f / D), r * r, p.head_eps));
    }
#pragma unroll
    for (int g = 0; g < kGroups; g++) {
      const uint32_t cg[4] = {c[g].x, c[g].y, c[g].z, c[g].w}, sg[4] = {s[g].x, s[g].y, s[g].z, s[g].w};
      uint32_t lower[4], upper[4];
#pragma unroll
      for (int z = 0; z < 4; z++) {
        const float2 w1 = *reinterpret_cast<const float2*>(weight + 32 * g + 2 * z), w2 = *reinterpret_cast<const float2*>(weight + D / 2 + 32 * g + 2 * z);
        const float* b = a + 32 * g + 8 * z;
        const float x0 = b[0] * f_head * w1.x, y0 = b[1] * f_head * w2.x, x1 = b[4] * f_head * w1.y, y1 = b[5] * f_head * w2.y;
        lower[z] = pack_bf16(x0 * bf16_low(cg[z]) - y0 * bf16_low(sg[z]), x1 * bf16_high(cg[z]) - y1 * bf16_high(sg[z]));
        upper[z] = pack_bf16(y0 * bf16_low(cg[z]) + x0 * bf16_low(sg[z]), y1 * bf16_high(cg[z]) + x1 * bf16_high(sg[z]));
      }
      if (valid) {
        *reinterpret_cast<uint4*>(out + 32 * g) = make_uint4(lower[0], lower[1], lower[2], lower[3]);
        *reinterpret_cast<uint4*>(out + D / 2 + 32 * g) = make_uint4(upper[0], upper[1], upper[2], upper[3]);
      }
    }
  }
  static __device__ __forceinline__ void copy(__nv_bfloat16* out, const float* a, float r, bool valid) {
#pragma unroll
    for (int g = 0; g < kGroups; g++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float* b = a + 32 * g + e;
        if (valid)
          *reinterpret_cast<uint4*>(out + 32 * g + e * (D / 2)) = make_uint4(pack_bf16(b[0] * r, b[4] * r), pack_bf16(b[8] * r, b[12] * r),
                                                                            pack_bf16(b[16] * r, b[20] * r), pack_bf16(b[24] * r, b[28] * r));
      }
  }
};

}  // namespace boundgen
