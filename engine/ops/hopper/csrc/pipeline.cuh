// Thin wrappers of the Hopper instructions that the kernels are made of: mbarriers, the bulk tensor copy (TMA), shared-memory
// descriptors of wgmma, programmatic dependent launch. Barrier and buffer arguments are 32-bit shared-memory addresses.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace boundgen {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives at the same barrier of CTA `rank` of the cluster. Deliberately without .release.cluster, which compiles to a
// MEMBAR.ALL.GPU at every stage (measured: 15-20% of the kernel); the wgmma wait before it has already read the buffer.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t bar, int rank) {
  asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar), "r"(rank)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void load_tile(uint32_t dst, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(dst), "l"(map),
               "r"(x), "r"(y), "r"(bar)
               : "memory");
}
// The tile lands at the same offset in every CTA of `mask`, and counts on each one's own barrier.
__device__ __forceinline__ void load_tile_multicast(uint32_t dst, const CUtensorMap* map, int x, int y, uint32_t bar, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
      "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// wgmma operand: rows of 128 bytes, 128-byte swizzle, 1,024 bytes between groups of 8 rows. `leading` (16-byte units) only matters
// for a transposed operand wider than 64 elements.
__device__ __forceinline__ uint64_t operand_descriptor(uint32_t address, int leading = 1) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(leading) << 16) | (static_cast<uint64_t>(64) << 32) |
         (static_cast<uint64_t>(1) << 62);
}
__device__ __forceinline__ void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending> __device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After a wait: keeps the compiler from moving arithmetic on accumulators above it (it does not know that wgmma is asynchronous).
template <int N> __device__ __forceinline__ void mma_results(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(values[i])::"memory");
}
template <int N> __device__ __forceinline__ void mma_results(int (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(values[i])::"memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <int kRegisters> __device__ __forceinline__ void registers_drop() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ __forceinline__ void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Programmatic dependent launch. The next kernel may start once every block of this one has called allow_dependents (so all of them
// already run: a waiting kernel can never keep its predecessor off the chip). wait_for_predecessors returns when the kernels before
// have ended and their writes are visible. EVERY block must call it, also one without work: "this kernel has ended" must imply "all
// before it have ended" for the kernel after it. Before the wait a kernel may read weights and constants only, and write nothing.
__device__ __forceinline__ void allow_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace boundgen
