// Strategy "panel": rows along any axis, those of a block in its shared memory, read once. A thread
// takes kVector rows that lie side by side, and shares them with the threads of other slices.
#pragma once

#include <cuda_pipeline.h>

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// Over the block's slices of kLanes threads; a thread has the statistics of kRows rows. `scratch`
// holds them all for one thread in kWarpLanes / kLanes, and may not be used again.
template <int kLanes, typename S, int kRows>
__device__ __forceinline__ void SliceReduce(S (&statistic)[kRows], void* scratch) {
  using Crossing = typename S::Crossing;
  Crossing own[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    own[r] = SpreadReduce<kWarpLanes / kLanes, kLanes>(statistic[r]).Cross();
  }
  const int warps = blockDim.x / kWarpLanes;
  if (warps > 1) {
    constexpr int kWidth = kLanes * kRows;
    auto* parts = static_cast<Crossing*>(scratch);  // [warp][row of the thread][lane]
    const int lane = threadIdx.x % kLanes;
    const int warp = threadIdx.x / kWarpLanes;
    if (threadIdx.x % kWarpLanes < kLanes) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) parts[warp * kWidth + r * kLanes + lane] = own[r];
    }
    __syncthreads();
    for (int t = threadIdx.x; t < kWidth; t += blockDim.x) {
      Crossing total = parts[t];
      for (int w = 1; w < warps; ++w) total.Merge(parts[w * kWidth + t]);
      parts[t] = total;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) own[r] = parts[r * kLanes + lane];
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) statistic[r] = S(own[r]);
}

template <typename Op, typename Load, typename Store, int kVector>
__global__ void __launch_bounds__(kPanelThreads, kPanelResident)
    PanelKernel(Op op, Load load, Store store, Rows rows, int log2_lanes, int scratch_bytes) {
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  constexpr int kInputs = Op::kInputs;
  constexpr int kFold = 4;  // columns that a sum takes in at a time
  extern __shared__ __align__(16) unsigned char shared[];
  const int threads = blockDim.x;
  const int lanes = 1 << log2_lanes;
  const int width = lanes * kVector;
  const int slices = threads >> log2_lanes;
  const int slice = threadIdx.x >> log2_lanes;
  const int columns = static_cast<int>(rows.columns);
  // There are at least as many blocks as tiles, so that 32 bits do.
  const unsigned tiles = static_cast<unsigned>((rows.inner + width - 1) / width);
  const unsigned outer = blockIdx.x / tiles;
  const int64_t inner =
      int64_t{blockIdx.x - outer * tiles} * width + (threadIdx.x & (lanes - 1)) * kVector;
  const int64_t base = (int64_t{outer} * rows.columns + slice) * rows.inner + inner;
  const int64_t step = slices * rows.inner;
  // This thread's columns: every `slices`th, in places that no other thread uses.
  const int count = inner < rows.inner ? (columns - slice + slices - 1) / slices : 0;
  const int capacity = (columns + slices - 1) / slices * threads;
  auto* const own = reinterpret_cast<typename Raw::Word*>(shared + scratch_bytes) + threadIdx.x;

#pragma unroll
  for (int input = 0; input < kInputs; ++input) {
    auto* to = own + input * capacity;
    const auto* from = load.source[input] + base;
#pragma unroll 4
    for (int c = 0; c < count; ++c) {
      __pipeline_memcpy_async(to, from, sizeof(Raw));
      to += threads;
      from += step;
    }
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);

  const auto read = [&](const auto* from, auto& e, int i) {
    Raw raw[kInputs];
#pragma unroll
    for (int input = 0; input < kInputs; ++input) raw[input] = Raw::Load(from + input * capacity);
    Element<T, kInputs> of_rows[kVector];
    Load::Decode(raw, of_rows);
#pragma unroll
    for (int r = 0; r < kVector; ++r) e[r][i] = of_rows[r];
  };
  // Calls f with the elements of kFold columns of every row, then with those of single columns.
  const auto sweep = [&](auto f) {
    const auto* from = own;
    int left = count;
    for (; left >= kFold; left -= kFold) {
      Element<T, kInputs> e[kVector][kFold];
#pragma unroll
      for (int i = 0; i < kFold; ++i) {
        read(from, e, i);
        from += threads;
      }
      f(e);
    }
    for (; left > 0; --left) {
      Element<T, kInputs> e[kVector][1];
      read(from, e, 0);
      from += threads;
      f(e);
    }
  };

  // The number of lanes matters to nothing else.
  const auto reduce = [&](auto& statistics, void* scratch) {
    if (lanes == 4) return SliceReduce<4>(statistics, scratch);
    if (lanes == 8) return SliceReduce<8>(statistics, scratch);
    SliceReduce<16>(statistics, scratch);
  };

  typename Op::First first[kVector];
  sweep([&](const auto& e) {
#pragma unroll
    for (int r = 0; r < kVector; ++r) AddFirst(op, first[r], e[r]);
  });
  reduce(first, shared);
  typename Op::Second second[kVector];
  if constexpr (Op::kSweeps == 2) {
    sweep([&](const auto& e) {
#pragma unroll
      for (int r = 0; r < kVector; ++r) AddSecond(op, second[r], e[r], op.Pivot(first[r]));
    });
    reduce(second, shared + scratch_bytes / 2);
  }
  typename Op::Row result[kVector];
#pragma unroll
  for (int r = 0; r < kVector; ++r) result[r] = op.Close(first[r], second[r]);

  if constexpr (kPerRow<Op>) {
    if (slice > 0 || inner >= rows.inner) return;
    const int64_t row = outer * rows.inner + inner;
#pragma unroll
    for (int r = 0; r < kVector; ++r) store.At(row + r, result[r]);
  } else {
    const auto* from = own;
    int64_t offset = base;
#pragma unroll 2
    for (int c = 0; c < count; ++c) {
      Element<T, kInputs> e[kVector][1];
      read(from, e, 0);
      T y[kVector];
#pragma unroll
      for (int r = 0; r < kVector; ++r) y[r] = op.Finish(e[r][0], result[r]);
      store.Put(offset, y);
      from += threads;
      offset += step;
    }
  }
}

}  // namespace jax_softmax::JS_ISA
