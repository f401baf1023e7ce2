// The gradient of losses that saved logsumexp's terms of each row: element by element, nothing is
// reduced.
#pragma once

#include "plan.h"

namespace jax_softmax {

// dx = exp(x - shift) * factor + everywhere, and at_label more in the label's column. All but x and
// dx have one value for each row, labels apart in the compute type.
struct CrossEntropyGradient {
  const void* x;
  const void* shift;
  const void* factor;
  const void* everywhere;
  const void* at_label;
  const int32_t* labels;  // kNoGradient where the whole row is 0; out of range where none counts
  void* dx;
  DataType dtype;
  Rows rows;  // whose inner dimension is 1
  int alignment;

  bool IsEmpty() const { return rows.Elements() == 0; }
};

inline constexpr int32_t kNoGradient = INT32_MIN;

// Rows of a block, and blocks of a row; or vectors of the whole operand, where rows are none.
struct MapPlan {
  int vector;
  bool flat;
  int lanes;  // that share a row: a power of two
  int64_t parts;
  int64_t blocks;
};

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks = 4;  // vectors of a row that a thread takes
inline constexpr int64_t kMapFlatColumns = int64_t{1} << 30;  // what a Divisor is good for

constexpr MapPlan PlanMap(const Rows& rows, DataType dtype, int alignment) {
  MapPlan plan{};
  const int full = kVectorBytes / SizeOf(dtype);
  const bool has_vectors =
      alignment % kVectorBytes == 0 && (rows.columns % full == 0 || rows.columns < kMapFlatColumns);
  plan.vector = has_vectors ? full : 1;
  plan.flat = rows.columns % plan.vector != 0;
  if (plan.flat) {
    plan.blocks = CeilDiv(rows.Elements(), plan.vector * kMapThreads * kMapPacks);
    return plan;
  }
  const int64_t packs = PacksPerRow(rows.columns, plan.vector);
  plan.lanes =
      static_cast<int>(std::min<int64_t>(PowerOfTwoFrom(CeilDiv(packs, kMapPacks)), kMapThreads));
  plan.parts = CeilDiv(packs, plan.lanes * kMapPacks);
  plan.blocks = CeilDiv(rows.Count(), kMapThreads / plan.lanes) * plan.parts;
  return plan;
}

}  // namespace jax_softmax
