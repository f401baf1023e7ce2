// Strategy "panel": rows along any axis, those of a block in its shared memory, or their parts in
// that of a cluster's blocks, read once. A thread takes kVector rows that lie side by side, and
// shares them with the threads of other slices.
#pragma once

#include <cuda_pipeline.h>

#include "../async.cuh"
#include "../in_shared.cuh"

namespace jax_softmax::JS_ISA {

// Over the block's slices of kLanes threads; a thread has the statistics of kRows rows. `scratch`
// holds them all for one thread in kWarpLanes / kLanes, and may be used again after another barrier
// of the block.
template <int kLanes, typename S, int kRows>
__device__ __forceinline__ void SliceReduce(S (&statistic)[kRows], void* scratch) {
  using Crossing = typename S::Crossing;
  Crossing own[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    own[r] = SpreadReduce<kWarpLanes / kLanes, kLanes>(statistic[r]).Cross();
  }
  const int warps = blockDim.x / kWarpLanes;
  if (warps > 1) {
    constexpr int kWidth = kLanes * kRows;
    auto* parts = static_cast<Crossing*>(scratch);  // [warp][row of the thread][lane]
    const int lane = threadIdx.x % kLanes;
    const int warp = threadIdx.x / kWarpLanes;
    if (threadIdx.x % kWarpLanes < kLanes) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) parts[warp * kWidth + r * kLanes + lane] = own[r];
    }
    __syncthreads();
    for (int t = threadIdx.x; t < kWidth; t += blockDim.x) {
      Crossing total = parts[t];
      for (int w = 1; w < warps; ++w) total.Merge(parts[w * kWidth + t]);
      parts[t] = total;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) own[r] = parts[r * kLanes + lane];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) statistic[r] = S(own[r]);
}

// Of a multiprocessor's first blocks, waits for this one's turn.
__device__ __forceinline__ void AwaitTurn(const Turns& turns) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < turns.blocks || block >= turns.blocks * turns.count) return;
  const int64_t begin = clock64();
  const uint64_t wait = static_cast<uint64_t>(block / turns.blocks) * turns.cycles;
  // Unsigned: a clock that is behind, of another multiprocessor, ends it.
  while (static_cast<uint64_t>(clock64() - begin) < wait) __nanosleep(64);
}

