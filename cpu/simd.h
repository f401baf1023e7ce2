// The arithmetic that ops are written in, on the CPU: vectors of the compiler's own kind, with a
// branch-free exponential and logarithm.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "../cuda/common.h"

namespace jax_softmax::JS_ISA {

inline constexpr int kSimdBytes = JS_SIMD_BYTES;

template <typename S>
struct VectorOf {
  static constexpr int kLanes = kSimdBytes / sizeof(S);
  typedef S Type __attribute__((vector_size(kSimdBytes)));
};

// exp(r) for |r| <= log(2) / 2 is the polynomial with the coefficients kExp, lowest power first.
// Those of float are minimax in the relative error, 1 + r given: exp(0) must be 1.
template <typename S, bool kExact>
struct FormatOf;
template <>
struct FormatOf<float, true> {
  using Bits = int32_t;
  static constexpr int kFraction = 23;
  static constexpr int kBias = 127;
  // log(2) as two terms, of which k times the first is exact for every exponent k.
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kSmallestLog = -87.33654f;  // of a normal number
  // Off by 2^-28.
  static constexpr float kExp[] = {
      1, 1, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a0ap-7f, 0x1.6a23f2p-10f};
};
template <>
struct FormatOf<float, false> : FormatOf<float, true> {
  // Off by 2^-23.
  static constexpr float kExp[] = {
      1, 1, 0x1.fffdfcp-2f, 0x1.5557bp-3f, 0x1.572a44p-5f, 0x1.10625ep-7f};
};
template <>
struct FormatOf<double, true> {
  using Bits = int64_t;
  static constexpr int kFraction = 52;
  static constexpr int kBias = 1023;
  static constexpr double kLn2High = 0x1.62e42feep-1;
  static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kSmallestLog = -708.3964185322641;
  // The Taylor series: 0.35^14 / 14! is under 2^-57.
  static constexpr double kExp[] = {1,
                                    1,
                                    1. / 2,
                                    1. / 6,
                                    1. / 24,
                                    1. / 120,
                                    1. / 720,
                                    1. / 5040,
                                    1. / 40320,
                                    1. / 362880,
                                    1. / 3628800,
                                    1. / 39916800,
                                    1. / 479001600,
                                    1. / 6227020800};
};

template <typename S, bool kExact>
struct SimdSumMath;

// kExact: results keep all of S's digits; otherwise they will be rounded to 16 bits.
template <typename S, bool kExact_>
struct SimdMath {
  using ForLogSums = SimdSumMath<S, kExact_>;
  static constexpr bool kExact = kExact_;
  static constexpr bool kPlainSums = false;  // a lane may add a whole row
  using Scalar = S;
  using Format = FormatOf<S, kExact>;
  using T = typename VectorOf<S>::Type;
  using Bits = typename VectorOf<typename Format::Bits>::Type;
  static constexpr int kLanes = VectorOf<S>::kLanes;

  // NaN loses, as in fmax.
  JS_HD static T Larger(T a, T b) { return a > b ? a : b; }

  // For x <= 0 or NaN; 0 where the result would not be a normal number.
  JS_HD static T Exp(T x) {
    const Reduced reduced = Reduce(x);
    return Scaled(Series(reduced.r), reduced, x);
  }

  // exp(x - top). Where all digits count, the rounding error of the difference is put back:
  // without it the result is off by |x - top| units in the last place.
  JS_HD static T ExpOfDifference(T x, T top) {
    const T difference = x - top;
    if constexpr (!kExact) {
      return Exp(difference);
    } else {
      const T top_part = difference - x;
      const T error = (x - (difference - top_part)) - (top + top_part);
      const Reduced reduced = Reduce(difference);
      const T series = Series(reduced.r);
      // Before the scaling: after it the correction may be subnormal, and flushed to zero.
      return Scaled(series + series * error, reduced, difference);
    }
  }

