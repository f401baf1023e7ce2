// Which strategy runs a problem, and with which geometry: a value chosen by a pure function.
//
// No CUDA and no XLA here: the plan is the same on a machine without a GPU, where it is tested.
//
// Where no other source is named, constants are from sweeps over strategies and geometries on an
// H200 (2026-11): benchmarks/results/h200-strategies.json, and by hand where geometries compete.
// benchmarks/sweep.py compares strategies on the device present.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "geometry.h"
#include "plans/block.h"
#include "plans/cluster.h"
#include "plans/panel.h"
#include "plans/registers.h"
#include "plans/ring.h"
#include "plans/slab.h"
#include "plans/split.h"
#include "plans/stream.h"
#include "plans/strided.h"
#include "plans/tile.h"
#include "plans/warp.h"

namespace jax_softmax {

// Of rows that are neighbours, where the operands are not aligned; with more, blocks share one.
inline constexpr int kUnalignedColumns = 256;

// What a call may need beside operands and result, for each row: XLA allocates it before a device
// and its plan are known.
constexpr int64_t WorkspaceBytes(const Problem& p, Strategy requested) {
  using enum Strategy;
  const bool chooses = requested == kAuto;
  int64_t bytes = 0;
  // Partitioned afterwards, neighbours may turn out to be none.
  if (requested == kSplit) bytes = kSplitMostParts * kSplitPartBytes;
  if (chooses && (MaySplit(p) || SplitsAcross(p))) bytes = SplitMostParts(p) * kSplitPartBytes;
  if (TakesTerms(p.op) || IsPerRow(p.op)) return bytes;
  if (requested == kRing || (chooses && PrefersRing(p))) {
    return std::max(bytes, kRingQueueBytes + RingNotesBytes(p));
  }
  return requested == kCluster || requested == kStream ? kQueueBytes : bytes;
}

// The strategies whose kernels apply terms to the logits.
constexpr bool CanTakeTerms(Strategy strategy) {
  using enum Strategy;
  return strategy != kRing && strategy != kSplit && strategy != kPanel && strategy != kSlab;
}

constexpr Plan Forced(const Problem& p, const Device& device, Strategy strategy, Plan plan) {
  plan.strategy = strategy;
  if (!HasFullVectors(p) && strategy != Strategy::kStream && strategy != Strategy::kStrided) {
    return Refuse(plan, "it wants aligned operands");
  }
  if (TakesTerms(p.op) && !CanTakeTerms(strategy)) {
    return Refuse(plan, "its kernels take no masks or other terms");
  }
  switch (strategy) {
    case Strategy::kTile:
      return TilePlan(p, device, plan);
    case Strategy::kPanel:
      return PanelPlan(p, device, plan);
    case Strategy::kSlab:
      return SlabPlan(p, device, plan);
    case Strategy::kStrided:
      return StridedPlan(p, plan);
    case Strategy::kSplit:
      return SplitPlan(p, device, plan);
    default:
      break;
  }
  if (p.rows.inner != 1) return Refuse(plan, "it takes rows that are contiguous in memory");
  switch (strategy) {
    case Strategy::kWarp:
      return WarpPlan(p, plan);
    case Strategy::kRegisters:
      return RegistersPlan(p, plan);
    case Strategy::kBlock:
      return BlockPlan(p, device, plan);
    case Strategy::kRing:
      return RingPlan(p, device, plan);
    case Strategy::kCluster:
      return ClusterPlan(p, device, plan);
    default:
      return StreamPlan(p, device, plan);
  }
}

// The most columns of kept rows that have two values each. Terms that are 8 or more from the
// largest lose 8 units in their last place by rounding the difference: of so many columns they are
// together less than 0.95, where they are summed once more. Of 4,096, logarithms were up to 6.01
// units off.
inline constexpr int64_t kPairsColumns = 2816;
// Of 16 bits no such digits are lost: up to here rows were timed (h200-widened-pairs.json).
inline constexpr int64_t kNarrowPairsColumns = 4096;
constexpr int64_t PairsColumns(const Problem& p) {
  return SizeOf(p.dtype) == 2 ? kNarrowPairsColumns : kPairsColumns;
}

// The strategies in order of preference.
constexpr std::array<Strategy, 6> Preferred(const Problem& p, const Device& device) {
  using enum Strategy;
  if (p.in_pairs) {
    const bool contiguous = p.rows.inner == 1 && HasFullVectors(p);
    if (!contiguous) return {kStream};
    if (PrefersTile(p)) return {kTile, kStream};
    if (IsMasked(p) || p.rows.columns > PairsColumns(p)) return {kStream};
    return {p.rows.columns > kRegistersColumns ? kRegisters : kWarp, kStream};
  }
  // XLA's buffers are aligned, but for slices of others that it hands on as they are.
  if (!HasFullVectors(p) && p.rows.inner == 1) {
    return {p.rows.columns > kUnalignedColumns ? kStream : kStrided};
  }
  if (TakesTerms(p.op) && p.rows.inner != 1) return {kStrided};
  if (p.rows.inner != 1) {
    if (HoldsColumns(p)) return {kStrided};
    const bool slab = PrefersSlab(p), whole = p.rows.inner % VectorOf(p) == 0;
    if (slab && FitsSlab(p, device)) return {kSlab};
    // Most of a panel's threads would have nothing to do: of 2,048 columns and 8 bf16 neighbours it
    // ran at 0.18 of the copy limit, "strided" at 0.48 (H200, 2026-11); of 1,280 and 8 in float32
    // the derivatives at 0.55, and at 0.58 and 0.67 (benchmarks/results/h200-panel-few.json).
    const int64_t fewest = p.inputs == 1 ? 2 : kPanelFewestLanes;
    const Strategy last = SplitsAcross(p) ? kSplit : kStrided;
    if (p.rows.columns > kTileInterleavedColumns && whole && p.rows.inner / VectorOf(p) < fewest) {
      return {last, kStrided};
    }
    // Tiles may have no room for as many short slabs as make whole vectors.
    if (!slab && !whole) return {kTile, kSlab, last, kStrided};
    if (PrefersPanel(p, device)) return {kPanel, kTile, last, kStrided};
    return {kTile, kPanel, last, kStrided};
  }
  if (TakesTerms(p.op)) {
    const bool shares = SharedRowBytes(p) > kTermsBytes && device.cluster_blocks > 1;
    const Strategy shared = shares ? kCluster : kBlock;
    if (PrefersTile(p)) return {kTile, kWarp, kRegisters, shared, kStream};
    // A block of a warp has constant addresses: softmax of 512 float32 columns with a mask per
    // element ran at 0.94 of the copy limit by "warp" and at 0.98 so (h200-registers.json).
    const bool one_warp =
        IsMasksOnly(p) && p.dtype == DataType::kF32 && p.rows.columns > kRegistersColumns / 2;
    if (p.rows.columns <= kRegistersColumns && !one_warp) return {kWarp, kStream};
    return {kRegisters, kWarp, shared, kStream};
  }
  const bool shares = PrefersRing(p) && device.cluster_blocks > 1;
  // A value for each row wants a row read once, which needs no room for it. In float64 exponentials
  // want threads that others' copies do not keep waiting: softmax and log-softmax of 32,768 columns
  // ran at 0.46 and 0.41 of the copy limit in clusters and at 0.54 and 0.60 by stream
  // (benchmarks/results/h200-float64.json); but the tangent of 65,536 at 0.67 by stream and at 1.00
  // by ring (h200-ring-float64.json).
  const bool streams = IsPerRow(p.op) || (shares && p.dtype == DataType::kF64 && p.inputs == 1);
  const Strategy shared = streams ? kStream : shares ? kRing : kBlock;
  const bool few = p.rows.Count() <= kSplitRows && p.rows.columns >= kSplitClusterColumns;
  if (few && SplitClusterBlocks(p, device) > 0) return {kSplit, kStream};
  if (MaySplit(p) && CanSplit(p)) {
    const bool many = p.rows.Count() * RowBytes(p) > kSplitBytes;
    if (many && shared == kRing) return {kRing, kSplit, kStream};
    return {kSplit, kStream};
  }
  if (PrefersTile(p)) return {kTile, kWarp, kRegisters, shared, kStream};
  // Of so many columns, 16-bit rows are too few bytes for a block each.
  const int64_t shortest = kRegistersColumns + (SizeOf(p.dtype) == 2 ? 1 : 0);
  if (p.Widens() && p.rows.columns > RegistersWidened(FinishesFromTerms(p.op))) {
    return {shared, kBlock, kCluster, kStream};
  }
  // With less shared memory than a ring wants, clusters take what does not fit a block.
  if (p.rows.columns >= shortest) return {kRegisters, kWarp, shared, kBlock, kCluster, kStream};
  return {kWarp, shared, kStream};
}

// The plan for `requested`, or for the best strategy if that is kAuto; see Plan::refusal.
constexpr Plan ChoosePlan(const Problem& p, const Device& device, Strategy requested) {
  Plan blank;
  blank.vector = VectorOf(p);
  blank.shared_limit = device.shared_per_block;
  blank.bytes_moved = p.BytesMoved();
  Plan plan;
  if (requested == Strategy::kAuto) {
    for (Strategy strategy : Preferred(p, device)) {
      plan = Forced(p, device, strategy, blank);
      if (plan.refusal == nullptr) break;
    }
  } else {
    plan = Forced(p, device, requested, blank);
  }
  // Some have counted their blocks themselves.
  if (plan.refusal == nullptr && plan.blocks == 0) {
    plan.blocks = std::min(CeilDiv(p.rows.Count(), plan.rows_per_block), kMaxGrid);
  }
  return plan;
}

}  // namespace jax_softmax
