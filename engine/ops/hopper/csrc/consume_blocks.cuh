// The consumer warpgroups where activations have a scale for each row and 128 columns: every stage holds one such block. Its integer
// sums are exact; they are scaled and added in float while the tensor cores work on the next stage:
//   acc[row, n] += scale[block, row] * (sum of the block's 128 products)
// Registers decide the tile: 128 columns hold two sets of sums and the accumulators; 192 hold one set, so that only the other warpgroup
// keeps the tensor cores busy meanwhile; 256 do not fit.
#pragma once
#include "consume.cuh"

namespace boundgen {

struct RowPair {
  float x, y;  // of the fragment's two rows
};

template <int N> __device__ __forceinline__ void add_scaled(float (&acc)[N], const int (&sums)[N], RowPair s) {
#pragma unroll
  for (int i = 0; i < N; i++) acc[i] = fmaf(static_cast<float>(sums[i]), i & 2 ? s.y : s.x, acc[i]);
}

// Params has `block_scales` [num_k, rows] and `rows`. The rest as consume_tile.
template <class Epilogue, int BN, int RING>
__device__ __forceinline__ void consume_blocks(const typename Epilogue::Params& params, int num_k, const typename Epilogue::Shared& shared, Ring ring,
                                               const Fragment& f, int group, int& it, int& first) {
  static_assert(BN == 128 || BN == 192, "see above");
  constexpr int S = kStages<RING>;
  const int lane = threadIdx.x & 31, warp = (threadIdx.x & 127) >> 5;
  auto issue = [&](int (&sums)[BN / 2]) {
    const int s = it % S;
    barrier_wait(ring.full + 8 * s, (it / S) & 1);
    const uint32_t stage = ring.base + s * kStageBytes<RING>;
    const uint64_t a = operand_descriptor(stage + group * 8192), w = operand_descriptor(stage + kOperandBytes);
    mma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) mma(Int8{}, sums, a + 2 * i, w + 2 * i, i != 0);
    mma_commit();
    if (it == first) {  // of the first tile
      asm volatile("bar.arrive 1, 256;" ::: "memory");
      first = -1;
    }
    it++;
  };
  auto release = [&](int back) {  // the stage issued `back` before the last one
    if (lane == 0 && warp < kClusterSize) barrier_arrive_cluster(ring.empty + 8 * ((it - 1 - back) % S), warp);
  };
  auto scales = [&](int k) {
    const float* p = params.block_scales + static_cast<size_t>(k) * params.rows;
    return RowPair{__ldcg(p + f.safe[0]), __ldcg(p + f.safe[1])};
  };
  Epilogue epilogue;
  epilogue.begin(params, f);
  float acc[BN / 2];
#pragma unroll
  for (int i = 0; i < BN / 2; i++) acc[i] = 0.f;
  if constexpr (BN == 128) {
    int even[BN / 2], odd[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; i++) even[i] = odd[i] = 0;
    mma_results(even);  // zeros before the fence
    issue(even);  // scales are asked for when a stage has come: in a chain, they are written by then
    RowPair now = scales(0), next = scales(num_k > 1 ? 1 : 0);
    int k = 1;
#pragma unroll 1
    for (; k + 1 < num_k; k += 2) {
      issue(odd);
      mma_wait<1>();
      mma_results(even);
      release(1);
      add_scaled(acc, even, now);
      now = scales(k + 1);
      issue(even);
      mma_wait<1>();
      mma_results(odd);
      release(1);
      add_scaled(acc, odd, next);
      next = scales(k + 2 < num_k ? k + 2 : k + 1);
    }
    if (k < num_k) {
      issue(odd);
      mma_wait<1>();
      mma_results(even);
      release(1);
      add_scaled(acc, even, now);
      mma_wait<0>();
      mma_results(odd);
      release(0);
      add_scaled(acc, odd, next);
    } else {
      mma_wait<0>();
      mma_results(even);
      release(0);
      add_scaled(acc, even, now);
    }
  } else {
    int sums[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; i++) sums[i] = 0;
    RowPair now;
#pragma unroll 1
    for (int k = 0; k < num_k; k++) {
      issue(sums);
      now = scales(k);
      mma_wait<0>();
      mma_results(sums);
      release(0);
      add_scaled(acc, sums, now);
    }
  }
  epilogue.load(params, f);  // not earlier: registers
  epilogue.store(params, shared, f, acc);
}

template <class Epilogue, class Elem, int BN, int RING>
__device__ __forceinline__ void consume(const typename Epilogue::Params& params, int num_k, const typename Epilogue::Shared& shared, Ring ring,
                                        const Fragment& f, int group, int& it, int& first) {
  if constexpr (Elem::kBlocks) consume_blocks<Epilogue, BN, RING>(params, num_k, shared, ring, f, group, it, first);
  else consume_tile<Epilogue, Elem, BN, RING>(params, num_k, shared, ring, f, group, it, first);
}

}  // namespace boundgen
