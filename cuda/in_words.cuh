// Vectors that stay in registers as they lie in memory, from one sweep over them to the next.
#pragma once

#include "operands.cuh"

namespace jax_softmax::JS_ISA {

// Arguments that are 0, which the compiler does not know: see Opaque.
struct Zeros {
  unsigned z[3];
};

// The same vector for another sweep. Otherwise the compiler would keep what 16-bit elements are
// decoded to, twice their size, from one sweep to the next, or elements' differences to the
// maximum, or work on more of them at a time than there are registers for.
template <typename Io, int kVector>
__device__ __forceinline__ Words<Io, kVector> Opaque(Words<Io, kVector> raw, unsigned zero) {
  uint4& word = raw.word[0];
  word = {word.x ^ zero, word.y ^ zero, word.z ^ zero, word.w ^ zero};
  return raw;
}

// The largest of 16-bit elements, two at a time and without decoding them. NaN loses.
template <typename Io, int kVector, int kPacks>
__device__ __forceinline__ float Largest(const Words<Io, kVector> (&raw)[kPacks][1]) {
  using Two = std::conditional_t<std::is_same_v<Io, __half>, __half2, __nv_bfloat162>;
  constexpr int kTwos = kVector / 2;
  Two largest[kTwos];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    Two two[kTwos];
    memcpy(two, raw[k][0].word, sizeof(two));
#pragma unroll
    for (int i = 0; i < kTwos; ++i) largest[i] = k == 0 ? two[i] : __hmax2(largest[i], two[i]);
  }
#pragma unroll
  for (int i = 1; i < kTwos; ++i) largest[0] = __hmax2(largest[0], largest[i]);
  return fmaxf(Widen(largest[0].x), Widen(largest[0].y));
}

}  // namespace jax_softmax::JS_ISA
