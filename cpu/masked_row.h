// Strategy "row" for logits with terms: these are applied once, on the way from memory into a
// buffer in the first cache, from which all sweeps take them.
#pragma once

#include "row.h"
#include "terms.h"
#include "tile.h"

namespace jax_softmax::JS_ISA {

// Vectors of logits that are at hand at a time: those of a few short rows, or of a part of a row.
template <typename M>
inline constexpr int kBuffered = kBlockColumns / M::kLanes;

// What columns `begin` to `end` of a row have in the buffer: whole folds of vectors, in which
// elements that are not there or not seen are absent.
template <typename M, typename In>
JS_HD int64_t BufferedOf(const LogitsRow<M, In>& row, int64_t begin, int64_t end) {
  const int64_t columns = std::max<int64_t>(std::min(end, row.seen) - begin, 0);
  return CeilDiv(columns, kFold * M::kLanes) * kFold;
}

// Fills the buffer; returns the maximum in each lane.
template <typename M, typename In>
__attribute__((noinline)) Max<M> LoadLogits(const LogitsRow<M, In>& row, int64_t begin, int64_t end,
                                            typename M::T* to) {
  using T = typename M::T;
  Max<M> max;
  TermsOf<T, kFold> z;
  const auto take_in = [&] {
    max.Add(z);
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) *to++ = z.x[i];
  };
  end = std::min(end, row.seen);
  int64_t c = begin;
  for (; c + kFold * M::kLanes <= end; c += kFold * M::kLanes) {
    row.Load(c, std::integral_constant<int64_t, kFold * M::kLanes>{}, z.x);
    take_in();
  }
  if (c < end) {
    row.Load(c, end - c, z.x);
    take_in();
  }
  return max;
}

// Takes buffered logits into the second statistic; with kKeepTerms, its terms replace them.
template <bool kKeepTerms, typename Op, typename T>
JS_HD void AddBuffered(const Op& op, T* logits, int64_t vectors, T pivot,
                       typename Op::Second& into) {
  SweepTile(Tile<Op>{.x = {logits}, .columns = vectors, .stride = 1},
            [&](const auto& e, int64_t v) {
              const auto terms = AddSecond(op, into, e, pivot);
              if constexpr (kKeepTerms) {
                JS_UNROLL
                for (int i = 0; i < kFold; ++i) logits[v + i] = terms.x[i];
              }
            });
}

// A result from a buffered logit or, with kFromTerms, its term.
template <bool kFromTerms, typename Op>
JS_HD typename Op::T FinishOne(const Op& op, typename Op::T x, const typename Op::Row& result) {
  if constexpr (kFromTerms) {
    return op.FinishFromTerm(x, result);
  } else {
    return op.Finish({{x}}, result);
  }
}

// The results of columns `begin` to `end`.
template <bool kFromTerms, typename Op, typename M, typename In, typename Out>
JS_HD void FinishBuffered(const Op& op, const LogitsRow<M, In>& row, int64_t begin, int64_t end,
                          const typename M::T* buffer, const typename Op::Row& result,
                          Out* output) {
  const bool masks_itself = Op::MasksItself(result)[0];
  int64_t c = begin;
  for (; c < std::min(end, row.seen); c += M::kLanes) {
    const auto y = FinishOne<kFromTerms>(op, *buffer++, result);
    StoreUpTo<M>(output + c, masks_itself ? y : row.Mask(y, c, Op::Masked()), end - c);
  }
  for (; c < end; c += M::kLanes) StoreUpTo<M>(output + c, Op::Masked(), end - c);
}

// One more logit for each of a few rows, which has no result: one row's in each lane, absent where
// there are none.
template <typename Op, typename M>
JS_HD ElementOf<Op> SinksOf(const cpu::Call& call, int64_t first_row, int rows) {
  ElementOf<Op> sinks = AbsentElement<Op>();
  for (int r = 0; call.extras.terms.sink != nullptr && r < rows; ++r) {
    sinks.value[0][r] = TermOf<typename M::Scalar>(call.extras.terms.sink,
                                                   call.extras.terms.sink_at, first_row + r);
  }
  return sinks;
}

