// The CPU strategies: "row" runs vectors along a row, "lanes" runs one row per vector lane.
#pragma once

#include <type_traits>
#include <utility>

#include "../cuda/plan.h"
#include "../cuda/stats.h"
#include "simd.h"

namespace jax_softmax::JS_ISA {

// Vectors added pairwise before a sum takes them in.
inline constexpr int kFold = 4;

template <typename Op, typename In, typename Out>
struct Operands {
  const In* inputs[Op::kInputs];
  Out* output;
};

template <typename Op>
using ElementOf = Element<typename Op::T, Op::kInputs>;

template <typename Op>
JS_HD ElementOf<Op> AbsentElement() {
  ElementOf<Op> e;
  for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Op::Absent(input);
  return e;
}

// The elements of kFold vectors that `at(0)` … `at(kFold - 1)` load.
template <typename Op, typename Load>
JS_HD void Gather(ElementOf<Op> (&e)[kFold], Load at) {
  JS_UNROLL
  for (int i = 0; i < kFold; ++i) e[i] = at(i);
}

// ---- row --------------------------------------------------------------------------------------

template <int kMask, typename T, int... kLane>
JS_HD T SwapLanes(T x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kMask)...);
}

// Merges the lanes of a statistic by a butterfly, so that every lane holds the whole row's.
template <typename M, int kMask = M::kLanes / 2, typename Statistic>
JS_HD Statistic MergeLanes(Statistic statistic) {
  if constexpr (kMask == 0 || std::is_same_v<Statistic, Nothing>) {
    return statistic;
  } else {
    using T = typename M::T;
    T words[sizeof(Statistic) / sizeof(T)];
    std::memcpy(words, &statistic, sizeof(statistic));
    for (T& word : words) {
      word = SwapLanes<kMask>(word, std::make_integer_sequence<int, M::kLanes>{});
    }
    Statistic partner;
    std::memcpy(&partner, words, sizeof(partner));
    statistic.Merge(partner);
    return MergeLanes<M, kMask / 2>(statistic);
  }
}

// The row's last, incomplete vector.
template <typename Op, typename M, typename In, typename Out>
JS_HD ElementOf<Op> LoadTail(const Operands<Op, In, Out>& row, int64_t column, int64_t columns) {
  ElementOf<Op> e;
  for (int input = 0; input < Op::kInputs; ++input) {
    In buffer[M::kLanes];
    StoreVector(buffer, Op::Absent(input));
    std::memcpy(buffer, row.inputs[input] + column, (columns - column) * sizeof(In));
    e.value[input] = LoadVector(buffer);
  }
  return e;
}

template <typename Op, typename M, typename In, typename Out>
JS_HD ElementOf<Op> LoadWhole(const Operands<Op, In, Out>& row, int64_t column) {
  ElementOf<Op> e;
  for (int input = 0; input < Op::kInputs; ++input) {
    e.value[input] = LoadVector(row.inputs[input] + column);
  }
  return e;
}

// Calls f with the elements of kFold vectors at a time, and where they start, along a row.
template <typename Op, typename M, typename In, typename Out, typename F>
JS_HD void Sweep(const Operands<Op, In, Out>& row, int64_t columns, F f) {
  ElementOf<Op> e[kFold];
  int64_t c = 0;
  for (; c + kFold * M::kLanes <= columns; c += kFold * M::kLanes) {
    Gather<Op>(e, [&](int i) { return LoadWhole<Op, M>(row, c + i * M::kLanes); });
    f(e, c);
  }
  if (c == columns) return;
  Gather<Op>(e, [&](int i) {
    const int64_t column = c + i * M::kLanes;
    if (column + M::kLanes <= columns) return LoadWhole<Op, M>(row, column);
    return column < columns ? LoadTail<Op, M>(row, column, columns) : AbsentElement<Op>();
  });
  f(e, c);
}

template <typename M, typename Out>
JS_HD void StoreUpTo(Out* to, typename M::T y, int64_t room) {
  if (room >= M::kLanes) return StoreVector(to, y);
  Out buffer[M::kLanes];
  StoreVector(buffer, y);
  if (room > 0) std::memcpy(to, buffer, room * sizeof(Out));
}

// Up to this many columns the second sweep's terms are kept, on the stack and in the first cache,
// and the last sweep needs no exponential.
inline constexpr int kKeptColumns = 4096;

