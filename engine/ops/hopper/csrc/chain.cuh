// o -> gate_up -> down -> the next layer's qkv in one persistent launch: the tiles of four GEMMs form one list, in that order, and a
// tile waits for its own rows of the GEMM before, not for the whole GEMM.
//
// Why this cannot deadlock, with any number of such kernels on any streams: tiles are handed out in ascending order by a ticket
// counter in global memory, only to clusters that already run, and a cluster works off its tickets in order. A tile depends on lower
// tickets only. So the lowest unfinished ticket has all it waits for, and its cluster is at it: it finishes, by induction all do. No
// block has to be resident beside another one. (A fixed assignment, as in the prototype, needs all blocks resident at once.)
#pragma once
#include "epilogue_gate_up.cuh"
#include "epilogue_qkv.cuh"
#include "epilogue_residual.cuh"
#include "tickets.cuh"

namespace boundgen {

constexpr int kPhases = 4;

struct ChainParams {
  CUtensorMap a[kPhases], w[kPhases];
  ResidualParams o, down;
  GateUpParams gate_up;
  QkvParams qkv;
  int n[kPhases], num_k[kPhases], end[kPhases];  // end: tickets up to and with this phase
  int m, stagger;
  unsigned* scratch;  // zeroed: the ticket counter, then the finished (tile, warpgroup) of each phase but the last and row block
  int row_blocks;
};

// Tile widths of o, gate_up, down, qkv.
template <int BO, int BG, int BD, int BQ> struct Widths {
  static constexpr int kO = BO, kGateUp = BG, kDown = BD, kQkv = BQ;
  static __device__ __forceinline__ int of(int phase) { return phase == 0 ? BO : phase == 1 ? BG : phase == 2 ? BD : BQ; }
};

// Where a ticket's tile lies.
template <class W> struct Place {
  int phase, width, tiles_n, col, row;  // row: of this block's 128
  __device__ __forceinline__ Place(const ChainParams& p, int t, int rank) : phase(0) {
    while (t >= p.end[phase]) phase++;
    width = W::of(phase);
    tiles_n = (p.n[phase] + width - 1) / width;
    const int local = t - (phase ? p.end[phase - 1] : 0);
    col = (local % tiles_n) * width;
    row = ((local / tiles_n) * kClusterSize + rank) * kRows;
  }
};

template <class W, int RING> __device__ __forceinline__ void produce_chain(const ChainParams& p, Ring ring, Tickets tickets, int rank) {
  constexpr int S = kStages<RING>;
  int it = 0;
  for (int n = 0;; n++) {
    const int t = tickets.wait(n);
    if (t >= p.end[kPhases - 1]) return;
    const Place<W> at(p, t, rank);
    const CUtensorMap *a = &p.a[at.phase], *w = &p.w[at.phase];
    const int num_k = p.num_k[at.phase];
    auto load_weights = [&](int k, int s) {
      const uint32_t bar = ring.full + 8 * s;
      barrier_expect(bar, kOperandBytes + at.width * 128);
      load_tile_multicast(ring.base + s * kStageBytes<RING> + kOperandBytes + rank * (at.width * 128 / kClusterSize), w, k * 128,
                          at.col + rank * (at.width / kClusterSize), bar, (1 << kClusterSize) - 1);
    };
    auto load_rows = [&](int k, int s) { load_tile(ring.base + s * kStageBytes<RING>, a, k * 128, at.row, ring.full + 8 * s); };
    const unsigned* done = p.scratch + 1 + (at.phase - 1) * p.row_blocks + at.row / kRows;
    const int before = at.phase ? W::of(at.phase - 1) : 1;
    const unsigned wanted = at.phase ? 2u * ((p.n[at.phase - 1] + before - 1) / before) : 0u;
    auto ready = [&]() {
      if (!at.phase) return true;
      unsigned v;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(done) : "memory");
      return v >= wanted;
    };
    int k = 0;
    if (n == 0 || !ready()) {  // weights first: they depend on nothing
      const int ahead = num_k < S ? num_k : S, from = it;
      for (int i = 0; i < ahead; i++) {
        const int s = (from + i) % S;
        barrier_wait(ring.empty + 8 * s, (((from + i) / S) & 1) ^ 1);
        load_weights(i, s);
      }
      if (n == 0) wait_for_predecessors();
      while (!ready()) __nanosleep(32);
      asm volatile("fence.proxy.async;" ::: "memory");  // the rows were written by ordinary stores, and are read by TMA
      for (int i = 0; i < ahead; i++) load_rows(i, (from + i) % S);
      k = ahead;
      it += ahead;
    } else {
      asm volatile("fence.proxy.async;" ::: "memory");
    }
    for (; k < num_k; k++, it++) {
      const int s = it % S;
      barrier_wait(ring.empty + 8 * s, ((it / S) & 1) ^ 1);
      load_weights(k, s);
      load_rows(k, s);
    }
    tickets.release(t);
  }
}

