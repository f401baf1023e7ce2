// The arithmetic that ops are written in, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common.h"

namespace jax_softmax::JS_ISA {

template <typename S>
struct ScalarMath {
  // Whether a sum may forget its rounding errors.
  static constexpr bool kPlainSums = false;
  // Whether the functions of logits take a number that these are multiplied with: where nothing is
  // converted.
  static constexpr bool kScales = false;
  using Scalar = S;
  using T = S;
  // NaN loses, as in fmax.
  JS_HD static float Larger(float a, float b) { return fmaxf(a, b); }
  JS_HD static double Larger(double a, double b) { return fmax(a, b); }
  JS_HD static float Log1p(float x) { return log1pf(x); }
  JS_HD static double Log1p(double x) { return log1p(x); }
  // Rounded, never part of a multiply-add.
  JS_HD static float Product(float x, float scale) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(x, scale);
#else
    return x * scale;
#endif
  }
  // ExpShifted(x, top) is exp(x - top) up to a factor that depends on `top` alone, and that a
  // quotient of two such sums does not have; ShiftedRatio(from, to) turns terms shifted by `from`
  // into terms shifted by `to`.
};

inline constexpr float kLog2E = 1.4426950408889634f;

// The hardware's 2^x: exact where x is an integer, elsewhere good to 2^-22.
JS_HD float Exp2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return exp2f(x);
#endif
}

template <typename S>
struct SumMath;

// For float32 and float64 results.
template <typename S>
struct ExactMath : ScalarMath<S> {
  static constexpr bool kExact = true;
  using ForLogSums = SumMath<S>;
  JS_HD static S Exp(S x) { return exp(x); }
  // exp(x - top) with the rounding error of the difference put back: without it the result is
  // off by |x - top| units in the last place.
  JS_HD static S ExpOfDifference(S x, S top) {
    const S difference = x - top;
    const S top_part = difference - x;
    const S error = (x - (difference - top_part)) - (top + top_part);
    const S e = Exp(difference);
    // Where e is 0 or infinite, its error may be NaN.
    const S corrected = e + e * error;
    return corrected == corrected ? corrected : e;
  }
  JS_HD static S ExpShifted(S x, S top) { return ExpOfDifference(x, top); }
  JS_HD static S ShiftedRatio(S from, S to) { return ExpOfDifference(from, to); }
};

// The same in float32, where no difference is rounded in the first place: the products with log2(e)
// differ by an integer and a fraction, which one multiply-add finds exactly. After Cody and Waite,
// "Software Manual for the Elementary Functions", 1980.
template <>
struct ExactMath<float> : ScalarMath<float> {
  static constexpr bool kExact = true;
  static constexpr bool kScales = true;
  using ForLogSums = SumMath<float>;
  static constexpr float kLog2ELow = 1.925963033500701e-08f;  // what kLog2E is too small by

  JS_HD static float Exp(float x) { return expf(x); }
  JS_HD static float ExpOfDifference(float x, float top) {
    // Where |top| is so large that integers near top * log2(e) are not exact, x differs from it by
    // an exact difference, or by enough for the exponential to be 0.
    const float origin = fabsf(top) > 0x1p21f ? top : 0;
    const float from = top - origin;
    const float whole = rintf(from * kLog2E);
    const float fraction = fmaf(from, kLog2ELow, fmaf(from, kLog2E, -whole));
    return Power(x - origin, whole, fraction);
  }
  JS_HD static float ExpShifted(float x, float top) { return ExpOfDifference(x, top); }
  JS_HD static float ShiftedRatio(float from, float to) { return ExpOfDifference(from, to); }

  // Of products as a program has them that multiplies first. Those of finite logits may be -inf,
  // of all that a part of a row has: their exponentials are 0, whatever they are shifted by.
  JS_HD static float ExpOfDifference(float x, float top, float scale) {
    constexpr float kLargest = 0x1.fffffep127f;
    return ExpOfDifference(Product(x, scale), fmaxf(Product(top, scale), -kLargest));
  }
  JS_HD static float ExpShifted(float x, float top, float scale) {
    return ExpOfDifference(x, top, scale);
  }
  JS_HD static float ShiftedRatio(float from, float to, float scale) {
    return ExpOfDifference(from, to, scale);
  }
  JS_HD static float LogOfRatio(float x, float top, float log_sum, float scale) {
    return (Product(x, scale) - Product(top, scale)) - log_sum;
  }

