// What a multiprocessor of the architecture that is compiled for has room for.
#pragma once

namespace jax_softmax::JS_ISA {

// All have room for so many threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kMostResidentThreads = 1024;
#else
inline constexpr int kMostResidentThreads = 1536;
#endif

// Some for more, in more blocks; the others for 16 of these at least.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
inline constexpr int kAllResidentThreads = 2048;
inline constexpr int kMostResidentBlocks = 32;
#else
inline constexpr int kAllResidentThreads = kMostResidentThreads;
inline constexpr int kMostResidentBlocks = 16;
#endif

}  // namespace jax_softmax::JS_ISA
