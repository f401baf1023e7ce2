// The arithmetic that ops are written in, on the CPU: vectors of the compiler's own kind, a
// branch-free exponential and logarithm, and conversions to and from memory.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../cuda/common.h"

namespace jax_softmax::JS_ISA {

inline constexpr int kSimdBytes = JS_SIMD_BYTES;

template <typename S>
struct VectorOf {
  static constexpr int kLanes = kSimdBytes / sizeof(S);
  typedef S Type __attribute__((vector_size(kSimdBytes)));
};

template <typename S>
struct FormatOf;
template <>
struct FormatOf<float> {
  using Bits = int32_t;
  static constexpr int kFraction = 23;
  static constexpr int kBias = 127;
  // log(2) as two terms, of which k times the first is exact for every exponent k.
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kSmallestLog = -87.33654f;  // of a normal number
  static constexpr int kExpTerms = 7;                // 0.35^8 / 8! is under 2^-27
};
template <>
struct FormatOf<double> {
  using Bits = int64_t;
  static constexpr int kFraction = 52;
  static constexpr int kBias = 1023;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kSmallestLog = -708.3964185322641;
  static constexpr int kExpTerms = 13;  // 0.35^14 / 14! is under 2^-57
};

// kExact: results keep all of S's digits; otherwise they will be rounded to 16 bits.
template <typename S, bool kExact_>
struct SimdMath {
  static constexpr bool kExact = kExact_;
  using Scalar = S;
  using Format = FormatOf<S>;
  using T = typename VectorOf<S>::Type;
  using Bits = typename VectorOf<typename Format::Bits>::Type;
  static constexpr int kLanes = VectorOf<S>::kLanes;

  // NaN loses, as in fmax.
  JS_HD static T Larger(T a, T b) { return a > b ? a : b; }

  // For x <= 0 or NaN; 0 where the result would not be a normal number.
  JS_HD static T Exp(T x) { return ExpOfSum(x, T{}); }

  // exp(x - top). Where all digits count, the rounding error of the difference is put back:
  // without it the result is off by |x - top| units in the last place.
  JS_HD static T ExpOfDifference(T x, T top) {
    const T difference = x - top;
    if constexpr (!kExact) return Exp(difference);
    const T top_part = difference - x;
    return ExpOfSum(difference, (x - (difference - top_part)) - (top + top_part));
  }

  JS_HD static T ExpShifted(T x, T top) { return ExpOfDifference(x, top); }
  JS_HD static T ShiftedRatio(T from, T to) { return ExpOfDifference(from, to); }

  // For x >= -1: log(1 + x) with the rounding error of 1 + x put back.
  JS_HD static T Log1p(T x) {
    const T sum = x + S(1);
    const T lost = x - (sum - S(1));
    const T log = Log(sum) + lost / sum;
    return sum > S(0) ? log : sum == S(0) ? T{} - Infinity() : sum;
  }

 private:
  static constexpr S Infinity() { return std::numeric_limits<S>::infinity(); }

  // exp(x + error) for a tiny error:
  // 2^k * e^r * (1 + error) with k = round(x / log 2) and |r| < 0.35, e^r by its Taylor series.
  JS_HD static T ExpOfSum(T x, T error) {
    constexpr S kRound = S(3) * (int64_t{1} << (Format::kFraction - 1));  // ulp 1: k in low bits
    constexpr S kLog2E = S(1.4426950408889634);
    const T rounded = x * kLog2E + kRound;
    const T k = rounded - kRound;
    const T r = (x - k * Format::kLn2High) - k * Format::kLn2Low;
    T series = T{} + S(1);
    JS_UNROLL
    for (int n = Format::kExpTerms; n > 0; --n) series = series * (r * (S(1) / n)) + S(1);
    // Before the scaling: after it the correction may be subnormal, and flushed to zero.
    series += series * error;
    const Bits exponent = ((Bits)rounded << Format::kFraction) +
                          (typename Format::Bits{Format::kBias} << Format::kFraction);
    const T result = series * (T)exponent;
    // There the difference may also be infinite and its error NaN.
    return x < Format::kSmallestLog ? T{} : result;
  }

