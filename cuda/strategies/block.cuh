// Strategy "block": a block per row, the row in shared memory in its own dtype, read once.
#pragma once

#include <cuda_pipeline.h>

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector>
__global__ void __launch_bounds__(kBlockThreads.back())
    BlockKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  constexpr int kInputs = Op::kInputs;
  extern __shared__ __align__(16) unsigned char shared[];
  void* scratch = shared;
  // [pack][input]: every thread reads back just what it wrote, in conflict-free 16-byte accesses.
  auto* cache = reinterpret_cast<Raw(*)[kInputs]>(shared + kScratchBytes);

  for (int64_t row = blockIdx.x; row < rows.outer; row += gridDim.x) {
    const Window<kVector> window(row, rows.columns);
    const int packs = static_cast<int>(window.packs);

    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      const int64_t offset = window.Offset(k);
#pragma unroll
      for (int input = 0; input < kInputs; ++input) {
        if (sizeof(Raw) == kVectorBytes && window.IsWhole(offset)) {
          __pipeline_memcpy_async(&cache[k][input], load.source[input] + offset, sizeof(Raw));
        } else {
          cache[k][input] = load.Fetch(input, window, offset);
        }
      }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);

    Element<T, kInputs> e[kVector];
    typename Op::First first;
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      Load::Decode(cache[k], e);
      AddFirst(op, first, e);
    }
    first = BlockReduce(first, static_cast<typename Op::First*>(scratch));

    typename Op::Second second;
    if constexpr (Op::kSweeps == 2) {
      const T pivot = op.Pivot(first);
      for (int k = threadIdx.x; k < packs; k += blockDim.x) {
        Load::Decode(cache[k], e);
        AddSecond(op, second, e, pivot);
      }
      second = BlockReduce(second, static_cast<typename Op::Second*>(scratch));
    }

    const auto result = op.Close(first, second);
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      Load::Decode(cache[k], e);
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
      store(window, window.Offset(k), y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
