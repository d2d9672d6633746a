// Element types and packing. An element type names what the tensor cores multiply (and what epilogues store for the next product):
// its size, the type of its sums, and how four floats become packed storage. Grouped: one weight scale for each 128 rows, and a scale
// for each row of activations; Down: what the down product reads where a layer is of this type.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

namespace boundgen {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

struct E4m3 {
  using Sum = float;
  using Narrow = E4m3;
  using Down = E4m3;
  static constexpr int kBytes = 1;
  static constexpr int kCode = 0;  // must match library.ELEMENT_CODES
  static constexpr bool kGrouped = false, kBlocks = false;
  // Saturating: a value past 448 becomes 448, never NaN.
  static __device__ __forceinline__ uint32_t pack4(float a, float b, float c, float d) {
    return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3)) |
           (static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3)) << 16);
  }
};
struct Bf16 {
  using Sum = float;
  using Narrow = E4m3;
  using Down = Bf16;
  static constexpr int kBytes = 2;
  static constexpr int kCode = 1;
  static constexpr bool kGrouped = false, kBlocks = false;
};
struct Int8Blocks;
struct Int8 {
  using Sum = int;
  using Narrow = Int8;
  using Down = Int8Blocks;
  static constexpr int kBytes = 1;
  static constexpr int kCode = 2;
  static constexpr bool kGrouped = true, kBlocks = false;
  // To nearest even, saturating at -128 and 127. ptxas makes one instruction of two conversions and a pack.
  static __device__ __forceinline__ uint32_t pack4(float a, float b, float c, float d) {
    uint32_t r;
    asm("{\n.reg .b32 high;\ncvt.pack.sat.s8.s32.b32 high, %4, %3, 0;\ncvt.pack.sat.s8.s32.b32 %0, %2, %1, high;\n}"
        : "=r"(r)
        : "r"(__float2int_rn(a)), "r"(__float2int_rn(b)), "r"(__float2int_rn(c)), "r"(__float2int_rn(d)));
    return r;
  }
};
// int8 activations with a scale for each row and 128 columns: sums of 128 are scaled and added in float.
struct Int8Blocks : Int8 {
  static constexpr bool kBlocks = true;
};

__device__ __forceinline__ float exp2_approx(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
__device__ __forceinline__ float tanh_approx(float a) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
// Over the four lanes that hold one row of a wgmma tile.
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}

}  // namespace boundgen
