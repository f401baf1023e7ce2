// The geometry of strategy "stream".
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"

namespace jax_softmax {

// Of a multiprocessor's threads, with room for the vectors that each has under way, half.
inline constexpr int kStreamResidentThreads = 1024;
constexpr int StreamThreads(int inputs, bool per_row, bool terms) {
  return per_row ? 128 : terms ? 256 : inputs == 1 ? 512 : 1024;
}
// Blocks of a multiprocessor: terms take registers.
constexpr int StreamBlocks(int threads, bool terms) {
  return terms ? 3 : kStreamResidentThreads / threads;
}
inline constexpr int kStreamBlocks = 8;  // the most of a cluster
inline constexpr int kStreamPacks = 4;   // that a thread loads before it uses any
// Whether it keeps what it has read in shared memory. Of a million bf16 columns' two inputs of 4 MB
// that is a fifth of the traffic: 605 us became 548 (H200, 2026-11).
constexpr bool KeepsStreamed(bool per_row, bool terms) { return !per_row && !terms; }

constexpr Plan StreamPlan(const Problem& p, const Device& device, Plan plan) {
  plan.threads = StreamThreads(p.inputs, IsPerRow(p.op), TakesTerms(p.op));
  // Threads take some vectors each before a row gets more blocks; many where nothing is written, or
  // where a last batch of few vectors costs as much as a full one.
  const int packs = IsPerRow(p.op) ? 128 : p.dtype == DataType::kF64 ? 64 : 16;
  const int64_t wanted = PowerOfTwoFrom(CeilDiv(PacksPerRow(p), plan.threads * packs));
  plan.cluster_blocks =
      static_cast<int>(std::min<int64_t>(wanted, std::min(kStreamBlocks, device.cluster_blocks)));
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  plan.scratch_bytes = 2 * kScratchBytes;
  plan.shared_bytes = plan.scratch_bytes;
  const int resident = StreamBlocks(plan.threads, TakesTerms(p.op));
  if (KeepsStreamed(IsPerRow(p.op), TakesTerms(p.op))) {
    const int64_t room =
        std::min(device.shared_per_block,
                 device.shared_per_multiprocessor / resident - device.shared_reserved) -
        kStaticSharedBytes - plan.shared_bytes;
    // Whole batches: of what is left, the multiprocessor makes cache.
    const int64_t batch = int64_t{plan.threads} * kStreamPacks * kVectorBytes;
    const int64_t batches = CeilDiv(CeilDiv(RowBytes(p), plan.cluster_blocks), batch);
    plan.shared_bytes += static_cast<int>(std::min(room / batch, batches) * batch);
  }
  return OfClusters(p, device, resident, plan);
}

}  // namespace jax_softmax
