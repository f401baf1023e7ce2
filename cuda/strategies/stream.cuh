// Strategy "stream": a block or a cluster of blocks per row of any length, read twice, statistics
// folded online.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// Vectors of a row that a thread loads before it uses the first.
inline constexpr int kStreamBatch = 4;

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kStreamThreads, kStreamResident)
    StreamKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Partial<Op> of_block[2];
  const Cluster cluster;
  const int64_t first = int64_t{threadIdx.x} + cluster.rank * blockDim.x;
  const int64_t stride = int64_t{blockDim.x} * cluster.blocks;

  int turn = 0;
  for (int64_t row = blockIdx.x / cluster.blocks; row < rows.outer;
       row += gridDim.x / cluster.blocks, turn ^= 1) {
    const Window<kVector, kWhole, int64_t> window(row, rows.columns);

    Partial<Op> part;
    for (int64_t k = first; k < window.packs; k += kStreamBatch * stride) {
      typename Load::template Raw<kVector> raw[kStreamBatch][Op::kInputs];
#pragma unroll
      for (int b = 0; b < kStreamBatch; ++b) {
        const int64_t pack = k + b * stride;
#pragma unroll
        for (int input = 0; input < Op::kInputs; ++input) {
          raw[b][input] =
              load.Fetch(input, window, pack, Op::SweepsNeed(input) && pack < window.packs);
        }
      }
      Element<T, Op::kInputs> e[kStreamBatch][kVector];
#pragma unroll
      for (int b = 0; b < kStreamBatch; ++b) Load::Decode(raw[b], e[b]);
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
    for (int64_t k = first; k < window.packs; k += stride) {
      Element<T, Op::kInputs> e[kVector];
      load(window, k, e);
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
      store(window, k, y);
    }
  }
  cluster.Leave();
}

}  // namespace jax_softmax::JS_ISA
