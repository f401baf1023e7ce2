// Strategy "warp": a group of 1 to 32 lanes per row, the whole row in registers, read once.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole, int kPacks>
__global__ void __launch_bounds__(kWarpThreads, WarpBlocks(kVector * kPacks *
                                                           sizeof(typename Op::T) * Op::kInputs))
    WarpKernel(Op op, Load load, Store store, Rows rows, int log2_lanes) {
  using Values = Element<typename Op::T, Op::kInputs>[kVector];
  const int lanes = 1 << log2_lanes;
  const int rows_per_block = kWarpThreads >> log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * rows_per_block;

  for (int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_block;
       first_row < rows.outer; first_row += stride) {
    const int64_t row = first_row + (threadIdx.x >> log2_lanes);
    const Window<kVector, kWhole> window(row, rows.columns);
    // Lanes past the last row stay for the shuffles, with nothing to load.
    const int packs = row < rows.outer ? window.packs : 0;

    // All loads before the first use: with the conversions in between, some would wait for others.
    typename Load::template Raw<kVector> raw[kPacks][Op::kInputs];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[k][input] = load.Fetch(input, window, lane + k * lanes, lane + k * lanes < packs);
      }
    }
    Values e[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) Load::Decode(raw[k], e[k]);

    typename Op::First first;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) AddFirst(op, first, e[k]);
    first = LaneGroupReduce(first, lanes);

    typename Op::Second second;
    if constexpr (Op::kSweeps == 2) {
      const auto pivot = op.Pivot(first);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const auto terms = AddSecond(op, second, e[k], pivot);
        if constexpr (kFinishesFromTerm<Op>) {
          // The element is not needed again: its term takes its registers.
#pragma unroll
          for (int i = 0; i < kVector; ++i) e[k][i].value[0] = terms.x[i];
        }
      }
      second = LaneGroupReduce(second, lanes);
    }

    const auto result = op.Close(first, second);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      typename Op::T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if constexpr (kFinishesFromTerm<Op>) {
          y[i] = op.FinishFromTerm(e[k][i][0], result);
        } else {
          y[i] = op.Finish(e[k][i], result);
        }
      }
      if (lane + k * lanes < packs) store(window, lane + k * lanes, y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
