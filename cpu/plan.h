// Which CPU strategy runs a problem, and in how many chunks: the CPU's ChoosePlan.
#pragma once

#include "../cuda/plan.h"

namespace jax_softmax::cpu {

enum class Strategy { kAuto, kRow, kSlices, kLanes, kStrided };
inline constexpr std::array<std::string_view, 5> kStrategyNames = {"auto", "row", "slices", "lanes",
                                                                   "strided"};

constexpr std::optional<Strategy> StrategyNamed(std::string_view name) {
  return Named<Strategy>(kStrategyNames, name);
}

// The work is a number of units, handed out in chunks: rows (row), slices of rows (slices), indices
// of the dimensions before the axis (lanes), or ranks of rows side by side (strided).
struct Plan {
  Strategy strategy = Strategy::kAuto;
  int64_t units = 0;
  int64_t units_per_chunk = 1;
  int64_t chunks = 0;
  int64_t bytes_moved = 0;
  const char* refusal = nullptr;

  // Rows that a chunk has a part in.
  constexpr int64_t RowsPerChunk(const Rows& rows) const {
    return std::max<int64_t>(units_per_chunk * rows.Count() / std::max<int64_t>(units, 1), 1);
  }
};

// Below this many columns a row does not fill a few vectors, and lanes take rows instead: below so
// many of contiguous rows without terms, by the number of inputs, of 16 bits or 32. Softmax and
// log-softmax of 72 and 100 float32 columns ran at 1.18, 1.29, 1.02 and 1.07 times the speed by
// "lanes", their derivatives of 72 bf16 columns at 1.04 and 1.4 times it; but of 64 columns, which
// are a few whole vectors, at 0.71 to 1.07 (benchmarks/results/cpu-lanes.json).
inline constexpr int64_t kShortRow = 48;
inline constexpr int64_t kFewWholeVectors = 64;
constexpr int64_t ShortRow(const Problem& p) {
  const int size = SizeOf(p.dtype);
  if (p.rows.inner > 1 || IsPerRow(p.op) || size > 4) return kShortRow;
  if (p.inputs == 1) return 104;
  return size == 2 ? 80 : kShortRow;
}
// Vectors of logits with terms that lanes have room for: whole blocks of them in any instruction
// set.
inline constexpr int64_t kMaskedTileColumns = 512;
// Threads share rows of two slices and more where there are fewer rows than this.
inline constexpr int64_t kFewRows = 64;
inline constexpr int64_t kSliceElements = 16384;
// Dimensions after the axis that lanes take along.
inline constexpr int64_t kMostInner = 16;
// Rows side by side in a unit of strided: so many that memory is read in long stretches, but fewer
// where that leaves few units. Whole vectors in any instruction set and type.
inline constexpr int64_t kMostRanked = 512;
inline constexpr int64_t kFewestRanked = 128;
inline constexpr int64_t kFewUnits = 16;
// Enough work that handing a chunk to another thread is worth it.
inline constexpr int64_t kChunkElements = 16384;
// Chunks of lanes' rows are whole groups at every vector width.
inline constexpr int64_t kRowGroup = 16;

constexpr int64_t SlicesPerRow(const Rows& rows) {
  return std::max<int64_t>(CeilDiv(rows.columns * rows.inner, kSliceElements), 1);
}

constexpr int64_t RowsPerRank(const Rows& rows) {
  int64_t ranked = kMostRanked;
  while (ranked > kFewestRanked && rows.outer * CeilDiv(rows.inner, ranked) < kFewUnits) {
    ranked /= 2;
  }
  return ranked;
}

// Whether vectors may run along rows that lie interleaved, as they do along one row.
constexpr bool AlongRows(const Rows& rows, int lanes) {
  return rows.inner <= lanes && (rows.inner & (rows.inner - 1)) == 0;
}

constexpr Strategy Best(const Problem& p, int lanes) {
  const Rows& rows = p.rows;
  if (TakesTerms(p.op)) return rows.columns < kShortRow ? Strategy::kLanes : Strategy::kRow;
  const int64_t length = rows.columns * rows.inner;
  const bool is_long = length >= ShortRow(p) || length == kFewWholeVectors;
  if (AlongRows(rows, lanes) && is_long) {
    // Merged slices round differently, so that a row's bits would depend on the number of rows.
    const bool slices = !p.batch_invariant && rows.outer < kFewRows && length >= 2 * kSliceElements;
    return slices ? Strategy::kSlices : Strategy::kRow;
  }
  if (rows.inner == 1) return Strategy::kLanes;
  const bool lanes_fill = rows.inner <= kMostInner && rows.outer >= kRowGroup;
  return lanes_fill ? Strategy::kLanes : Strategy::kStrided;
}

// Why kernels cannot apply terms to these rows, if they cannot.
constexpr const char* WhyNoTerms(const Rows& rows, Strategy strategy) {
  if (strategy != Strategy::kRow && strategy != Strategy::kLanes) {
    return "its kernels take no masks or other terms";
  }
  if (rows.inner > 1) return "it takes masks and other terms of rows that are contiguous in memory";
  if (strategy == Strategy::kLanes && rows.columns > kMaskedTileColumns) {
    return "it takes masks and other terms of short rows";
  }
  return nullptr;
}

// `vector_bytes`: how wide the vectors of the instruction set are.
constexpr Plan ChoosePlan(const Problem& p, int vector_bytes, Strategy requested) {
  Plan plan;
  const Rows& rows = p.rows;
  const int lanes = vector_bytes / ComputeBytes(p.dtype);
  plan.strategy = requested == Strategy::kAuto ? Best(p, lanes) : requested;
  plan.bytes_moved = p.BytesMoved();
  plan.units = rows.outer;
  int64_t unit_elements = rows.columns * rows.inner;
  int64_t group = 1;
  switch (plan.strategy) {
    case Strategy::kRow:
      if (!AlongRows(rows, lanes)) plan.refusal = "it takes rows that are contiguous in memory";
      break;
    case Strategy::kSlices:
      if (!AlongRows(rows, lanes)) plan.refusal = "it takes rows that are contiguous in memory";
      plan.units *= SlicesPerRow(rows);
      unit_elements = std::min(unit_elements, kSliceElements);
      break;
    case Strategy::kLanes:
      if (rows.inner > kMostInner) plan.refusal = "too many elements follow the axis";
      group = kRowGroup;
      break;
    default:
      plan.units *= CeilDiv(rows.inner, RowsPerRank(rows));
      unit_elements = rows.columns * std::min(rows.inner, RowsPerRank(rows));
  }
  const int64_t wanted = CeilDiv(kChunkElements, std::max<int64_t>(unit_elements, 1));
  if (TakesTerms(p.op)) plan.refusal = WhyNoTerms(rows, plan.strategy);
  plan.units_per_chunk = CeilDiv(wanted, group) * group;
  plan.chunks = CeilDiv(plan.units, plan.units_per_chunk);
  return plan;
}

}  // namespace jax_softmax::cpu
