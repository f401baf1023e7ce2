// The geometry of strategy "strided".
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"

namespace jax_softmax {

inline constexpr int kStridedThreads = 256;
// Threads take this many elements each before they share a row. Softmax of 20,000 columns and 12
// neighbours ran at 0.12 of the copy limit with 8 of them, at 0.21 with 16, of 4,096 columns and 3
// neighbours at 0.12 and 0.19; 32 are no faster (bf16, H200, 2026-11).
inline constexpr int kStridedColumns = 64;
inline constexpr int kStridedMostLanes = 16;
// Of vectors; and of their threads side by side, between which it takes as many as neighbours are
// whole vectors (one, of 2,048 bf16 columns: backward at 0.58 of the copy limit with 4, and at 0.40
// with 16; 128, of 4,096: 0.48 and 0.59). Few rows leave multiprocessors idle.
inline constexpr int kStridedResident = 2;
inline constexpr int kStridedFewestAcross = 4, kStridedMostAcross = 16;
// The fewest and the most columns of which a thread holds all: softmax of [8000, 2, 1024] and
// [3000, 3, 5000] in bf16 takes 19 and 44 us, in float32 33 and 87, log-softmax 23, 53, 39 and 94,
// by "tile" 69, 123, 95 and 237 (benchmarks/results/h200-few-columns.json). Eight spill.
inline constexpr int kStridedFewestHeld = 2, kStridedMostHeld = 4;

// Whether a thread of "strided" holds its rows, vectors of neighbours.
constexpr bool HoldsColumns(const Problem& p) {
  if (TakesTerms(p.op) || IsPerRow(p.op) || !p.IsUnconverted32()) return false;
  const bool few = p.rows.columns >= kStridedFewestHeld && p.rows.columns <= kStridedMostHeld;
  return few && HasFullVectors(p) && p.rows.inner % VectorOf(p) == 0;
}

constexpr Plan StridedPlan(const Problem& p, Plan plan) {
  if (p.rows.inner % plan.vector != 0 || TakesTerms(p.op)) plan.vector = 1;
  plan.threads = kStridedThreads;
  if (HoldsColumns(p)) {
    plan.count_per_lane = static_cast<int>(p.rows.columns);
    plan.lanes_per_row = 1;
    plan.rows_per_block = kStridedThreads * plan.vector;
    return plan;
  }
  if (plan.vector == 1) {
    plan.lanes_per_row = static_cast<int>(std::clamp<int64_t>(
        PowerOfTwoFrom(CeilDiv(p.rows.columns, kStridedColumns)), 1, kStridedMostLanes));
  } else {
    const int64_t fewest =
        std::max<int64_t>(kStridedFewestAcross,
                          kStridedThreads / PowerOfTwoFrom(std::max<int64_t>(p.rows.columns, 1)));
    const int64_t across = std::clamp<int64_t>(PowerOfTwoFrom(p.rows.inner / plan.vector), fewest,
                                               std::max<int64_t>(fewest, kStridedMostAcross));
    plan.lanes_per_row = static_cast<int>(kStridedThreads / across);
  }
  plan.rows_per_block = kStridedThreads / plan.lanes_per_row * plan.vector;
  // Partial results (at most four compute values each) of every thread's rows.
  plan.shared_bytes = kStridedThreads * plan.vector * 4 * ComputeBytes(p.dtype);
  return plan;
}

}  // namespace jax_softmax
