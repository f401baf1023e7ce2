// Rows divided by their largest magnitude, or quantised to 8 bits by it: the row is found in a
// cache the second time it is read.
#include "bytes.h"
#include "row.h"
#include "standalone.h"

namespace jax_softmax::JS_ISA {

namespace {

using M = SimdMath<float, true>;
using T = M::T;

// The largest magnitude in every lane. As integers, magnitudes have their order, with NaN on top.
struct Magnitude {
  T value{};

  JS_HD void Merge(Magnitude other) {
    value = (M::Bits)other.value > (M::Bits)value ? other.value : value;
  }
  int32_t FirstLane() const { return ((M::Bits)value)[0]; }
};

// Magnitudes in their own type: half as wide, they are compared twice as fast.
template <typename In>
struct RawMagnitude {
  using Raw = typename internal::RawOf<M, In>::Type;
  using Scalar = std::conditional_t<sizeof(In) == 2, int16_t, int32_t>;
  typedef Scalar Integers __attribute__((vector_size(sizeof(Raw))));
  Integers bits{};

  JS_HD void Add(Raw raw) { Merge({(Integers)raw & std::numeric_limits<Scalar>::max()}); }
  JS_HD void Merge(RawMagnitude other) { bits = other.bits > bits ? other.bits : bits; }
  JS_HD Magnitude Decoded() const { return {internal::RawOf<M, In>::Decode((Raw)bits)}; }
};

template <typename In>
JS_HD Magnitude LargestOf(const In* x, int64_t count) {
  using Raw = typename RawMagnitude<In>::Raw;
  RawMagnitude<In> largest[kFold];
  int64_t c = 0;
  for (; c + kFold * M::kLanes <= count; c += kFold * M::kLanes) {
    Raw raw[kFold];
    std::memcpy(raw, x + c, sizeof(raw));
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) largest[i].Add(raw[i]);
  }
  for (; c + M::kLanes <= count; c += M::kLanes) {
    Raw raw;
    std::memcpy(&raw, x + c, sizeof(raw));
    largest[0].Add(raw);
  }
  if (c < count) {
    largest[0].Add(internal::LoadFirst<Raw>(x + c, static_cast<int>(count - c)));
  }
  for (int i = 1; i < kFold; ++i) largest[0].Merge(largest[i]);
  return largest[0].Decoded();
}

// What becomes of the elements of a row, which has that value.
template <typename In>
struct Scaled {
  using Y = In;
  T absmax, one;

  JS_HD static T OfRow(T absmax) { return absmax; }
  JS_HD explicit Scaled(T absmax) : absmax(absmax), one(absmax == 0 ? T{} : T{} + 1.0f) {}
  JS_HD T operator()(T x) const {
    const M::Bits sign = (M::Bits)x & std::numeric_limits<int32_t>::min();
    const T magnitude = (T)((M::Bits)x ^ sign);
    // Of zeros and of infinities, the quotient would be NaN.
    return magnitude == absmax ? (T)((M::Bits)one | sign) : x / absmax;
  }
};

template <typename Out>
struct Quantised {
  using Y = Out;
  T scale;

  JS_HD static T OfRow(T absmax) {
    const T wanted = absmax / Out::kLargest;
    const float tiny = std::numeric_limits<float>::min();
    return wanted < tiny ? T{} + tiny : wanted;
  }
  JS_HD explicit Quantised(T scale) : scale(scale) {}
  JS_HD T operator()(T x) const { return x / scale; }
};

template <typename In, typename Result>
JS_HD void FinishElements(const In* x, typename Result::Y* y, int64_t count, const Result& result) {
  int64_t c = 0;
  for (; c + M::kLanes <= count; c += M::kLanes) Store<M>(y + c, result(Load<M>(x + c)));
  if (c < count) StoreUpTo<M>(y + c, result(LoadUpTo<M>(x + c, count - c)), count - c);
}

// A few rows at a time, which share the work of merging lanes; they stay in the first cache.
template <typename In, typename Result>
void RunRows(const Absmax& call, int64_t begin, int64_t end) {
  const int64_t columns = call.rows.columns;
  const int64_t group =
      std::clamp<int64_t>(kBlockColumns / std::max<int64_t>(columns, 1), 1, M::kLanes);
  for (int64_t first = begin; first < end; first += group) {
    const int64_t rows = std::min(group, end - first);
    const In* x = static_cast<const In*>(call.x) + first * columns;
    auto* y = static_cast<typename Result::Y*>(call.y) + first * columns;
    Magnitude largest[M::kLanes];
    for (int64_t r = 0; r < rows; ++r) largest[r] = LargestOf(x + r * columns, columns);
    const T of_rows = Result::OfRow(MergeRows<M>(largest).value);
    StoreUpTo<M>(static_cast<float*>(call.of_row) + first, of_rows, rows);
    const ByRow<M, T> values(of_rows);
    for (int64_t r = 0; r < rows; ++r) {
      FinishElements(x + r * columns, y + r * columns, columns, Result(values[r]));
    }
  }
}

template <typename In>
int32_t Largest(const Absmax& call, int64_t row, int64_t begin, int64_t end) {
  const In* x = static_cast<const In*>(call.x) + row * call.rows.columns;
  return MergeLanes<M>(LargestOf(x + begin, end - begin), 1).FirstLane();
}

template <typename In, typename Result>
void Finish(const Absmax& call, int64_t row, int64_t begin, int64_t end, int32_t largest) {
  const T of_row = Result::OfRow((T)(M::Bits{} + largest));
  if (begin == 0) StoreUpTo<M>(static_cast<float*>(call.of_row) + row, of_row, 1);
  const int64_t first = row * call.rows.columns + begin;
  FinishElements(static_cast<const In*>(call.x) + first,
                 static_cast<typename Result::Y*>(call.y) + first, end - begin, Result(of_row));
}

template <typename In, typename Result>
constexpr cpu::AbsmaxKernel KernelFor() {
  return {RunRows<In, Result>, Largest<In>, Finish<In, Result>};
}

template <typename In>
cpu::AbsmaxKernel KernelFrom(AbsmaxResult result) {
  switch (result) {
    case AbsmaxResult::kScaled:
      return KernelFor<In, Scaled<In>>();
    case AbsmaxResult::kE4M3:
      return KernelFor<In, Quantised<E4M3>>();
    case AbsmaxResult::kE5M2:
      return KernelFor<In, Quantised<E5M2>>();
    case AbsmaxResult::kI8:
      return KernelFor<In, Quantised<Int8>>();
  }
  return {};
}

}  // namespace

cpu::AbsmaxKernel FindAbsmax(DataType dtype, AbsmaxResult result) {
  switch (dtype) {
    case DataType::kF32:
      return KernelFrom<float>(result);
    case DataType::kF16:
      return KernelFrom<Half>(result);
    case DataType::kBF16:
      return KernelFrom<BFloat16>(result);
    default:
      return {};
  }
}

}  // namespace jax_softmax::JS_ISA
