// Strategy "stream": a block per row of any length, read twice, statistics folded online.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kStreamThreads)
    StreamKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  extern __shared__ __align__(16) unsigned char shared[];

  for (int64_t row = blockIdx.x; row < rows.outer; row += gridDim.x) {
    const Window<kVector, kWhole, int64_t> window(row, rows.columns);
    Element<T, Op::kInputs> e[1][kVector];

    Partial<Op> part;
    for (int64_t k = threadIdx.x; k < window.packs; k += blockDim.x) {
      load(window, k, e[0]);
      AddOnline(op, part, e);
    }
    const typename Op::First own = part.first;
    part.first = BlockReduce(part.first, shared);
    if constexpr (Op::kSweeps == 2) {
      op.Rescale(part.second, own, part.first);
      part.second = BlockReduce(part.second, shared + kScratchBytes / 2);
    }
    // Before anyone writes the scratch again, everyone has read it.
    __syncthreads();

    const auto result = op.Close(part.first, part.second);
    for (int64_t k = threadIdx.x; k < window.packs; k += blockDim.x) {
      load(window, k, e[0]);
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[0][i], result);
      store(window, k, y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
