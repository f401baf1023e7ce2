// Vectors to memory as 8-bit elements, rounded to the nearest, ties to even.
#pragma once

#include "memory.h"

namespace jax_softmax::JS_ISA {

// 8-bit numbers as their bits.
struct E4M3 {
  uint8_t bits;
  static constexpr float kLargest = 448;
  static constexpr int kFraction = 3;
  static constexpr int kBias = 7;
  static constexpr uint32_t kNan = 0x7f;
};
struct E5M2 {
  uint8_t bits;
  static constexpr float kLargest = 57344;
  static constexpr int kFraction = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kNan = 0x7e;
};
struct Int8 {
  uint8_t bits;
  static constexpr float kLargest = 127;
};

namespace internal {

typedef uint8_t Bytes __attribute__((vector_size(kFloats)));

JS_HD Bytes ShortenToBytes(Longs longs) {
#if defined(__AVX512F__)
  return (Bytes)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)longs);
#else
  return __builtin_convertvector(longs, Bytes);
#endif
}

// For x that rounds to a finite number of that type, or NaN.
template <typename Float8>
JS_HD Bytes Narrow(Floats x, Float8) {
  constexpr int kDropped = FormatOf<float, true>::kFraction - Float8::kFraction;
  constexpr int kRebias = FormatOf<float, true>::kBias - Float8::kBias;
  constexpr uint32_t kSmallestNormal = uint32_t{kRebias + 1} << 23;
  // Whose unit in the last place is the smallest subnormal result.
  constexpr uint32_t kAligner = uint32_t{kRebias + 1 + kDropped} << 23;
  const Longs bits = (Longs)x;
  const Longs magnitude = bits & 0x7fffffff;
  const Longs small = (Longs)((Floats)magnitude + (Floats)(Longs{} + kAligner)) - kAligner;
  const Longs rebiased = magnitude - (uint32_t{kRebias} << 23);
  const Longs half = Longs{} + ((1u << (kDropped - 1)) - 1);
  const Longs normal = (rebiased + half + ((rebiased >> kDropped) & 1)) >> kDropped;
  const Longs finite = magnitude < kSmallestNormal ? small : normal;
  const Longs result = x == x ? finite : (Longs{} + Float8::kNan);
  return ShortenToBytes(result | ((bits >> 24) & 0x80));
}

// NaN becomes 0.
JS_HD Bytes Narrow(Floats x, Int8) {
  // An integer's bits are at the end of this sum's, which the addition rounds to integers.
  const Longs rounded = (Longs)(x + 0x1.8p23f);
  return ShortenToBytes(x == x ? rounded : Longs{});
}

template <typename M, typename Out>
  requires(sizeof(Out) == 1)
struct RawOf<M, Out> {
  using Type = Bytes;
  JS_HD static Bytes Encode(typename M::T x) { return Narrow(x, Out{}); }
};

}  // namespace internal

}  // namespace jax_softmax::JS_ISA
