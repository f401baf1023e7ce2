// Rows divided by their largest magnitude, or quantised to 8 bits by it: read once, written once.
#pragma once

#include "plan.h"

namespace jax_softmax {

// What the elements become: x / absmax in the dtype of x, or q = x / scale in 8 bits, where scale
// is absmax over the largest number of that type, but no less than the smallest normal number.
enum class AbsmaxResult { kScaled, kE4M3, kE5M2, kI8 };

struct Absmax {
  const void* x;
  void* y;
  void* of_row;  // absmax or scale, in float32
  DataType dtype;
  AbsmaxResult result;
  Rows rows;  // whose inner dimension is 1
  int alignment;

  // Rows without columns have a value each.
  bool IsEmpty() const { return rows.Count() == 0; }
};

struct AbsmaxPlan {
  int vector;
  int packs;           // vectors of a row that a thread keeps in registers, at most
  int lanes;           // that share a row, of a block
  int threads;         // of a block: of several rows where they are more than the lanes
  bool together;       // a block's rows are read and written by all of its threads
  int cluster_blocks;  // that share a row of more vectors than a block's registers have room for
  int64_t blocks;
};

// By a thread, from shared memory: odd rows that have hardly more than edges, of float32 of half as
// many vectors. 10 and 21 bf16 columns ran at 0.19 and 0.39 of the copy limit by lanes and at 0.46
// and 0.55 so, 10 of float32 at 0.85 and 0.69.
inline constexpr int kAbsmaxShortPacks = 4;
inline constexpr int kAbsmaxShortBlocks = 10;  // of a multiprocessor: left alone, ptxas spills
// By a group of a warp's lanes, which are a power of two: few vectors each, or more.
inline constexpr int kAbsmaxGroupThreads = 128;
inline constexpr int kAbsmaxGatherLanes = 8;  // from so many on, rows' values are stored together
inline constexpr int kAbsmaxFewPacks = 2;
inline constexpr int kAbsmaxGroupPacks = 6;
// By a block, or a cluster of larger ones.
inline constexpr int kAbsmaxBlockThreads = 256;
inline constexpr int kAbsmaxMostThreads = 512;
inline constexpr int kAbsmaxPacks = 8;
inline constexpr int kAbsmaxClusterBlocks = 8;  // what any device that has clusters runs

// The blocks that the compiler must leave room for on a multiprocessor.
constexpr int AbsmaxMinBlocks(int most_threads) {
  return most_threads == kAbsmaxGroupThreads ? 8 : most_threads == kAbsmaxBlockThreads ? 3 : 2;
}

// How many lanes take a row of so many vectors (h200-absmax.json).
constexpr int AbsmaxGroupLanes(int64_t packs) {
  // A single vector each, where there are more vectors, reads too little; lanes that have one less
  // than the others idle; and fewer than 8 take several turns at the elements of odd rows' edges.
  if (packs <= 8) return static_cast<int>(std::min<int64_t>(PowerOfTwoFrom(packs), 4));
  for (int lanes = kWarpLanes; lanes > 8; lanes /= 2) {
    const int64_t each = CeilDiv(packs, lanes);
    if (each >= (lanes == kWarpLanes ? 3 : 2) && 4 * packs > 3 * each * lanes) return lanes;
  }
  return 8;
}

constexpr AbsmaxPlan PlanAbsmax(const Rows& rows, DataType dtype, int alignment,
                                const Device& device) {
  AbsmaxPlan plan{};
  plan.vector = alignment % kVectorBytes == 0 ? kVectorBytes / SizeOf(dtype) : 1;
  const int short_packs = SizeOf(dtype) == 2 ? kAbsmaxShortPacks : kAbsmaxShortPacks / 2;
  plan.together = rows.columns % plan.vector != 0 && rows.columns < short_packs * plan.vector;
  if (plan.together) {
    plan.packs = plan.lanes = plan.cluster_blocks = 1;
    plan.threads = kAbsmaxGroupThreads;
    plan.blocks = CeilDiv(rows.Count(), plan.threads);
    return plan;
  }
  // Of odd rows, whose edges are apart, one more or less.
  const int64_t packs = std::max<int64_t>(rows.columns / plan.vector, 1);
  if (plan.vector > 1 && packs <= kAbsmaxGroupPacks * kWarpLanes) {
    plan.lanes = AbsmaxGroupLanes(packs);
    plan.packs = packs <= kAbsmaxFewPacks * plan.lanes ? kAbsmaxFewPacks : kAbsmaxGroupPacks;
    plan.threads = kAbsmaxGroupThreads;
    plan.cluster_blocks = 1;
  } else {
    plan.packs = kAbsmaxPacks;
    const int64_t most = std::min(kAbsmaxClusterBlocks, device.cluster_blocks);
    const int64_t blocks = std::min(most, CeilDiv(packs, plan.packs * kAbsmaxMostThreads));
    const int64_t warps = CeilDiv(packs, blocks * plan.packs * kWarpLanes);
    plan.cluster_blocks = static_cast<int>(blocks);
    plan.threads = static_cast<int>(std::min<int64_t>(warps * kWarpLanes, kAbsmaxMostThreads));
    plan.lanes = plan.threads;
  }
  plan.blocks = CeilDiv(rows.Count(), plan.threads / plan.lanes) * plan.cluster_blocks;
  return plan;
}

}  // namespace jax_softmax
