// A row whose elements are all in registers: what the strategies that keep them there share.
#pragma once

#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// The second sweep's statistic. `reduce` merges a statistic over the threads that share a row;
// `any` is a vote of all threads that must call `reduce` together.
template <typename Op, int kPacks, int kVector, typename Reduce, typename Any>
__device__ __forceinline__ typename Op::Second SecondInRegisters(
    const Op& op, const Element<typename Op::T, Op::kInputs> (&e)[kPacks][kVector],
    typename Op::T pivot, Reduce reduce, Any any) {
  if constexpr (kEstimates<Op>) {
    const auto sum = [&](auto term) {
      typename Op::Estimate estimate;
#pragma unroll
      for (int k = 0; k < kPacks; ++k) AddTerms(estimate, e[k], term);
      return reduce(estimate);
    };
    const auto estimate = sum([&](const auto& one) { return op.EstimateTerm(one, pivot); });
    typename Op::Second second = op.FromEstimate(estimate, pivot);
    const bool poor = !op.IsGood(second);
    if (any(poor)) {
      // The other rows of the vote keep their estimates: no row's bits depend on its neighbours.
      const auto refined = sum([&](const auto& one) { return op.RefinedTerm(one, pivot); });
      if (poor) second = op.FromRefined(refined, second);
    }
    return second;
  } else {
    typename Op::Second second;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) AddSecond(op, second, e[k], pivot);
    return reduce(second);
  }
}

// Computes y from e over both sweeps. An op that finishes from terms has them take the elements'
// registers.
template <typename Op, int kPacks, int kVector, typename Reduce, typename Any>
__device__ __forceinline__ void RowInRegisters(
    const Op& op, Element<typename Op::T, Op::kInputs> (&e)[kPacks][kVector],
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
    second = SecondInRegisters(op, e, op.Pivot(first), reduce, any);
  }

  const auto result = op.Close(first, second);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kFinishesFromTerm<Op>) {
        y[k][i] = op.FinishFromTerm(y[k][i], result);
      } else {
        y[k][i] = op.Finish(e[k][i], result);
      }
    }
  }
}

}  // namespace jax_softmax::JS_ISA
