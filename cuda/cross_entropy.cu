// One element at a time, at the memory limit: every thread takes a few vectors of a row.
#include <bit>

#include "cross_entropy.h"
#include "launch.h"
#include "math.cuh"
#include "operands.cuh"

namespace jax_softmax {

namespace JS_ISA {

namespace {

// The vectors' element type and what is not there, for LOAD and STORE.
template <typename Math>
struct Gradient {
  using T = typename Math::T;
  static constexpr int kInputs = 1;
  JS_HD static T Absent(int) { return T{}; }
};

template <typename T>
struct RowInputs {
  const T* lse;
  const T* factor;
  const T* everywhere;
  const T* at_label;
  const int32_t* labels;
};

template <typename Math, typename Io, int kVector, bool kWhole>
__global__ void __launch_bounds__(kMapThreads)
    CrossEntropyKernel(DirectLoad<Gradient<Math>, Io> load, DirectStore<Gradient<Math>, Io> store,
                       RowInputs<typename Math::T> inputs, Rows rows, int log2_lanes,
                       unsigned parts) {
  using T = typename Math::T;
  const int lanes = 1 << log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t row =
      int64_t{blockIdx.x / parts} * (kMapThreads >> log2_lanes) + (threadIdx.x >> log2_lanes);
  if (row >= rows.outer) return;
  const Window<kVector, kWhole> window(row, rows.columns);
  const int first = static_cast<int>(blockIdx.x % parts) * lanes * kMapPacks + lane;

  Words<Io, kVector> raw[kMapPacks][1];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int pack = first + k * lanes;
    raw[k][0] = load.template Fetch<true>({}, 0, window, pack, pack < window.packs);
  }
  const T lse = inputs.lse[row], factor = inputs.factor[row];
  const T everywhere = inputs.everywhere[row], at_label = inputs.at_label[row];
  const int label = inputs.labels[row];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int pack = first + k * lanes;
    if (pack >= window.packs) break;
    Element<T, 1> e[kVector];
    load.Decode(raw[k], e);
    T d[kVector];
    const int column = pack * kVector - window.head;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      d[i] = Math::Exp(e[i][0] - lse) * factor + everywhere;
      if (column + i == label) d[i] += at_label;
      if (label == kNoGradient) d[i] = T{};
    }
    store(window, pack, d, std::true_type{});
  }
}

template <typename Math, typename Io, int kVector, bool kWhole>
cudaError_t Run(const CrossEntropyGradient& call, const MapPlan& plan, cudaStream_t stream) {
  using T = typename Math::T;
  using Op = Gradient<Math>;
  const DirectLoad<Op, Io> load{{static_cast<const Io*>(call.x)}, call.rows.Elements()};
  const DirectStore<Op, Io> store{static_cast<Io*>(call.dx)};
  const auto of_row = [](const void* values) { return static_cast<const T*>(values); };
  const RowInputs<T> inputs{of_row(call.lse), of_row(call.factor), of_row(call.everywhere),
                            of_row(call.at_label), call.labels};
  const int log2_lanes = std::countr_zero(static_cast<unsigned>(plan.lanes));
  CrossEntropyKernel<Math, Io, kVector, kWhole>
      <<<static_cast<unsigned>(plan.blocks), kMapThreads, 0, stream>>>(
          load, store, inputs, call.rows, log2_lanes, static_cast<unsigned>(plan.parts));
  return cudaGetLastError();
}

template <typename Math, typename Io>
cudaError_t RunAs(const CrossEntropyGradient& call, cudaStream_t stream) {
  constexpr int kFullVector = kVectorBytes / sizeof(Io);
  const MapPlan plan = PlanMap(call.rows, call.dtype, call.alignment);
  if (plan.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  if (plan.vector == 1) return Run<Math, Io, 1, true>(call, plan, stream);
  if (call.rows.columns % kFullVector == 0) {
    return Run<Math, Io, kFullVector, true>(call, plan, stream);
  }
  return Run<Math, Io, kFullVector, false>(call, plan, stream);
}

}  // namespace

}  // namespace JS_ISA

cudaError_t Launch(const CrossEntropyGradient& call, cudaStream_t stream) {
  using namespace JS_ISA;
  switch (call.dtype) {
    case DataType::kF32:
      return RunAs<ExactMath<float>, float>(call, stream);
    case DataType::kF64:
      return RunAs<ExactMath<double>, double>(call, stream);
    case DataType::kF16:
      return RunAs<NarrowMath, __half>(call, stream);
    case DataType::kBF16:
      return RunAs<NarrowMath, __nv_bfloat16>(call, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_softmax