// A few rows that share the work of merging lanes, as in RunGroup.
template <typename Op, typename In, typename Out>
JS_HD void RunMaskedGroup(const Op& op, const cpu::Call& call, int64_t first_row, int rows) {
  using M = typename MathFor<Out>::Type;
  using T = typename M::T;
  constexpr bool kKeepTerms = kFinishesFromTerm<Op>;
  const int64_t columns = call.rows.columns;
  LogitsRow<M, In> row[M::kLanes];
  T buffer[kBuffered<M>];
  T* logits[M::kLanes];
  Partial<Op> whole;
  typename Op::First firsts[M::kLanes];
  for (int r = 0; r < rows; ++r) {
    row[r].PointTo(call, first_row + r);
    logits[r] = buffer + r * (kBuffered<M> / rows);
    firsts[r] = LoadLogits(row[r], 0, columns, logits[r]);
  }
  whole.first = MergeRows<M>(firsts);
  const ElementOf<Op> sinks[1] = {SinksOf<Op, M>(call, first_row, rows)};
  AddFirst(op, whole.first, sinks);

  const T pivot = op.Pivot(whole.first);
  const ByRow<M, T> pivots(pivot);
  typename Op::Second seconds[M::kLanes];
  for (int r = 0; r < rows; ++r) {
    AddBuffered<kKeepTerms>(op, logits[r], BufferedOf(row[r], 0, columns), pivots[r], seconds[r]);
  }
  whole.second = MergeRows<M>(seconds);
  AddSecond(op, whole.second, sinks, pivot);

  const ByRow<M, typename Op::Row> results(op.Close(whole.first, whole.second));
  for (int r = 0; r < rows; ++r) {
    auto* output = static_cast<Out*>(call.output) + (first_row + r) * columns;
    FinishBuffered<kKeepTerms>(op, row[r], 0, columns, logits[r], results[r], output);
  }
}

// A row that the buffer holds a part of at a time: its terms are applied twice.
template <typename Op, typename In, typename Out>
JS_HD void RunLongMaskedRow(const Op& op, const cpu::Call& call, int64_t index) {
  using M = typename MathFor<Out>::Type;
  using T = typename M::T;
  LogitsRow<M, In> row;
  row.PointTo(call, index);
  T buffer[kBuffered<M>];
  Partial<Op> whole;
  for (int64_t c = 0; c < row.seen; c += kBlockColumns) {
    typename Op::First first =
        MergeLanes<M>(LoadLogits(row, c, c + kBlockColumns, buffer), /*inner=*/1);
    first.Merge(whole.first);
    op.Rescale(whole.second, whole.first, first);
    whole.first = first;
    AddBuffered<false>(op, buffer, BufferedOf(row, c, c + kBlockColumns), op.Pivot(first),
                       whole.second);
  }
  whole.second = MergeLanes<M>(whole.second, /*inner=*/1);
  const Element<T, 1> sink[1] = {{T{} + SinksOf<Op, M>(call, index, 1)[0][0]}};
  AddOnline(op, whole, sink);

  const typename Op::Row result = op.Close(whole.first, whole.second);
  Out* output = static_cast<Out*>(call.output) + index * call.rows.columns;
  for (int64_t c = 0; c < call.rows.columns; c += kBlockColumns) {
    const int64_t end = std::min(c + kBlockColumns, call.rows.columns);
    LoadLogits(row, c, end, buffer);
    FinishBuffered<false>(op, row, c, end, buffer, result, output);
  }
}

template <typename Op, typename In, typename Out>
void RunMaskedRows(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  const Op op{};
  const int64_t group = RowsInBlock<M>(call.rows.columns);
  for (int64_t r = begin; r < end; r += std::max<int64_t>(group, 1)) {
    if (group > 0) {
      RunMaskedGroup<Op, In, Out>(op, call, r, static_cast<int>(std::min(group, end - r)));
    } else {
      RunLongMaskedRow<Op, In, Out>(op, call, r);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
