// A row whose elements are all in registers: what the strategies that keep them there share.
#pragma once

#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// Computes y from e over both sweeps, unless the op gives one value for each row; returns what the
// row is closed with. `reduce` merges a statistic over the threads that share a row; `any` is a
// vote of all threads that must call it together. An op that finishes from terms has them take the
// elements' registers.
template <typename Op, typename Row, int kPacks, int kVector, typename Reduce, typename Any>
__device__ __forceinline__ typename Op::Row RowInRegisters(
    const Op& op, const Row& row, Element<typename Op::T, Op::kInputs> (&e)[kPacks][kVector],
    typename Op::T (&y)[kPacks][kVector], Reduce reduce, Any any) {
  typename Op::First first;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) AddFirst(op, first, e[k]);
  first = reduce(first);

  typename Op::Second second;
  if constexpr (kFinishesFromTerm<Op>) {
    const auto pivot = op.Pivot(first);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const auto terms = AddSecond(op, second, e[k], pivot);
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[k][i] = terms.x[i];
    }
    second = reduce(second);
  } else if constexpr (Op::kSweeps == 2) {
    second = SecondSweep(
        op, op.Pivot(first),
        [&](auto& statistic, auto term) {
#pragma unroll
          for (int k = 0; k < kPacks; ++k) AddTerms(statistic, e[k], term);
        },
        reduce, any);
  }

  const auto result = CloseRow(op, row, first, second);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kFinishesFromTerm<Op>) {
        y[k][i] = op.FinishFromTerm(y[k][i], result);
      } else if constexpr (!kPerRow<Op>) {
        y[k][i] = op.Finish(e[k][i], result);
      }
    }
  }
  return result;
}

}  // namespace jax_softmax::JS_ISA
