// The geometry of strategy "block".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "../geometry.h"
#include "../registers.h"

namespace jax_softmax {

// More threads than 512 are slower in the forward pass at every row length (H200, 2026-11).
inline constexpr std::array kBlockThreads = {128, 256, 512};
inline constexpr int kMostBlockThreads = kBlockThreads.back();
// In float64, arithmetic is what counts, and every warp of a row adds to it: softmax of 1,024
// columns ran at 0.75 of the copy limit with four, and at 0.92 with two
// (benchmarks/results/h200-float64.json).
inline constexpr std::array kWideBlockThreads = {32, 64, 128, 256, 512};
constexpr std::span<const int> BlockThreads(int compute_bytes) {
  if (compute_bytes == 8) return kWideBlockThreads;
  return kBlockThreads;
}
// Of all inputs' rows, in a block's shared memory: with more, too few blocks are resident to
// overlap one's arithmetic with another's copies, and a ring is faster
// (benchmarks/results/h200-ring-strategies.json). Softmax of 24,576 and 28,001 float32 columns ran
// at 0.94 and 0.89 of the copy limit by "block", at 0.95 and 0.93 by "ring"; the tangent of 20,001,
// rows that are no whole vectors, at 0.96 and 0.99 (benchmarks/results/h200-ring-blocks.json); and
// softmax of 50,257 bf16 columns at 0.93 and 0.94 (benchmarks/results/h200-ring-parts.json).
// Of one input, softmax of 10,001 and 16,384 bf16 columns to float32 ran at 0.77 and 0.69 by
// "block" and at 0.82 and 0.83 by "ring", of 24,576 float32 columns to bf16 at 0.98 and 0.89
// (benchmarks/results/h200-conversion-strategies.json).
constexpr int64_t BlockRowBytes(int inputs, int element_bytes, int result_bytes, bool masked) {
  if (inputs == 1 && result_bytes > element_bytes) return 16 * 1024;
  if (inputs == 1 && result_bytes < element_bytes) return 96 * 1024;
  if (inputs == 1 && element_bytes == 4) return 92 * 1024;
  if (inputs == 1) return (masked && element_bytes == 2 ? 88 : 112) * 1024;
  return (masked && element_bytes < 8 ? 124 : 192) * 1024;
}

// Of one input, what a multiprocessor has of rows at a time: what is read and written far apart
// costs more than what idles. Softmax of 16,384 bf16 columns ran at 0.955 of the copy limit with
// six rows and at 0.97 with three, of 20,001 at 0.935 with five and at 0.955 with three, of 12,288
// float32 columns at 0.955 with four and at 0.96 with three
// (benchmarks/results/h200-resident-rows.json).
constexpr int64_t BlockResidentBytes(int element_bytes) {
  return (element_bytes == 2 ? 96 : 120) * 1024;
}

// Of logits with terms: the registers of four blocks on a multiprocessor leave a thread 64, for the
// vectors that it has under way. With 512 threads of 40 registers, that had half as many, masked
// bf16 rows of 9,216 columns took 30 % longer, of 32,000 10 %, and of 50,257 a third (H200,
// 2026-11).
inline constexpr std::array kTermsThreads = {128, 192, 256};
// Of a row with masks alone, a thread takes so many vectors before it gets more threads: 8,192,
// 12,288 and 16,384 bf16 columns, a mask for each element, ran at 0.99, 0.91 and 0.89 of the copy
// limit with 128, and at 0.83, 0.98 and 0.98 with 192, the last at 0.99 with 256 (H200, 2026-11).
inline constexpr int kMaskedPacks = 9;
constexpr int TermsBlocks(int compute_bytes) { return compute_bytes == 8 ? 2 : 4; }
constexpr int TermsRegisters(int compute_bytes) { return compute_bytes == 8 ? 128 : 64; }

constexpr int BlockRegisters(const Problem& p) {
  if (TakesTerms(p.op)) return TermsRegisters(ComputeBytes(p.dtype));
  return kBlockRegisters[static_cast<int>(p.op)][*IndexOf(p.Types())][IsMasked(p)];
}

constexpr Plan BlockPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t row_bytes = SharedRowBytes(p);
  if (row_bytes + kScratchBytes + kStaticSharedBytes > device.shared_per_block) {
    return Refuse(plan, "the row does not fit a block's shared memory");
  }
  plan.shared_bytes = static_cast<int>(row_bytes + kScratchBytes + 15) / 16 * 16;
  const std::span<const int> sizes =
      TakesTerms(p.op) ? kTermsThreads : BlockThreads(ComputeBytes(p.dtype));
  plan.threads = sizes.front();
  const int registers = BlockRegisters(p);
  const auto resident_with = [&](int threads) {
    return ResidentBlocks(device, threads, registers, plan.shared_bytes);
  };
  const bool one_input = p.inputs == 1 && !TakesTerms(p.op) && !IsPerRow(p.op);
  const int64_t wanted = CeilDiv(BlockResidentBytes(SizeOf(p.dtype)), row_bytes);
  if (one_input && ComputeBytes(p.dtype) == 4 && wanted > 1 &&
      wanted < resident_with(plan.threads)) {
    // Shared memory that is asked for and not used keeps the others out.
    const int64_t share = device.shared_per_multiprocessor / wanted - device.shared_reserved;
    const int64_t most = std::min<int64_t>(share, device.shared_per_block) - kStaticSharedBytes;
    plan.shared_bytes = std::max(plan.shared_bytes, static_cast<int>(most / 128 * 128));
  }
  const int resident = resident_with(plan.threads);
  for (int threads : sizes) {
    // The largest block that leaves as many resident, and that the row keeps busy.
    const bool as_many = resident_with(threads) == resident;
    const bool crowded = KeepsNarrow(p) && PacksPerRow(p) > int64_t{plan.threads} * kMaskedPacks;
    if ((threads <= PacksPerRow(p) && as_many) || crowded) plan.threads = threads;
  }
  plan.lanes_per_row = plan.threads;
  plan.rows_per_block = 1;
  return plan;
}

}  // namespace jax_softmax
