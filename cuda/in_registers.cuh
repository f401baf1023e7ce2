// A row whose elements are all in registers: what the strategies that keep them there share.
#pragma once

#include "architecture.cuh"
#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// Masks, no other terms, and rows that are whole vectors: few registers beside the row's.
template <typename Load, bool kWhole>
inline constexpr bool kMasksOnly = Load::kTerms == TermsKind::kMasks && kWhole;
// A bias in the logits' type and no sink or cap: as many words as the row's, until it is added.
template <typename Load>
inline constexpr bool kBiasInWords =
    Load::kTerms == TermsKind::kBiased || Load::kTerms == TermsKind::kBiasAlone;
// As how many operands in registers a lane's inputs and terms count. Softmax of 287,902 rows of 64
// bf16 columns with a bias took 25.8 us where that counted as three, and 25.0.
template <typename Op, typename Load, bool kWhole>
inline constexpr int kOperands =
    kMasksOnly<Load, kWhole> || kBiasInWords<Load> ? 1 : Op::kInputs + 2 * kTakesTerms<Op>;

// Log-softmax of 16-bit rows: of those that take more threads than the shorter ones, as many fit as
// a multiprocessor has threads for (kFullResidentThreads). 4,096 bf16 columns took 0.97 to 0.99 of
// the time so, 3,072 0.98, of float16 1.00 and 0.99; softmax of 2,048 took 1.003 times as long
// (benchmarks/results/h200-log-warps.json).
template <typename Op, typename Load, typename Store, bool kWhole>
inline constexpr bool kFillsWithThreads =
    Load::kTerms == TermsKind::kNone && sizeof(typename Load::Io) == 2 &&
    sizeof(typename Store::Io) == 2 && kWhole && Op::kInputs == 1 && !kPerRow<Op> &&
    !kFinishesFromTerm<Op>;

// The blocks that the compiler must leave room for on a multiprocessor, of kThreads that hold
// kRowBytes each in the compute type.
template <typename Op, typename Load, typename Store, bool kWhole, int kThreads, int kRowBytes>
constexpr int MinBlocks() {
  constexpr bool kNarrow = sizeof(typename Load::Io) == 2 && sizeof(typename Store::Io) == 2;
  constexpr bool kMasked = kMasksOnly<Load, kWhole>;
  constexpr bool kBiased = kBiasInWords<Load>;
  constexpr bool kPlain = Load::kTerms == TermsKind::kNone && Op::kInputs == 1;
  static_assert(kWarpThreads <= kRegistersShortThreads);
  if (kFillsWithThreads<Op, Load, Store, kWhole> && kThreads > kRegistersShortThreads &&
      kRowBytes <= kMaxRowBytesPerLane) {
    return kFullResidentThreads / kThreads;
  }
  const auto most = [] {
    if (kRowBytes <= kMaxRowBytesPerLane * 3 / 2) {  // 16 elements, or 24
      if (kMasked) return kNarrow ? kResidentNarrowThreads : kResidentMaskedThreads;
      if (kBiased) return kNarrow ? kResidentNarrowThreads : kResidentThreads;
      return kPlain && (kNarrow || kThreads > 256) ? kResidentNarrowThreads : kResidentThreads;
    }
    // 32 elements.
    constexpr bool kFew = kMasked || kBiased || kPlain;
    return kNarrow && kRowBytes == 2 * kMaxRowBytesPerLane && kFew ? kResidentThreads
                                                                   : kResidentLongThreads;
  };
  return std::min(most(), kMostResidentThreads) / kThreads;
}

// Whether masks leave anything of a vector, of the `packs` that its row has. Where they do not, its
// results are stored.
template <typename Op, typename Load, typename Store, typename W>
__device__ __forceinline__ bool SeesOrStores(const Load& load, const Store& store,
                                             const typename Load::Row& of_row, const W& window,
                                             int pack, int packs) {
  if (load.Sees(of_row, window, pack)) return true;
  if constexpr (kIsMasks<Load::kTerms>) {
    if (pack < packs) store.Masked(window, pack);
  }
  return false;
}

// Computes a row over both sweeps. `sees(k)` says whether masks leave anything of a thread's k-th
// vector, and stores the results of one of which they do not, which costs no more; `decode(k, e)`
// makes the elements of the others, `put(k, y, result)` stores their results, unless the op gives
// one value for each row. Returns what the row is closed with.
// `edge` is what vectors leave out, `threads` those that share the row. An op that finishes from
// terms has them take the elements' registers.
template <int kPacks, int kVector, typename Op, typename Row, typename Sees, typename Decode,
          typename Put, typename Edge, typename Threads>
__device__ __forceinline__ typename Op::Row RowInRegisters(const Op& op, const Row& row, Sees sees,
                                                           Decode decode, Put put, Edge edge,
                                                           Threads threads) {
  using T = typename Op::T;
  Element<T, Op::kInputs> e[kPacks][kVector];
  bool seen[kPacks];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) seen[k] = sees(k);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (seen[k]) decode(k, e[k]);
  }
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
  Partial<Op> total;
  each_seen([&](const auto& e) { AddFirst(op, total.first, e); });
  if constexpr (kFinishesFromTerm<Op>) {
    total.first = threads.Reduce(total.first);
    const auto pivot = op.Pivot(total.first);
    each_seen([&]<int kCount>(Element<T, Op::kInputs>(&e)[kCount]) {
      const auto terms = AddSecond(op, total.second, e, pivot);
#pragma unroll
      for (int i = 0; i < kCount; ++i) e[i].value[0] = terms.x[i];
    });
    total.second = threads.Reduce(total.second);
  } else {
    total = BothSweeps(
        op, total.first,
        [&](auto& statistic, auto term) {
          each_seen([&](const auto& e) { AddTerms(statistic, e, term); });
        },
        threads);
  }

  const auto result = CloseRow(op, row, total.first, total.second);
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
      if (!seen[k]) continue;
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = finish(e[k][i]);
      put(k, y, result);
    }
    if constexpr (Edge::kAny) edge.Put(finish(edge.e[0]), result);
  }
  return result;
}

}  // namespace jax_softmax::JS_ISA
