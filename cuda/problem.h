// What is computed, of which rows, and how these lie in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "common.h"
#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// An operand as [outer, columns, inner]: a row is `columns` elements `inner` apart.
struct Rows {
  int64_t outer = 1;
  int64_t columns = 1;
  int64_t inner = 1;

  constexpr int64_t Count() const { return outer * inner; }
  constexpr int64_t Elements() const { return outer * columns * inner; }
  constexpr bool operator==(const Rows&) const = default;
};

// `dims` are the operand's logical dimensions, of which `logical_axis` is the softmax axis; in
// memory the other dimensions keep their order and the softmax axis lies at position `axis`.
constexpr Rows RowsOf(std::span<const int64_t> dims, int64_t logical_axis, int64_t axis) {
  Rows rows;
  int64_t position = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(dims.size()); ++d) {
    if (d == logical_axis) {
      rows.columns = dims[d];
    } else {
      (position++ < axis ? rows.outer : rows.inner) *= dims[d];
    }
  }
  return rows;
}

struct Problem {
  OpKind op;
  int inputs;
  DataType dtype;      // of the inputs
  DataType out_dtype;  // of the result; the two are one of kTypePairs
  Rows rows;
  int alignment;  // bytes that every operand's address is a multiple of, up to kVectorBytes
  // Whether a row's plan must be the same among any number of other rows.
  bool batch_invariant;
  int64_t workspace_bytes = 0;  // of WorkspaceBytes
  bool masks_alone = false;     // of an op that takes terms: there are no others
  bool masks_only = false;      // the same, but maybe a scale
  bool bias_alone = false;      // Terms::AreBiasAlone, and nothing is converted
  bool in_pairs = false;        // of logsumexp: what softmax or log-softmax of rows is made of

  constexpr TypePair Types() const { return {dtype, out_dtype}; }
  // Elements of at most 32 bits, and results of their type: all that some kernels are built for.
  constexpr bool IsUnconverted32() const { return dtype == out_dtype && dtype != DataType::kF64; }
  // Whether one input's rows become rows of wider elements.
  constexpr bool Widens() const {
    return inputs == 1 && !IsPerRow(op) && SizeOf(out_dtype) > SizeOf(dtype);
  }
  constexpr int64_t Results() const { return IsPerRow(op) ? rows.Count() : rows.Elements(); }
  // Every operand once.
  constexpr int64_t BytesMoved() const {
    return rows.Elements() * inputs * SizeOf(dtype) + Results() * SizeOf(out_dtype);
  }
};

inline constexpr int kVectorBytes = 16;  // the widest access of a thread
inline constexpr int kLinePacks = 8;     // vectors of a line of the cache
inline constexpr int kLineBytes = kLinePacks * kVectorBytes;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t PowerOfTwoFrom(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

constexpr int ComputeBytes(DataType type) { return type == DataType::kF64 ? 8 : 4; }

constexpr bool HasFullVectors(const Problem& p) { return p.alignment % kVectorBytes == 0; }

// Elements per access: 16 bytes of an input where all operands start at such an address (a narrower
// result would do with less). Rows need not: see Window and Body in operands.cuh.
constexpr int VectorOf(const Problem& p) {
  return HasFullVectors(p) ? kVectorBytes / SizeOf(p.dtype) : 1;
}

// The most vectors that a row touches, wherever it starts.
constexpr int64_t PacksPerRow(int64_t columns, int vector) {
  const int64_t packs =
      columns % vector == 0 ? columns / vector : (columns + vector - 2) / vector + 1;
  return std::max<int64_t>(packs, 1);
}

constexpr int64_t PacksPerRow(const Problem& p) { return PacksPerRow(p.rows.columns, VectorOf(p)); }

// The bytes of a row of every input, in whole vectors.
constexpr int64_t RowBytes(const Problem& p) {
  return PacksPerRow(p) * VectorOf(p) * SizeOf(p.dtype) * p.inputs;
}

// Whether a row with terms keeps its type in shared memory: masks alone leave an element as it is
// or make it -inf.
constexpr bool KeepsNarrow(const Problem& p) {
  return TakesTerms(p.op) && p.masks_alone && SizeOf(p.dtype) == 2;
}

// Of an element in shared memory: what other terms make of it is in the compute type.
constexpr int SharedBytes(const Problem& p) {
  return TakesTerms(p.op) && !KeepsNarrow(p) ? ComputeBytes(p.dtype) : SizeOf(p.dtype);
}

constexpr int64_t SharedRowBytes(const Problem& p) {
  return RowBytes(p) / SizeOf(p.dtype) * SharedBytes(p);
}

// Whether masks are the only terms of rows of whole vectors that are not converted.
constexpr bool IsMasksOnly(const Problem& p) {
  return p.masks_only && p.rows.columns % VectorOf(p) == 0 && p.dtype == p.out_dtype;
}

constexpr bool IsMasked(const Problem& p) { return p.rows.columns % VectorOf(p) != 0; }

// After so many vectors, one after the other in memory, elements are of the same rows again.
constexpr int64_t PeriodOf(const Rows& rows, int vector) {
  return std::max<int64_t>(rows.inner / std::gcd(rows.inner, int64_t{vector}), 1);
}

}  // namespace jax_softmax
