// Strategy "strided": lanes take rows that lie side by side, where other dimensions follow the
// axis.
#pragma once

#include "tile.h"

namespace jax_softmax::JS_ISA {

// Unit `index` of the work: neighbouring rows of one outer index, or what is left of them.
struct Rank {
  int64_t first;  // element of the operands
  int64_t first_row;
  int64_t rows;

  Rank(const Rows& all, int64_t index) {
    const int64_t most = cpu::RowsPerRank(all);
    const int64_t per_outer = CeilDiv(all.inner, most);
    const int64_t row = index % per_outer * most;
    first = index / per_outer * all.columns * all.inner + row;
    first_row = index / per_outer * all.inner + row;
    rows = std::min(most, all.inner - row);
  }
};

// Takes in a strip of neighbouring rows, a few vectors wide, and gives their results.
template <typename Op, typename In, typename Out>
struct Strip {
  using M = typename MathFor<Out>::Type;
  using T = typename M::T;
  static constexpr int64_t kMostVectors = cpu::kMostRanked / M::kLanes;
  static constexpr int64_t kCapacity = kTileBytes / kSimdBytes / Op::kInputs;

  Op op;
  Operands<Op, In, Out> operands;  // from the strip's first row on
  int64_t columns, inner, rows, vectors;
  Partial<Op> whole[kMostVectors];
  T scratch[Op::kInputs][kCapacity];  // column after column of each vector in turn

  // Not an aggregate, which would clear the scratch space.
  Strip(const cpu::Call& call, int64_t first, int64_t first_row, int64_t rows)
      : op(OpFor<Op>(call)),
        operands(OperandsOf<Op, In, Out>(call).From(first, first_row)),
        columns(call.rows.columns),
        inner(call.rows.inner),
        rows(rows),
        vectors(CeilDiv(rows, M::kLanes)) {}

  JS_HD ElementOf<Op> At(int64_t column, int64_t vector) const {
    const auto at = operands.From(column * inner + vector * M::kLanes);
    ElementOf<Op> e;
    for (int input = 0; input < Op::kInputs; ++input) {
      e.value[input] = LoadUpTo<M>(at.inputs[input], rows - vector * M::kLanes);
    }
    return e;
  }

  // Memory is read column by column, all vectors of each.
  void Reduce(int64_t begin, int64_t count, bool keep_terms) {
    typename Op::First first[kMostVectors];
    for (int64_t v = 0; v < vectors; ++v) first[v] = whole[v].first;
    for (int64_t c = 0; c < count; c += kFold) {
      for (int64_t v = 0; v < vectors; ++v) {
        ElementOf<Op> e[kFold];
        for (int i = 0; i < kFold; ++i) {
          e[i] = c + i < count ? At(begin + c + i, v) : AbsentElement<Op>();
          for (int input = 0; input < Op::kInputs; ++input) {
            if (c + i < count) scratch[input][v * count + c + i] = e[i].value[input];
          }
        }
        AddFirst(op, first[v], e);
      }
    }
    for (int64_t v = 0; v < vectors; ++v) {
      if constexpr (Op::kSweeps == 2) {
        op.Rescale(whole[v].second, whole[v].first, first[v]);
        SecondSweep(begin, count, v, op.Pivot(first[v]), keep_terms);
      }
      whole[v].first = first[v];
    }
  }

  JS_HD void SecondSweep(int64_t begin, int64_t count, int64_t v, T pivot, bool keep_terms) {
    Tile<Op> tile{.columns = count, .stride = 1};
    for (int input = 0; input < Op::kInputs; ++input) tile.x[input] = scratch[input] + v * count;
    SweepTile(tile, [&](const auto& e, int64_t c) {
      if constexpr (kPerRow<Op>) {
        PrefetchNext(begin, count, c, v);
      } else {
        for (int i = 0; i < kFold; ++i) {
          __builtin_prefetch(operands.output + (begin + c + i) * inner + v * M::kLanes,
                             /*write=*/1);
        }
      }
      const auto terms = AddSecond(op, whole[v].second, e, pivot);
      if constexpr (kFinishesFromTerm<Op>) {
        for (int i = 0; keep_terms && i < kFold && c + i < count; ++i) {
          tile.x[0][c + i] = terms.x[i];
        }
      }
    });
  }

  // What is read after this block of columns: the next one, or else the next strip.
  JS_HD void PrefetchNext(int64_t begin, int64_t count, int64_t c, int64_t v) const {
    const int64_t next = begin + count < columns ? (begin + count) * inner : rows;
    for (const In* input : operands.inputs) {
      for (int i = 0; i < kFold; ++i) {
        __builtin_prefetch(input + next + (c + i) * inner + v * M::kLanes);
      }
    }
  }

  // From memory, or from what Reduce has kept of all columns.
  void Finish(bool kept) {
    typename Op::Row result[kMostVectors];
    for (int64_t v = 0; v < vectors; ++v) result[v] = op.Close(whole[v].first, whole[v].second);
    for (int64_t c = 0; c < columns; ++c) {
      Out* to = operands.output + c * inner;
      for (int64_t v = 0; v < vectors; ++v) {
        for (const In* input : operands.inputs) {  // the next strip's
          __builtin_prefetch(input + c * inner + rows + v * M::kLanes);
        }
        StoreUpTo<M>(to + v * M::kLanes,
                     kept ? FromKept(c, v, result[v]) : op.Finish(At(c, v), result[v]),
                     rows - v * M::kLanes);
      }
    }
  }

  void StoreRows() {
    for (int64_t v = 0; v < vectors; ++v) {
      StoreOfRows<M>(operands, op.Close(whole[v].first, whole[v].second), v * M::kLanes,
                     rows - v * M::kLanes);
    }
  }

  JS_HD T FromKept(int64_t column, int64_t vector, const typename Op::Row& result) const {
    if constexpr (kFinishesFromTerm<Op>) {
      return op.FinishFromTerm(scratch[0][vector * columns + column], result);
    } else {
      ElementOf<Op> e;
      for (int input = 0; input < Op::kInputs; ++input) {
        e.value[input] = scratch[input][vector * columns + column];
      }
      return op.Finish(e, result);
    }
  }
};

template <typename Op, typename In, typename Out>
void RunStrided(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  using ThisStrip = Strip<Op, In, Out>;
  const int64_t columns = call.rows.columns;
  // Fewer vectors side by side if whole columns of them fit then, but not so few that memory is
  // read in short pieces.
  constexpr int64_t kFewestVectors = ThisStrip::kMostVectors / 4;
  const int64_t wanted = CeilDiv(std::min(call.rows.inner, cpu::RowsPerRank(call.rows)), M::kLanes);
  const int64_t fit = ThisStrip::kCapacity / std::max<int64_t>(columns, 1);
  const bool keep = !kPerRow<Op> && fit >= std::min(wanted, kFewestVectors);
  const int64_t vectors = keep ? std::min(fit, wanted) : wanted;
  const int64_t block = keep ? columns : ThisStrip::kCapacity / vectors;
  for (int64_t index = begin; index < end; ++index) {
    const Rank rank(call.rows, index);
    for (int64_t row = 0; row < rank.rows; row += vectors * M::kLanes) {
      ThisStrip strip(call, rank.first + row, rank.first_row + row,
                      std::min(vectors * M::kLanes, rank.rows - row));
      for (int64_t c = 0; c < columns; c += block) {
        strip.Reduce(c, std::min(block, columns - c), keep);
      }
      if constexpr (kPerRow<Op>) {
        strip.StoreRows();
      } else {
        strip.Finish(keep);
      }
    }
  }
}

}  // namespace jax_softmax::JS_ISA
