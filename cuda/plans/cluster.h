// The geometry of strategy "cluster".
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"
#include "block.h"

namespace jax_softmax {

// The most of a row with terms that a block has; longer ones are a cluster's.
inline constexpr int64_t kTermsBytes = 72 * 1024;
// Larger clusters are slower than reading a row twice.
inline constexpr int kTermsClusterBlocks = 8;

// "cluster" was the fastest with long rows before there was "ring", at 0.88 to 0.93 of the copy
// limit in the forward pass. One block on a multiprocessor, with half of its registers for the row
// and most of its shared memory for the next one. With 256 threads and two blocks the speed is the
// same, of rows half as long.
inline constexpr int kClusterThreads = 512;
inline constexpr int kClusterRegisters = 128;  // the most that a thread can have then
// Vectors that a thread keeps, of each input. With 20, bf16 rows of 65,536 columns ran at 0.86 of
// the copy limit instead of 0.93.
constexpr int ClusterPacks(int element_bytes, int inputs) {
  return ((element_bytes == 8 ? 10 : 13) + inputs - 1) / inputs;
}
// What a warp tells the others about a row; two sets of notes from all warps of a block.
inline constexpr int kClusterNoteBytes = 48;
inline constexpr int kClusterNotesBytes = 2 * kClusterThreads / kWarpLanes * kClusterNoteBytes;

// Rows of logits with terms, each over the blocks of a cluster.
constexpr Plan TermsClusterPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t blocks =
      std::max<int64_t>(PowerOfTwoFrom(CeilDiv(SharedRowBytes(p), kTermsBytes)), 2);
  if (blocks > std::min(device.cluster_blocks, kTermsClusterBlocks)) {
    return Refuse(plan, "the row does not fit a cluster");
  }
  const int64_t share = CeilDiv(PacksPerRow(p), blocks) * VectorOf(p) * SharedBytes(p);
  plan.cluster_blocks = static_cast<int>(blocks);
  plan.shared_bytes = static_cast<int>(share) + kScratchBytes;
  plan.threads = kTermsThreads.back();
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  const int resident = ResidentBlocks(device, plan.threads, BlockRegisters(p), plan.shared_bytes);
  return OfClusters(p, device, std::max(resident, 1), plan);
}

constexpr Plan ClusterPlan(const Problem& p, const Device& device, Plan plan) {
  if (device.cluster_blocks < 2) return Refuse(plan, "the device has no clusters");
  if (TakesTerms(p.op)) return TermsClusterPlan(p, device, plan);
  if (IsPerRow(p.op)) return Refuse(plan, "a value for each row needs no row kept");
  if (p.rows.Count() > kMaxGrid / 2) return Refuse(plan, "there are too many rows");
  const int64_t packs = PacksPerRow(p);
  plan.count_per_lane = ClusterPacks(SizeOf(p.dtype), p.inputs);
  int64_t blocks = PowerOfTwoFrom(CeilDiv(packs, kClusterThreads * plan.count_per_lane));
  const auto shared = [&] {
    return CeilDiv(packs, blocks) * kVectorBytes * p.inputs + blocks * kClusterNotesBytes;
  };
  while (shared() + kStaticSharedBytes > device.shared_per_block && packs > blocks) blocks *= 2;
  if (blocks > device.cluster_blocks) return Refuse(plan, "the row does not fit a cluster");
  plan.cluster_blocks = static_cast<int>(blocks);
  plan.shared_bytes = static_cast<int>(shared());
  plan.threads = kClusterThreads;
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  // A cluster that had to wait for others to finish would double the time.
  const int resident = ResidentBlocks(device, plan.threads, kClusterRegisters, plan.shared_bytes);
  return OfClusters(p, device, std::max(resident, 1), plan);
}

}  // namespace jax_softmax
