// The gradient of losses that saved one logsumexp per row: element by element, nothing is reduced.
#pragma once

#include "plan.h"

namespace jax_softmax {

// dx = exp(x - lse) * factor + everywhere, and at_label more in the label's column. All but x and
// dx have one value for each row, labels apart in the compute type.
struct CrossEntropyGradient {
  const void* x;
  const void* lse;
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

// Rows of a block, and blocks of a row.
struct MapPlan {
  int vector;
  int lanes;  // that share a row: a power of two
  int64_t parts;
  int64_t blocks;
};

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks = 4;  // vectors of a row that a thread takes

constexpr MapPlan PlanMap(const Rows& rows, DataType dtype, int alignment) {
  MapPlan plan{};
  plan.vector = alignment % kVectorBytes == 0 ? kVectorBytes / SizeOf(dtype) : 1;
  const int64_t packs = PacksPerRow(rows.columns, plan.vector);
  plan.lanes =
      static_cast<int>(std::min<int64_t>(PowerOfTwoFrom(CeilDiv(packs, kMapPacks)), kMapThreads));
  plan.parts = CeilDiv(packs, plan.lanes * kMapPacks);
  plan.blocks = CeilDiv(rows.Count(), kMapThreads / plan.lanes) * plan.parts;
  return plan;
}

}  // namespace jax_softmax
