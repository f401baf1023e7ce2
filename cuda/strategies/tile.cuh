// Strategy "tile": a block moves a stretch of whole rows through shared memory in full vectors, and
// lane groups take the rows from there: for rows too short or too odd for vectors of their own, and
// for short rows that are interleaved. Terms are read as they lie, one element a lane.
#pragma once

#include <cuda_pipeline.h>

#include "../in_registers.cuh"
#include "../ops/logits.h"

namespace jax_softmax::JS_ISA {

// Calls f with the first element of each of this thread's vectors of a stretch; returns the index
// of its element of the tail, which is `count` or more if it has none. With a branch for the tail
// in the loop, derivatives of odd rows of 16 bits took up to 1.16 times as long, and with two
// vectors at a time 0.996 (benchmarks/results/h200-tile-stretches.json).
template <int kVector, typename F>
__device__ __forceinline__ int ForVectors(int count, F f) {
  static_assert(kVector <= kTileThreads);
  const int end = count / kVector * kVector;
#pragma unroll 1
  for (int k = threadIdx.x * kVector; k < end; k += kTileThreads * kVector) f(k);
  return end + static_cast<int>(threadIdx.x);
}

// Copies `count` elements, of which `to` starts at a vector's address; waits in the caller.
template <typename Io>
__device__ __forceinline__ void FetchStretch(Io* to, const Io* from, int count) {
  const int single = ForVectors<kVectorBytes / sizeof(Io)>(
      count, [&](int k) { __pipeline_memcpy_async(to + k, from + k, kVectorBytes); });
  if (single < count) to[single] = from[single];
}

template <typename Io>
__device__ __forceinline__ void StoreStretch(Io* to, const Io* from, int count) {
  constexpr int kVector = kVectorBytes / sizeof(Io);
  const int single = ForVectors<kVector>(
      count, [&](int k) { Words<Io, kVector>::Load(from + k).Unpack().StoreGlobal(to + k); });
  if (single < count) to[single] = from[single];
}

// A panel is the columns x inner elements of `inner` interleaved rows (kInterleaved), or one row. A
// row's lanes hold kCount of its elements each, of which the last kMasked may not be there. A
// warp's rows are neighbours or `rows_apart`, as many as there are warps: see BankConflicts.
template <typename Op, typename Load, typename Store, int kLanes, int kCount, int kMasked,
          bool kInterleaved>
__global__ void __launch_bounds__(kTileThreads)
    TileKernel(Op op, Load load, Store store, Rows rows, int panels_per_tile, int rows_apart) {
  using T = typename Op::T;
  using Io = typename Load::Io;
  using Out = typename Store::Io;
  // Multiplied once, and not at all by 1: where every sweep did, log-softmax of 200 and 1,040
  // float32 columns took 1.02 times as long; rows that "warp" and "registers" hold were up to 0.7 %
  // slower so (benchmarks/results/h200-log-ties.json).
  using Products = OnProducts<Op>;
  // In two parts, of which sums are made one after the other, where there are many elements: 36 of
  // log-softmax take 72 registers in place of 96. Since it subtracts ties, 1,100 columns of it take
  // 0.4 % longer so, in one part 2.7 % (h200-log-ties.json).
  constexpr int kParts = Products::kMultiplies && kCount > 32 ? 2 : 1, kPart = kCount / kParts;
  static_assert(kCount % kParts == 0);
  constexpr bool kInPlace = std::is_same_v<Io, Out>;  // results take the elements' places
  constexpr int kInputs = Op::kInputs;
  extern __shared__ __align__(16) unsigned char shared[];
  const int columns = static_cast<int>(rows.columns);
  const int inner = kInterleaved ? static_cast<int>(rows.inner) : 1;
  const int panel = columns * inner;
  const int64_t first_panel = load.FirstOf(blockIdx.x, panels_per_tile);
  const int panels =
      static_cast<int>(min(static_cast<int64_t>(panels_per_tile), rows.outer - first_panel));
  const int64_t base = first_panel * panel;

  // A tile is whole vectors, so that every input's starts at a vector's address.
  Io* const tile = reinterpret_cast<Io*>(shared);
  const int tile_elements = panels_per_tile * panel;
  Out* const results = reinterpret_cast<Out*>(tile + (kInPlace ? 0 : kInputs * tile_elements));
#pragma unroll
  for (int input = 0; input < kInputs; ++input) {
    FetchStretch(tile + input * tile_elements, load.source[input] + base, panels * panel);
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();

  // Lanes side by side take elements that lie side by side: of a row, or of neighbouring rows.
  constexpr int kSpread = kInterleaved ? kWarpLanes / kLanes : 1;
  constexpr int kGroups = kTileThreads / kLanes;
  const int lane = threadIdx.x / kSpread % kLanes;
  const int in_warp =
      threadIdx.x % kWarpLanes / (kSpread * kLanes) * kSpread + threadIdx.x % kSpread;
  const int first_group =
      threadIdx.x / kWarpLanes * (rows_apart == 1 ? kWarpLanes / kLanes : 1);  // of this warp
  const int group = first_group + in_warp * rows_apart;
  const int count = panels * inner;
  const int step = kLanes * inner;
  const int room = columns - lane;
  for (int first_row = 0; first_row + first_group < count; first_row += kGroups) {
    // Lanes past the last row repeat one of this warp's, for the shuffles.
    const int row = first_row + (first_row + group < count ? group : first_group);
    const int start =
        (kInterleaved ? row / inner * panel + row % inner : row * columns) + lane * inner;
    const auto of_row = load.ForRow(first_panel * inner + row, rows);
    typename Load::Kept kept{};
    const auto has = [&](int i) { return i < kCount - kMasked || i * kLanes < room; };
    const auto result = RowInRegisters<kParts, kPart>(
        Products::Of(op), of_row, [](int) { return true; },
        [&](int part, auto& e) {
#pragma unroll
          for (int i = 0; i < kPart; ++i) {
            const int j = part * kPart + i;
#pragma unroll
            for (int input = 0; input < kInputs; ++input) {
              e[i].value[input] = has(j) ? Widen(tile[input * tile_elements + start + j * step])
                                         : Op::Absent(input);
            }
          }
          static_assert(kParts == 1 || !kTakesTerms<Op>, "terms are applied to all parts at once");
          kept = load.template Apply<kLanes>(of_row, lane, e);
          if constexpr (Products::kMultiplies) {
            if (op.logits.scale == 1) return;
#pragma unroll
            for (int i = 0; i < kPart; ++i) e[i].value[0] = Products::Product(op, e[i][0]);
          }
        },
        [&](int part, auto& y, const auto& result) {
          if (kInPlace && part == 0) __syncwarp();  // all have read before any writes
          store.Mask(y, kept, result);
          if (first_row + group >= count) return;
#pragma unroll
          for (int i = 0; i < kPart; ++i) {
            const int j = part * kPart + i;
            if (has(j)) results[start + j * step] = NarrowTo<Out>(y[i]);
          }
        },
        NoEdge{}, SpreadLanes<kLanes, kSpread>{});
    if constexpr (kPerRow<Op>) {
      if (lane == 0 && first_row + group < count) {
        StoreOfRow(op, store, first_panel * inner + row, result);
      }
    }
  }
  if constexpr (!kPerRow<Op>) {
    __syncthreads();
    StoreStretch(store.target + base, results, panels * panel);
  }
}

}  // namespace jax_softmax::JS_ISA
