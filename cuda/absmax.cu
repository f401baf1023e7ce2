// A group of lanes, a block or a cluster holds a row in registers; what of a long row does not fit
// there is read again. A block's short odd rows are in shared memory.
#include <cuda_fp8.h>

#include <bit>

#include "absmax.h"
#include "architecture.cuh"
#include "device.h"
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

// The same of elements as they lie in memory, two at a time where they have 16 bits: what is
// decoded would be kept until it is stored, in twice the registers.
template <typename Io>
struct UndecodedMagnitude {
  static constexpr bool kTwo = sizeof(Io) == 2;
  unsigned bits = 0;

  template <int kVector>
  __device__ __forceinline__ void Add(const Words<Io, kVector>& raw) {
    constexpr int kWords = (sizeof(raw) + sizeof(unsigned) - 1) / sizeof(unsigned);
    unsigned words[kWords] = {};
    memcpy(words, raw.word, sizeof(raw));
#pragma unroll
    for (const unsigned word : words) {
      bits = kTwo ? __vmaxu2(bits, word & 0x7fff7fffu) : max(bits, word & 0x7fffffffu);
    }
  }
  __device__ __forceinline__ Magnitude Decoded() const {
    if constexpr (!kTwo) return {bits};
    const auto largest = static_cast<unsigned short>(max(bits >> 16, bits & 0xffffu));
    Io decoded;
    memcpy(&decoded, &largest, sizeof(decoded));
    return {__float_as_uint(Widen(decoded))};
  }
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

// What is written for a single element.
template <typename Result>
__device__ __forceinline__ typename Result::Y ResultOf(const Result& result, float x) {
  const Element<float, 1> e[1] = {{{x}}};
  Pack<typename Result::Y, 1> packed;
  result(e, packed);
  return packed.element[0];
}

// A group of a warp's lanes holds a row, or a block, or a cluster that then reads again what it has
// no registers for: by the most threads a block may have.
template <typename Result, typename Io, int kVector, bool kWhole, int kPacks, int kMostThreads>
__global__ void __launch_bounds__(kMostThreads, AbsmaxMinBlocks(kMostThreads))
    AbsmaxKernel(DirectLoad<Elements, Io> load, typename Result::Y* y, float* of_row, Rows rows,
                 int log2_lanes) {
  using Y = typename Result::Y;
  using W = BodyOf<kVector, kWhole>;
  constexpr bool kGroups = kMostThreads == kAbsmaxGroupThreads;
  constexpr bool kClusters = kMostThreads == kAbsmaxMostThreads;
  __shared__ __align__(16) unsigned char scratch[kScratchBytes];
  __shared__ unsigned of_blocks[kAbsmaxClusterBlocks];
  __shared__ float of_rows[kGroups ? kMostThreads : 1];
  const Cluster cluster;
  const int blocks = kClusters ? cluster.blocks : 1, rank = kClusters ? cluster.rank : 0;
  const int lanes = kGroups ? 1 << log2_lanes : blockDim.x;
  const int lane = threadIdx.x & (kGroups ? lanes - 1 : ~0);
  const int64_t row = kGroups ? (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) >> log2_lanes
                              : blockIdx.x / blocks;
  const Slice<W> slice(row, rows.columns, rank, blocks);
  const W& window = slice.window;
  // Lanes past the last row stay for the shuffles.
  const bool present = row < rows.outer;
  const int first = slice.begin + lane;
  const int end = present ? slice.begin + slice.packs : 0;

  Words<Io, kVector> raw[kPacks][1];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = first + k * lanes;
    raw[k][0] = load.Fetch({}, 0, window, pack, pack < end);
  }
  // Calls f with the offset of each element that a Body leaves out.
  const auto at_edges = [&](auto f) {
    if constexpr (!kWhole) {
      const int edges = present && rank == 0 ? window.Edges() : 0;
#pragma unroll 1
      for (int i = lane; i < edges; i += lanes) {
        f(window.Offset(0) + window.head + window.EdgeColumn(i));
      }
    }
  };
  // Calls f with the vectors for which there are no registers.
  const auto more = [&](auto f) {
    if constexpr (kClusters) {
#pragma unroll 1
      for (int pack = first + kPacks * lanes; pack < end; pack += 2 * lanes) {
        const bool both = pack + lanes < end;
        const auto one = load.Fetch({}, 0, window, pack);
        const auto other = load.Fetch({}, 0, window, pack + lanes, both);
        f(pack, one);
        if (both) f(pack + lanes, other);
      }
    }
  };
  Magnitude largest;
  at_edges([&](int64_t offset) { largest.Add(Widen(load.source[0][offset])); });
  UndecodedMagnitude<Io> undecoded;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) undecoded.Add(raw[k][0]);
  more([&](int, const auto& fetched) { undecoded.Add(fetched); });
  largest.Merge(undecoded.Decoded());

  Magnitude total = kGroups ? Butterfly(largest, lanes) : BlockReduce(largest, scratch);
  if (blocks > 1) {
    cluster.Meet();  // a block has memory to write to once it has started
    if (threadIdx.x == 0) cluster.Tell(of_blocks[rank], total.bits);
    cluster.Meet();
    for (int b = 0; b < blocks; ++b) total.Merge({of_blocks[b]});
  }
  const Result result(total.Value());
  // At the end, all of a block's rows together, where they are short and whole vectors: an access
  // for each warp's few rows is a thirtieth of all there are, and took 2 % of the time of 442,368
  // rows of 128 float32 columns. Others wait longer for each other than that: 100 and 150 bf16
  // columns took 4 % longer so, to 8 bits 6 to 8 %, and 33, of which a warp has more rows, 4 %.
  const bool gathers =
      kGroups && kWhole && kPacks == kAbsmaxFewPacks && lanes >= kAbsmaxGatherLanes;
  if (gathers) {
    if (lane == 0) of_rows[threadIdx.x >> log2_lanes] = result.OfRow();
  } else {
    if (first == 0 && present) of_row[row] = result.OfRow();
  }
  const auto finish = [&](int pack, const Words<Io, kVector>& fetched) {
    Element<float, 1> e[kVector];
    load.Decode({fetched}, e);
    Pack<Y, kVector> packed;
    result(e, packed);
    packed.StoreGlobal(y + window.Offset(pack));
  };
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (first + k * lanes < end) finish(first + k * lanes, raw[k][0]);
  }
  more(finish);
  at_edges([&](int64_t offset) { y[offset] = ResultOf(result, Widen(load.source[0][offset])); });
  if (gathers) {
    __syncthreads();
    const int count = blockDim.x >> log2_lanes;
    const int64_t at = int64_t{blockIdx.x} * count + threadIdx.x;
    if (threadIdx.x < count && at < rows.outer) of_row[at] = of_rows[threadIdx.x];
  }
}

