// Strategy "slab": rows along any axis that have few neighbours, or neighbours that are no whole
// vectors. All of them together, one stretch of memory, are in the shared memory of a block, or of
// a cluster's blocks, and are read once. As in "split", a thread takes every few periods the same
// vector, whose elements are of the same rows then, wherever vectors and rows meet.
#pragma once

#include <cuda_pipeline.h>

#include "../async.cuh"
#include "../in_shared.cuh"

namespace jax_softmax::JS_ISA {

// Which rows a thread's elements are of.
template <int kVector>
struct SlabRows {
  SlabShape shape;
  int inner;      // rows
  int shift;      // the element of a period that is the first row's first
  int lane;       // this thread's vector of a period
  int first_row;  // of its elements

  __device__ __forceinline__ SlabRows(const SlabShape& of_block, int neighbours, int head)
      : shape(of_block),
        inner(neighbours),
        shift(head < neighbours ? head : head % neighbours),
        lane(threadIdx.x % of_block.period),
        first_row((lane * kVector + inner - shift) % inner) {}
  // Calls f with the number of each element of the vector, and its row.
  template <typename F>
  __device__ __forceinline__ void ForEach(F f) const {
    int row = first_row;
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      f(r, row);
      row = row + 1 < inner ? row + 1 : 0;
    }
  }
  // The element of a period that is a row's `repeat`th.
  __device__ __forceinline__ int ElementOf(int row, int repeat) const {
    const int element = row + shift;
    return (element < inner ? element : element - inner) + repeat * inner;
  }
  // Whether this thread's element is the first of a row, of all that threads have.
  __device__ __forceinline__ bool IsFirst(int r) const {
    return threadIdx.x < shape.period && lane * kVector + r < inner;
  }
};

// Over the block. `parts` holds a statistic of every element of all groups' periods, and may be
// used again at once, `totals` one of every row, and may be used again after the next call.
template <typename S, int kVector>
__device__ __forceinline__ void SlabReduce(S (&statistic)[kVector], const SlabRows<kVector>& rows,
                                           void* parts, void* totals) {
  using Crossing = typename S::Crossing;
  auto* of_group = static_cast<Crossing*>(parts);  // [group][element of the vector][vector]
  auto* of_row = static_cast<Crossing*>(totals);
  Crossing own[kVector];
#pragma unroll
  for (int r = 0; r < kVector; ++r) own[r] = statistic[r].Cross();
  const auto& [period, step, share, in_warps, groups, log2_repeats, log2_lanes] = rows.shape;
  bool writes;
  int group;
  if (in_warps) {
    // The lanes of a warp's first period take in what is one period later, or two, or four, …
    const int in_warp = threadIdx.x % kWarpLanes;
    int distance = period;
    while (2 * distance < kWarpLanes) distance *= 2;
    for (; distance >= period; distance /= 2) {
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        const Crossing other = FromLaneAfter(own[r], distance);
        if (in_warp + distance < kWarpLanes) own[r].Merge(other);
      }
    }
    writes = in_warp < period;
    group = threadIdx.x / kWarpLanes;
  } else {
    writes = threadIdx.x < step;
    group = threadIdx.x / period;
  }
  const int elements = period * kVector;
  if (writes) {
    auto* to = of_group + group * elements + rows.lane;
#pragma unroll
    for (int r = 0; r < kVector; ++r) to[r * period] = own[r];
  }
  __syncthreads();
  const int in_row = threadIdx.x & ((1 << log2_lanes) - 1);
  const int repeat = in_row & ((1 << log2_repeats) - 1);
  for (int at = 0; at < rows.inner; at += blockDim.x >> log2_lanes) {
    const int row = at + (threadIdx.x >> log2_lanes);
    Crossing total = S{}.Cross();
    if (row < rows.inner) {
      const int element = rows.ElementOf(row, repeat);
      const auto* from = of_group + element % kVector * period + element / kVector;
#pragma unroll 1
      for (int g = in_row >> log2_repeats; g < groups; g += 1 << (log2_lanes - log2_repeats)) {
        total.Merge(from[g * elements]);
      }
    }
    total = Butterfly(total, 1 << log2_lanes);
    if (row < rows.inner && in_row == 0) of_row[row] = total;
  }
  __syncthreads();
  rows.ForEach([&](int r, int row) { statistic[r] = S(of_row[row]); });
}

