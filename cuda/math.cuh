// The arithmetic that ops are written in, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common.h"

namespace jax_softmax::JS_ISA {

template <typename S>
struct ScalarMath {
  using Scalar = S;
  using T = S;
  // NaN loses, as in fmax.
  JS_HD static float Larger(float a, float b) { return fmaxf(a, b); }
  JS_HD static double Larger(double a, double b) { return fmax(a, b); }
  JS_HD static float Log1p(float x) { return log1pf(x); }
  JS_HD static double Log1p(double x) { return log1p(x); }
};

// For float32 and float64 results.
template <typename S>
struct ExactMath : ScalarMath<S> {
  static constexpr bool kExact = true;
  JS_HD static float Exp(float x) { return expf(x); }
  JS_HD static double Exp(double x) { return exp(x); }
  // exp(x - top) with the rounding error of the difference put back: without it the result is
  // off by |x - top| units in the last place.
  JS_HD static S ExpOfDifference(S x, S top) {
    const S difference = x - top;
    const S top_part = difference - x;
    const S error = (x - (difference - top_part)) - (top + top_part);
    const S e = Exp(difference);
    // Where e is 0, the difference may be infinite and its error NaN.
    return e > 0 ? e + e * error : e;
  }
};

// For 16-bit results: the hardware's exponential is far more exact than their rounding.
struct NarrowMath : ScalarMath<float> {
  static constexpr bool kExact = false;
  JS_HD static float Exp(float x) {
#ifdef __CUDA_ARCH__
    float result;
    // Not exp2(x * log2e - top * log2e) in one fma: that is NaN for values near the float limit.
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
#else
    return expf(x);
#endif
  }
  JS_HD static float ExpOfDifference(float x, float top) { return Exp(x - top); }
};

// By the result's type: what the inputs' allows more than that would be rounded away.
template <typename Out>
struct MathForImpl {
  using Type = NarrowMath;
};
template <>
struct MathForImpl<float> {
  using Type = ExactMath<float>;
};
template <>
struct MathForImpl<double> {
  using Type = ExactMath<double>;
};
template <typename Out>
using MathFor = typename MathForImpl<Out>::Type;

}  // namespace jax_softmax::JS_ISA
