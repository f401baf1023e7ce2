// Strategy "split": a row over many blocks, for rows that are few and long. Those of a cluster keep
// it in registers and tell each other what they make of it. Of longer rows one kernel leaves every
// part's statistics in a workspace, and the next one merges a row's, reads it again and writes it.
// Along another axis than the last, a block has a part of all rows that lie side by side.
#pragma once

#include "../async.cuh"
#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole, bool kWrites>
__global__ void __launch_bounds__(kSplitThreads)
    SplitKernel(Op op, Load load, Store store, Rows rows, int parts, Partial<Op>* workspace) {
  static_assert(sizeof(Partial<Op>) <= kSplitPartBytes);
  // Vectors that a thread loads before it uses the first.
  constexpr int kBatch = 2;
  constexpr int kWarps = kSplitThreads / kWarpLanes;
  constexpr bool kCloses = kWrites && kPerRow<Op>;  // a row's result is all that there is to do
  const int64_t row = kCloses ? blockIdx.x : blockIdx.x / parts;
  const int part = kCloses ? 0 : blockIdx.x % parts;
  const Slice<Window<kVector, kWhole>> slice(row, rows.columns, part, parts);

  typename Load::template Raw<kVector> raw[kBatch][Op::kInputs];
  const auto fetch = [&](int k) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int pack = k + b * kSplitThreads;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        const bool needed = kWrites || SweepsNeed<Op>(input);
        raw[b][input] =
            load.Fetch({}, input, slice.window, slice.begin + pack, needed && pack < slice.packs);
      }
    }
  };
  // While the blocks of the first kernel wait for memory, those of the second may do so too.
  int k = threadIdx.x;
  if constexpr (!kCloses) fetch(k);

  if constexpr (kWrites) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    const Partial<Op> total = MergeParts<kSplitMostParts>(op, workspace + row * parts, parts);
    const auto result = op.Close(total.first, total.second);
    if constexpr (kPerRow<Op>) {
      if (threadIdx.x == 0) StoreOfRow(op, store, row, result);
    } else {
      for (; k < slice.packs; k += kBatch * kSplitThreads) {
        if (k >= kBatch * kSplitThreads) fetch(k);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int pack = k + b * kSplitThreads;
          Element<typename Op::T, Op::kInputs> e[kVector];
          Load::Decode(raw[b], e);
          typename Op::T y[kVector];
#pragma unroll
          for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
          if (pack < slice.packs) store(slice.window, slice.begin + pack, y);
        }
      }
    }
  } else {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    __shared__ Partial<Op> of_warp[kWarps];
    Partial<Op> total;
    for (; k < slice.packs; k += kBatch * kSplitThreads) {
      if (k >= kBatch * kSplitThreads) fetch(k);
      Element<typename Op::T, Op::kInputs> e[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        Load::Decode({}, slice.window, slice.begin + k + b * kSplitThreads, raw[b], e[b]);
      }
      AddOnline(op, total, e);
    }
    total = WarpMerge(op, {total});
    if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = total;
    __syncthreads();
    if (threadIdx.x >= kWarpLanes) return;
    total = MergeParts<kWarps>(op, of_warp, kWarps);
    if (threadIdx.x == 0) workspace[blockIdx.x] = total;
  }
}

// A row in the registers of a cluster, of which every warp sends all blocks its statistics.
template <typename Op, typename Load, typename Store, int kVector, int kPacks>
__global__ void __launch_bounds__(kSplitThreads, 2)
    SplitClusterKernel(Op op, Load load, Store store, Rows rows) {
#if __CUDA_ARCH__ >= 900
  static_assert(Op::kSweeps == 2);
  constexpr int kWarps = kSplitThreads / kWarpLanes;
  __shared__ ByteBarrier arrival;
  __shared__ Message<Partial<Op>> notes[kSplitMostClusterBlocks * kWarps];
  const Cluster cluster;
  const int64_t row = blockIdx.x / cluster.blocks;
  const Slice<Window<kVector, true>> slice(row, rows.columns, cluster.rank, cluster.blocks);

  typename Load::template Raw<kVector> raw[kPacks][Op::kInputs];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = threadIdx.x + k * kSplitThreads;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      raw[k][input] = load.Fetch({}, input, slice.window, slice.begin + pack, pack < slice.packs);
    }
  }
  const int count = cluster.blocks * kWarps;
  if (threadIdx.x == 0) {
    arrival.Init();
    PublishBarriers();
    arrival.Expect(count * sizeof(notes[0]));
  }
  Cluster::ArriveAfterReads();

  Element<typename Op::T, Op::kInputs> e[kPacks][kVector];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) Load::Decode(raw[k], e[k]);
  Partial<Op> of_warp;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) AddFirst(op, of_warp.first, e[k]);
  of_warp.first = WarpReduce(of_warp.first);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) AddSecond(op, of_warp.second, e[k], op.Pivot(of_warp.first));
  of_warp.second = WarpReduce(of_warp.second);
  Cluster::Await();
  const int lane = threadIdx.x % kWarpLanes;
  if (lane < cluster.blocks) {
    const int note = cluster.rank * kWarps + threadIdx.x / kWarpLanes;
    Send(Message(of_warp), notes[note], arrival, lane);
  }
  // No block leaves before it has what all others send to it.
  arrival.Await(0);
  Partial<Op> total;
  for (int i = lane; i < count; i += kWarpLanes) total.first.Merge(notes[i].value.first);
  total.first = WarpReduce(total.first);
