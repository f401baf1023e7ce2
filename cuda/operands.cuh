// How elements arrive and leave: LOAD and STORE functors, aligned vectors, masked row edges.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common.h"

namespace jax_softmax::JS_ISA {

template <typename Io, int kVector>
struct alignas(sizeof(Io) * kVector) Pack {
  Io element[kVector];
};

__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ double Widen(double x) { return x; }
__device__ __forceinline__ float Widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename Io>
__device__ __forceinline__ Io NarrowTo(float x) {
  if constexpr (sizeof(Io) == 4) {
    return x;
  } else if constexpr (std::is_same_v<Io, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}
template <typename Io>
__device__ __forceinline__ Io NarrowTo(double x) {
  return x;
}

// A row as the aligned vectors that it touches. Offsets are in elements from the operand's start,
// so that the same window serves every operand; column c of the row is at `begin + c`.
template <int kVector>
struct Window {
  int64_t begin;  // of the row
  int64_t end;
  int64_t base;   // of the first vector: a multiple of kVector
  int64_t packs;  // vectors that the row touches

  __device__ __forceinline__ Window(int64_t row, int64_t columns)
      : begin(row * columns), end(begin + columns), base(begin / kVector * kVector) {
    packs = (end - base + kVector - 1) / kVector;
  }
  __device__ __forceinline__ int64_t Offset(int64_t pack) const { return base + pack * kVector; }
  __device__ __forceinline__ bool IsWhole(int64_t offset) const {
    return offset >= begin && offset + kVector <= end;
  }
  __device__ __forceinline__ bool Has(int64_t offset) const {
    return offset >= begin && offset < end;
  }
};

// LOAD: elements in the op's compute type, converted from `Io`.
template <typename Op, typename Io>
struct DirectLoad {
  using T = typename Op::T;
  template <int kVector>
  using Raw = Pack<Io, kVector>;

  const Io* source[Op::kInputs];

  // One input's vector at `offset`, as it lies in memory; what is not of this row is absent.
  template <int kVector>
  __device__ __forceinline__ Pack<Io, kVector> Fetch(int input, const Window<kVector>& window,
                                                     int64_t offset) const {
    if (window.IsWhole(offset)) {
      return *reinterpret_cast<const Pack<Io, kVector>*>(source[input] + offset);
    }
    Pack<Io, kVector> pack;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      pack.element[i] = window.Has(offset + i) ? source[input][offset + i]
                                               : NarrowTo<Io>(Op::Absent(input));
    }
    return pack;
  }

  template <int kVector>
  __device__ __forceinline__ static void Decode(const Pack<Io, kVector> (&raw)[Op::kInputs],
                                                Element<T, Op::kInputs> (&e)[kVector]) {
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) e[i].value[input] = Widen(raw[input].element[i]);
    }
  }

  template <int kVector>
  __device__ __forceinline__ void operator()(const Window<kVector>& window, int64_t offset,
                                             Element<T, Op::kInputs> (&e)[kVector]) const {
    Pack<Io, kVector> raw[Op::kInputs];
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) raw[input] = Fetch(input, window, offset);
    Decode(raw, e);
  }

  // A single element anywhere, for strategies without vectors.
  __device__ __forceinline__ Element<T, Op::kInputs> At(int64_t offset) const {
    Element<T, Op::kInputs> e;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Widen(source[input][offset]);
    return e;
  }

  __device__ __forceinline__ static Element<T, Op::kInputs> Absent() {
    Element<T, Op::kInputs> e;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Op::Absent(input);
    return e;
  }
};

// STORE: results in the compute type, converted to `Io`.
template <typename Op, typename Io>
struct DirectStore {
  using T = typename Op::T;

  Io* target;

  template <int kVector>
  __device__ __forceinline__ void operator()(const Window<kVector>& window, int64_t offset,
                                             const T (&y)[kVector]) const {
    Pack<Io, kVector> pack;
#pragma unroll
    for (int i = 0; i < kVector; ++i) pack.element[i] = NarrowTo<Io>(y[i]);
    if (window.IsWhole(offset)) {
      *reinterpret_cast<Pack<Io, kVector>*>(target + offset) = pack;
      return;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (window.Has(offset + i)) target[offset + i] = pack.element[i];
    }
  }

  __device__ __forceinline__ void At(int64_t offset, T y) const {
    target[offset] = NarrowTo<Io>(y);
  }
};

}  // namespace jax_softmax::JS_ISA
