// Lanes change places.
#pragma once

#include <utility>

#include "../cuda/common.h"

namespace jax_softmax::JS_ISA {

template <int kMask, typename T, int... kLane>
JS_HD T SwapLanes(T x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kMask)...);
}

// One step of a transposition: swaps the off-diagonal blocks of kSize x kSize in all blocks of
// twice that size.
template <int kSize, typename T, int... kLane>
JS_HD void SwapBlocks(T& a, T& b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  const T first =
      __builtin_shufflevector(a, b, (kLane & kSize ? kLanes + kLane - kSize : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kSize ? kLanes + kLane : kLane + kSize)...);
  a = first;
}

}  // namespace jax_softmax::JS_ISA
