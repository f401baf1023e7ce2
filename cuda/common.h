// The few words every layer shares: where code runs, what an element is.
#pragma once

#ifdef __CUDACC__
#define JS_HD __host__ __device__ __forceinline__
#define JS_UNROLL _Pragma("unroll")
#define JS_KEEP_LOOP _Pragma("unroll 1")
#else
#define JS_HD inline __attribute__((always_inline))
#define JS_UNROLL _Pragma("GCC unroll 16")
#define JS_KEEP_LOOP _Pragma("GCC unroll 1")
#endif

// Each CPU instruction set compiles the same templates in a namespace of its own: otherwise the
// linker keeps one of two identical instantiations, and the baseline may get AVX-512.
#ifndef JS_ISA
#define JS_ISA device
#endif

namespace jax_softmax {

inline constexpr int kMaxInputs = 2;

namespace JS_ISA {

// The inputs of an op at one column, in the compute type.
template <typename T, int kInputs>
struct Element {
  T value[kInputs];
  JS_HD T operator[](int input) const { return value[input]; }
};

}  // namespace JS_ISA
}  // namespace jax_softmax
