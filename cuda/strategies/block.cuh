// Strategy "block": a block per row, the row in shared memory in its own dtype, read once.
#pragma once

#include <cuda_pipeline.h>

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kBlockThreads.back())
    BlockKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  constexpr int kInputs = Op::kInputs;
  extern __shared__ __align__(16) unsigned char shared[];
  // Every thread reads back just what it wrote, in conflict-free 16-byte accesses.
  auto* cache = reinterpret_cast<typename Raw::Word*>(shared + kScratchBytes);

  for (int64_t row = blockIdx.x; row < rows.outer; row += gridDim.x) {
    const Window<kVector, kWhole> window(row, rows.columns);
    const int packs = window.packs;
    const auto read = [&](int k, Element<T, kInputs>(&e)[kVector]) {
      Raw raw[kInputs];
#pragma unroll
      for (int input = 0; input < kInputs; ++input)
        raw[input] = Raw::Load(&cache[input * packs + k]);
      Load::Decode(raw, e);
    };

    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
#pragma unroll
      for (int input = 0; input < kInputs; ++input) {
        auto* cached = &cache[input * packs + k];
        if (sizeof(Raw) == kVectorBytes && window.IsWhole(k)) {
          __pipeline_memcpy_async(cached, load.source[input] + window.Offset(k), kVectorBytes);
        } else {
          load.Fetch(input, window, k).Store(cached);
        }
      }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);

    Element<T, kInputs> e[kVector];
    typename Op::First first;
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      read(k, e);
      AddFirst(op, first, e);
    }
    first = BlockReduce(first, shared);

    typename Op::Second second;
    if constexpr (Op::kSweeps == 2) {
      const T pivot = op.Pivot(first);
      for (int k = threadIdx.x; k < packs; k += blockDim.x) {
        read(k, e);
        AddSecond(op, second, e, pivot);
      }
      second = BlockReduce(second, shared);
    }

    const auto result = op.Close(first, second);
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      read(k, e);
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
      store(window, k, y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