 private:
  // exp(x) / 2^(whole + fraction), of which `fraction` is at most about a half.
  JS_HD static float Power(float x, float whole, float fraction) {
    // n is x * log2(e) - whole, rounded, from -126 to 126, so that 2^n is a normal number: its
    // exponent field is at the end of n_and_magic's.
    constexpr float kRange = 252, kMagic = 0x1.8p23f + 1, kBias = kMagic + kRange / 2;
    constexpr float kMiddle = 0.5f + 0.5f / kRange;
    const float share = Saturated(fmaf(x, kLog2E / kRange, kMiddle - whole * (1 / kRange)));
    const float n_and_magic = FmaDown(share, kRange, kMagic);
    const float rest = fmaf(x, kLog2E, (kBias - whole) - n_and_magic);
    return Exp2(rest + fmaf(x, kLog2ELow, -fraction)) * FromExponent(n_and_magic);
  }
  // To 0 to 1; NaN to 0.
  JS_HD static float Saturated(float x) {
#ifdef __CUDA_ARCH__
    return __saturatef(x);
#else
    return fmaxf(0, fminf(1, x));
#endif
  }
  JS_HD static float FmaDown(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rd(a, b, c);
#else
    return floorf(a * b) + c;
#endif
  }
  JS_HD static float FromExponent(float field) {
#ifdef __CUDA_ARCH__
    return __int_as_float(__float_as_int(field) << 23);
#else
    return ldexpf(1, static_cast<int>(field - 0x1.8p23f) - 127);
#endif
  }
};

// For a sum of exponentials whose logarithm is taken: one that is off by |x - top| units in the
// last place is so small beside the largest, 1, that few of them remain.
template <typename S>
struct SumMath : ExactMath<S> {
  JS_HD static S ExpShifted(S x, S top) { return ExactMath<S>::Exp(x - top); }
  JS_HD static S ShiftedRatio(S from, S to) { return ExactMath<S>::Exp(from - to); }
  JS_HD static S Unshifted(S sum, S) { return sum; }
  JS_HD static float LogOfSum(float x) { return logf(x); }
  JS_HD static double LogOfSum(double x) { return log(x); }
};

// For 16-bit results: the hardware's exponential is far more exact than their rounding.
struct NarrowMath : ScalarMath<float> {
  static constexpr bool kExact = false;
  using ForLogSums = SumMath<float>;
  // No thread adds so many terms that 16 bits would show it.
  static constexpr bool kPlainSums = true;
  JS_HD static float Log2(float x) {
#ifdef __CUDA_ARCH__
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return log2f(x);
#endif
  }
  JS_HD static float Exp(float x) { return Exp2(x * kLog2E); }
  // Near 0 by its series, elsewhere by the hardware's logarithm, whose absolute error is 2^-22.
  JS_HD static float Log1p(float x) {
    const float series = x * (1 - x * (1 / 2.f - x * (1 / 3.f - x * (1 / 4.f))));
    return fabsf(x) < 0x1p-6f ? series : Log2(1 + x) * 0.6931471805599453f;
  }
  JS_HD static float ExpOfDifference(float x, float top) { return Exp(x - top); }
  JS_HD static float ExpShifted(float x, float top) { return ExpOfDifference(x, top); }
  JS_HD static float ShiftedRatio(float from, float to) { return ExpOfDifference(from, to); }

  // For sums of few digits: one multiply-add and the exponential. Of float32 the differences would
  // stay in registers, as the results need them: 20 elements a lane took 87 of these, and not 48.
  //
  // What rounding top * log2(e) costs is the same factor in every term, of 2^64 at most. Beyond
  // 2^30, where it might overflow, two values differ by nothing or by enough for the exponential to
  // be nothing beside 1 in any base, as they do without the `scale`, of at most 2^10. Products with
  // that are not rounded, which costs no instruction, and so are finite as long as the logits are.
  JS_HD static float ExpEstimated(float x, float top, float scale = 1) {
    return Exp2(fmaf(x, Scale(top, scale), -Rounded(top, scale)));
  }
  // A sum of these without their factor.
  JS_HD static float Unshifted(float sum, float top, float scale = 1) {
    return sum * Exp2(fmaf(-top, Scale(top, scale), Rounded(top, scale)));
  }

