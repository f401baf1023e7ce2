// Rows that are neighbours in memory, in shared memory: each element of a vector has statistics of
// its own.
#pragma once

#include "in_words.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// The compute values that the plan has room for, of what a warp has of a row.
template <typename Op, typename Store>
inline constexpr int kNeighbourStatistic =
    NeighbourStatistic(sizeof(typename Store::Io), kPerRow<Op>);

// A thread's vectors of kVector rows, in places that no other thread uses: `count` of each input,
// `step` vectors apart, of inputs that are `capacity` vectors apart.
template <typename Op, typename Load, typename Store, int kVector>
class Neighbours {
 public:
  using T = typename Op::T;
  using Io = typename Load::Io;
  using Raw = typename Load::template Raw<kVector>;
  using Word = typename Raw::Word;
  // Where they have the elements' type, the second sweep's terms take the elements' places.
  static constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<Io, T>;

  __device__ __forceinline__ Neighbours(Word* own, int count, int step, int capacity)
      : own_(own), count_(count), step_(step), capacity_(capacity) {}

  // Both statistics of the rows. `reduce` merges one of each row over the threads that share it,
  // where `turn` 1 leaves what `turn` 0 has left of use; `any` is a vote of all these threads.
  template <typename Reduce, typename Any>
  __device__ __forceinline__ void Sweep(const Op& op, typename Op::First (&first)[kVector],
                                        typename Op::Second (&second)[kVector], Reduce reduce,
                                        Any any) const {
    constexpr int kStatistic = kNeighbourStatistic<Op, Store> * sizeof(T);
    static_assert(sizeof(typename Op::First::Crossing) <= kStatistic);
    if constexpr (kFirstIsMaximum<Op> && sizeof(Io) == 2) {
      Raw largest = Load::template AbsentRaw<kVector>(0);
      const auto* from = own_;
#pragma unroll 4
      for (int c = 0; c < count_; ++c) {
        largest = Larger(largest, Raw::Load(from));
        from += step_;
      }
      const auto values = largest.Unpack();
#pragma unroll
      for (int r = 0; r < kVector; ++r) first[r].value = Widen(values.element[r]);
    } else {
      Add(first, [&](const auto& one, int) { return op.FirstTerm(one); }, std::false_type{});
    }
    reduce(first, 0);
    if constexpr (kEstimates<Op>) {
      const auto sum = [&](auto& estimates, int turn, auto term) {
        Add(estimates, term, std::false_type{});
        reduce(estimates, turn);
      };
      typename Op::Estimate estimates[kVector], refined[kVector];
      static_assert(sizeof(typename Op::Estimate::Crossing) <= kStatistic);
      sum(estimates, 1,
          [&](const auto& one, int r) { return op.EstimateTerm(one, op.Pivot(first[r])); });
      bool poor = false;
#pragma unroll
      for (int r = 0; r < kVector; ++r) {
        second[r] = op.FromEstimate(estimates[r], op.Pivot(first[r]));
        poor = poor || !op.IsGood(second[r]);
      }
      if (any(poor)) {
        sum(refined, 0,
            [&](const auto& one, int r) { return op.RefinedTerm(one, op.Pivot(first[r])); });
        // The others keep their estimates: no row's bits depend on its neighbours.
#pragma unroll
        for (int r = 0; r < kVector; ++r) {
          if (!op.IsGood(second[r])) second[r] = op.FromRefined(refined[r], second[r]);
        }
      }
    } else if constexpr (Op::kSweeps == 2) {
      static_assert(sizeof(typename Op::Second::Crossing) <= kStatistic);
      Add(
          second, [&](const auto& one, int r) { return op.SecondTerm(one, op.Pivot(first[r])); },
          std::bool_constant<kKeepsTerms>{});
      reduce(second, 1);
    }
  }

  // The rows' results of a vector, of what the sweep has left of it.
  __device__ __forceinline__ void Finish(const Op& op, const Word* place,
                                         const typename Op::Row (&result)[kVector],
                                         T (&y)[kVector]) const {
    Element<T, Op::kInputs> e[kVector][1];
    Read(place, e, 0);
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      if constexpr (kKeepsTerms) {
        y[r] = op.FinishFromTerm(e[r][0][0], result[r]);
      } else {
        y[r] = op.Finish(e[r][0], result[r]);
      }
    }
  }

 private:
  static constexpr int kFold = 4;  // vectors that a sum takes in at a time

  template <int kCount>
  __device__ __forceinline__ void Read(const Word* from,
                                       Element<T, Op::kInputs> (&e)[kVector][kCount], int i) const {
    Raw raw[Op::kInputs];
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      raw[input] = Raw::Load(from + input * capacity_);
    }
    Element<T, Op::kInputs> of_rows[kVector];
    Load::Decode(raw, of_rows);
#pragma unroll
    for (int r = 0; r < kVector; ++r) e[r][i] = of_rows[r];
  }

  // Takes each row's terms into its statistic, of kFold vectors at a time, then of single ones.
  template <typename S, typename Term, bool kKeeps>
  __device__ __forceinline__ void Add(S (&statistics)[kVector], Term term,
                                      std::bool_constant<kKeeps>) const {
    auto* place = own_;
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
        for (int i = 0; i < kCount; ++i) Raw(kept[i]).Store(place + i * step_);
      }
      place += kCount * step_;
    };
    int left = count_;
    for (; left >= kFold; left -= kFold) {
      Element<T, Op::kInputs> e[kVector][kFold];
#pragma unroll
      for (int i = 0; i < kFold; ++i) Read(place + i * step_, e, i);
      take(e);
    }
    for (; left > 0; --left) {
      Element<T, Op::kInputs> e[kVector][1];
      Read(place, e, 0);
      take(e);
    }
  }

  Word* own_;
  int count_, step_, capacity_;
};

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

}  // namespace jax_softmax::JS_ISA
