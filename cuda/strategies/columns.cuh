// Strategy "columns": short rows along any axis, each in one thread's registers. A thread takes
// kVector rows that lie side by side, so that accesses coalesce over the inner dimension.
#pragma once

#include "../in_registers.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, int kCount>
__global__ void __launch_bounds__(kColumnsThreads, 2)
    ColumnsKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  constexpr int kInputs = Op::kInputs;
  constexpr int kWidth = kColumnsThreads * kVector;
  const int columns = static_cast<int>(rows.columns);
  // There are at least as many blocks as tiles, so that 32 bits do.
  const unsigned tiles = static_cast<unsigned>((rows.inner + kWidth - 1) / kWidth);
  const unsigned outer = blockIdx.x / tiles;
  const int64_t inner = int64_t{blockIdx.x - outer * tiles} * kWidth + threadIdx.x * kVector;
  if (inner >= rows.inner) return;
  const int64_t base = int64_t{outer} * rows.columns * rows.inner + inner;

  Raw raw[kCount][kInputs];
#pragma unroll
  for (int input = 0; input < kInputs; ++input) {
    const auto* from = load.source[input] + base;
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      raw[c][input] = c < columns ? Raw::Load(from) : Load::template AbsentRaw<kVector>(input);
      from += rows.inner;
    }
  }
  Element<T, kInputs> e[kVector][1][kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    Element<T, kInputs> of_rows[kVector];
    Load::Decode(raw[c], of_rows);
#pragma unroll
    for (int r = 0; r < kVector; ++r) e[r][0][c] = of_rows[r];
  }
  T y[kVector][1][kCount];
#pragma unroll
  for (int r = 0; r < kVector; ++r) {
    RowInRegisters(
        op, e[r], y[r], [](const auto& statistic) { return statistic; },
        [](bool vote) { return vote; });
  }
  int64_t offset = base;
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    T of_rows[kVector];
#pragma unroll
    for (int r = 0; r < kVector; ++r) of_rows[r] = y[r][0][c];
    if (c < columns) store.Put(offset, of_rows);
    offset += rows.inner;
  }
}

}  // namespace jax_softmax::JS_ISA
