// Strategy "block": a block per row, the row in shared memory in its own dtype, read once.
#pragma once

#include "../in_shared.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kBlockThreads.back())
    BlockKernel(Op op, Load load, Store store, Rows rows) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Slice<kVector, kWhole> slice(blockIdx.x, rows.columns, 0, 1);
  const Cache<Op, Load, kVector> cache(shared + kScratchBytes, slice.packs);

  for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) cache.Fetch(load, slice, k);
  cache.Await(load, slice);
  const Partial<Op> total = cache.Reduce(op, slice.packs, shared);
  const auto result = op.Close(total.first, total.second);
  if constexpr (kPerRow<Op>) {
    if (threadIdx.x == 0) store.At(blockIdx.x, result);
  } else {
    for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) {
      typename Op::T y[kVector];
      cache.Finish(op, k, result, y);
      store(slice.window, slice.begin + k, y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