// The columns are a block's or, with kShared, those of a cluster's blocks. After the first
// `scratch_bytes` of shared memory lie the elements, and then what blocks exchange. Clusters that
// stayed, and fetched the next panel's columns to the places of those that were finished, were
// slower: of [64, 1024, 1024] in float32 the tangent ran at 0.90 of the copy limit in place of
// 0.97, softmax of [64, 4096, 1024] in bf16 at 0.73 in place of 0.78 (H200, 2026-11).
template <typename Op, typename Load, typename Store, int kVector, bool kShared>
__global__ void __launch_bounds__(kPanelThreads, PanelResident(sizeof(typename Load::Io),
                                                               sizeof(typename Store::Io)))
    PanelKernel(Op op, Load load, Store store, Rows rows, int log2_lanes, int log2_slices,
                int scratch_bytes, Turns turns) {
#if __CUDA_ARCH__ < 900
  if constexpr (kShared) return;
#endif
  // As ByTurns in plans/panel.h has it.
  constexpr bool kMayWait = Op::kInputs == 1 && sizeof(typename Load::Io) <= 4 && !kPerRow<Op>;
  if constexpr (!kShared && kMayWait) AwaitTurn(turns);
  using Own = Neighbours<Op, Load, Store, kVector>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int threads = blockDim.x;
  const int lanes = 1 << log2_lanes;
  const int width = lanes * kVector;
  const int slices = 1 << log2_slices;
  const int slice = threadIdx.x >> log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  // There are about as many blocks as panels, so that 32 bits do.
  unsigned panel = blockIdx.x;
  int columns = static_cast<int>(rows.columns), first_column = 0, share = columns;
  const Cluster cluster;
  if constexpr (kShared) {
    panel /= cluster.blocks;
    share = (columns + cluster.blocks - 1) / cluster.blocks;
    first_column = min(cluster.rank * share, columns);
    columns = min(share, columns - first_column);
  }
  // A quotient of 64 bits would be a fiftieth of log-softmax's time, of [64, 1024, 1024] in bf16.
  const int log2_width = log2_lanes + __popc(kVector - 1);
  const auto panels = static_cast<unsigned>((rows.inner + width - 1) >> log2_width);
  const unsigned outer = panel / panels;
  if (!kShared && outer >= rows.outer) return;  // the last one's company
  const int64_t inner = int64_t{panel - outer * panels} * width + lane * kVector;
  const int64_t base = (int64_t{outer} * rows.columns + first_column + slice) * rows.inner + inner;
  const int64_t step = slices * rows.inner;
  // This thread's columns: every `slices`th, in places that no other thread uses.
  const int count = inner < rows.inner ? (columns - slice + slices - 1) >> log2_slices : 0;
  const int capacity = ((share + slices - 1) >> log2_slices) * threads;
  auto* const own = reinterpret_cast<typename Own::Word*>(shared + scratch_bytes) + threadIdx.x;

  const auto fetch = [&](auto copy) {
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      auto* to = own + input * capacity;
      const auto* from = load.source[input] + base;
#pragma unroll 4
      for (int c = 0; c < count; ++c) {
        copy(to, from);
        to += threads;
        from += step;
      }
    }
  };
  // Of [64, 1024, 1024] in bf16 softmax took 78.9 us without, and 77.0 so; wider panels, and those
  // of clusters, up to 3 % longer (H200, 2026-11).
  if (!kShared && lanes < kLinePacks) {
    fetch([](void* to, const void* from) { CopyVectorOfLine(to, from); });
  } else {
    fetch([](void* to, const void* from) { __pipeline_memcpy_async(to, from, kVectorBytes); });
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);

  // Over the slices. The number of lanes matters to nothing else.
  const auto reduce = [&](auto& statistics, void* scratch) {
    if (lanes == 4) return SliceReduce<4>(statistics, scratch);
    if (lanes == 8) return SliceReduce<8>(statistics, scratch);
    SliceReduce<16>(statistics, scratch);
  };
  // After the first statistic of the rows, which is at the start of its scratch.
  unsigned char* const other_scratch = shared + width * sizeof(typename Op::First::Crossing);
  const Own vectors(own, count, threads, capacity);
  typename Op::First first[kVector];
  typename Op::Second second[kVector];
  vectors.Sweep(
      op, first, second,
      [&](auto& statistics, int turn) { reduce(statistics, turn == 0 ? shared : other_scratch); },
      [&](bool poor) { return __syncthreads_or(poor && inner < rows.inner); });

  typename Op::Row result[kVector];
  if constexpr (kShared) {
    auto* const of_block =
        reinterpret_cast<Partial<Op>*>(own - threadIdx.x + Op::kInputs * capacity);
    auto* const closed = reinterpret_cast<Closed<Op>*>(of_block + width);
    static_assert(sizeof(*of_block) + sizeof(*closed) <= kNeighbourValues * sizeof(typename Op::T));
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      if (slice == r) of_block[r * lanes + lane] = {first[r], second[r]};
    }
    CloseTogether(op, cluster, of_block, closed, width);
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      const auto& [of_row, row] = closed[r * lanes + lane];
      result[r] = row;
      if constexpr (Own::kKeepsTerms) result[r] = op.ForTermsOf(first[r], of_row, row);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kVector; ++r) result[r] = op.Close(first[r], second[r]);
  }

  if constexpr (kPerRow<Op>) {
    if (slice > 0 || inner >= rows.inner) return;
    const int64_t row = outer * rows.inner + inner;
#pragma unroll
    for (int r = 0; r < kVector; ++r) StoreOfRow(op, store, row + r, result[r]);
  } else {
    const auto* from = own;
    int64_t offset = base;
#pragma unroll 2
    for (int c = 0; c < count; ++c) {
      typename Op::T y[kVector];
      vectors.Finish(op, from, result, y);
      store.Put(offset, y);
      from += threads;
      offset += step;
    }
  }
  if constexpr (kShared) cluster.Await();  // none leaves while another may read from it
}

}  // namespace jax_softmax::JS_ISA
