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
  int packs;           // vectors of a row that a thread keeps in registers
  int lanes;           // that share a row: a power of two
  int threads;         // of a block: of one row where the lanes are more than a warp's
  int cluster_blocks;  // that share a row of more vectors than a block's registers have room for
  int64_t blocks;
};

inline constexpr int kAbsmaxThreads = 128;
inline constexpr int kAbsmaxMostThreads = 512;
inline constexpr int kAbsmaxPacks = 8;
inline constexpr int kAbsmaxClusterBlocks = 8;  // what any device that has clusters runs

constexpr AbsmaxPlan PlanAbsmax(const Rows& rows, DataType dtype, int alignment,
                                const Device& device) {
  AbsmaxPlan plan{};
  plan.vector = alignment % kVectorBytes == 0 ? kVectorBytes / SizeOf(dtype) : 1;
  const int64_t packs = PacksPerRow(rows.columns, plan.vector);
  // Two or four vectors each before a row gets more lanes than a warp's or a block's.
  plan.packs = packs <= 2 * kWarpLanes ? 2 : packs <= 4 * kAbsmaxMostThreads ? 4 : kAbsmaxPacks;
  if (plan.vector == 1) plan.packs = kAbsmaxPacks;
  plan.lanes = static_cast<int>(
      std::min<int64_t>(PowerOfTwoFrom(CeilDiv(packs, plan.packs)), kAbsmaxMostThreads));
  plan.threads = plan.lanes > kWarpLanes ? plan.lanes : kAbsmaxThreads;
  plan.cluster_blocks =
      static_cast<int>(std::min<int64_t>(PowerOfTwoFrom(CeilDiv(packs, plan.packs * plan.lanes)),
                                         std::min(kAbsmaxClusterBlocks, device.cluster_blocks)));
  plan.blocks = CeilDiv(rows.Count(), plan.threads / plan.lanes) * plan.cluster_blocks;
  return plan;
}

}  // namespace jax_softmax
