// Strategy "panel": rows along any axis, those of a block in its shared memory, or their parts in
// that of a cluster's blocks, read once. A thread takes kVector rows that lie side by side, and
// shares them with the threads of other slices.
#pragma once

#include <cuda_pipeline.h>

#include "../async.cuh"
#include "../in_words.cuh"
#include "../reduce.cuh"

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

// The compute values that the plan has room for, of what a warp has of a row.
template <typename Op, typename Store>
inline constexpr int kPanelStatistic = PanelStatistic(sizeof(typename Store::Io), kPerRow<Op>);

// What a row has become.
template <typename Op>
struct Closed {
  typename Op::First first;
  typename Op::Row row;
};

// Merges what the cluster's blocks have of `width` rows, in `of_block` of each. The others may read
// that until the barrier's next step.
//
// That step is awaited at the end, so that the cluster's blocks end together. Where they told each
// other instead (Send), and ended when they would, clusters of parts half as large took 5 to 9 %
// less time, but those that the plan has 4 to 6 % more (H200, 2026-11).
template <typename Op>
__device__ __forceinline__ void CloseTogether(const Op& op, const Cluster& cluster,
                                              const Partial<Op>* of_block, Closed<Op>* closed,
                                              int width) {
  constexpr int kAtOnce = 4;  // reads on their way
  cluster.Meet();
  for (int t = threadIdx.x; t < width; t += blockDim.x) {
    Partial<Op> total = *cluster.InBlock(0, of_block + t);
    for (int first = 1; first < cluster.blocks; first += kAtOnce) {
      Partial<Op> parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < cluster.blocks) parts[i] = *cluster.InBlock(first + i, of_block + t);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < cluster.blocks) Merge(op, total, parts[i]);
      }
    }
    closed[t] = {total.first, op.Close(total.first, total.second)};
  }
  __syncthreads();
  cluster.ArriveAfterReads();
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
                int scratch_bytes) {
#if __CUDA_ARCH__ < 900
  if constexpr (kShared) return;
#endif
  using T = typename Op::T;
  using Io = typename Load::Io;
  using Raw = typename Load::template Raw<kVector>;
  constexpr int kInputs = Op::kInputs;
  constexpr int kFold = 4;  // columns that a sum takes in at a time
  // Where they have the elements' type, the second sweep's terms take the elements' places.
  constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<Io, T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int threads = blockDim.x;
  const int lanes = 1 << log2_lanes;
  const int width = lanes * kVector;
  const int slices = 1 << log2_slices;
  const int slice = threadIdx.x >> log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  // There are at least as many blocks as panels, so that 32 bits do.
  unsigned panel = blockIdx.x;
  int columns = static_cast<int>(rows.columns), first_column = 0, share = columns;
  const Cluster cluster;
  if constexpr (kShared) {
    panel /= cluster.blocks;
    share = (columns + cluster.blocks - 1) / cluster.blocks;
    first_column = min(cluster.rank * share, columns);
    columns = min(share, columns - first_column);
  }
  const unsigned panels = static_cast<unsigned>((rows.inner + width - 1) / width);
  const unsigned outer = panel / panels;
  const int64_t inner = int64_t{panel - outer * panels} * width + lane * kVector;
  const int64_t base = (int64_t{outer} * rows.columns + first_column + slice) * rows.inner + inner;
  const int64_t step = slices * rows.inner;
  // This thread's columns: every `slices`th, in places that no other thread uses.
  const int count = inner < rows.inner ? (columns - slice + slices - 1) >> log2_slices : 0;
  const int capacity = ((share + slices - 1) >> log2_slices) * threads;
  auto* const own = reinterpret_cast<typename Raw::Word*>(shared + scratch_bytes) + threadIdx.x;

  const auto fetch = [&](auto copy) {
#pragma unroll
    for (int input = 0; input < kInputs; ++input) {
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

  const auto read = [&](const auto* from, auto& e, int i) {
    Raw raw[kInputs];
#pragma unroll
    for (int input = 0; input < kInputs; ++input) raw[input] = Raw::Load(from + input * capacity);
    Element<T, kInputs> of_rows[kVector];
    Load::Decode(raw, of_rows);
#pragma unroll
    for (int r = 0; r < kVector; ++r) e[r][i] = of_rows[r];
  };
  // Takes each row's terms into its statistic, of kFold columns at a time, then of single ones.
  const auto add = [&](auto& statistics, auto term, auto keeps) {
    constexpr bool kKeeps = decltype(keeps)::value;
    auto* place = own;
    const auto take = [&](const auto& e) {
      constexpr int kCount = sizeof(e[0]) / sizeof(e[0][0]);
      [[maybe_unused]] typename Raw::Values kept[kCount];
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        const auto terms =
            AddTerms(statistics[r], e[r], [&](const auto& one) { return term(one, r); });
        if constexpr (kKeeps) {
#pragma unroll
          for (int i = 0; i < kCount; ++i) kept[i].element[r] = terms.x[i];
        }
      }
      if constexpr (kKeeps) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) Raw(kept[i]).Store(place + i * threads);
      }
      place += kCount * threads;
    };
    int left = count;
    for (; left >= kFold; left -= kFold) {
      Element<T, kInputs> e[kVector][kFold];
#pragma unroll
      for (int i = 0; i < kFold; ++i) read(place + i * threads, e, i);
      take(e);
    }
    for (; left > 0; --left) {
      Element<T, kInputs> e[kVector][1];
      read(place, e, 0);
      take(e);
    }
  };
  // Over the slices. The number of lanes matters to nothing else.
  const auto reduce = [&](auto& statistics, void* scratch) {
    if (lanes == 4) return SliceReduce<4>(statistics, scratch);
    if (lanes == 8) return SliceReduce<8>(statistics, scratch);
    SliceReduce<16>(statistics, scratch);
  };
  // After the first statistic of the rows, which is at the start of its scratch.
  using First = typename Op::First::Crossing;
  unsigned char* const other_scratch = shared + width * sizeof(First);
  constexpr int kStatistic = kPanelStatistic<Op, Store> * sizeof(T);
  static_assert(sizeof(First) <= kStatistic);

  typename Op::First first[kVector];
  if constexpr (kFirstIsMaximum<Op> && sizeof(Io) == 2) {
    Raw largest = Load::template AbsentRaw<kVector>(0);
    const auto* from = own;
#pragma unroll 4
    for (int c = 0; c < count; ++c) {
      largest = Larger(largest, Raw::Load(from));
      from += threads;
    }
    const auto values = largest.Unpack();
#pragma unroll
    for (int r = 0; r < kVector; ++r) first[r].value = Widen(values.element[r]);
  } else {
    add(first, [&](const auto& one, int) { return op.FirstTerm(one); }, std::false_type{});
  }
  reduce(first, shared);
  typename Op::Second second[kVector];
  if constexpr (kEstimates<Op>) {
    const auto sum = [&](auto& estimates, void* scratch, auto term) {
      add(estimates, term, std::false_type{});
      reduce(estimates, scratch);
    };
    typename Op::Estimate estimates[kVector], refined[kVector];
    static_assert(sizeof(typename Op::Estimate::Crossing) <= kStatistic);
    sum(estimates, other_scratch,
        [&](const auto& one, int r) { return op.EstimateTerm(one, op.Pivot(first[r])); });
    bool poor = false;
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      second[r] = op.FromEstimate(estimates[r], op.Pivot(first[r]));
      poor = poor || !op.IsGood(second[r]);
    }
    if (__syncthreads_or(poor && inner < rows.inner)) {
      sum(refined, shared,
          [&](const auto& one, int r) { return op.RefinedTerm(one, op.Pivot(first[r])); });
      // The others keep their estimates: no row's bits depend on its neighbours.
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        if (!op.IsGood(second[r])) second[r] = op.FromRefined(refined[r], second[r]);
      }
    }
  } else if constexpr (Op::kSweeps == 2) {
    static_assert(sizeof(typename Op::Second::Crossing) <= kStatistic);
    add(
        second, [&](const auto& one, int r) { return op.SecondTerm(one, op.Pivot(first[r])); },
        std::bool_constant<kKeepsTerms>{});
    reduce(second, other_scratch);
  }

  typename Op::Row result[kVector];
  if constexpr (kShared) {
    auto* const of_block = reinterpret_cast<Partial<Op>*>(own - threadIdx.x + kInputs * capacity);
    auto* const closed = reinterpret_cast<Closed<Op>*>(of_block + width);
    static_assert(sizeof(*of_block) + sizeof(*closed) <= kPanelRowValues * sizeof(T));
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      if (slice == r) of_block[r * lanes + lane] = {first[r], second[r]};
    }
    CloseTogether(op, cluster, of_block, closed, width);
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      const auto& [of_row, row] = closed[r * lanes + lane];
      result[r] = row;
      if constexpr (kKeepsTerms) result[r] = op.ForTermsOf(first[r], of_row, row);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kVector; ++r) result[r] = op.Close(first[r], second[r]);
  }

  if constexpr (kPerRow<Op>) {
    if (slice > 0 || inner >= rows.inner) return;
    const int64_t row = outer * rows.inner + inner;
#pragma unroll
    for (int r = 0; r < kVector; ++r) store.At(row + r, result[r]);
  } else {
    const auto* from = own;
    int64_t offset = base;
#pragma unroll 2
    for (int c = 0; c < count; ++c) {
      Element<T, kInputs> e[kVector][1];
      read(from, e, 0);
      T y[kVector];
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        if constexpr (kKeepsTerms) {
          y[r] = op.FinishFromTerm(e[r][0][0], result[r]);
        } else {
          y[r] = op.Finish(e[r][0], result[r]);
        }
      }
      store.Put(offset, y);
      from += threads;
      offset += step;
    }
  }
  if constexpr (kShared) cluster.Await();  // none leaves while another may read from it
}

}  // namespace jax_softmax::JS_ISA
