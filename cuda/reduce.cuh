// All-reduces of a statistic: within a group of lanes, then within a block.
#pragma once

#include "plan.h"
#include "stats.h"

namespace jax_softmax::JS_ISA {

// Any trivially copyable statistic from the lane whose index differs in the bits of `mask`.
template <typename S>
__device__ __forceinline__ S FromLane(const S& own, int mask) {
  static_assert(sizeof(S) % sizeof(int) == 0);
  constexpr int kWords = sizeof(S) / sizeof(int);
  union Words {
    __device__ Words() {}
    S statistic;
    int word[kWords];
  } words;
  words.statistic = own;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words.word[i] = __shfl_xor_sync(0xffffffffu, words.word[i], mask);
  }
  return words.statistic;
}

// Butterfly over aligned groups of `lanes` lanes, a power of two; all lanes of the warp take part.
template <typename S>
__device__ __forceinline__ S Butterfly(S statistic, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) statistic.Merge(FromLane(statistic, mask));
  return statistic;
}

template <typename S>
__device__ __forceinline__ S LaneGroupReduce(const S& statistic, int lanes) {
  return S(Butterfly(statistic.Cross(), lanes));
}

// Over the block's threads, a power of two of warps; `scratch` holds one statistic per warp and may
// be reused at once.
template <typename S>
__device__ __forceinline__ S BlockReduce(const S& statistic, void* scratch) {
  using Crossing = typename S::Crossing;
  auto* of_warp = static_cast<Crossing*>(scratch);
  const Crossing own = Butterfly(statistic.Cross(), kWarpLanes);
  const int warps = blockDim.x / kWarpLanes;
  if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = own;
  __syncthreads();
  const Crossing total = Butterfly(of_warp[threadIdx.x & (warps - 1)], warps);
  // Before anyone writes the scratch again, everyone has read it.
  __syncthreads();
  return S(total);
}

}  // namespace jax_softmax::JS_ISA
