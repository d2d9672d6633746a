// How a cluster of the chain comes to its tiles: one of its threads draws tickets from a counter in global memory, and hands each to every
// reader in both blocks. A ticket's slot is written anew when all readers have given the one before back.
#pragma once
#include "consume.cuh"

namespace boundgen {

constexpr int kTicketReaders = kClusterSize * 11;  // of each block: the producer, two counters, eight consumer warps

__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// One ticket at a time. The next one is fetched when the producer has asked for all of the current tile (its release comes last): the
// stages in flight cover the counter's latency. Fetching further ahead is wrong: at the start, the first clusters would take two tiles
// of the short first phase each while the others get tiles that wait for them (measured: 7% with two tickets, 13% with three).
struct Tickets {
  uint32_t slot, full, empty;  // full: own block's; empty: of the cluster's first block
  __device__ __forceinline__ int wait(int n) const {
    barrier_wait(full, n & 1);
    int t;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(t) : "r"(slot) : "memory");
    return t;
  }
  // Takes the ticket, so that the arrival waits for its load: a load of shared memory may hang behind other memory traffic of its warp for
  // longer than the next ticket takes to come, and the arrival, which goes another way, does not wait for it. (Without: a counter of
  // finished tiles now and then read the next ticket in place of its own, so some tile was counted twice, its own never, and all waited for it.)
  __device__ __forceinline__ void release(int ticket) const {
    asm volatile("{\n.reg .pred p;\n.reg .b32 r;\nsetp.ge.s32 p, %1, 0;\nmapa.shared::cluster.u32 r, %0, 0;\n@p mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(empty),
                 "r"(ticket)
                 : "memory");
  }
  // One thread of the cluster's first block: fetches tickets and writes each into both blocks.
  __device__ __forceinline__ void serve(unsigned* counter, int last) const {
    for (int n = 0, t = 0; t < last; n++) {
      barrier_wait(empty, (n & 1) ^ 1);
      t = static_cast<int>(atomicAdd(counter, 1u));
      for (int rank = 0; rank < kClusterSize; rank++) {
        const uint32_t bar = in_block(full, rank);
        asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], 4;" ::"r"(bar) : "memory");
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(in_block(slot, rank)), "r"(t), "r"(bar)
                     : "memory");
      }
    }
  }
};

}  // namespace boundgen
