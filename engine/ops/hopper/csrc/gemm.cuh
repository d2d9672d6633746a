// y = a @ w.T with an epilogue, one GEMM a launch: persistent 128 x BN tiles, a ring of shared-memory stages filled by TMA from one
// producer thread, two consumer warpgroups (64 rows each). Clusters of two blocks share a weight tile by multicast.
// No block waits for another block's tile, so any number of these may run at once on any streams.
#pragma once
#include "consume_blocks.cuh"

namespace boundgen {

template <class Epilogue> struct GemmParams {
  CUtensorMap a, w;
  typename Epilogue::Params epilogue;
  int m, n, num_k, stagger;  // stagger: stages by which the second warpgroup starts later, so that one's epilogue hides under the other's products
};

template <class Epilogue, int BN> __device__ __forceinline__ void produce(const GemmParams<Epilogue>& p, Ring ring, int rank, int cluster, int clusters, int tiles) {
  constexpr int S = kStages<BN>;
  const int tiles_n = (p.n + BN - 1) / BN;
  int it = 0;
  for (int t = cluster; t < tiles; t += clusters) {
    const int col = (t % tiles_n) * BN, row = ((t / tiles_n) * kClusterSize + rank) * kRows;
    auto load_weights = [&](int k, int s) {
      const uint32_t bar = ring.full + 8 * s;
      barrier_expect(bar, kStageBytes<BN>);
      load_tile_multicast(ring.base + s * kStageBytes<BN> + kOperandBytes + rank * (BN * 128 / kClusterSize), &p.w, k * 128,
                          col + rank * (BN / kClusterSize), bar, (1 << kClusterSize) - 1);
    };
    auto load_rows = [&](int k, int s) { load_tile(ring.base + s * kStageBytes<BN>, &p.a, k * 128, row, ring.full + 8 * s); };
    int k = 0;
    if (it == 0) {  // weights depend on no kernel before: they fill the ring while it still runs
      const int ahead = p.num_k < S ? p.num_k : S;
      for (; k < ahead; k++) load_weights(k, k);
      wait_for_predecessors();
      for (k = 0; k < ahead; k++) load_rows(k, k);
      it = ahead;
    }
    for (; k < p.num_k; k++, it++) {
      const int s = it % S;
      barrier_wait(ring.empty + 8 * s, ((it / S) & 1) ^ 1);
      load_weights(k, s);
      load_rows(k, s);
    }
  }
}

template <class Elem, int BN, class Epilogue> __global__ void __launch_bounds__(kGemmThreads, 1) gemm_kernel(const __grid_constant__ GemmParams<Epilogue> p) {
  constexpr int S = kStages<BN>;
  extern __shared__ uint8_t raw[];
  __shared__ __align__(8) uint64_t barriers[2 * S];
  __shared__ __align__(16) typename Epilogue::Shared shared;
  const Ring ring = {(shared_address(raw) + 1023) & ~1023u, shared_address(barriers), shared_address(barriers + S)};
  const int rank = cluster_rank(), cluster = blockIdx.x / kClusterSize, clusters = gridDim.x / kClusterSize;
  const int tiles_n = (p.n + BN - 1) / BN, tiles = tiles_n * ((p.m + kRows * kClusterSize - 1) / (kRows * kClusterSize));
  if (threadIdx.x == 0) {
    for (int s = 0; s < S; s++) {
      barrier_init(ring.full + 8 * s, 1);
      barrier_init(ring.empty + 8 * s, 2 * kClusterSize);
    }
    barrier_init_fence();
    prefetch_map(&p.a);
    prefetch_map(&p.w);
  }
  Epilogue::prepare(p.epilogue, shared);
  cluster_sync();
  allow_dependents();
  if (threadIdx.x < 128) {
    registers_drop<40>();
    if (threadIdx.x == 0) produce<Epilogue, BN>(p, ring, rank, cluster, clusters, tiles);
  } else {
    registers_raise<232>();
    const int group = (threadIdx.x >> 7) - 1;
    int it = 0, first = p.stagger && group == 0 ? p.stagger : -1;
    wait_for_predecessors();
    if (p.stagger && group == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
    for (int t = cluster; t < tiles; t += clusters) {
      const Fragment f(((t / tiles_n) * kClusterSize + rank) * kRows + group * 64, p.m, (t % tiles_n) * BN, p.n);
      consume<Epilogue, Elem, BN, BN>(p.epilogue, p.num_k, shared, ring, f, group, it, first);
    }
  }
  __syncwarp();
  cluster_sync();  // the other block may still signal our barriers
}

struct GemmCall {  // mirrored by library.GemmCall
  const void* a;
  const void* w;
  int m, n, k, tile, element, output, max_sms, dependent;
  cudaStream_t stream;
};

// One cluster a tile at most, and no more than fit at once.
template <class Params> int launch_clusters(void (*kernel)(Params), const Params& params, int shared_bytes, int tiles, int max_sms, int dependent, cudaStream_t stream) {
  Attributes attributes;
  attributes.cluster(kClusterSize);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kClusterSize);
  config.blockDim = dim3(kGemmThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes.list;
  config.numAttrs = attributes.count;
  cudaError_t r = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (r != cudaSuccess) return r;
  int clusters = 0;
  r = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (r != cudaSuccess) return r;
  if (max_sms && max_sms / kClusterSize < clusters) clusters = max_sms / kClusterSize;
  config.gridDim = dim3(kClusterSize * (tiles < clusters ? tiles : clusters));
  if (dependent) attributes.dependent();
  config.numAttrs = attributes.count;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <class Elem, int BN, class Epilogue> int launch_gemm(const GemmCall& call, const typename Epilogue::Params& epilogue) {
  GemmParams<Epilogue> p = {};
  const int row_bytes = call.k * Elem::kBytes;
  int e = encode_map(&p.a, call.a, call.m, row_bytes, kRows);
  if (!e) e = encode_map(&p.w, call.w, call.n, row_bytes, BN / kClusterSize);
  if (e) return e;
  p.epilogue = epilogue;
  p.m = call.m;
  p.n = call.n;
  p.num_k = (row_bytes + 127) / 128;
  p.stagger = p.num_k > kStagger ? kStagger : 0;
  const int tiles = ((call.n + BN - 1) / BN) * ((call.m + kRows * kClusterSize - 1) / (kRows * kClusterSize));
  return launch_clusters(gemm_kernel<Elem, BN, Epilogue>, p, kGemmShared<BN>, tiles, call.max_sms, call.dependent, call.stream);
}

}  // namespace boundgen