  // For normal x > 0: k * log 2 + log(m) with m in [sqrt(1/2), sqrt(2)), and
  // log(m) = 2 * atanh(s) with s = (m - 1) / (m + 1), by its Taylor series.
  JS_HD static T Log(T x) {
    constexpr auto kFraction = Format::kFraction;
    const Bits half = (Bits)(T{} + S(0.70710678118654752));
    // Counting exponents from sqrt(1/2) instead of from 1.
    const Bits k = ((Bits)x - half) >> kFraction;
    const T m = (T)((Bits)x - (k << kFraction));
    const T f = m - S(1);
    const T s = f / (m + S(1));
    const T s2 = s * s;
    constexpr int kTerms = sizeof(S) == 4 ? 5 : 11;  // s2 < 0.0295
    T series = T{} + S(1) / (2 * kTerms + 1);
    JS_UNROLL
    for (int n = kTerms - 1; n > 0; --n) series = series * s2 + S(1) / (2 * n + 1);
    const T log_m = 2 * s + 2 * s * s2 * series;
    const T exponent = __builtin_convertvector(k, T);
    const T log = exponent * Format::kLn2High + (log_m + exponent * Format::kLn2Low);
    return x < Infinity() ? log : x;
  }
};

// ---- Memory -----------------------------------------------------------------------------------

// 16-bit floats as their bits.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <typename Io>
struct IoTraits {
  using Math = SimdMath<float, false>;
};
template <>
struct IoTraits<float> {
  using Math = SimdMath<float, true>;
};
template <>
struct IoTraits<double> {
  using Math = SimdMath<double, true>;
};

namespace internal {
inline constexpr int kFloats = VectorOf<float>::kLanes;
typedef uint16_t Words __attribute__((vector_size(kFloats * 2)));
typedef uint32_t Longs __attribute__((vector_size(kFloats * 4)));
using Floats = VectorOf<float>::Type;

JS_HD Floats Widen(Words words, BFloat16) {
  return (Floats)(__builtin_convertvector(words, Longs) << 16);
}
JS_HD Words Narrow(Floats x, BFloat16) {
  const Longs bits = (Longs)x;
  const Longs rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  return __builtin_convertvector(x == x ? rounded : (Longs{} + 0x7fc0), Words);
}

// Float16 through float32 arithmetic: scaling by 2^112 moves the exponent bias from 15 to 127.
// Subnormals go through integers instead: as float32 bits they would be subnormal too, and XLA's
// threads take those for zero.
JS_HD Floats Widen(Words words, Half) {
  typedef int32_t Ints __attribute__((vector_size(kFloats * 4)));
  const Longs bits = __builtin_convertvector(words, Longs);
  const Longs magnitude = bits & 0x7fff;
  const Floats normal = (Floats)(magnitude << 13) * 0x1p112f;
  const Floats subnormal = __builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f;
  const Longs finite = magnitude < 0x400 ? (Longs)subnormal : (Longs)normal;
  const Longs special = (magnitude << 13) | 0x7f800000;  // infinity or NaN
  return (Floats)((magnitude >= 0x7c00 ? special : finite) | ((bits & 0x8000) << 16));
}
JS_HD Words Narrow(Floats x, Half) {
  const Longs bits = (Longs)x;
  const Longs magnitude = bits & 0x7fffffff;
  // Subnormal results: adding 0.5 aligns the wanted bits with the end of the fraction, rounded.
  const Longs small = (Longs)((Floats)magnitude + 0.5f) - 0x3f000000;
  const Longs rebias = magnitude - (112u << 23);
  const Longs normal = (rebias + 0xfff + ((rebias >> 13) & 1)) >> 13;
  const Longs finite = magnitude < (113u << 23) ? small : normal;
  const Longs large = magnitude > 0x7f800000 ? (Longs{} + 0x7e00) : (Longs{} + 0x7c00);
  const Longs result = magnitude >= 0x477ff000 ? large : finite;  // 65520 and up
  return __builtin_convertvector(result | ((bits >> 16) & 0x8000), Words);
}
}  // namespace internal

template <typename Io>
JS_HD typename IoTraits<Io>::Math::T LoadVector(const Io* from) {
  if constexpr (sizeof(Io) == 2) {
    internal::Words words;
    std::memcpy(&words, from, sizeof(words));
    return internal::Widen(words, Io{});
  } else {
    typename IoTraits<Io>::Math::T x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
}

template <typename Io>
JS_HD void StoreVector(Io* to, typename IoTraits<Io>::Math::T x) {
  if constexpr (sizeof(Io) == 2) {
    const internal::Words words = internal::Narrow(x, Io{});
    std::memcpy(to, &words, sizeof(words));
  } else {
    std::memcpy(to, &x, sizeof(x));
  }
}

}  // namespace jax_softmax::JS_ISA
