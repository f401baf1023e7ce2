// Strategy "stream": a block or a cluster of blocks per row of any length, read twice, statistics
// folded online.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kStreamThreads, kStreamResident)
    StreamKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  // Vectors of a row that a thread loads before it uses the first.
  constexpr int kBatch = (kWhole ? 4 : 2) / Op::kInputs;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Partial<Op> of_block[2];
  const Cluster cluster;
  const int64_t first = int64_t{threadIdx.x} + cluster.rank * blockDim.x;
  const int64_t stride = int64_t{blockDim.x} * cluster.blocks;

  typename Load::template Raw<kVector> raw[kBatch][Op::kInputs];
  const auto fetch = [&](const auto& window, int64_t k, auto needs) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t pack = k + b * stride;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[b][input] = load.Fetch(input, window, pack, needs(input) && pack < window.packs);
      }
    }
  };

  int turn = 0;
  for (int64_t row = blockIdx.x / cluster.blocks; row < rows.outer;
       row += gridDim.x / cluster.blocks, turn ^= 1) {
    const Window<kVector, kWhole, int64_t> window(row, rows.columns);

    Partial<Op> part;
    for (int64_t k = first; k < window.packs; k += kBatch * stride) {
      fetch(window, k, [](int input) { return SweepsNeed<Op>(input); });
      Element<T, Op::kInputs> e[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) Load::Decode(raw[b], e[b]);
      AddOnline(op, part, e);
    }
    unsigned char* scratch = shared + turn * kScratchBytes;
    const typename Op::First own = part.first;
    part.first = BlockReduce(part.first, scratch);
    if constexpr (Op::kSweeps == 2) {
      op.Rescale(part.second, own, part.first);
      part.second = BlockReduce(part.second, scratch + kScratchBytes / 2);
    }
    cluster.Merge(op, part, of_block[turn]);

    const auto result = op.Close(part.first, part.second);
    for (int64_t k = first; k < window.packs; k += kBatch * stride) {
      fetch(window, k, [](int) { return true; });
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        Element<T, Op::kInputs> e[kVector];
        Load::Decode(raw[b], e);
        T y[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
        if (k + b * stride < window.packs) store(window, k + b * stride, y);
      }
    }
  }
  cluster.Leave();
}

}  // namespace jax_softmax::JS_ISA