template <typename Op, typename M, typename In, typename Out>
void Row(const Op& op, const Operands<Op, In, Out>& row, int64_t columns) {
  typename Op::First first;
  Sweep<Op, M>(row, columns, [&](const auto& e, int64_t) { AddFirst(op, first, e); });
  first = MergeLanes<M>(first);

  const auto store = [&](int64_t column, typename M::T y) {
    StoreUpTo<M>(row.output + column, y, columns - column);
  };
  typename Op::Second second;
  if constexpr (kFinishesFromTerm<Op>) {
    if (columns <= kKeptColumns) {
      typename M::T kept[kKeptColumns / M::kLanes];
      const auto pivot = op.Pivot(first);
      Sweep<Op, M>(row, columns, [&](const auto& e, int64_t c) {
        const auto terms = AddSecond(op, second, e, pivot);
        JS_UNROLL
        for (int i = 0; i < kFold; ++i) kept[c / M::kLanes + i] = terms.x[i];
      });
      const auto result = op.Close(first, MergeLanes<M>(second));
      for (int64_t c = 0; c < columns; c += M::kLanes) {
        store(c, op.FinishFromTerm(kept[c / M::kLanes], result));
      }
      return;
    }
  }
  if constexpr (Op::kSweeps == 2) {
    const auto pivot = op.Pivot(first);
    Sweep<Op, M>(row, columns, [&](const auto& e, int64_t) { AddSecond(op, second, e, pivot); });
    second = MergeLanes<M>(second);
  }
  const auto result = op.Close(first, second);
  Sweep<Op, M>(row, columns, [&](const auto& e, int64_t c) {
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) store(c + i * M::kLanes, op.Finish(e[i], result));
  });
}

template <typename Op, typename M, typename In, typename Out>
void RowStrategy(const Operands<Op, In, Out>& all, const Rows& rows, int64_t begin, int64_t end) {
  const Op op{};
  for (int64_t r = begin; r < end; ++r) {
    Operands<Op, In, Out> row = all;
    for (const In*& input : row.inputs) input += r * rows.columns;
    row.output += r * rows.columns;
    Row<Op, M>(op, row, rows.columns);
  }
}

// ---- lanes ------------------------------------------------------------------------------------

// Up to one row per lane: where each starts, and how many there are.
template <int kLanes>
struct Group {
  int64_t base[kLanes];
  int count;
  bool adjacent;  // all kLanes rows lie side by side, so that a column of them is one vector

  Group(const Rows& rows, int64_t first, int64_t end)
      : count(static_cast<int>(std::min<int64_t>(kLanes, end - first))) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = first + std::min(lane, count - 1);
      base[lane] = row / rows.inner * rows.columns * rows.inner + row % rows.inner;
    }
    adjacent = count == kLanes && rows.inner > 1 && base[kLanes - 1] == base[0] + kLanes - 1;
  }
};

template <bool kAdjacent, typename Op, typename M, typename In, typename Out>
JS_HD ElementOf<Op> LoadColumn(const Operands<Op, In, Out>& all, const Group<M::kLanes>& group,
                               int64_t offset) {
  ElementOf<Op> e;
  for (int input = 0; input < Op::kInputs; ++input) {
    if constexpr (kAdjacent) {
      e.value[input] = LoadVector(all.inputs[input] + group.base[0] + offset);
    } else {
      In buffer[M::kLanes];
      for (int lane = 0; lane < M::kLanes; ++lane) {
        buffer[lane] = all.inputs[input][group.base[lane] + offset];
      }
      e.value[input] = LoadVector(buffer);
    }
  }
  return e;
}

template <bool kAdjacent, typename Op, typename M, typename In, typename Out>
void GroupOfRows(const Op& op, const Operands<Op, In, Out>& all, const Rows& rows,
                 const Group<M::kLanes>& group) {
  const auto sweep = [&](auto f) {
    ElementOf<Op> e[kFold];
    for (int64_t c = 0; c < rows.columns; c += kFold) {
      Gather<Op>(e, [&](int i) {
        return c + i < rows.columns ? LoadColumn<kAdjacent, Op, M>(all, group, (c + i) * rows.inner)
                                    : AbsentElement<Op>();
      });
      f(e, c);
    }
  };

  typename Op::First first;
  sweep([&](const auto& e, int64_t) { AddFirst(op, first, e); });
  typename Op::Second second;
  if constexpr (Op::kSweeps == 2) {
    const auto pivot = op.Pivot(first);
    sweep([&](const auto& e, int64_t) { AddSecond(op, second, e, pivot); });
  }
  const auto result = op.Close(first, second);
  sweep([&](const auto& e, int64_t c) {
    for (int i = 0; i < kFold && c + i < rows.columns; ++i) {
      const auto y = op.Finish(e[i], result);
      const int64_t offset = (c + i) * rows.inner;
      if constexpr (kAdjacent) {
        StoreVector(all.output + group.base[0] + offset, y);
      } else {
        Out buffer[M::kLanes];
        StoreVector(buffer, y);
        for (int lane = 0; lane < group.count; ++lane) {
          all.output[group.base[lane] + offset] = buffer[lane];
        }
      }
    }
  });
}

template <typename Op, typename M, typename In, typename Out>
void LanesStrategy(const Operands<Op, In, Out>& all, const Rows& rows, int64_t begin, int64_t end) {
  const Op op{};
  for (int64_t first = begin; first < end; first += M::kLanes) {
    const Group<M::kLanes> group(rows, first, end);
    if (group.adjacent) {
      GroupOfRows<true, Op, M>(op, all, rows, group);
    } else {
      GroupOfRows<false, Op, M>(op, all, rows, group);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
