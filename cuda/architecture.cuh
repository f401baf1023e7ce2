// What a multiprocessor of the architecture that is compiled for has room for.
#pragma once

namespace jax_softmax::JS_ISA {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kMostResidentThreads = 1024;
#else
inline constexpr int kMostResidentThreads = 1536;
#endif

// Of all but a few, 16 at least.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
inline constexpr int kMostResidentBlocks = 32;
#else
inline constexpr int kMostResidentBlocks = 16;
#endif

// Where it was measured that kernels of so few registers are the faster ones. Of the others, those
// of sm_80 run where there is room for 1,536 threads, too.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
inline constexpr int kFullResidentThreads = 2048;
#else
inline constexpr int kFullResidentThreads = kMostResidentThreads;
#endif

}  // namespace jax_softmax::JS_ISA
