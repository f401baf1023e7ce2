// One element at a time, at the memory limit: every thread takes a few vectors of a row.
#include <bit>

#include "broadcast.h"
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

// What a row has, beside its elements.
template <typename Math>
struct RowValues {
  using T = typename Math::T;
  T shift, factor, everywhere, at_label;
  int label;

  __device__ __forceinline__ T Derivative(T x, int column) const {
    T d = Math::Exp(x - shift) * factor + everywhere;
    if (column == label) d += at_label;
    return label == kNoGradient ? T{} : d;
  }
};

template <typename Math>
struct RowInputs {
  using T = typename Math::T;
  const T* shift;
  const T* factor;
  const T* everywhere;
  const T* at_label;
  const int32_t* labels;

  __device__ __forceinline__ RowValues<Math> Of(int64_t row) const {
    return {shift[row], factor[row], everywhere[row], at_label[row], labels[row]};
  }
};

// Rows of whole vectors: a row's lanes take some each.
template <typename Math, typename Io, int kVector>
__global__ void __launch_bounds__(kMapThreads)
    CrossEntropyKernel(DirectLoad<Gradient<Math>, Io> load, DirectStore<Gradient<Math>, Io> store,
                       RowInputs<Math> inputs, Rows rows, int log2_lanes, unsigned parts) {
  using T = typename Math::T;
  const int lanes = 1 << log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t row =
      int64_t{blockIdx.x / parts} * (kMapThreads >> log2_lanes) + (threadIdx.x >> log2_lanes);
  if (row >= rows.outer) return;
  const Window<kVector, true> window(row, rows.columns);
  const int first = static_cast<int>(blockIdx.x % parts) * lanes * kMapPacks + lane;

  Words<Io, kVector> raw[kMapPacks][1];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int pack = first + k * lanes;
    raw[k][0] = load.template Fetch<true>({}, 0, window, pack, pack < window.packs);
  }
  const auto values = inputs.Of(row);
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int pack = first + k * lanes;
    if (pack >= window.packs) break;
    Element<T, 1> e[kVector];
    load.Decode(raw[k], e);
    T d[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) d[i] = values.Derivative(e[i][0], pack * kVector + i);
    store(window, pack, d, std::true_type{});
  }
}

// Other rows: the vectors of the whole operand, of which few meet two rows.
template <typename Math, typename Io, int kVector>
__global__ void __launch_bounds__(kMapThreads)
    CrossEntropyFlatKernel(DirectLoad<Gradient<Math>, Io> load,
                           DirectStore<Gradient<Math>, Io> store, RowInputs<Math> inputs, Rows rows,
                           Divisor columns) {
  using T = typename Math::T;
  const Window<kVector, false, int64_t> all(0, load.elements);
  const int64_t begin = int64_t{blockIdx.x} * kMapThreads * kMapPacks;  // of this block's vectors
  Words<Io, kVector> raw[kMapPacks][1];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t pack = begin + threadIdx.x + k * kMapThreads;
    raw[k][0] = load.template Fetch<true>({}, 0, all, pack, pack < all.packs);
  }
  const int64_t first_row = begin * kVector / rows.columns;
  const auto first_column = static_cast<uint32_t>(begin * kVector - first_row * rows.columns);
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int pack = threadIdx.x + k * kMapThreads;
    if (begin + pack >= all.packs) break;
    Element<T, 1> e[kVector];
    load.Decode(raw[k], e);
    T d[kVector];
    const uint32_t place = first_column + pack * kVector;
    const uint32_t past = columns.Quotient(place);
    int64_t row = first_row + past;
    int column = static_cast<int>(place - past * columns.divisor);
    auto values = inputs.Of(row);
    if (column + kVector <= rows.columns) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) d[i] = values.Derivative(e[i][0], column + i);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column == rows.columns) {
          column = 0;
          if (++row < rows.outer) values = inputs.Of(row);
        }
        d[i] = values.Derivative(e[i][0], column++);
      }
    }
    store(all, begin + pack, d, std::true_type{});
  }
}

template <typename Math, typename Io, int kVector, bool kWhole>
cudaError_t Run(const CrossEntropyGradient& call, const MapPlan& plan, cudaStream_t stream) {
  using Op = Gradient<Math>;
  const DirectLoad<Op, Io> load{{static_cast<const Io*>(call.x)}, call.rows.Elements()};
  const DirectStore<Op, Io> store{static_cast<Io*>(call.dx)};
  const auto of_row = [](const void* values) {
    return static_cast<const typename Math::T*>(values);
  };
  const RowInputs<Math> inputs{of_row(call.shift), of_row(call.factor), of_row(call.everywhere),
                               of_row(call.at_label), call.labels};
  const auto blocks = static_cast<unsigned>(plan.blocks);
  if constexpr (kWhole) {
    const int log2_lanes = std::countr_zero(static_cast<unsigned>(plan.lanes));
    CrossEntropyKernel<Math, Io, kVector><<<blocks, kMapThreads, 0, stream>>>(
        load, store, inputs, call.rows, log2_lanes, static_cast<unsigned>(plan.parts));
  } else {
    CrossEntropyFlatKernel<Math, Io, kVector><<<blocks, kMapThreads, 0, stream>>>(
        load, store, inputs, call.rows, Divisor(static_cast<uint32_t>(call.rows.columns)));
  }
  return cudaGetLastError();
}

template <typename Math, typename Io>
cudaError_t RunAs(const CrossEntropyGradient& call, cudaStream_t stream) {
  constexpr int kFullVector = kVectorBytes / sizeof(Io);
  const MapPlan plan = PlanMap(call.rows, call.dtype, call.alignment);
  if (plan.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  if (plan.vector == 1) return Run<Math, Io, 1, true>(call, plan, stream);
  if (plan.flat) return Run<Math, Io, kFullVector, false>(call, plan, stream);
  return Run<Math, Io, kFullVector, true>(call, plan, stream);
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