// Raises the row blocks' counters for one consumer warpgroup, so that no consumer waits for the fence.
template <class W> __device__ __forceinline__ void count_finished(const ChainParams& p, Tickets tickets, uint32_t finished, int rank) {
  unsigned expected = 0;
  for (int n = 0;; n++) {
    const int t = tickets.wait(n);
    tickets.release(t);
    if (t >= p.end[kPhases - 1]) return;
    if (t >= p.end[kPhases - 2]) continue;  // nobody waits for the last phase
    const Place<W> at(p, t, rank);
    expected++;
    for (unsigned v = 0; v < expected; __nanosleep(40)) asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(finished) : "memory");
    __threadfence();
    atomicAdd(p.scratch + 1 + at.phase * p.row_blocks + at.row / kRows, 1u);
  }
}

template <class Elem, class W, int D> __global__ void __launch_bounds__(kGemmThreads, 1) chain_kernel(const __grid_constant__ ChainParams p) {
  using Down = typename Elem::Down;
  using Narrow = typename Elem::Narrow;
  using O = Residual<W::kO, Elem, Narrow>;
  using Middle = GateUp<W::kGateUp, Elem, Elem>;
  using Last = Residual<W::kDown, Down, Narrow>;
  using Next = Qkv<W::kQkv, D, Elem>;
  constexpr int RING = 256, S = kStages<RING>;
  extern __shared__ uint8_t raw[];
  __shared__ __align__(8) uint64_t barriers[2 * S + 2];
  __shared__ __align__(16) typename Next::Shared heads;
  __shared__ typename O::Shared none;
  __shared__ typename Last::Shared none_either;
  __shared__ typename Middle::Shared nothing;
  __shared__ int slot;
  __shared__ unsigned finished[2];
  const Ring ring = {(shared_address(raw) + 1023) & ~1023u, shared_address(barriers), shared_address(barriers + S)};
  const Tickets tickets = {shared_address(&slot), shared_address(barriers + 2 * S), shared_address(barriers + 2 * S + 1)};
  const int rank = cluster_rank(), last = p.end[kPhases - 1];
  if (threadIdx.x == 0) {
    finished[0] = finished[1] = 0;
    for (int s = 0; s < S; s++) {
      barrier_init(ring.full + 8 * s, 1);
      barrier_init(ring.empty + 8 * s, 2 * kClusterSize);
    }
    barrier_init(tickets.full, 1);
    barrier_init(tickets.empty, kTicketReaders);
    barrier_init_fence();
  }
  Next::prepare(p.qkv, heads);
  cluster_sync();
  allow_dependents();
  if (threadIdx.x < 128) {
    registers_drop<40>();
    if (threadIdx.x == 0) produce_chain<W, RING>(p, ring, tickets, rank);
    else if (threadIdx.x == 32 || threadIdx.x == 64)
      count_finished<W>(p, tickets, shared_address(finished + (threadIdx.x >> 5) - 1), rank);
    else if (threadIdx.x == 96 && rank == 0) tickets.serve(p.scratch, last);  // zeroed before the kernel ahead began: see plan.py
  } else {
    registers_raise<232>();
    int group = static_cast<int>(threadIdx.x >> 7) - 1;
    if constexpr (Elem::kGrouped) group = __shfl_sync(~0u, group, 0);  // known to be the same in all lanes: without it tiles of down spill
    int it = 0, first = p.stagger && group == 0 ? p.stagger : -1;
    wait_for_predecessors();
    if (p.stagger && group == 1) asm volatile("bar.sync 1, 256;" ::: "memory");
    for (int n = 0;; n++) {
      const int t = tickets.wait(n);
      if (t >= last) {
        if (first >= 0) asm volatile("bar.arrive 1, 256;" ::: "memory");  // a cluster that came too late for any tile
        break;
      }
      const Place<W> at(p, t, rank);
      const Fragment f(at.row + group * 64, p.m, at.col, p.n[at.phase]);
      __syncwarp();
      if ((threadIdx.x & 31) == 0) tickets.release(t);
      const int num_k = p.num_k[at.phase];
      if (at.phase == 1) consume<Middle, Elem, W::kGateUp, RING>(p.gate_up, num_k, nothing, ring, f, group, it, first);
      else if (at.phase == 3) consume<Next, Elem, W::kQkv, RING>(p.qkv, num_k, heads, ring, f, group, it, first);
      else if constexpr (!Elem::kGrouped) consume<O, Elem, W::kO, RING>(at.phase ? p.down : p.o, num_k, none, ring, f, group, it, first);
      else if (at.phase == 0) consume<O, Elem, W::kO, RING>(p.o, num_k, none, ring, f, group, it, first);
      else consume<Last, Down, W::kDown, RING>(p.down, num_k, none_either, ring, f, group, it, first);
      asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");  // all of the warpgroup's stores are out
      if ((threadIdx.x & 127) == 0 && at.phase + 1 < kPhases) {
        asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(shared_address(finished + group)) : "memory");
      }
    }
  }
  __syncwarp();
  cluster_sync();
}

