// Strategies "row" and "slices": vectors run along a row, or along a part of one.
//
// Or along as many rows as lie interleaved, where that is a power of two of at most kLanes: then
// every inner-th lane belongs to the same row, and "row" and "column" below mean all of them.
#pragma once

#include <utility>

#include "operands.h"
#include "shuffle.h"

namespace jax_softmax::JS_ISA {

// Merges every inner-th lane of a statistic by a butterfly, so that each holds the whole row's.
template <typename M, int kMask = M::kLanes / 2, typename Statistic>
JS_HD Statistic MergeLanes(Statistic statistic, int64_t inner) {
  if constexpr (kMask == 0 || std::is_same_v<Statistic, Nothing>) {
    return statistic;
  } else {
    if (kMask < inner) return statistic;
    using T = typename M::T;
    T words[sizeof(Statistic) / sizeof(T)];
    std::memcpy(words, &statistic, sizeof(statistic));
    for (T& word : words) {
      word = SwapLanes<kMask>(word, std::make_integer_sequence<int, M::kLanes>{});
    }
    Statistic partner;
    std::memcpy(&partner, words, sizeof(partner));
    statistic.Merge(partner);
    return MergeLanes<M, kMask / 2>(statistic, inner);
  }
}

// Calls f with the elements of kFold vectors at a time, where they start, and how many columns are
// left there: a constant where that is enough for all of them.
template <typename Op, typename M, typename In, typename Out, typename F>
JS_HD void Sweep(const Operands<Op, In, Out>& row, int64_t begin, int64_t end, F f) {
  ElementOf<Op> e[kFold];
  int64_t c = begin;
  for (; c + kFold * M::kLanes <= end; c += kFold * M::kLanes) {
    for (int i = 0; i < kFold; ++i) {
      for (int input = 0; input < Op::kInputs; ++input) {
        e[i].value[input] = Load<M>(row.inputs[input] + c + i * M::kLanes);
      }
    }
    f(e, c, std::integral_constant<int64_t, kFold * M::kLanes>{});
  }
  if (c == end) return;
  for (int i = 0; i < kFold; ++i) {
    const int64_t column = c + i * M::kLanes;
    for (int input = 0; input < Op::kInputs; ++input) {
      e[i].value[input] = FirstLanes<M>(LoadUpTo<M>(row.inputs[input] + column, end - column),
                                        end - column, Op::Absent(input));
    }
  }
  f(e, c, end - c);
}

// Asks for the kFold vectors at `column`, which may lie past the end of the operands: while
// exponentials are computed, what comes next can arrive.
template <typename M, typename Op, typename In, typename Out>
JS_HD void Prefetch(const Operands<Op, In, Out>& row, int64_t column) {
  constexpr int kBytes = kFold * M::kLanes * sizeof(In);
  for (const In* input : row.inputs) {
    const char* from = reinterpret_cast<const char*>(input + column);
    for (int byte = 0; byte < kBytes; byte += 64) __builtin_prefetch(from + byte);
  }
}

// Columns that are taken in at a time: both sweeps over them, or a sweep and the results, find them
// in the first cache.
inline constexpr int kBlockColumns = 4096;

template <typename Op, typename M, typename In, typename Out>
JS_HD void ReduceFirst(const Op& op, const Operands<Op, In, Out>& row, int64_t begin, int64_t end,
                       typename Op::First& into) {
  Sweep<Op, M>(row, begin, end, [&](const auto& e, int64_t, auto) { AddFirst(op, into, e); });
}

// What columns `begin` to `end` are reduced to, in every lane.
template <typename Op, typename M, typename In, typename Out>
__attribute__((noinline)) Partial<Op> Reduce(const Op& op, const Operands<Op, In, Out>& row,
                                             int64_t begin, int64_t end, int64_t inner) {
  Partial<Op> whole;
  if constexpr (Op::kSweeps == 1) {
    ReduceFirst<Op, M>(op, row, begin, end, whole.first);
    whole.first = MergeLanes<M>(whole.first, inner);
  } else {
    for (int64_t c = begin; c < end; c += kBlockColumns) {
      const int64_t block_end = std::min(c + kBlockColumns, end);
      typename Op::First first;
      ReduceFirst<Op, M>(op, row, c, block_end, first);
      first = MergeLanes<M>(first, inner);
      first.Merge(whole.first);
      op.Rescale(whole.second, whole.first, first);
      whole.first = first;
      const auto pivot = op.Pivot(first);
      Sweep<Op, M>(row, c, block_end, [&](const auto& e, int64_t at, auto) {
        Prefetch<M>(row, at + kBlockColumns);
        AddSecond(op, whole.second, e, pivot);
      });
    }
    whole.second = MergeLanes<M>(whole.second, inner);
  }
  return whole;
}

template <typename Op, typename M, typename In, typename Out>
__attribute__((noinline)) void Finish(const Op& op, const Operands<Op, In, Out>& row, int64_t begin,
                                      int64_t end, const typename Op::Row& result) {
  Sweep<Op, M>(row, begin, end, [&](const auto& e, int64_t c, auto left) {
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) {
      StoreUpTo<M>(row.output + c + i * M::kLanes, op.Finish(e[i], result), left - i * M::kLanes);
    }
  });
}