// After the first `scratch_bytes` of shared memory lie the elements, and then what blocks exchange.
template <typename Op, typename Load, typename Store, int kVector>
__global__ void __launch_bounds__(kSlabThreads,
                                  SlabResident(Op::kInputs, sizeof(typename Load::Io)))
    SlabKernel(Op op, Load load, Store store, Rows rows, SlabShape shape, int scratch_bytes) {
#if __CUDA_ARCH__ >= 800
  using Own = Neighbours<Op, Load, Store, kVector>;
  using Raw = typename Own::Raw;
  extern __shared__ __align__(16) unsigned char shared[];
  const Cluster cluster;
  const int inner = static_cast<int>(rows.inner);
  // All rows' elements that lie side by side, as one row.
  const Window<kVector, false> window(blockIdx.x / cluster.blocks, rows.columns * rows.inner);
  // A block's vectors, whole periods; of these this thread's are every `step`th.
  const int share = shape.share, step = shape.step;
  const int begin = min(cluster.rank * share, window.packs);
  const int packs = min(share, window.packs - begin);
  auto* const own = reinterpret_cast<typename Own::Word*>(shared + scratch_bytes) + threadIdx.x;
#if __CUDA_ARCH__ >= 900
  __shared__ ByteBarrier arrival;
  if (threadIdx.x == 0) {
    arrival.Init();
    PublishBarriers();
    const int64_t offset = window.Offset(begin);
    const unsigned bytes = CopiedPacks<decltype(window)>(load, offset, packs) * kVectorBytes;
    arrival.Expect(bytes * Op::kInputs);
#pragma unroll
    for (int input = 0; input < Op::kInputs && bytes > 0; ++input) {
      CopyToShared(own + input * share, load.source[input] + offset, bytes, arrival);
    }
  }
#endif
  const SlabRows<kVector> of(shape, inner, window.head);
  const int own_first = begin + threadIdx.x;
  const bool takes = threadIdx.x < step;
  const int count = takes ? max(packs - static_cast<int>(threadIdx.x) + step - 1, 0) / step : 0;

  // The vectors at the ends may have elements of other rows.
  const auto each_end = [&](auto f) {
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      const int pack = end == 0 ? 0 : window.packs - 1;
      const int local = pack - begin - static_cast<int>(threadIdx.x);
      const bool is_own = takes && local >= 0 && pack < begin + packs && local % step == 0;
      if (is_own && !window.IsWhole(pack)) f(pack, local);
    }
  };

#if __CUDA_ARCH__ >= 900
  __syncthreads();
  arrival.Await(0);
#else
#pragma unroll
  for (int input = 0; input < Op::kInputs; ++input) {
    auto* to = own + input * share;
    const auto* from = load.source[input] + window.base;
    int pack = own_first;
#pragma unroll 4
    for (int c = 0; c < count; ++c) {
      if (window.IsWhole(pack)) __pipeline_memcpy_async(to, from + pack * kVector, kVectorBytes);
      to += step;
      pack += step;
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
#endif
  each_end([&](int pack, int place) {
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      auto values = load.Fetch({}, input, window, pack).Unpack();
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (!window.Has(pack, i)) values.element[i] = Load::AbsentIo(input);
      }
      Raw(values).Store(own + input * share + place);
    }
  });

  constexpr int kStatistic = kNeighbourStatistic<Op, Store> * sizeof(typename Op::T);
  unsigned char* const totals = shared + shape.groups * shape.period * kVector * kStatistic;
  const Own vectors(own, count, step, share);
  typename Op::First first[kVector];
  typename Op::Second second[kVector];
  vectors.Sweep(
      op, first, second,
      [&](auto& statistics, int turn) {
        SlabReduce(statistics, of, shared, totals + turn * inner * kStatistic);
      },
      [&](bool poor) { return __syncthreads_or(poor && takes); });

  typename Op::Row result[kVector];
  if (cluster.blocks > 1) {
    auto* const of_block = reinterpret_cast<Partial<Op>*>(own - threadIdx.x + Op::kInputs * share);
    auto* const closed = reinterpret_cast<Closed<Op>*>(of_block + inner);
    static_assert(sizeof(*of_block) + sizeof(*closed) <= kNeighbourValues * sizeof(typename Op::T));
    of.ForEach([&](int r, int row) {
      if (of.IsFirst(r)) of_block[row] = {first[r], second[r]};
    });
    CloseTogether(op, cluster, of_block, closed, inner);
    of.ForEach([&](int r, int row) {
      result[r] = closed[row].row;
      if constexpr (Own::kKeepsTerms) {
        result[r] = op.ForTermsOf(first[r], closed[row].first, result[r]);
      }
    });
  } else {
#pragma unroll
    for (int r = 0; r < kVector; ++r) result[r] = op.Close(first[r], second[r]);
  }

  const auto* from = own;
  int pack = own_first;
#pragma unroll 2
  for (int c = 0; c < count; ++c) {
    typename Op::T y[kVector];
    vectors.Finish(op, from, result, y);
    if (window.IsWhole(pack)) store.Put(window.base + pack * kVector, y);
    from += step;
    pack += step;
  }
  each_end([&](int of_end, int place) {
    typename Op::T y[kVector];
    vectors.Finish(op, own + place, result, y);
    store(window, of_end, y);
  });
  if (cluster.blocks > 1) cluster.Await();  // none leaves while another may read from it
#endif
}

}  // namespace jax_softmax::JS_ISA
