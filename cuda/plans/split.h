// The geometry of strategy "split", and which rows it is for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"

namespace jax_softmax {

inline constexpr int kSplitThreads = 256;
// A row's parts have at least so many vectors each; rows are cut into so many blocks together, or
// into more, so that a part has no more than the most vectors: logsumexp of 32 rows of 262,144
// float32 columns took 12.8 us in 8 parts a row, 10.5 in 32. A row is cut into the fewest or the
// most parts (benchmarks/results/h200-split-parts.json).
inline constexpr int kSplitPacks = 512;
inline constexpr int kSplitMostPacks = 2048;
inline constexpr int kSplitBlocks = 256;
inline constexpr int kSplitFewestParts = 8;
inline constexpr int kSplitMostParts = 128;
inline constexpr int kSplitPartBytes = 32;  // of a part's statistics, at most
// One kernel of clusters where these have a row in registers, so many vectors a thread: 12 rows of
// 128,256 bf16 columns took 3.7 us in place of 4.6, 8 of 32,768 2.6 in place of 3.1. More blocks
// than these only where rows are longer, and fewer where the device would be more than filled; with
// more vectors a thread, or more threads, 1.03 to 1.2 times as long
// (benchmarks/results/h200-split-clusters.json).
inline constexpr int kSplitClusterPacks = 4;
inline constexpr int kSplitClusterBlocks = 8;
inline constexpr int kSplitMostClusterBlocks = 16;
// The fewest columns. Of 16,384, up to 16 rows took 2.2 to 2.7 us, not split 3.0 to 4.8, of 8,192
// 2.1 to 2.5 and 1.9 to 2.9 (h200-few-long-rows.json).
inline constexpr int64_t kSplitClusterColumns = 16384;
// Of float16 there are none, to keep the library small.
constexpr bool HasSplitClusters(DataType dtype, DataType out_dtype) {
  return dtype == out_dtype && (dtype == DataType::kF32 || dtype == DataType::kBF16);
}
// Along another axis: the blocks of a multiprocessor that a thread has registers for. A block reads
// the statistics of all parts of its rows: of parts, whose square is at most the columns divided by
// kSplitReading, all blocks together read fewer bytes than the rows have.
inline constexpr int kSplitResident = 2;
inline constexpr int kSplitReading = 16;
// Neighbours' elements together, of all inputs, for which a block is worth its start: [192, 4096,
// 5] in bf16 took 156 us in 16 parts, 47 in three, and 52 by "strided".
inline constexpr int64_t kSplitAcrossBytes = 64 * 1024;
// The fewest parts, and the fewest columns, that are split rather than read twice by "strided":
// softmax of [1, 145,344, 10], [9, 32,768, 10] and [1, 131,072, 64] in bf16 took 25, 25 and 63 us,
// by "strided" 1,689, 409 and 1,482 (benchmarks/results/h200-split-across.json).
// Fewer columns where the number of parts may depend on the rows'.
inline constexpr int64_t kSplitFewestAcross = 2;
constexpr int64_t SplitAcrossColumns(bool batch_invariant) {
  return batch_invariant ? 16384 : 4096;
}
// With more rows, or with shorter ones of an input, a second kernel costs more than it gains
// (benchmarks/results/h200-few-rows.json). More bytes in all than stay in the cache are better read
// once, where a ring takes the rows: 16 of a million bf16 columns took 35.7 us, by "ring" 24.6, the
// tangent of 262,144 float32 columns 20.1 and 15.1 (h200-split-rows.json).
inline constexpr int64_t kSplitRows = 16;
inline constexpr int64_t kSplitRowBytes = 64 * 1024;
inline constexpr int64_t kSplitBytes = 16 * 1024 * 1024;
// Of values for each row, which one block takes 13 us for at 128,256 bf16 columns: 64 of these rows
// took 7.1 us, by "stream" 13.7, and 128 rows 14.9 and 14.0, in the same file.
inline constexpr int64_t kSplitValueRows = 64;
// Of longer rows more: one for so many of their columns. 264 rows of 262,144 bf16 columns took
// 44 us, by "stream" 54, 528 rows 77 and 74, 400 rows of a million 207 and 231
// (h200-split-values.json).
inline constexpr int64_t kSplitValueColumns = 1024;

// Why interleaved rows have no kernels that split them; null if they do.
constexpr const char* WhyNotSplitAcross(const Problem& p) {
  // A block has a whole period, or one that is a column.
  const int vector = kVectorBytes / SizeOf(p.dtype);
  if (p.rows.inner % vector != 0 && PeriodOf(p.rows, vector) > kSplitThreads) {
    return "vectors and rows meet in too many ways";
  }
  if (!p.IsUnconverted32()) {
    return "of 64 bits, and converted, it takes rows along the last axis alone";
  }
  return p.rows.inner > kMaxGrid / kVectorBytes ? "there are too many neighbours" : nullptr;
}

// The most parts of a row.
constexpr int64_t SplitMostParts(const Problem& p) {
  if (p.rows.inner == 1) return kSplitMostParts;
  const int64_t bytes = p.rows.columns * p.rows.inner * p.inputs * SizeOf(p.dtype);
  const int64_t most = std::min<int64_t>(bytes / kSplitAcrossBytes, kSplitMostParts);
  int64_t parts = 1;
  while (parts < most && (parts + 1) * (parts + 1) * kSplitReading <= p.rows.columns) ++parts;
  return parts;
}

constexpr bool CanSplit(const Problem& p) {
  return p.workspace_bytes >= p.rows.Count() * SplitMostParts(p) * kSplitPartBytes;
}

// Interleaved rows, a part of each in a block.
constexpr Plan SplitAcrossPlan(const Problem& p, const Device& device, Plan plan) {
  if (const char* why = WhyNotSplitAcross(p)) return Refuse(plan, why);
  const int64_t period = PeriodOf(p.rows, plan.vector);
  const int64_t lanes = std::min<int64_t>(period, kSplitThreads);
  const int64_t places = p.rows.outer * CeilDiv(period, lanes);
  int64_t parts = SplitMostParts(p);
  if (!p.batch_invariant) {
    parts = std::min(parts, CeilDiv(2 * kSplitBlocks, std::max<int64_t>(places, 1)));
  }
  plan.threads = kSplitThreads;
  plan.lanes_per_row = static_cast<int>(plan.threads * parts);
  plan.rows_per_block = std::min(p.rows.inner, lanes * plan.vector);
  plan.shared_bytes = kSplitThreads * plan.vector * 4 * ComputeBytes(p.dtype);
  plan.blocks = places * parts;
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many rows");
  plan.overlaps = device.cluster_blocks > 1;
  return plan;
}

// The blocks of the clusters that have a row each; 0 where two kernels do better.
constexpr int64_t SplitClusterBlocks(const Problem& p, const Device& device) {
  const bool forward = p.inputs == 1 && !IsPerRow(p.op) && !TakesTerms(p.op);
  const int vector = kVectorBytes / SizeOf(p.dtype);
  if (p.batch_invariant || !forward || p.rows.inner > 1) return 0;
  if (!HasSplitClusters(p.dtype, p.out_dtype)) return 0;
  if (p.rows.columns % vector != 0 || p.rows.columns == 0) return 0;
  const int64_t rows = p.rows.Count();
  const int64_t held = kSplitThreads * kSplitClusterPacks;
  int64_t blocks = std::max<int64_t>(PowerOfTwoFrom(CeilDiv(PacksPerRow(p), held)), 2);
  // Three quarters of the multiprocessors have one each, or all have one and some two.
  while (blocks < kSplitClusterBlocks && 2 * blocks * rows * 4 <= device.multiprocessors * 3) {
    blocks *= 2;
  }
  if (blocks > std::min(device.cluster_blocks, kSplitMostClusterBlocks)) return 0;
  if (blocks * rows * 2 > device.multiprocessors * 3) return 0;
  return blocks;
}

constexpr Plan SplitPlan(const Problem& p, const Device& device, Plan plan) {
  if (const int64_t blocks = SplitClusterBlocks(p, device); blocks > 0) {
    plan.threads = kSplitThreads;
    plan.cluster_blocks = static_cast<int>(blocks);
    plan.count_per_lane = kSplitClusterPacks;
    plan.lanes_per_row = static_cast<int>(plan.threads * blocks);
    plan.rows_per_block = 1;
    plan.blocks = p.rows.Count() * blocks;
    return plan;
  }
  if (!CanSplit(p)) return Refuse(plan, "it needs a workspace");
  if (p.rows.inner > 1) return SplitAcrossPlan(p, device, plan);
  if (p.rows.columns > kMaxGrid - kVectorBytes) return Refuse(plan, "the row is too long");
  const int64_t packs = PacksPerRow(p), rows = std::max<int64_t>(p.rows.Count(), 1);
  const int64_t by_row = PowerOfTwoFrom(CeilDiv(packs, kSplitPacks));
  int64_t parts = kSplitFewestParts;
  if (!p.batch_invariant) {
    const int64_t wanted = std::max(CeilDiv(kSplitBlocks, rows), CeilDiv(packs, kSplitMostPacks));
    parts = std::clamp<int64_t>(PowerOfTwoFrom(wanted), kSplitFewestParts, kSplitMostParts);
  }
  parts = std::min(by_row, parts);
  plan.threads = kSplitThreads;
  plan.lanes_per_row = static_cast<int>(plan.threads * parts);
  plan.rows_per_block = 1;
  plan.blocks = p.rows.Count() * parts;
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many rows");
  plan.overlaps = device.cluster_blocks > 1;  // from sm_90 on, as clusters are
  return plan;
}

// Whether rows along another axis that no block keeps are better split than read twice. A value for
// each row only where it may depend on the number of rows: the rule by which many such rows are the
// kernels' (_rule.py) was measured with "strided".
constexpr bool SplitsAcross(const Problem& p) {
  if (p.rows.inner == 1 || TakesTerms(p.op) || (IsPerRow(p.op) && p.batch_invariant)) return false;
  return p.rows.columns >= SplitAcrossColumns(p.batch_invariant) &&
         SplitMostParts(p) >= kSplitFewestAcross && WhyNotSplitAcross(p) == nullptr;
}

// Whether rows are few enough to be split, where the caller lets their number decide.
constexpr bool MaySplit(const Problem& p) {
  if (p.batch_invariant || TakesTerms(p.op) || p.rows.inner != 1) return false;
  if (RowBytes(p) < kSplitRowBytes * p.inputs) return false;
  const int64_t of_values = std::max(kSplitValueRows, p.rows.columns / kSplitValueColumns);
  return p.rows.Count() <= (IsPerRow(p.op) ? of_values : kSplitRows);
}

}  // namespace jax_softmax
