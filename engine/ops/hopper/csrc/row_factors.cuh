// What an epilogue multiplies sums with: one over a row's root mean square, the scale of a row, the scales of weights.
#pragma once
#include "consume.cuh"

namespace boundgen {

constexpr int kGroupRows = 128;  // of an int8 weight, with one scale

template <class Elem> __device__ __forceinline__ int num_groups(int n) { return Elem::kGrouped ? (n + kGroupRows - 1) / kGroupRows : 1; }

// Scales of a tile's weight rows: at most two groups meet in one.
template <int BN, class Elem> struct GroupScales {
  float first, second;
  int split;  // column of the tile where the second one begins
  __device__ __forceinline__ void load(const float* scales, const Fragment& f) {
    if constexpr (Elem::kGrouped) {
      const int group = f.col0 / kGroupRows, last = num_groups<Elem>(f.n) - 1;
      first = __ldg(scales + group);
      second = __ldg(scales + (group < last ? group + 1 : last));
      if constexpr (BN % kGroupRows) split = kGroupRows - f.col0 % kGroupRows;
    } else {
      first = __ldg(scales);
    }
  }
  __device__ __forceinline__ float at(int column) const {
    if constexpr (!Elem::kGrouped) return first;
    else if constexpr (BN % kGroupRows) return column < split ? first : second;
    else return column < kGroupRows ? first : second;
  }
};

// 1 / rms of a row from its partial sums (times the row's scale in int8), in two steps so that the loads run under the last products.
template <class Elem> struct RowFactor {
  float4 a[2], b[2];
  float scale[2];
  __device__ __forceinline__ void load(const float* partials, const float* row_scales, const Fragment& f) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float4* p = reinterpret_cast<const float4*>(partials + static_cast<size_t>(f.safe[i]) * kPartials);
      a[i] = __ldcg(p);
      b[i] = __ldcg(p + 1);
      if constexpr (Elem::kGrouped) scale[i] = __ldcg(row_scales + f.safe[i]);
    }
  }
  __device__ __forceinline__ float value(int i, float inv_width, float eps) const {
    const float sum = ((a[i].x + a[i].y) + (a[i].z + a[i].w)) + ((b[i].x + b[i].y) + (b[i].z + b[i].w));
    const float r = rsqrtf(fmaf(sum, inv_width, eps));
    if constexpr (Elem::kGrouped) return r * scale[i];
    else return r;
  }
};

}  // namespace boundgen
