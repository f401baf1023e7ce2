// An operand of fewer elements than another: where in it each row's elements lie.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "common.h"

namespace jax_softmax {

// Strides over the rows of an operand that is broadcast, by NumPy's rules, against [rows, columns].
struct Broadcast {
  static constexpr int kMostGroups = 4;

  // The rows' dimensions, outermost first, those that have one stride merged.
  int groups = 0;
  uint32_t size[kMostGroups] = {};
  int64_t stride[kMostGroups] = {};
  int64_t column_stride = 0;

  // Of the first element of a row; with a single row for all, 0.
  JS_HD int64_t Offset(uint32_t row) const {
    int64_t offset = 0;
    JS_UNROLL
    for (int g = kMostGroups - 1; g >= 0; --g) {
      if (g >= groups) continue;
      // The outermost needs no remainder.
      const uint32_t index = g > 0 ? row % size[g] : row;
      offset += index * stride[g];
      row /= size[g];
    }
    return offset;
  }
};

// `dims` are those of the operand that is not broadcast, as in RowsOf; `shape` has as many, each
// the same or 1. None if the rows have more groups than fit.
constexpr std::optional<Broadcast> BroadcastOf(std::span<const int64_t> dims,
                                               std::span<const int64_t> shape, int64_t logical_axis,
                                               int64_t axis) {
  const int64_t rank = static_cast<int64_t>(dims.size());
  // The logical dimension at a position in memory.
  const auto at = [&](int64_t position) {
    if (position == axis) return logical_axis;
    const int64_t other = position < axis ? position : position - 1;
    return other < logical_axis ? other : other + 1;
  };
  Broadcast broadcast;
  int64_t stride = 1;
  // Innermost first; turned around below.
  for (int64_t position = rank - 1; position >= 0; --position) {
    const int64_t d = at(position);
    const int64_t own = shape[d] == 1 ? 0 : stride;
    stride *= shape[d];
    if (d == logical_axis) {
      broadcast.column_stride = own;
      continue;
    }
    if (dims[d] == 1) continue;
    const int g = broadcast.groups;
    if (g > 0 && own == broadcast.stride[g - 1] * broadcast.size[g - 1]) {
      broadcast.size[g - 1] *= static_cast<uint32_t>(dims[d]);
      continue;
    }
    if (g == Broadcast::kMostGroups) return std::nullopt;
    broadcast.size[g] = static_cast<uint32_t>(dims[d]);
    broadcast.stride[g] = own;
    ++broadcast.groups;
  }
  for (int i = 0, j = broadcast.groups - 1; i < j; ++i, --j) {
    std::swap(broadcast.size[i], broadcast.size[j]);
    std::swap(broadcast.stride[i], broadcast.stride[j]);
  }
  return broadcast;
}

// What is applied to logits as they are loaded. Null or 0 is absent.
struct Terms {
  double factor = 1;
  double softcap = 0;
  int64_t causal_rows = 0;     // of each matrix, whose last row sees every column
  const void* mask = nullptr;  // bytes, 0 or 1
  const void* bias = nullptr;
  const void* scale = nullptr;  // in the compute type, as is the sink
  const void* sink = nullptr;
  bool wide_bias = false;  // in the compute type instead of the logits'
  // How many rows that lie apart read the same of a large operand: they are worked on in turn.
  uint32_t turns = 1;
  Broadcast mask_at, bias_at, scale_at, sink_at;
};

}  // namespace jax_softmax
