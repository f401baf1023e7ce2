// The geometry of strategy "warp".
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"

namespace jax_softmax {

// A lane keeps at most this much of an input's row in registers, in the compute type: with twice as
// much, bf16 backward at 1024 columns fell from 1.02 to 0.82 of the copy limit (H200, 2026-11).
inline constexpr int kMaxRowBytesPerLane = 64;
// Lanes take this many elements each before a row gets more lanes: more loads in flight and fewer
// steps of the butterfly.
inline constexpr int kElementsPerLane = 16;
// The longest whole rows of softmax of float32 of which lanes take half as many: 128 and 256
// columns ran at 0.965 and 0.97 of the copy limit with four vectors a lane and at 0.99 with two and
// half the registers. (Log-softmax of 128 at 0.97 and 0.965.)
inline constexpr int kTwoPacksColumns = 256;
inline constexpr int kMaxPacksPerLane = 8;
inline constexpr int kWarpThreads = 128;
// With masks and no other terms, 16-bit rows of so many columns or more have 32 elements a lane:
// with 16, log-softmax of 256 and 512 columns with a mask per key ran at 0.69 and 0.67 of the copy
// limit, and so at 0.82 and 0.81, softmax of 512, causal, at 0.72 and 0.86, of 128 at 0.75 and 0.71
// (benchmarks/results/h200-registers.json).
constexpr int WarpManyColumns(bool finishes_from_terms) { return finishes_from_terms ? 256 : 128; }
// Lanes with few vectors of a row take as many rows as makes these.
inline constexpr int kWarpPacks = 2;

constexpr Plan WarpPlan(const Problem& p, Plan plan) {
  const int64_t packs = PacksPerRow(p);
  const bool holds_many = IsMasksOnly(p) && SizeOf(p.dtype) == 2 &&
                          p.rows.columns >= WarpManyColumns(FinishesFromTerms(p.op));
  const int limit =
      std::min(kMaxPacksPerLane, kMaxRowBytesPerLane / (ComputeBytes(p.dtype) * plan.vector));
  if (packs > kWarpLanes * limit) return Refuse(plan, "the row does not fit a warp's registers");
  const bool two = p.op == OpKind::kSoftmax && p.dtype == DataType::kF32 &&
                   p.rows.columns % plan.vector == 0 && p.rows.columns <= kTwoPacksColumns;
  int64_t per_lane = std::clamp(kElementsPerLane / plan.vector, 1, std::min(limit, 4));
  if (two) per_lane = 2;
  // Of 32 bf16 columns softmax to float32 ran at 0.58 of the copy limit with two vectors a lane,
  // and at 0.93 with one.
  if (p.Widens() && !TakesTerms(p.op) && packs == 4) per_lane = 1;
  if (holds_many) per_lane = 2 * kElementsPerLane / plan.vector;
  // At least 2 lanes, or 4 where each still has two vectors: fewer read too little at a stretch.
  const int64_t fewest = std::clamp<int64_t>(packs / 2, 2, 4);
  plan.lanes_per_row = static_cast<int>(std::min<int64_t>(
      kWarpLanes, std::max(PowerOfTwoFrom(fewest), PowerOfTwoFrom(CeilDiv(packs, per_lane)))));
  plan.count_per_lane = static_cast<int>(PowerOfTwoFrom(CeilDiv(packs, plan.lanes_per_row)));
  plan.threads = kWarpThreads;
  plan.rows_per_block =
      plan.threads / plan.lanes_per_row * std::max(1, kWarpPacks / plan.count_per_lane);
  return plan;
}

}  // namespace jax_softmax
