// Strategy "cluster": a row in the shared memory of the blocks of a cluster, which merge their
// results through it. A cluster stays for many rows: while it writes one it fetches the next.
#pragma once

#include "../in_shared.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kClusterThreads.back(), kClusterResident)
    ClusterKernel(Op op, Load load, Store store, Rows rows, int capacity,
                  unsigned long long* counter) {
  extern __shared__ __align__(16) unsigned char shared[];
  // By turns: one row's places are read while the next row's are written.
  __shared__ Partial<Op> of_block[2];
  __shared__ int64_t told_rows[2];
  const Cluster cluster;
  const Cache<Op, Load, kVector> cache(shared + 2 * kScratchBytes, capacity);

  RowQueue queue(cluster, counter, told_rows);
  // Blocks of one multiprocessor that start together would all compute at a time, and all wait for
  // memory at another. Where there are rows enough to regain it, each starts a little later.
  if (rows.outer >= kClusterStaggerRows * queue.Clusters()) {
    unsigned multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
    for (int k = blockIdx.x / multiprocessors; k > 0; --k) __nanosleep(kClusterStagger);
  }
  Slice<kVector, kWhole> slice(queue.row, rows.columns, cluster.rank, cluster.blocks);
  for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) cache.Fetch(load, slice, k);
  if (counter != nullptr) cluster.Meet();  // the others are told their rows

  for (int turn = 0; queue.row < rows.outer; turn ^= 1) {
    queue.Ask();
    cache.Await(load, slice);
    Partial<Op> total = cache.Reduce(op, slice.packs, shared + turn * kScratchBytes);
    const typename Op::First own = total.first;
    // Not sooner: the answer takes as long as the reduction.
    queue.Tell(cluster, turn);
    cluster.Merge(op, total, of_block[turn]);
    auto result = op.Close(total.first, total.second);
    if constexpr (cache.kKeepsTerms) result = op.ForTermsOf(own, total.first, result);

    const int64_t next_row = queue.Next(turn);
    const bool more = next_row < rows.outer;
    const Slice<kVector, kWhole> next(more ? next_row : queue.row, rows.columns, cluster.rank,
                                      cluster.blocks);
    const int next_packs = more ? next.packs : 0;
    if constexpr (kPerRow<Op>) {
      if (cluster.rank == 0 && threadIdx.x == 0) store.At(queue.row, result);
      for (int k = threadIdx.x; k < next_packs; k += blockDim.x) cache.Fetch(load, next, k);
    } else {
      for (int k = threadIdx.x; k < max(slice.packs, next_packs); k += blockDim.x) {
        typename Op::T y[kVector];
        if (k < slice.packs) cache.Finish(op, k, result, y);
        if (k < next_packs) cache.Fetch(load, next, k);
        if (k < slice.packs) store(slice.window, slice.begin + k, y);
      }
    }
    slice = next;
    queue.row = next_row;
  }
  cluster.Meet();
}

}  // namespace jax_softmax::JS_ISA