 protected:
  JS_HD static float Scale(float top, float scale) {
    return fabsf(top) * scale < 0x1p30f ? scale * kLog2E : 1;
  }
  // The product as ExpEstimated takes it.
  JS_HD static float Rounded(float top, float scale) { return Product(top, Scale(top, scale)); }
};

struct NarrowInputSumMath;

// For 16-bit results of 16-bit inputs, or of logits made of these: such terms have digits enough,
// and where they are no powers of e, all but the largest are nothing beside it.
struct NarrowInputMath : NarrowMath {
  static constexpr bool kScales = true;
  using ForLogSums = NarrowInputSumMath;
  JS_HD static float ExpShifted(float x, float top, float scale = 1) {
    return ExpEstimated(x, top, scale);
  }
  // What turns terms shifted by `from` into terms shifted by `to`, their factors included.
  JS_HD static float ShiftedRatio(float from, float to, float scale = 1) {
    const bool alike = Scale(from, scale) == Scale(to, scale);
    return alike ? Exp2(Rounded(from, scale) - Rounded(to, scale)) : 0;
  }
  using NarrowMath::ExpOfDifference;
  JS_HD static float ExpOfDifference(float x, float top, float scale) {
    return Exp2((x - top) * (scale * kLog2E));
  }
  JS_HD static float LogOfRatio(float x, float top, float log_sum, float scale) {
    const float half = fmaf(x, 0.5f, -0.5f * top);  // of the difference, which may be too large
    return fmaf(half, 2 * scale, -log_sum);
  }
};

// SumMath for 16-bit inputs, in the hardware's exponential.
struct NarrowInputSumMath : NarrowInputMath {
  static constexpr bool kPlainSums = false;
  JS_HD static float LogOfSum(float x) { return logf(x); }
};

struct NarrowInputExactSumMath;

// ExactMath of 16-bit inputs, of which a row's largest gets exactly 1. What rounding the difference
// costs is put back where `top` is at least 1: beneath that it matters where |x| is 2^16 times as
// large, which is the exponential of -16 at most. What is below the smallest normal number is 0.
struct NarrowInputExactMath : ScalarMath<float> {
  static constexpr bool kExact = true;
  using ForLogSums = NarrowInputExactSumMath;
  JS_HD static float ExpOfDifference(float x, float top) {
    constexpr float kLn2 = 0.6931471805599453f;
    const float difference = AtLeast(x - top, -200);
    const float power = difference * kLog2E;
    const float lost = fmaf(difference, kLog2E, -power);
    const float low = fmaf(difference, ExactMath<float>::kLog2ELow * kLn2, lost * kLn2);
    const float e = Exp2(power);
    const float error = fmaxf(x - (difference + top), -0x1p-10f);  // less where e is 0
    return fmaf(e, low + error, e);
  }

 private:
  // NaN stays NaN.
  JS_HD static float AtLeast(float x, float least) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(least));
    return result;
#else
    return x < least ? least : x;
#endif
  }
};

// SumMath that loses nothing by rounding the difference.
struct NarrowInputExactSumMath : NarrowInputExactMath {
  JS_HD static float ExpShifted(float x, float top) { return ExpOfDifference(x, top); }
  JS_HD static float Unshifted(float sum, float) { return sum; }
};

// For float32 results of 16-bit inputs.
struct WideningMath : ExactMath<float> {
  static constexpr bool kScales = false;
  using ForPairs = NarrowInputExactMath;
  using ForLogSums = NarrowInputSumMath;
};

// By the result's type: what the inputs' allows more than that would be rounded away.
template <typename In, typename Out>
using MathFor = std::conditional_t<
    std::is_same_v<Out, double>, ExactMath<double>,
    std::conditional_t<sizeof(Out) == 4,
                       std::conditional_t<sizeof(In) == 2, WideningMath, ExactMath<float>>,
                       std::conditional_t<sizeof(In) == 2, NarrowInputMath, NarrowMath>>>;

}  // namespace jax_softmax::JS_ISA
