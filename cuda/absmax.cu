// One kernel: a group of lanes, or a block, holds a row in registers; what of a long row does not
// fit there is read again.
#include <cuda_fp8.h>

#include <bit>

#include "absmax.h"
#include "launch.h"
#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax {

namespace JS_ISA {

namespace {

// The largest magnitude. As integers, the bits of magnitudes have their order, with NaN on top.
struct Magnitude {
  using Crossing = Magnitude;
  unsigned bits = 0;

  __device__ __forceinline__ Crossing Cross() const { return *this; }
  __device__ __forceinline__ void Add(float x) { Merge({__float_as_uint(x) & 0x7fffffffu}); }
  __device__ __forceinline__ void Merge(Magnitude other) { bits = max(bits, other.bits); }
  __device__ __forceinline__ float Value() const { return __uint_as_float(bits); }
};

// What LOAD wants to know of an op.
struct Elements {
  using T = float;
  static constexpr int kInputs = 1;
  JS_HD static float Absent(int) { return 0; }
};

// What is written for an element, and for its row.
template <typename Io>
struct Scaled {
  using Y = Io;
  float absmax, up, reciprocal, one;

  __device__ __forceinline__ explicit Scaled(float absmax) : absmax(absmax) {
    // The reciprocal of a subnormal number may overflow.
    up = absmax < 0x1p-100f ? 0x1p100f : 1;
    reciprocal = absmax > 0 || absmax != absmax ? 1 / (absmax * up) : 0;
    one = absmax == 0 ? 0 : 1;
  }
  __device__ __forceinline__ float OfRow() const { return absmax; }
  template <int kVector>
  __device__ __forceinline__ void operator()(const Element<float, 1> (&e)[kVector],
                                             Pack<Y, kVector>& y) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x = e[i][0];
      y.element[i] = NarrowTo<Io>(fabsf(x) == absmax ? copysignf(one, x) : x * up * reciprocal);
    }
  }
};

template <typename Io>
struct Quantised {
  using Y = Io;
  static constexpr bool kInteger = std::is_same_v<Io, int8_t>;
  static constexpr float kLargest = kInteger                            ? 127
                                    : std::is_same_v<Io, __nv_fp8_e5m2> ? 57344
                                                                        : 448;
  float scale, reciprocal, finite_scale;

  __device__ __forceinline__ explicit Quantised(float absmax) {
    const float wanted = absmax / kLargest;
    scale = wanted < 0x1p-126f ? 0x1p-126f : wanted;
    reciprocal = 1 / scale;
    // Nothing is left to be put right where the quotient is 0 or NaN.
    finite_scale = scale < 0x1p127f ? scale : 0;
  }
  __device__ __forceinline__ float OfRow() const { return scale; }
  template <int kVector>
  __device__ __forceinline__ void operator()(const Element<float, 1> (&e)[kVector],
                                             Pack<Y, kVector>& y) const {
    float q[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) q[i] = Quotient(e[i][0]);
    if constexpr (kInteger) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        y.element[i] = static_cast<int8_t>(__float2int_rn(q[i]));  // no more than 127; 0 for NaN
      }
    } else if constexpr (kVector == 1) {
      y.element[0] = Y(q[0]);  // saturates
    } else {
      constexpr auto kKind = std::is_same_v<Io, __nv_fp8_e5m2> ? __NV_E5M2 : __NV_E4M3;
#pragma unroll
      for (int i = 0; i < kVector; i += 2) {
        const auto pair = __nv_cvt_float2_to_fp8x2({q[i], q[i + 1]}, __NV_SATFINITE, kKind);
        memcpy(&y.element[i], &pair, sizeof(pair));
      }
    }
  }

 private:
  // With its excess taken off: as a division rounds it, the sign of a zero included.
  __device__ __forceinline__ float Quotient(float x) const {
    const float estimate = x * reciprocal;
    const float excess = fmaf(estimate, finite_scale, -x);
    return fmaf(-excess, reciprocal, estimate);
  }
};

template <typename Io, int kVector>
struct Target {
  Io* y;

  template <typename W>
  __device__ __forceinline__ void operator()(const W& window, typename W::Index pack,
                                             const Pack<Io, kVector>& packed) const {
    Io* to = y + window.Offset(pack);
    if (window.IsWhole(pack)) return packed.StoreGlobal(to);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (window.Has(pack, i)) to[i] = packed.element[i];
    }
  }
};