  JS_HD static T ExpShifted(T x, T top) { return ExpOfDifference(x, top); }
  JS_HD static T ShiftedRatio(T from, T to) { return ExpOfDifference(from, to); }

  // By expm1 of a number below 0, whose digits near 0 are the result's.
  JS_HD static T Tanh(T x) {
    const T decay = Expm1(x < S(0) ? 2 * x : -2 * x);
    const T magnitude = -decay / (decay + S(2));
    return x < S(0) ? -magnitude : magnitude;
  }

  // For x >= -1: log(1 + x) with the rounding error of 1 + x put back.
  JS_HD static T Log1p(T x) {
    const T sum = x + S(1);
    const T lost = x - (sum - S(1));
    const T log = Log(sum) + lost / sum;
    return sum > S(0) ? log : sum == S(0) ? T{} - Infinity() : sum;
  }

 protected:
  static constexpr S Infinity() { return std::numeric_limits<S>::infinity(); }

  // x = k * log(2) + r with an integer k and |r| <= log(2) / 2.
  struct Reduced {
    T r, k;
    T rounded;  // k in its low bits
  };
  JS_HD static Reduced Reduce(T x) {
    constexpr S kRound = S(3) * (int64_t{1} << (Format::kFraction - 1));  // ulp 1
    constexpr S kLog2E = S(1.4426950408889634);
    const T rounded = x * kLog2E + kRound;
    const T k = rounded - kRound;
    return {(x - k * Format::kLn2High) - k * Format::kLn2Low, k, rounded};
  }

  JS_HD static T Series(T r) { return SeriesFrom<0>(r); }

  // The series without its first terms, divided by r to the power of their number.
  template <int kFirst>
  JS_HD static T SeriesFrom(T r) {
    constexpr int kTerms = std::size(Format::kExp);
    T series = T{} + Format::kExp[kTerms - 1];
    JS_UNROLL
    for (int n = kTerms - 2; n >= kFirst; --n) series = series * r + Format::kExp[n];
    return series;
  }

  // exp(x) - 1 for x <= 0 or NaN.
  JS_HD static T Expm1(T x) {
    const Reduced reduced = Reduce(x);
    const T power = Scaled(T{} + S(1), reduced, x);
    return Scaled(reduced.r * SeriesFrom<1>(reduced.r), reduced, x) + (power - S(1));
  }

  // series * 2^k, or 0 where x is so low that it would not be a normal number: there r may be NaN.
  JS_HD static T Scaled(T series, Reduced reduced, T x) {
#ifdef __AVX512F__
    if constexpr (sizeof(S) == 4) {
      const auto normal = _mm512_cmp_ps_mask(x, T{} + Format::kSmallestLog, _CMP_NLT_UQ);
      return _mm512_maskz_scalef_ps(normal, series, reduced.k);
    } else {
      const auto normal = _mm512_cmp_pd_mask(x, T{} + Format::kSmallestLog, _CMP_NLT_UQ);
      return _mm512_maskz_scalef_pd(normal, series, reduced.k);
    }
#else
    const Bits exponent = ((Bits)reduced.rounded << Format::kFraction) +
                          (typename Format::Bits{Format::kBias} << Format::kFraction);
    return x < Format::kSmallestLog ? T{} : series * (T)exponent;
#endif
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

// For a sum of exponentials, one of which may be infinite, and its logarithm.
template <typename S, bool kExact>
struct SimdSumMath : SimdMath<S, kExact> {
  using Base = SimdMath<S, kExact>;
  using T = typename Base::T;

  JS_HD static T ExpShifted(T x, T top) {
    return x == Base::Infinity() ? x : Base::ExpShifted(x, top);
  }
  JS_HD static T Unshifted(T sum, T) { return sum; }
  JS_HD static T LogOfSum(T x) {
    return x > S(0) ? Base::Log(x) : x == S(0) ? T{} - Base::Infinity() : x;
  }
};

}  // namespace jax_softmax::JS_ISA