struct ChainCall {  // mirrored by library.ChainCall
  const void* a[kPhases];
  const void* w[kPhases];
  int n[kPhases], k[kPhases];
  int m, tile, head_dim, max_sms, dependent;
  unsigned* scratch;
  cudaStream_t stream;
  ResidualParams o;
  GateUpParams gate_up;
  ResidualParams down;
  QkvParams qkv;
};

template <class Elem, int BO, int D> int launch_chain(const ChainCall& call) {
  constexpr int BG = 256, BD = BO, BQ = 256;
  ChainParams p = {};
  const int widths[kPhases] = {BO, BG, BD, BQ}, pairs = (call.m + kRows * kClusterSize - 1) / (kRows * kClusterSize);
  int depth = 1 << 30;
  for (int i = 0; i < kPhases; i++) {
    const int row_bytes = call.k[i] * Elem::kBytes;
    int e = encode_map(&p.a[i], call.a[i], call.m, row_bytes, kRows);
    if (!e) e = encode_map(&p.w[i], call.w[i], call.n[i], row_bytes, widths[i] / kClusterSize);
    if (e) return e;
    p.n[i] = call.n[i];
    p.num_k[i] = (row_bytes + 127) / 128;
    p.end[i] = (i ? p.end[i - 1] : 0) + pairs * ((call.n[i] + widths[i] - 1) / widths[i]);
    depth = p.num_k[i] < depth ? p.num_k[i] : depth;
  }
  p.o = call.o;
  p.gate_up = call.gate_up;
  p.down = call.down;
  p.qkv = call.qkv;
  p.m = call.m;
  p.stagger = depth > kStagger ? kStagger : 0;
  p.scratch = call.scratch;
  p.row_blocks = pairs * kClusterSize;
  return launch_clusters(chain_kernel<Elem, Widths<BO, BG, BD, BQ>, D>, p, kGemmShared<256>, p.end[kPhases - 1], call.max_sms, call.dependent, call.stream);
}

}  // namespace boundgen