// The second sweep over a short row, keeping its terms: the results then need no exponential.
template <typename Op, typename M, typename In, typename Out>
JS_HD void ReduceSecond(const Op& op, const Operands<Op, In, Out>& row, int64_t columns,
                        int64_t next, typename M::T pivot, typename Op::Second& into,
                        typename M::T* kept) {
  Sweep<Op, M>(row, 0, columns, [&](const auto& e, int64_t c, auto) {
    Prefetch<M>(row, c + next);
    const auto terms = AddSecond(op, into, e, pivot);
    if constexpr (kFinishesFromTerm<Op>) {
      JS_UNROLL
      for (int i = 0; i < kFold; ++i) kept[c / M::kLanes + i] = terms.x[i];
    }
  });
}

// The results of a short row.
template <typename Op, typename M, typename In, typename Out>
JS_HD void FinishShort(const Op& op, const Operands<Op, In, Out>& row, int64_t columns,
                       const typename Op::Row& result, const typename M::T* kept) {
  if constexpr (kFinishesFromTerm<Op>) {
    int64_t c = 0;
    for (; c + M::kLanes <= columns; c += M::kLanes) {
      Store<M>(row.output + c, op.FinishFromTerm(kept[c / M::kLanes], result));
    }
    if (c == columns) return;
    StoreUpTo<M>(row.output + c, op.FinishFromTerm(kept[c / M::kLanes], result), columns - c);
  } else {
    Finish<Op, M>(op, row, 0, columns, result);
  }
}

// Merges the lanes of a statistic of each of kLanes rows, so that lane r holds all of row r's: half
// the steps of a transposition, and far fewer than a butterfly for every row.
template <typename M, int kSize = M::kLanes / 2, typename Statistic>
JS_HD Statistic MergeRows(Statistic (&rows)[M::kLanes]) {
  if constexpr (kSize > 0 && !std::is_same_v<Statistic, Nothing>) {
    using T = typename M::T;
    constexpr int kWords = sizeof(Statistic) / sizeof(T);
    JS_UNROLL
    for (int r = 0; r < kSize; ++r) {
      T words[2][kWords];
      std::memcpy(words[0], &rows[r], sizeof(Statistic));
      std::memcpy(words[1], &rows[r + kSize], sizeof(Statistic));
      for (int w = 0; w < kWords; ++w) {
        SwapBlocks<kSize>(words[0][w], words[1][w], std::make_integer_sequence<int, M::kLanes>{});
      }
      Statistic other;
      std::memcpy(&rows[r], words[0], sizeof(Statistic));
      std::memcpy(&other, words[1], sizeof(Statistic));
      rows[r].Merge(other);
    }
    return MergeRows<M, kSize / 2>(rows);
  }
  return rows[0];
}

// Values of a row in each lane, to be had one row at a time, in every lane.
template <typename M, typename Values>
struct ByRow {
  static constexpr int kWords = sizeof(Values) / sizeof(typename M::T);
  typename M::Scalar words[kWords][M::kLanes];

  JS_HD explicit ByRow(const Values& values) { std::memcpy(words, &values, sizeof(values)); }
  JS_HD Values operator[](int row) const {
    typename M::T spread[kWords];
    for (int w = 0; w < kWords; ++w) spread[w] = typename M::T{} + words[w][row];
    Values values;
    std::memcpy(&values, spread, sizeof(values));
    return values;
  }
};

// A few rows that are a block together. The sweeps take one row after the other, so that memory is
// read and written in order; what they share is the work of merging lanes.
template <typename Op, typename M, typename In, typename Out>
JS_HD void RunGroup(const Op& op, const Operands<Op, In, Out>& first_row, int64_t columns,
                    int rows) {
  using T = typename M::T;
  const auto row = [&](int r) { return first_row.From(r * columns); };
  Partial<Op> whole;
  typename Op::First firsts[M::kLanes];
  for (int r = 0; r < rows; ++r) ReduceFirst<Op, M>(op, row(r), 0, columns, firsts[r]);
  whole.first = MergeRows<M>(firsts);

  T kept[kBlockColumns / M::kLanes];
  const int64_t kept_per_row = kBlockColumns / M::kLanes / rows;
  if constexpr (Op::kSweeps == 2) {
    const ByRow<M, T> pivots(op.Pivot(whole.first));
    typename Op::Second seconds[M::kLanes];
    for (int r = 0; r < rows; ++r) {
      ReduceSecond<Op, M>(op, row(r), columns, rows * columns, pivots[r], seconds[r],
                          kept + r * kept_per_row);
    }
    whole.second = MergeRows<M>(seconds);
  }
  if constexpr (kPerRow<Op>) {
    StoreOfRows<M>(first_row, op.Close(whole.first, whole.second), 0, rows);
  } else {
    const ByRow<M, typename Op::Row> results(op.Close(whole.first, whole.second));
    for (int r = 0; r < rows; ++r) {
      FinishShort<Op, M>(op, row(r), columns, results[r], kept + r * kept_per_row);
    }
  }
}

