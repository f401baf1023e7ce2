// A row whose elements are all in registers: what the strategies that keep them there share.
#pragma once

#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// The most threads of a multiprocessor: see BlocksFor. Accesses of single elements, and terms, take
// registers.
template <typename Op, typename Load, typename Store, int kVector>
constexpr int ResidentThreads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return kResidentThreads;  // a multiprocessor has no more
#endif
  constexpr bool kNarrow = sizeof(typename Load::Io) == 2 && sizeof(typename Store::Io) == 2;
  if (kVector == 1) return kResidentThreads;
  if (Load::kTerms == TermsKind::kMasks) return kResidentMaskedThreads;
  const bool one_input = Load::kTerms == TermsKind::kNone && Op::kInputs == 1;
  return one_input && kNarrow ? kResidentNarrowThreads : kResidentThreads;
}

// Computes a row over both sweeps. `decode(k, e)` makes the elements of a thread's k-th vector, or
// says that masks leave nothing of it, which then costs no more; `put(k, y, result)` stores its
// results, unless the op gives one value for each row. Returns what the row is closed with.
// `reduce` merges a statistic over the threads that share a row; `any` is a vote of all threads
// that must call it together. An op that finishes from terms has them take the elements' registers.
template <int kPacks, int kVector, typename Op, typename Row, typename Decode, typename Put,
          typename Reduce, typename Any>
__device__ __forceinline__ typename Op::Row RowInRegisters(const Op& op, const Row& row,
                                                           Decode decode, Put put, Reduce reduce,
                                                           Any any) {
  using T = typename Op::T;
  Element<T, Op::kInputs> e[kPacks][kVector];
  bool seen[kPacks];
  typename Op::First first;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    seen[k] = decode(k, e[k]);
    if (seen[k]) AddFirst(op, first, e[k]);
  }
  first = reduce(first);

  typename Op::Second second;
  if constexpr (kFinishesFromTerm<Op>) {
    const auto pivot = op.Pivot(first);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!seen[k]) continue;
      const auto terms = AddSecond(op, second, e[k], pivot);
#pragma unroll
      for (int i = 0; i < kVector; ++i) e[k][i].value[0] = terms.x[i];
    }
    second = reduce(second);
  } else if constexpr (Op::kSweeps == 2) {
    second = SecondSweep(
        op, op.Pivot(first),
        [&](auto& statistic, auto term) {
#pragma unroll
          for (int k = 0; k < kPacks; ++k) {
            if (seen[k]) AddTerms(statistic, e[k], term);
          }
        },
        reduce, any);
  }

  const auto result = CloseRow(op, row, first, second);
  if constexpr (!kPerRow<Op>) {
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
      for (int i = 0; i < kVector; ++i) {
        if constexpr (kFinishesFromTerm<Op>) {
          y[i] = op.FinishFromTerm(e[k][i][0], result);
        } else {
          y[i] = op.Finish(e[k][i], result);
        }
      }
      put(k, y, result);
    }
  }
  return result;
}

}  // namespace jax_softmax::JS_ISA
