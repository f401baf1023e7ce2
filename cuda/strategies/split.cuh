// Strategy "split": a row over many blocks, read twice, for rows that are few and long. One kernel
// leaves every part's statistics in a workspace, the next one merges a row's and writes the row.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Load, typename Store, int kVector, bool kWhole, bool kWrites>
__global__ void __launch_bounds__(kSplitThreads)
    SplitKernel(Op op, Load load, Store store, Rows rows, int parts, Partial<Op>* workspace) {
  static_assert(sizeof(Partial<Op>) <= kSplitPartBytes);
  // Vectors that a thread loads before it uses the first.
  constexpr int kBatch = 2;
  constexpr int kWarps = kSplitThreads / kWarpLanes;
  constexpr bool kCloses = kWrites && kPerRow<Op>;  // a row's result is all that there is to do
  const int64_t row = kCloses ? blockIdx.x : blockIdx.x / parts;
  const int part = kCloses ? 0 : blockIdx.x % parts;
  const Slice<Window<kVector, kWhole>> slice(row, rows.columns, part, parts);

  typename Load::template Raw<kVector> raw[kBatch][Op::kInputs];
  const auto fetch = [&](int k) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int pack = k + b * kSplitThreads;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        const bool needed = kWrites || SweepsNeed<Op>(input);
        raw[b][input] =
            load.Fetch({}, input, slice.window, slice.begin + pack, needed && pack < slice.packs);
      }
    }
  };
  // While the blocks of the first kernel wait for memory, those of the second may do so too.
  int k = threadIdx.x;
  if constexpr (!kCloses) fetch(k);

  if constexpr (kWrites) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    const Partial<Op> total = MergeParts<kSplitMostParts>(op, workspace + row * parts, parts);
    const auto result = op.Close(total.first, total.second);
    if constexpr (kPerRow<Op>) {
      if (threadIdx.x == 0) store.At(row, result);
    } else {
      for (; k < slice.packs; k += kBatch * kSplitThreads) {
        if (k >= kBatch * kSplitThreads) fetch(k);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int pack = k + b * kSplitThreads;
          Element<typename Op::T, Op::kInputs> e[kVector];
          Load::Decode(raw[b], e);
          typename Op::T y[kVector];
#pragma unroll
          for (int i = 0; i < kVector; ++i) y[i] = op.Finish(e[i], result);
          if (pack < slice.packs) store(slice.window, slice.begin + pack, y);
        }
      }
    }
  } else {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    __shared__ Partial<Op> of_warp[kWarps];
    Partial<Op> total;
    for (; k < slice.packs; k += kBatch * kSplitThreads) {
      if (k >= kBatch * kSplitThreads) fetch(k);
      Element<typename Op::T, Op::kInputs> e[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        Load::Decode({}, slice.window, slice.begin + k + b * kSplitThreads, raw[b], e[b]);
      }
      AddOnline(op, total, e);
    }
    total = WarpMerge(op, {total});
    if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = total;
    __syncthreads();
    if (threadIdx.x >= kWarpLanes) return;
    total = MergeParts<kWarps>(op, of_warp, kWarps);
    if (threadIdx.x == 0) workspace[blockIdx.x] = total;
  }
}

}  // namespace jax_softmax::JS_ISA
