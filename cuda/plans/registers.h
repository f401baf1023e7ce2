// The geometry of strategy "registers".
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"

namespace jax_softmax {

// The shortest rows of "registers". Only for ops of one input: two are at the limit from shared
// memory.
inline constexpr int kRegistersColumns = 512;
// The longest whose results are wider. Of 8,192 bf16 columns softmax to float32 ran at 0.79 of the
// copy limit by "registers" and at 0.85 by "block", of 2,048 log-softmax at 0.81 and 0.85.
constexpr int RegistersWidened(bool finishes_from_terms) {
  return finishes_from_terms ? 6144 : 1999;
}
// A lane holds 16 elements, or 24 (PrefersSome), or 32 of longer rows; for masks see
// HasMaskedBlock. So many threads are the most of its blocks, and of those of the shorter rows that
// have registers of their own. 16 are as fast as 32 where blocks then fill all threads that there
// are registers for, of 16-bit rows faster: softmax of 4096 bf16 columns ran at 1.00 of the copy
// limit with 16 and at 0.99 with 32, of 3584 at 0.96 and 1.01. Of float32, 32 are slower where rows
// are no whole vectors or have terms: softmax of 3001 and 4001 columns ran at 0.90 and 0.95 with 32
// and at 0.98 with 16 (benchmarks/results/h200-registers.json).
inline constexpr int kRegistersShortThreads = 128;
struct RegistersRows {
  int element_bytes;
  bool terms;
  bool bias_alone;
  bool converts;
  bool keeps;    // an op that needs the elements again after the second sweep
  bool per_row;  // an op that gives one value for each row
  bool whole;    // rows are whole vectors
};
constexpr int RegistersThreads(int elements, const RegistersRows& rows) {
  const bool plain = !rows.terms && !rows.converts;
  if (rows.bias_alone) return 512;
  if (elements == 24) return 192;
  if (rows.element_bytes == 2) return elements == 32 || plain ? 256 : kRegistersShortThreads;
  if (elements == 32) return 128;
  return plain ? 512 : 256;  // with 512, log-softmax spills where results have 16 bits
}

// Whether "registers" has kernels with 32 elements a lane. An op that needs the elements again
// after the second sweep keeps them, and has registers for so many where nothing else takes any.
constexpr bool RegistersHoldMany(const RegistersRows& rows) {
  if (rows.bias_alone) return false;
  const bool terms = rows.terms;
  return rows.element_bytes == 2 ? !rows.keeps || (!terms && !rows.converts)
                                 : !rows.keeps && !terms && rows.whole;
}

// Whether it has kernels with 24 elements a lane; see PrefersSome.
constexpr bool RegistersHoldSome(const RegistersRows& rows) {
  const bool plain = !rows.terms && !rows.converts && !rows.per_row;
  return rows.element_bytes == 4 && plain && rows.whole;
}

// Rows of whole vectors with masks and no other terms have kernels for blocks of one size each, so
// that a lane's vectors lie at constant distances: softmax of 2048 float32 columns, causal, ran at
// 0.906 of the copy limit without and at 0.919 so, of 8192 bf16 columns with a mask per key at 0.90
// and 0.95. What lanes exchange costs more than what they compute, in log-softmax most, and more
// elements a lane mean fewer lanes: with 16, 24 and 32, log-softmax of 2048 float32 columns with a
// mask per key ran at 0.91, 0.89 and 0.97, causal at 0.81, 0.83 and 0.92, and with 16 and 32, of
// 4096 bf16 columns, at 0.80 and 0.94, causal at 0.79 and 0.88
// (benchmarks/results/h200-registers.json). Whether there is one with so many elements a lane, of
// so many threads up to the most:
inline constexpr int kMostMaskedThreads = 256;
constexpr bool HasMaskedBlock(int elements, int threads, int element_bytes, bool keeps) {
  if (element_bytes == 2) return elements == 32 || (elements == 24 && threads <= 96);
  if (elements == 16) return threads == 32 || (threads == 64 && !keeps);
  const bool power_of_two = (threads & (threads - 1)) == 0;
  return elements == 24 || threads > 192 || (keeps && power_of_two);
}

// The threads of a multiprocessor that these kernels' registers leave room for: with any more they
// spill, or nearly so.
constexpr int MaskedBlockThreads(int elements, int element_bytes, bool keeps) {
  if (element_bytes == 2) return elements == 32 && keeps ? 1024 : 1280;
  if (elements == 16) return kResidentMaskedThreads;
  return (elements == 24 ? 1152 : 1024) - (keeps ? 128 : 0);
}

// Whether 24 elements a lane are faster: softmax of 2048 and 4096 columns ran at 0.965 of the copy
// limit with 16 and at 0.97 and 0.975 with 24, log-softmax of 4096 at 0.965 and 0.96, softmax of
// 3072 at 0.995 and 0.99 (benchmarks/results/h200-registers.json).
constexpr bool PrefersSome(const Problem& p) {
  const int64_t columns = p.rows.columns;
  return columns == 2048 || (columns == 4096 && FinishesFromTerms(p.op));
}

// The block of HasMaskedBlock with the fewest places that a row has room in; no threads if none
// has.
struct MaskedBlock {
  int elements = 0;
  int threads = 0;
};
constexpr MaskedBlock MaskedBlockFor(int64_t columns, int element_bytes, bool keeps) {
  MaskedBlock best;
  for (const int elements : {16, 24, 32}) {
    const int64_t threads = CeilDiv(columns, elements * kWarpLanes) * kWarpLanes;
    const bool fewest = best.threads == 0 || elements * threads < best.elements * best.threads;
    if (threads <= kMostMaskedThreads && fewest &&
        HasMaskedBlock(elements, static_cast<int>(threads), element_bytes, keeps)) {
      best = {elements, static_cast<int>(threads)};
    }
  }
  return best;
}

constexpr Plan RegistersPlan(const Problem& p, Plan plan) {
  if (p.inputs != 1 || p.dtype == DataType::kF64) {
    return Refuse(plan, "it takes one input of at most 32 bits an element");
  }
  // Those within the row: see Body in operands.cuh.
  const int64_t packs = std::max<int64_t>(p.rows.columns / plan.vector, 1);
  const RegistersRows rows = {.element_bytes = SizeOf(p.dtype),
                              .terms = TakesTerms(p.op),
                              .bias_alone = p.bias_alone,
                              .converts = p.dtype != p.out_dtype,
                              .keeps = !FinishesFromTerms(p.op) && !IsPerRow(p.op),
                              .per_row = IsPerRow(p.op),
                              .whole = p.rows.columns % plan.vector == 0};
  const bool narrow = rows.element_bytes == 2;
  const auto most = [&](int elements) { return RegistersThreads(elements, rows); };
  plan.rows_per_block = 1;
  const int64_t columns = packs * plan.vector;
  if (IsMasksOnly(p)) {
    const MaskedBlock block = MaskedBlockFor(columns, rows.element_bytes, rows.keeps);
    if (block.threads == 0) return Refuse(plan, "the row does not fit a block's registers");
    plan.count_per_lane = block.elements / plan.vector;
    plan.threads = plan.lanes_per_row = block.threads;
    return plan;
  }
  // Terms of 16-bit rows cost a thread as much for 16 elements as for 32.
  const bool short_row = columns <= 16 * kRegistersShortThreads && !(narrow && rows.terms);
  const int64_t few = CeilDiv(columns, int64_t{16} * kWarpLanes) * kWarpLanes;
  const bool fills = narrow && rows.whole && !rows.terms && !rows.converts && few <= most(16) &&
                     kResidentNarrowThreads % few == 0;
  const bool many =
      RegistersHoldMany(rows) && !short_row && !fills && (narrow || columns <= 32 * most(32));
  const bool some = RegistersHoldSome(rows) && PrefersSome(p);
  const int elements = some ? 24 : many ? 32 : 16;
  int threads = most(elements);
  if (IsPerRow(p.op)) threads = std::min(threads, 256);  // longer ones are at the limit by "stream"
  plan.count_per_lane = elements / plan.vector;
  if (packs > threads * plan.count_per_lane) {
    return Refuse(plan, "the row does not fit a block's registers");
  }
  plan.threads =
      static_cast<int>(CeilDiv(CeilDiv(packs, plan.count_per_lane), kWarpLanes)) * kWarpLanes;
  plan.lanes_per_row = plan.threads;
  return plan;
}

}  // namespace jax_softmax
