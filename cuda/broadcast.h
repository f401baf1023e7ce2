// An operand of fewer elements than another: where in it each row's elements lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "common.h"

namespace jax_softmax {

// Division of numbers below 2^31 by a number that is known beforehand, in three instructions
// (Granlund and Montgomery 1994).
struct Divisor {
  uint32_t divisor = 1;
  uint32_t magic = 1;
  uint32_t shift = 0;

  constexpr Divisor() = default;
  constexpr explicit Divisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    magic = static_cast<uint32_t>((((uint64_t{1} << shift) - d) << 32) / d + 1);
  }
  JS_HD uint32_t Quotient(uint32_t n) const {
    return (static_cast<uint32_t>((uint64_t{n} * magic) >> 32) + n) >> shift;
  }
  JS_HD uint32_t Remainder(uint32_t n) const { return n - Quotient(n) * divisor; }
};

// Strides over the rows of an operand that is broadcast, by NumPy's rules, against [rows, columns].
struct Broadcast {
  static constexpr int kMostGroups = 4;

  // The rows' dimensions, innermost first, those that have one stride merged; at least two.
  int groups = 2;
  Divisor size[kMostGroups];
  int64_t stride[kMostGroups] = {};
  int64_t column_stride = 0;

  // Of a row's first element.
  JS_HD int64_t Offset(uint32_t row) const {
    uint32_t left = size[0].Quotient(row);
    int64_t offset = (row - left * size[0].divisor) * stride[0];
    if (groups > 2) {
      JS_KEEP_LOOP
      for (int g = 1; g < groups - 1; ++g) {
        const uint32_t outer = size[g].Quotient(left);
        offset += (left - outer * size[g].divisor) * stride[g];
        left = outer;
      }
      return offset + left * stride[groups - 1];
    }
    return offset + left * stride[1];
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
  int64_t size[Broadcast::kMostGroups] = {};
  int groups = 0;
  int64_t stride = 1;
  for (int64_t position = rank - 1; position >= 0; --position) {
    const int64_t d = at(position);
    const int64_t own = shape[d] == 1 ? 0 : stride;
    stride *= shape[d];
    if (d == logical_axis) {
      broadcast.column_stride = own;
      continue;
    }
    if (dims[d] == 1) continue;
    if (groups > 0 && own == broadcast.stride[groups - 1] * size[groups - 1]) {
      size[groups - 1] *= dims[d];
      continue;
    }
    if (groups == Broadcast::kMostGroups) return std::nullopt;
    size[groups] = dims[d];
    broadcast.stride[groups] = own;
    ++groups;
  }
  for (int g = 0; g < groups; ++g) broadcast.size[g] = Divisor(static_cast<uint32_t>(size[g]));
  if (groups == 1) {
    // One more, of one row, inside it.
    broadcast.stride[1] = broadcast.stride[0];
    broadcast.stride[0] = 0;
    broadcast.size[0] = Divisor();
    broadcast.size[1] = Divisor(static_cast<uint32_t>(size[0]));
  }
  broadcast.groups = std::max(groups, 2);
  return broadcast;
}

// What is applied to logits as they are loaded. Null or 0 is absent. There are less than 2^31 rows.
struct Terms {
  uint32_t rows = 0;
  double factor = 1;
  float narrow_factor = 1;  // the same, rounded
  bool caps = false;
  double softcap = 0;
  double per_softcap = 0;      // 1 / softcap
  const void* mask = nullptr;  // bytes, 0 or 1
  bool fills = false;          // whether masked logits take part, as `fill`
  double fill = -std::numeric_limits<double>::infinity();
  float narrow_fill = -std::numeric_limits<float>::infinity();  // the same, rounded
  const void* bias = nullptr;   // in the logits' type, or in the compute type
  const void* scale = nullptr;  // in the compute type, as is the sink
  const void* sink = nullptr;
  bool causal = false;
  Divisor causal_rows;  // of each matrix, whose last row sees every column
  bool wide_bias = false;
  // Whether whole vectors of a row of whole vectors may be read.
  bool mask_in_vectors = false;
  bool bias_in_vectors = false;
  // How many rows that lie apart read the same of a large operand: they are worked on in turn.
  Divisor turns;
  Broadcast mask_at, bias_at, scale_at, sink_at;

  // Whether there is a bias whose columns lie side by side, in the logits' type.
  JS_HD bool BiasRuns() const {
    return bias != nullptr && bias_at.column_stride == 1 && !wide_bias;
  }
  // Whether logits that are not masked are what the operand holds, or that times a scale.
  bool AreMasksOnly() const { return !caps && bias == nullptr && sink == nullptr; }
  // Whether there is such a bias, in vectors if rows are `whole` vectors, and maybe a scale.
  bool AreBiasAlone(bool whole) const {
    const bool others = caps || sink != nullptr || mask != nullptr || causal;
    return BiasRuns() && !others && (!whole || bias_in_vectors);
  }
  bool AreMasksAlone() const { return AreMasksOnly() && factor == 1 && scale == nullptr; }
};

// What an op has beside its operands.
struct Extras {
  Terms terms;                    // of ops that take them
  double scale = 1;               // of softmax_tangent, or of logits
  bool zeros_are_masked = false;  // in softmax_tangent
};

}  // namespace jax_softmax