template <typename Result, typename Io, int kVector, bool kWhole, int kPacks>
__global__ void __launch_bounds__(kAbsmaxMostThreads)
    AbsmaxKernel(DirectLoad<Elements, Io> load, Target<typename Result::Y, kVector> store,
                 float* of_row, Rows rows, int log2_lanes) {
  __shared__ __align__(16) unsigned char scratch[kScratchBytes];
  const int lanes = 1 << log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t row =
      int64_t{blockIdx.x} * (blockDim.x >> log2_lanes) + (threadIdx.x >> log2_lanes);
  const Window<kVector, kWhole> window(row, rows.columns);
  // Lanes past the last row stay for the shuffles.
  const int packs = row < rows.outer ? window.packs : 0;

  Words<Io, kVector> raw[kPacks][1];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = lane + k * lanes;
    raw[k][0] = load.Fetch({}, 0, window, pack, pack < packs);
  }
  Magnitude largest;
  const auto add = [&](int pack, const auto& fetched) {
    Element<float, 1> e[kVector];
    load.Decode({}, window, pack, fetched, e);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest.Add(e[i][0]);
  };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) add(lane + k * lanes, raw[k]);
  Words<Io, kVector> more[1];
#pragma unroll 2
  for (int pack = lane + kPacks * lanes; pack < packs; pack += lanes) {
    more[0] = load.Fetch({}, 0, window, pack);
    add(pack, more);
  }

  const Magnitude total =
      lanes > kWarpLanes ? BlockReduce(largest, scratch) : Butterfly(largest, lanes);
  const Result result(total.Value());
  if (lane == 0 && row < rows.outer) of_row[row] = result.OfRow();
  const auto finish = [&](int pack, const auto& fetched) {
    Element<float, 1> e[kVector];
    load.Decode(fetched, e);
    Pack<typename Result::Y, kVector> y;
    result(e, y);
    store(window, pack, y);
  };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (lane + k * lanes < packs) finish(lane + k * lanes, raw[k]);
  }
#pragma unroll 2
  for (int pack = lane + kPacks * lanes; pack < packs; pack += lanes) {
    more[0] = load.Fetch({}, 0, window, pack);
    finish(pack, more);
  }
}

template <typename Result, typename Io>
cudaError_t Run(const Absmax& call, cudaStream_t stream) {
  constexpr int kFullVector = kVectorBytes / sizeof(Io);
  const AbsmaxPlan plan = PlanAbsmax(call.rows, call.dtype, call.alignment);
  if (plan.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  const auto launch = [&]<int kVector, bool kWhole, int kPacks>() {
    const DirectLoad<Elements, Io> load{{static_cast<const Io*>(call.x)}, call.rows.Elements()};
    const Target<typename Result::Y, kVector> store{static_cast<typename Result::Y*>(call.y)};
    AbsmaxKernel<Result, Io, kVector, kWhole, kPacks>
        <<<static_cast<unsigned>(plan.blocks), plan.threads, 0, stream>>>(
            load, store, static_cast<float*>(call.of_row), call.rows,
            std::countr_zero(static_cast<unsigned>(plan.lanes)));
    return cudaGetLastError();
  };
  const auto launch_packs = [&]<int kVector, bool kWhole>() {
    if (plan.packs == 2) return launch.template operator()<kVector, kWhole, 2>();
    if (plan.packs == 4) return launch.template operator()<kVector, kWhole, 4>();
    return launch.template operator()<kVector, kWhole, 8>();
  };
  if (plan.vector == 1) return launch.template operator()<1, true, 8>();
  if (call.rows.columns % kFullVector == 0) {
    return launch_packs.template operator()<kFullVector, true>();
  }
  return launch_packs.template operator()<kFullVector, false>();
}

template <typename Io>
cudaError_t RunFrom(const Absmax& call, cudaStream_t stream) {
  switch (call.result) {
    case AbsmaxResult::kScaled:
      return Run<Scaled<Io>, Io>(call, stream);
    case AbsmaxResult::kE4M3:
      return Run<Quantised<__nv_fp8_e4m3>, Io>(call, stream);
    case AbsmaxResult::kE5M2:
      return Run<Quantised<__nv_fp8_e5m2>, Io>(call, stream);
    case AbsmaxResult::kI8:
      return Run<Quantised<int8_t>, Io>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

}  // namespace JS_ISA

cudaError_t Launch(const Absmax& call, cudaStream_t stream) {
  switch (call.dtype) {
    case DataType::kF32:
      return JS_ISA::RunFrom<float>(call, stream);
    case DataType::kF16:
      return JS_ISA::RunFrom<__half>(call, stream);
    case DataType::kBF16:
      return JS_ISA::RunFrom<__nv_bfloat16>(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_softmax