#pragma unroll 1
  for (int i = lane; i < count; i += kWarpLanes) {
    Partial<Op> part = notes[i].value;
    op.Rescale(part.second, part.first, total.first);
    total.second.Merge(part.second);
  }
  const auto result = op.Close(total.first, WarpReduce(total.second));
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = threadIdx.x + k * kSplitThreads;
    typename Op::T y[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[k][i], result);
    if (pack < slice.packs) store(slice.window, slice.begin + pack, y);
  }
#endif
}

// The same of interleaved rows: `period` vectors, one after the other in memory, have the rows'
// elements in the order that the next `period` have them in. A thread takes every few periods the
// same vector, whose elements are of the same rows then, wherever vectors and rows meet.
template <typename Op, typename Load, typename Store, int kVector, bool kWrites>
__global__ void __launch_bounds__(kSplitThreads, kSplitResident)
    SplitAcrossKernel(Op op, Load load, Store store, Rows rows, int period, int parts,
                      Partial<Op>* workspace) {
  using E = Element<typename Op::T, Op::kInputs>;
  constexpr bool kCloses = kWrites && kPerRow<Op>;
  // Periods that a thread loads before it uses any, and those of a part of its sum.
  constexpr int kFold = 128 / (kVector * sizeof(E));
  constexpr int kPart = 64;
  static_assert(sizeof(Partial<Op>) <= 4 * sizeof(typename Op::T), "see SplitAcrossPlan");
  static_assert(sizeof(Partial<Op>) <= kSplitPartBytes && kFold > 0);
  extern __shared__ __align__(16) unsigned char shared[];
  auto* partials = reinterpret_cast<Partial<Op>*>(shared);      // [element][thread]
  auto* results = reinterpret_cast<typename Op::Row*>(shared);  // of this block's rows

  const int lanes = min(period, kSplitThreads);
  const int slices = kSplitThreads / lanes;
  const int chunks = (period + lanes - 1) / lanes;
  const int part = kCloses ? 0 : blockIdx.x % parts;
  const int place = kCloses ? blockIdx.x : blockIdx.x / parts;
  const int chunk = place % chunks;
  const int64_t outer = place / chunks;
  const int lane = threadIdx.x % lanes, slice = threadIdx.x / lanes;
  const int inner = static_cast<int>(rows.inner);
  const int first = chunk * lanes + lane;  // this thread's vector of a period
  const bool takes = slice < slices && first < period;

  // All rows' elements that lie side by side, as one row.
  const Window<kVector, false, int64_t> window(outer, rows.columns * inner);
  const int head = static_cast<int>(window.head);
  const int64_t periods = (window.packs + period - 1) / period;
  const int64_t share = (periods + parts - 1) / parts;
  const int64_t begin = part * share, end = min(begin + share, periods);
  // This block's: all, or those of its vectors where a period is one column.
  const int first_row = chunk * lanes * kVector;
  const int count = chunks > 1 ? min(lanes * kVector, inner - first_row) : inner;

  // kFold vectors from period p on, of those before `last`.
  const auto fetch = [&](int64_t p, int64_t last, E(&e)[kVector][kFold]) {
    typename Load::template Raw<kVector> raw[kFold][Op::kInputs];
#pragma unroll
    for (int i = 0; i < kFold; ++i) {
      const int64_t pack = (p + i * slices) * period + first;
      const bool present = takes && p + i * slices < last && pack < window.packs;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        const bool needed = kWrites || SweepsNeed<Op>(input);
        raw[i][input] = load.Fetch({}, input, window, pack, needed && present);
      }
    }
#pragma unroll
    for (int i = 0; i < kFold; ++i) {
      E of_rows[kVector];
      Load::Decode({}, window, (p + i * slices) * period + first, raw[i], of_rows);
#pragma unroll
      for (int j = 0; j < kVector; ++j) e[j][i] = of_rows[j];
    }
  };

  if constexpr (kWrites) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    // As many lanes merge a row's parts as there are for each row.
    int group = kWarpLanes;
    while (group > 1 && group * count > kSplitThreads) group /= 2;
    for (int at = 0; at < count; at += kSplitThreads / group) {
      const int index = at + threadIdx.x / group;
      const int64_t row = outer * inner + first_row + index;
      // Takes all parts into a statistic.
      const auto reduce = [&](auto statistic, auto take) {
        for (int i = threadIdx.x % group; index < count && i < parts; i += group) {
          take(statistic, workspace[row * parts + i]);
        }
        return LaneGroupReduce(statistic, group);
      };
      Partial<Op> total;
      total.first = reduce(total.first,
                           [](auto& first, const Partial<Op>& part) { first.Merge(part.first); });
      if constexpr (Op::kSweeps == 2) {
        total.second = reduce(total.second, [&](auto& second, Partial<Op> part) {
          op.Rescale(part.second, part.first, total.first);
          second.Merge(part.second);
        });
      }
      if (index >= count || threadIdx.x % group > 0) continue;
      const auto result = op.Close(total.first, total.second);
      if constexpr (kPerRow<Op>) {
        StoreOfRow(op, store, row, result);
      } else {
        results[index] = result;
      }
    }
    if constexpr (!kPerRow<Op>) {
      __syncthreads();
      if (!takes) return;
      typename Op::Row result[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        result[j] = results[(lane * kVector + j - head + kVector * inner) % inner];
      }
      for (int64_t p = begin + slice; p < end; p += slices * kFold) {
        E e[kVector][kFold];
        fetch(p, end, e);
#pragma unroll
        for (int i = 0; i < kFold; ++i) {
          if (p + i * slices >= end) break;
          typename Op::T y[kVector];
#pragma unroll
          for (int j = 0; j < kVector; ++j) y[j] = op.Finish(e[j][i], result[j]);
          store(window, (p + i * slices) * period + first, y);
        }
      }
    }
  } else {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    const auto place_of = [&](int j, int thread) -> Partial<Op>& {
      return partials[j * kSplitThreads + thread];
    };
    const auto own = [&](int j) -> Partial<Op>& { return place_of(j, threadIdx.x); };
#pragma unroll
    for (int j = 0; j < kVector; ++j) own(j) = {};
    for (int64_t p = begin + slice; p < end; p += slices * kPart) {
      const int64_t last = min(p + slices * kPart, end);
      Partial<Op> sum[kVector];
      for (int64_t q = p; q < last; q += slices * kFold) {
        E e[kVector][kFold];
        fetch(q, last, e);
#pragma unroll
        for (int j = 0; j < kVector; ++j) AddOnline(op, sum[j], e[j]);
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) Merge(op, own(j), sum[j]);
    }

    // Calls merge(own, other) until the first slice has what all slices had.
    const auto reduce = [&](auto merge) {
      for (int left = slices; left > 1;) {
        const int half = (left + 1) / 2;
        __syncthreads();
        if (slice + half < left) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) {
            merge(own(j), place_of(j, threadIdx.x + half * lanes));
          }
        }
        left = half;
      }
      __syncthreads();
    };
    // Calls f with the places in the first slice of a row's elements, of which it has one in every
    // `inner` of a period's.
    const auto each_place = [&](int index, auto f) {
      for (int at = (index + head) % inner; at < lanes * kVector; at += inner) {
        f(place_of(at % kVector, at / kVector));
      }
    };
    typename Op::First before[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) before[j] = own(j).first;
    reduce([](Partial<Op>& to, const Partial<Op>& from) { to.first.Merge(from.first); });
    for (int index = threadIdx.x; index < count; index += kSplitThreads) {
      typename Op::First first;
      each_place(index, [&](const Partial<Op>& place) { first.Merge(place.first); });
      each_place(index, [&](Partial<Op>& place) { place.first = first; });
    }
    if constexpr (Op::kSweeps == 2) {
      __syncthreads();
      if (takes) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          op.Rescale(own(j).second, before[j], place_of(j, lane).first);
        }
      }
      reduce([](Partial<Op>& to, const Partial<Op>& from) { to.second.Merge(from.second); });
    }
    for (int index = threadIdx.x; index < count; index += kSplitThreads) {
      Partial<Op> total;
      each_place(index, [&](const Partial<Op>& place) {
        total.first = place.first;
        if constexpr (Op::kSweeps == 2) total.second.Merge(place.second);
      });
      workspace[(outer * inner + first_row + index) * parts + part] = total;
    }
  }
}

}  // namespace jax_softmax::JS_ISA
