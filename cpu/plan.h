// Which CPU strategy runs a problem, and in how many chunks: the CPU's ChoosePlan.
#pragma once

#include "../cuda/plan.h"

namespace jax_softmax::cpu {

enum class Strategy { kAuto, kRow, kLanes };
inline constexpr std::array<std::string_view, 3> kStrategyNames = {"auto", "row", "lanes"};

constexpr std::optional<Strategy> StrategyNamed(std::string_view name) {
  return Named<Strategy>(kStrategyNames, name);
}

struct Plan {
  Strategy strategy = Strategy::kAuto;
  int64_t rows_per_chunk = 1;
  int64_t chunks = 0;
  int64_t bytes_moved = 0;
  const char* refusal = nullptr;
};

// Below this many columns a row does not fill a few vectors, and lanes take rows instead.
inline constexpr int64_t kShortRow = 32;
// Enough work that handing a chunk to another thread is worth it.
inline constexpr int64_t kChunkElements = 16384;
// Chunks of lanes' rows are whole groups at every vector width.
inline constexpr int64_t kRowGroup = 64;

constexpr Plan ChoosePlan(const Problem& p, Strategy requested) {
  Plan plan;
  const bool contiguous = p.rows.inner == 1;
  plan.strategy = requested;
  if (requested == Strategy::kAuto) {
    plan.strategy = contiguous && p.rows.columns >= kShortRow ? Strategy::kRow : Strategy::kLanes;
  }
  if (plan.strategy == Strategy::kRow && !contiguous) {
    plan.refusal = "it takes rows that are contiguous in memory";
    return plan;
  }
  const int64_t unit = plan.strategy == Strategy::kRow ? 1 : kRowGroup;
  const int64_t wanted = CeilDiv(kChunkElements, std::max<int64_t>(p.rows.columns, 1));
  plan.rows_per_chunk = CeilDiv(wanted, unit) * unit;
  plan.chunks = CeilDiv(p.rows.Count(), plan.rows_per_chunk);
  plan.bytes_moved = p.BytesMoved();
  return plan;
}

}  // namespace jax_softmax::cpu
