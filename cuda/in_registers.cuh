// A row whose elements are all in registers: what the strategies that keep them there share.
#pragma once

#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// The most threads of a multiprocessor: see BlocksFor. Terms take registers.
template <typename Op, typename Load, typename Store, bool kWhole>
constexpr int ResidentThreads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return kResidentThreads;  // a multiprocessor has no more
#endif
  constexpr bool kNarrow = sizeof(typename Load::Io) == 2 && sizeof(typename Store::Io) == 2;
  if (Load::kTerms == TermsKind::kMasks && kWhole) return kResidentMaskedThreads;
  const bool one_input = Load::kTerms == TermsKind::kNone && Op::kInputs == 1;
  return one_input && kNarrow ? kResidentNarrowThreads : kResidentThreads;
}

// Computes a row over both sweeps. `decode(k, e)` makes the elements of a thread's k-th vector, or
// says that masks leave nothing of it, which then costs no more; `put(k, y, result)` stores its
// results, unless the op gives one value for each row. Returns what the row is closed with.
// `edge` is what vectors leave out. `reduce` merges a statistic over the threads that share a row;
// `any` is a vote of all threads that must call it together. An op that finishes from terms has
// them take the elements' registers.
template <int kPacks, int kVector, typename Op, typename Row, typename Decode, typename Put,
          typename Edge, typename Reduce, typename Any>
__device__ __forceinline__ typename Op::Row RowInRegisters(const Op& op, const Row& row,
                                                           Decode decode, Put put, Edge edge,
                                                           Reduce reduce, Any any) {
  using T = typename Op::T;
  Element<T, Op::kInputs> e[kPacks][kVector];
  bool seen[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) seen[k] = decode(k, e[k]);
  // Calls f with the elements of each vector, and with the edge.
  const auto each_seen = [&](auto f) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (seen[k]) f(e[k]);
    }
    if constexpr (Edge::kAny) {
      if (Edge::IsHere()) f(edge.e);
    }
  };
  typename Op::First first;
  each_seen([&](const auto& e) { AddFirst(op, first, e); });
  first = reduce(first);

  typename Op::Second second;
  if constexpr (kFinishesFromTerm<Op>) {
    const auto pivot = op.Pivot(first);
    each_seen([&]<int kCount>(Element<T, Op::kInputs>(&e)[kCount]) {
      const auto terms = AddSecond(op, second, e, pivot);
#pragma unroll
      for (int i = 0; i < kCount; ++i) e[i].value[0] = terms.x[i];
    });
    second = reduce(second);
  } else if constexpr (Op::kSweeps == 2) {
    second = SecondSweep(
        op, op.Pivot(first),
        [&](auto& statistic, auto term) {
          each_seen([&](const auto& e) { AddTerms(statistic, e, term); });
        },
        reduce, any);
  }

  const auto result = CloseRow(op, row, first, second);
  if constexpr (!kPerRow<Op>) {
    const auto finish = [&](const auto& one) {
      if constexpr (kFinishesFromTerm<Op>) {
        return op.FinishFromTerm(one[0], result);
      } else {
        return op.Finish(one, result);
      }
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      T y[kVector];
      if constexpr (kTakesTerms<Op>) {
        if (!seen[k]) {
#pragma unroll
          for (int i = 0; i < kVector; ++i) y[i] = Op::Masked();
          put(k, y, result);
          continue;
        }
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = finish(e[k][i]);
      put(k, y, result);
    }
    if constexpr (Edge::kAny) edge.Put(finish(edge.e[0]), result);
  }
  return result;
}

}  // namespace jax_softmax::JS_ISA
