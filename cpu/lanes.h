// Strategy "lanes": short rows are transposed in registers, one into every vector lane.
#pragma once

#include "shuffle.h"
#include "tile.h"

namespace jax_softmax::JS_ISA {

template <typename M, int kSize = M::kLanes / 2>
JS_HD void Transpose(typename M::T (&x)[M::kLanes]) {
  if constexpr (kSize > 0) {
    JS_UNROLL
    for (int i = 0; i < M::kLanes; ++i) {
      if ((i & kSize) == 0) {
        SwapBlocks<kSize>(x[i], x[i + kSize], std::make_integer_sequence<int, M::kLanes>{});
      }
    }
    Transpose<M, kSize / 2>(x);
  }
}

// The same elements of a few neighbouring rows: `length` from each, rows being `stride` apart.
struct ShortRows {
  int64_t stride;
  int rows;  // at most one per lane
  int64_t length;
};

// Element i of row `lane` goes to lane `lane` of to[i], from x[lane] of `load(i, x)`, which brings
// those behind it too. Writes whole blocks of kLanes vectors.
template <typename M, typename F>
JS_HD void LoadTransposed(int64_t length, typename M::T* to, F load) {
  for (int64_t i = 0; i < length; i += M::kLanes) {
    typename M::T x[M::kLanes];
    load(i, x);
    Transpose<M>(x);
    JS_UNROLL
    for (int lane = 0; lane < M::kLanes; ++lane) to[i + lane] = x[lane];
  }
}

// Lanes without a row of their own take the last one.
template <typename M, typename In>
void LoadTransposed(const In* from, const ShortRows& strip, typename M::T* to) {
  LoadTransposed<M>(strip.length, to, [&](int64_t i, typename M::T(&x)[M::kLanes]) {
    JS_UNROLL
    for (int lane = 0; lane < M::kLanes; ++lane) {
      const In* row = from + std::min(lane, strip.rows - 1) * strip.stride;
      x[lane] = LoadUpTo<M>(row + i, strip.length - i);
    }
  });
}

// `finish(lane, i, y)` is what is stored of a row's results y from element i on.
template <typename M, typename Out, typename F>
JS_HD void StoreTransposed(const typename M::T* from, const ShortRows& strip, Out* to, F finish) {
  for (int64_t i = 0; i < strip.length; i += M::kLanes) {
    typename M::T x[M::kLanes];
    JS_UNROLL
    for (int lane = 0; lane < M::kLanes; ++lane) x[lane] = from[i + lane];
    Transpose<M>(x);
    JS_UNROLL
    for (int lane = 0; lane < M::kLanes; ++lane) {
      if (lane >= strip.rows) break;
      StoreUpTo<M>(to + lane * strip.stride + i, finish(lane, i, x[lane]), strip.length - i);
    }
  }
}

template <typename M, typename Out>
void StoreTransposed(const typename M::T* from, const ShortRows& strip, Out* to) {
  StoreTransposed<M>(from, strip, to, [](int, int64_t, typename M::T y) { return y; });
}

// Lanes take neighbours along the outer dimension; a column's `inner` elements go along.
template <typename Op, typename In, typename Out>
void RunLanes(const cpu::Call& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Out>::Type;
  using T = typename M::T;
  constexpr int kCapacity = kTileBytes / kSimdBytes / Op::kInputs;
  T scratch[Op::kInputs][kCapacity];

  const Op op = OpFor<Op>(call);
  const auto [outer, columns, inner] = call.rows;
  typename Op::Row of_rows[cpu::kMostInner];
  const int64_t block = std::min(columns, (kCapacity / M::kLanes - 1) * M::kLanes / inner);
  for (int64_t o = begin; o < end; o += M::kLanes) {
    ShortRows strip{columns * inner, static_cast<int>(std::min<int64_t>(M::kLanes, end - o)), 0};
    // Calls f with the tile of every inner index, for columns from `c` on.
    const auto load = [&](int64_t c, auto f) {
      const int64_t count = std::min(block, columns - c);
      const auto at = OperandsOf<Op, In, Out>(call).From((o * columns + c) * inner, o * inner);
      strip.length = count * inner;
      for (int i = 0; i < Op::kInputs; ++i) LoadTransposed<M>(at.inputs[i], strip, scratch[i]);
      const auto next = at.From(M::kLanes * columns * inner);
      for (int64_t i = 0; i < inner; ++i) {
        Tile<Op> tile{.columns = count, .stride = inner, .of_rows = &of_rows[i]};
        // As many vectors of memory as the tile has, wherever each of them lies.
        tile.output_step = inner * M::kLanes * sizeof(Out);
        tile.output = reinterpret_cast<char*>(at.output + i * M::kLanes);
        tile.next_step = inner * M::kLanes * sizeof(In);
        for (int input = 0; input < Op::kInputs; ++input) {
          tile.x[input] = scratch[input] + i;
          tile.next[input] = reinterpret_cast<const char*>(next.inputs[input] + i * M::kLanes);
        }
        f(tile, i);
      }
      return at;
    };
    const auto store = [&](const Operands<Op, In, Out>& to) {
      if constexpr (kPerRow<Op>) {
        if (inner == 1) return StoreOfRows<M>(to, of_rows[0], 0, strip.rows);
        strip.stride = strip.length = inner;
        const auto store_all = [&](auto* values, auto value_of) {
          for (int64_t i = 0; i < inner; ++i) scratch[0][i] = value_of(of_rows[i]);
          StoreTransposed<M>(scratch[0], strip, values);
        };
        if (to.seconds == nullptr) {
          return store_all(to.output, [](const auto& row) { return row.Whole(); });
        }
        store_all(to.output, [](const auto& row) { return row.pivot; });
        store_all(to.seconds, [](const auto& row) { return row.log_sum; });
      } else {
        StoreTransposed<M>(scratch[0], strip, to.output);
      }
    };
    if (block == columns) {
      store(load(0, [&](const Tile<Op>& tile, int64_t) { RunTile(op, tile); }));
      continue;
    }
    Partial<Op> whole[cpu::kMostInner];
    for (int64_t c = 0; c < columns; c += block) {
      load(c, [&](const Tile<Op>& tile, int64_t i) { ReduceTile(op, tile, whole[i]); });
    }
    if constexpr (kPerRow<Op>) {
      for (int64_t i = 0; i < inner; ++i) {
        of_rows[i] = op.Close(whole[i].first, whole[i].second);
      }
      store(OperandsOf<Op, In, Out>(call).From(0, o * inner));
    } else {
      for (int64_t c = 0; c < columns; c += block) {
        store(load(c, [&](const Tile<Op>& tile, int64_t i) { FinishTile(op, tile, whole[i]); }));
      }
    }
  }
}

}  // namespace jax_softmax::JS_ISA
