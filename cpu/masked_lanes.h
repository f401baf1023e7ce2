// Strategy "lanes" for logits with terms: short rows, which are transposed once these are applied.
#pragma once

#include "lanes.h"
#include "masked_row.h"

namespace jax_softmax::JS_ISA {

// At most kLanes rows, with kMaskedTileColumns columns at most.
template <typename Op, typename In, typename Out>
JS_HD void RunMaskedTile(const Op& op, const cpu::Call& call, int64_t first_row, int rows) {
  using M = typename MathFor<Out>::Type;
  using T = typename M::T;
  constexpr bool kKeepTerms = kFinishesFromTerm<Op>;
  const int64_t columns = call.rows.columns;
  LogitsRow<M, In> row[M::kLanes];
  for (int lane = 0; lane < M::kLanes; ++lane) {
    row[lane].PointTo(call, first_row + std::min(lane, rows - 1));
  }
  T buffer[cpu::kMaskedTileColumns];
  LoadTransposed<M>(columns, buffer, [&](int64_t column, T(&x)[M::kLanes]) {
    // No copy of the loop's body for each lane: it is long.
    JS_KEEP_LOOP
    for (int lane = 0; lane < M::kLanes; ++lane) {
      T z[1];
      row[lane].Load(column, row[lane].seen - column, z);
      x[lane] = z[0];
    }
  });

  const ElementOf<Op> sinks[1] = {SinksOf<Op, M>(call, first_row, rows)};
  Partial<Op> whole;
  SweepTile(Tile<Op>{.x = {buffer}, .columns = columns, .stride = 1},
            [&](const auto& e, int64_t) { AddFirst(op, whole.first, e); });
  AddFirst(op, whole.first, sinks);
  const T pivot = op.Pivot(whole.first);
  AddBuffered<kKeepTerms>(op, buffer, columns, pivot, whole.second);
  AddSecond(op, whole.second, sinks, pivot);

  const typename Op::Row result = op.Close(whole.first, whole.second);
  for (int64_t c = 0; c < columns; ++c) buffer[c] = FinishOne<kKeepTerms>(op, buffer[c], result);
  const auto masks_itself = Op::MasksItself(result);
  const ShortRows strip{columns, rows, columns};
  StoreTransposed<M>(buffer, strip, static_cast<Out*>(call.output) + first_row * columns,
                     [&](int lane, int64_t column, T y) {
                       return masks_itself[lane] ? y : row[lane].Mask(y, column, Op::Masked());
                     });
}

template <typename Op, typename In, typename Out>
void RunMaskedLanes(const cpu::Call& call, int64_t begin, int64_t end) {
  constexpr int64_t kLanes = MathFor<Out>::Type::kLanes;
  for (int64_t r = begin; r < end; r += kLanes) {
    RunMaskedTile<Op, In, Out>(Op{}, call, r, static_cast<int>(std::min(kLanes, end - r)));
  }
}

}  // namespace jax_softmax::JS_ISA
