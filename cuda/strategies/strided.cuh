// Strategy "strided": rows along any axis, no transpose. Neighbouring threads take neighbouring
// rows, so that accesses coalesce over the inner dimension; a few threads share each row.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// Elements folded into the online statistics at a time.
inline constexpr int kStridedFold = 4;

template <typename Op, typename Load, typename Store>
__global__ void __launch_bounds__(kStridedThreads, 1)
    StridedKernel(Op op, Load load, Store store, Rows rows) {
  constexpr int kSlices = kStridedThreads / kStridedColumns;
  static_assert(sizeof(Partial<Op>) <= 4 * sizeof(typename Op::T), "see StridedPlan");
  extern __shared__ __align__(16) unsigned char shared[];
  auto* parts = reinterpret_cast<Partial<Op>(*)[kStridedColumns]>(shared);
  const int lane = threadIdx.x % kStridedColumns;
  const int slice = threadIdx.x / kStridedColumns;
  const int64_t count = rows.outer * rows.inner;

  for (int64_t first_row = static_cast<int64_t>(blockIdx.x) * kStridedColumns; first_row < count;
       first_row += static_cast<int64_t>(gridDim.x) * kStridedColumns) {
    const int64_t row = first_row + lane;
    const int64_t columns = row < count ? rows.columns : 0;
    const int64_t base = row / rows.inner * rows.columns * rows.inner + row % rows.inner;

    Partial<Op> part;
    for (int64_t c = slice; c < columns; c += kSlices * kStridedFold) {
      Element<typename Op::T, Op::kInputs> e[kStridedFold];
#pragma unroll
      for (int i = 0; i < kStridedFold; ++i) {
        const int64_t column = c + i * kSlices;
        e[i] = column < columns ? load.At(base + column * rows.inner) : Load::Absent();
      }
      AddOnline(op, part, e);
    }
    parts[slice][lane] = part;
    __syncthreads();
    Partial<Op> total;
    for (int s = 0; s < kSlices; ++s) Merge(op, total, parts[s][lane]);
    // Before the next rows' parts are written, everyone has read these.
    __syncthreads();

    const auto result = op.Close(total.first, total.second);
    for (int64_t c = slice; c < columns; c += kSlices) {
      const int64_t offset = base + c * rows.inner;
      store.At(offset, op.Finish(load.At(offset), result));
    }
  }
}

}  // namespace jax_softmax::JS_ISA
