// A tile: many rows in the compute type, in the first caches, with a row in every vector lane.
//
// Strategies "lanes" and "strided" bring operands into this form and take results out of it; what
// happens in between depends on neither, nor on the element types.
#pragma once

#include <utility>

#include "operands.h"

namespace jax_softmax::JS_ISA {

// Scratch space for tiles, on the stack: a part of any second cache.
inline constexpr int kTileBytes = 128 * 1024;

// Column c of the rows is at x[input][c * stride]. Results replace the first input, but those that
// rows have one each of.
//
// Memory that will be wanted soon is asked for column by column, so that it arrives during the
// arithmetic: where this tile's results will go, and the operands of the next one. The addresses
// are only hints.
template <typename Op>
struct Tile {
  typename Op::T* x[Op::kInputs];
  int64_t columns;
  int64_t stride;
  const char* output;
  const char* next[Op::kInputs];
  int64_t output_step, next_step;  // bytes from one column to the next
  typename Op::Row* of_rows;       // where the rows' own results go

  JS_HD void PrefetchOutput(int64_t column) const {
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) {
      __builtin_prefetch(output + (column + i) * output_step, /*write=*/1);
    }
  }
  JS_HD void PrefetchNext(int64_t column) const {
    for (const char* input : next) __builtin_prefetch(input + column * next_step);
  }
  // A tile of rows with one result each is done once it is reduced.
  JS_HD void PrefetchAfterReduce(int64_t column) const {
    if constexpr (kPerRow<Op>) {
      JS_UNROLL
      for (int i = 0; i < kFold; ++i) PrefetchNext(column + i);
    } else {
      PrefetchOutput(column);
    }
  }
};

// Calls f with the elements of kFold columns at a time, and the first of those.
template <typename Op, typename F>
JS_HD void SweepTile(const Tile<Op>& tile, F f) {
  ElementOf<Op> e[kFold];
  int64_t c = 0;
  for (; c + kFold <= tile.columns; c += kFold) {
    for (int i = 0; i < kFold; ++i) {
      for (int input = 0; input < Op::kInputs; ++input) {
        e[i].value[input] = tile.x[input][(c + i) * tile.stride];
      }
    }
    f(e, c);
  }
  if (c == tile.columns) return;
  for (int i = 0; i < kFold; ++i) {
    for (int input = 0; input < Op::kInputs; ++input) {
      e[i].value[input] =
          c + i < tile.columns ? tile.x[input][(c + i) * tile.stride] : Op::Absent(input);
    }
  }
  f(e, c);
}

// Takes a tile's columns into `whole`.
template <typename Op>
void ReduceTile(const Op& op, const Tile<Op>& tile, Partial<Op>& whole) {
  typename Op::First first = whole.first;
  SweepTile(tile, [&](const auto& e, int64_t c) {
    if constexpr (Op::kSweeps == 1) tile.PrefetchAfterReduce(c);
    AddFirst(op, first, e);
  });
  if constexpr (Op::kSweeps == 2) {
    op.Rescale(whole.second, whole.first, first);
    const auto pivot = op.Pivot(first);
    SweepTile(tile, [&](const auto& e, int64_t c) {
      tile.PrefetchAfterReduce(c);
      AddSecond(op, whole.second, e, pivot);
    });
  }
  whole.first = first;
}

template <typename Op>
void FinishTile(const Op& op, const Tile<Op>& tile, const Partial<Op>& whole) {
  const auto result = op.Close(whole.first, whole.second);
  if constexpr (kPerRow<Op>) {
    *tile.of_rows = result;
  } else {
    for (int64_t c = 0; c < tile.columns; ++c) {
      tile.PrefetchNext(c);
      ElementOf<Op> e;
      for (int input = 0; input < Op::kInputs; ++input) {
        e.value[input] = tile.x[input][c * tile.stride];
      }
      tile.x[0][c * tile.stride] = op.Finish(e, result);
    }
  }
}

// Both, where the tile holds whole rows: then the second sweep's terms may be kept in it.
template <typename Op>
void RunTile(const Op& op, const Tile<Op>& tile) {
  Partial<Op> whole;
  if constexpr (kFinishesFromTerm<Op>) {
    SweepTile(tile, [&](const auto& e, int64_t) { AddFirst(op, whole.first, e); });
    const auto pivot = op.Pivot(whole.first);
    SweepTile(tile, [&](const auto& e, int64_t c) {
      tile.PrefetchOutput(c);
      const auto terms = AddSecond(op, whole.second, e, pivot);
      for (int i = 0; i < kFold && c + i < tile.columns; ++i) {
        tile.x[0][(c + i) * tile.stride] = terms.x[i];
      }
    });
    const auto result = op.Close(whole.first, whole.second);
    for (int64_t c = 0; c < tile.columns; ++c) {
      tile.PrefetchNext(c);
      auto& x = tile.x[0][c * tile.stride];
      x = op.FinishFromTerm(x, result);
    }
  } else {
    ReduceTile(op, tile, whole);
    FinishTile(op, tile, whole);
  }
}

}  // namespace jax_softmax::JS_ISA