inline constexpr int kShortBlocks =
    std::min(kAbsmaxShortBlocks, kMostResidentThreads / kAbsmaxGroupThreads);

// Short rows, one a thread, that a block fetches and stores as if they were one.
template <typename Result, typename Io>
__global__ void __launch_bounds__(kAbsmaxGroupThreads, kShortBlocks)
    AbsmaxShortKernel(const Io* x, typename Result::Y* y, float* of_row, Rows rows) {
  using Y = typename Result::Y;
  constexpr int kVector = kVectorBytes / sizeof(Io), kRows = kAbsmaxGroupThreads;
  constexpr int kMost = kRows * kAbsmaxShortPacks * kVector;
  __shared__ __align__(16) Io in[kMost];
  __shared__ __align__(16) Y out[kMost];
  const int columns = static_cast<int>(rows.columns);
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x;
  const int64_t start = int64_t{blockIdx.x} * kRows * columns;  // a multiple of kVector
  const int count = static_cast<int>(min(int64_t{kRows} * columns, rows.outer * columns - start));
  const int whole = count / kVector * kVector;  // all but the operand's last elements
  const auto copy = [&]<typename Type>(const Type* from, Type* to) {
    for (int i = threadIdx.x * kVector; i < whole; i += kRows * kVector) {
      Words<Type, kVector>::Load(from + i).Store(to + i);
    }
    if (whole + threadIdx.x < count) to[whole + threadIdx.x] = from[whole + threadIdx.x];
  };

  copy(x + start, in);
  __syncthreads();
  if (row < rows.outer) {
    const int first = threadIdx.x * columns;
    Magnitude largest;
    for (int i = 0; i < columns; ++i) largest.Add(Widen(in[first + i]));
    const Result result(largest.Value());
    of_row[row] = result.OfRow();
    for (int i = 0; i < columns; ++i) out[first + i] = ResultOf(result, Widen(in[first + i]));
  }
  __syncthreads();
  copy(out, y + start);
}

template <typename Result, typename Io>
cudaError_t Run(const Absmax& call, cudaStream_t stream) {
  constexpr int kFullVector = kVectorBytes / sizeof(Io);
  int ordinal = 0;
  Device device{};
  cudaError_t status = cudaGetDevice(&ordinal);
  if (status == cudaSuccess) status = QueryDevice(ordinal, &device);
  if (status != cudaSuccess) return status;
  const AbsmaxPlan plan = PlanAbsmax(call.rows, call.dtype, call.alignment, device);
  if (plan.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(plan.blocks);
  config.blockDim = static_cast<unsigned>(plan.threads);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster_blocks), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = plan.cluster_blocks > 1;
  if (plan.together) {
    return cudaLaunchKernelEx(
        &config, AbsmaxShortKernel<Result, Io>, static_cast<const Io*>(call.x),
        static_cast<typename Result::Y*>(call.y), static_cast<float*>(call.of_row), call.rows);
  }
  const auto launch = [&]<int kVector, bool kWhole, int kPacks, int kMostThreads>() {
    const DirectLoad<Elements, Io> load{{static_cast<const Io*>(call.x)}, call.rows.Elements()};
    return cudaLaunchKernelEx(
        &config, AbsmaxKernel<Result, Io, kVector, kWhole, kPacks, kMostThreads>, load,
        static_cast<typename Result::Y*>(call.y), static_cast<float*>(call.of_row), call.rows,
        std::countr_zero(static_cast<unsigned>(plan.lanes)));
  };
  const auto launch_for = [&]<int kVector, bool kWhole>() {
    if (plan.threads > plan.lanes) {
      return plan.packs == kAbsmaxFewPacks
                 ? launch
                       .template operator()<kVector, kWhole, kAbsmaxFewPacks, kAbsmaxGroupThreads>()
                 : launch.template
                   operator()<kVector, kWhole, kAbsmaxGroupPacks, kAbsmaxGroupThreads>();
    }
    return plan.threads <= kAbsmaxBlockThreads
               ? launch.template operator()<kVector, kWhole, kAbsmaxPacks, kAbsmaxBlockThreads>()
               : launch.template operator()<kVector, kWhole, kAbsmaxPacks, kAbsmaxMostThreads>();
  };
  if (plan.vector == 1) {
    return launch.template operator()<1, true, kAbsmaxPacks, kAbsmaxMostThreads>();
  }
  if (call.rows.columns % kFullVector == 0)
    return launch_for.template operator()<kFullVector, true>();
  return launch_for.template operator()<kFullVector, false>();
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
