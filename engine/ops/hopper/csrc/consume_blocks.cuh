// The consumer warpgroups where activations have a scale for each row and 128 columns: every stage holds one such block. Its integer
// sums are exact; they are scaled and added in float while the tensor cores work on something else:
//   acc[row, n] += scale[block, row] * (sum of the block's 128 products)
// What that costs, in cycles of a multiprocessor: a block of 64 rows and 128 columns is 256 of the tensor cores, and for each scheduler
// 64 conversions and 64 FMAs, about 150. So one warpgroup's scaling hides under the other's products, as long as it waits for nothing
// else (see BlockScales). Registers decide the rest:
//   128 columns: two sets of sums and the accumulators; a warpgroup multiplies while it scales.
//   256, 192: one set of half the width. A block's halves are multiplied and scaled in turn, the lower one last. Per product a quarter
//        less goes through L2 and shared memory than at 128, so these are for whatever fills the chip with them.
#pragma once
#include "consume.cuh"

namespace boundgen {

// acc[FROM ..] += s * sums, all of them.
template <int FROM, int N, int M> __device__ __forceinline__ void add_scaled(float (&acc)[N], const int (&sums)[M], float2 s) {
  static_assert(FROM + M <= N, "a part of the tile");
#pragma unroll
  for (int i = 0; i < M; i++) acc[FROM + i] = fmaf(static_cast<float>(sums[i]), i & 2 ? s.y : s.x, acc[FROM + i]);
}

// The scales of a warp's 16 rows for a run of blocks, in shared memory of its own: one wait for global memory a run. Asked for block by
// block, into registers, they hold up every second stage by the latency of L2 however early: ptxas gives the loads in flight one
// scoreboard, so that a wait for one is a wait for all. (cp.async would bring them through L1, which may be stale in a chain.)
struct BlockScales {
  static constexpr int kRun = 32;
  using Shared = float2[kRun][8];  // of both rows of a quad
  Shared& held;
  // Lane q of a quad loads every fourth block.
  __device__ __forceinline__ void load(const float* scales, int rows, int k, int num_k, const Fragment& f) {
    const int quad = (threadIdx.x & 31) >> 2;
    __syncwarp();  // the run before has been read
#pragma unroll 8
    for (int i = threadIdx.x & 3; i < kRun; i += 4) {
      const float* p = scales + static_cast<size_t>(min(k + i, num_k - 1)) * rows;
      held[i][quad] = make_float2(__ldcg(p + min(f.row[0], rows - 1)), __ldcg(p + min(f.row[0] + 8, rows - 1)));
    }
    __syncwarp();
  }
  __device__ __forceinline__ float2 at(int k) const { return held[k % kRun][(threadIdx.x & 31) >> 2]; }
};

// Params has `block_scales` [num_k, rows] and `rows`. The rest as consume_tile.
template <class Epilogue, int BN, int RING>
__device__ __forceinline__ void consume_blocks(const typename Epilogue::Params& params, int num_k, const typename Epilogue::Shared& shared, Ring ring,
                                               const Fragment& f, int group, int& it, int& first) {
  static_assert(BN == 128 || BN == 192 || BN == 256, "see above");
  constexpr int S = kStages<RING>, PART = BN == 128 ? 128 : BN / 2;
  const int lane = threadIdx.x & 31, warp = (threadIdx.x & 127) >> 5;
  const int uniform = __shfl_sync(~0u, group, 0);  // tells the compiler so: descriptors in uniform registers, without which 256 spill
  auto arrived = [&]() { barrier_wait(ring.full + 8 * (it % S), (it / S) & 1); };
  auto issue = [&](int (&sums)[PART / 2], int part) {
    const uint32_t stage = ring.base + it % S * kStageBytes<RING>;
    const uint64_t a = operand_descriptor(stage + uniform * 8192), w = operand_descriptor(stage + kOperandBytes + part * PART * 128);
    mma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) mma(Int8{}, sums, a + 2 * i, w + 2 * i, i != 0);
    mma_commit();
  };
  auto begun = [&]() {  // after a stage's first products
    if (it == first) {  // of the first tile
      asm volatile("bar.arrive 1, 256;" ::: "memory");
      first = -1;
    }
    it++;
  };
  auto release = [&](int back) {  // the stage begun `back` before the last one
    if (lane == 0 && warp < kClusterSize) barrier_arrive_cluster(ring.empty + 8 * ((it - 1 - back) % S), warp);
  };
  __shared__ BlockScales::Shared runs[8];
  BlockScales scales{runs[4 * group + warp]};
  auto prepare = [&](int k) {  // not before the tile's first stage has come: in a chain, its scales are written by then
    if (k % BlockScales::kRun == 0) scales.load(params.block_scales, params.rows, k, num_k, f);
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
    auto start = [&](int (&sums)[BN / 2]) {
      arrived();
      issue(sums, 0);
      begun();
    };
    start(even);
    int k = 0;  // the block to be scaled next
#pragma unroll 1
    for (; k + 2 < num_k; k += 2) {
      prepare(k);
      start(odd);
      float2 s = scales.at(k);
      mma_wait<1>();
      mma_results(even);
      release(1);
      add_scaled<0>(acc, even, s);
      start(even);
      s = scales.at(k + 1);
      mma_wait<1>();
      mma_results(odd);
      release(1);
      add_scaled<0>(acc, odd, s);
    }
    prepare(k);
    if (k + 1 < num_k) {
      start(odd);
      float2 s = scales.at(k);
      mma_wait<1>();
      mma_results(even);
      release(1);
      add_scaled<0>(acc, even, s);
      s = scales.at(k + 1);
      mma_wait<0>();
      mma_results(odd);
      release(0);
      add_scaled<0>(acc, odd, s);
    } else {
      const float2 s = scales.at(k);
      mma_wait<0>();
      mma_results(even);
      release(0);
      add_scaled<0>(acc, even, s);
    }
  } else {
    int sums[PART / 2];
#pragma unroll
    for (int i = 0; i < PART / 2; i++) sums[i] = 0;
#pragma unroll 1
    for (int k = 0; k < num_k; k++) {
      arrived();
      issue(sums, 1);
      prepare(k);
      const float2 s = scales.at(k);
      mma_wait<0>();
      mma_results(sums);
      add_scaled<PART / 2>(acc, sums, s);
      issue(sums, 0);
      begun();
      mma_wait<0>();
      mma_results(sums);
      release(0);
      add_scaled<0>(acc, sums, s);
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