// Rows, in whole folds of vectors, that are a block together; 0 where one is more than that.
template <typename M>
JS_HD int64_t RowsInBlock(int64_t columns) {
  constexpr int64_t kFullFold = kFold * M::kLanes;
  const int64_t padded = std::max<int64_t>(CeilDiv(columns, kFullFold) * kFullFold, kFullFold);
  return std::min<int64_t>(kBlockColumns / padded, M::kLanes);
}

template <typename Op, typename In, typename Out>
void RunRows(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  const Op op = OpFor<Op>(call);
  const int64_t inner = call.rows.inner;
  const int64_t columns = call.rows.columns * inner;
  const auto all = OperandsOf<Op, In, Out>(call);
  const int64_t group = RowsInBlock<M>(columns);
  if (inner == 1 && group > 0) {
    for (int64_t r = begin; r < end; r += group) {
      const int rows = static_cast<int>(std::min(group, end - r));
      RunGroup<Op, M>(op, all.From(r * columns, r), columns, rows);
    }
    return;
  }
  for (int64_t r = begin; r < end; ++r) {
    const auto row = all.From(r * columns, r * inner);
    const Partial<Op> whole = Reduce<Op, M>(op, row, 0, columns, inner);
    if constexpr (kPerRow<Op>) {
      StoreOfRows<M>(row, op.Close(whole.first, whole.second), 0, inner);
    } else {
      Finish<Op, M>(op, row, 0, columns, op.Close(whole.first, whole.second));
    }
  }
}

// ---- slices -----------------------------------------------------------------------------------

// Slice `index` of all rows' slices: where its row starts, and its part of it.
struct Slice {
  int64_t row, begin, end;

  Slice(const Rows& rows, int64_t index) {
    const int64_t per_row = cpu::SlicesPerRow(rows);
    const int64_t columns = rows.columns * rows.inner;
    row = index / per_row * columns;
    begin = index % per_row * cpu::kSliceElements;
    end = std::min(begin + cpu::kSliceElements, columns);
  }
};

template <typename Op>
JS_HD Partial<Op> PartialAt(const cpu::Call& call, int64_t slice) {
  Partial<Op> part;
  std::memcpy(&part, call.partials + slice * cpu::kPartialBytes, sizeof(part));
  return part;
}

template <typename Op, typename In, typename Out>
void ReduceSlices(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  static_assert(sizeof(Partial<Op>) <= cpu::kPartialBytes);
  for (int64_t i = begin; i < end; ++i) {
    const Slice slice(call.rows, i);
    const auto row = OperandsOf<Op, In, Out>(call).From(slice.row);
    const Partial<Op> part =
        Reduce<Op, M>(OpFor<Op>(call), row, slice.begin, slice.end, call.rows.inner);
    std::memcpy(call.partials + i * cpu::kPartialBytes, &part, sizeof(part));
  }
}

// Merges the partial results of outer indices `begin` to `end` into that of each row's first slice,
// in order: the same bits whoever has reduced them.
template <typename Op>
void MergeSlices(const cpu::Call& call, int64_t begin, int64_t end) {
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  for (int64_t r = begin; r < end; ++r) {
    Partial<Op> whole = PartialAt<Op>(call, r * per_row);
    for (int64_t s = 1; s < per_row; ++s) Merge(Op{}, whole, PartialAt<Op>(call, r * per_row + s));
    std::memcpy(call.partials + r * per_row * cpu::kPartialBytes, &whole, sizeof(whole));
  }
}

// The same for ops with one value for each row, which it stores.
template <typename Op, typename In, typename Out>
void CloseSlices(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  MergeSlices<Op>(call, begin, end);
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  for (int64_t r = begin; r < end; ++r) {
    const Partial<Op> whole = PartialAt<Op>(call, r * per_row);
    StoreOfRows<M>(OperandsOf<Op, In, Out>(call), Op{}.Close(whole.first, whole.second),
                   r * call.rows.inner, call.rows.inner);
  }
}

template <typename Op, typename In, typename Out>
void FinishSlices(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  for (int64_t i = begin; i < end; ++i) {
    const Slice slice(call.rows, i);
    const auto row = OperandsOf<Op, In, Out>(call).From(slice.row);
    const Partial<Op> whole = PartialAt<Op>(call, i / per_row * per_row);
    const Op op = OpFor<Op>(call);
    Finish<Op, M>(op, row, slice.begin, slice.end, op.Close(whole.first, whole.second));
  }
}

}  // namespace jax_softmax::JS_ISA
