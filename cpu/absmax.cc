// Rows divided by their largest magnitude, or quantised to 8 bits by it: the row is found in a cache
// the second time it is read.
#include <bit>

#include "bytes.h"
#include "operands.h"
#include "shuffle.h"
#include "standalone.h"

namespace jax_softmax::JS_ISA {

namespace {

using M = SimdMath<float, true>;
using T = M::T;

// Vectors of elements as integers. Of magnitudes, these have the order, with NaN on top.
template <typename In>
struct MagnitudesOf {
  using Raw = typename internal::RawOf<M, In>::Type;
  using Scalar = std::conditional_t<sizeof(In) == 2, int16_t, int32_t>;
  typedef Scalar Type __attribute__((vector_size(sizeof(Raw))));

  JS_HD static Type Of(Raw raw) { return (Type)raw & std::numeric_limits<Scalar>::max(); }
  JS_HD static Type At(const In* x) {
    Raw raw;
    std::memcpy(&raw, x, sizeof(raw));
    return Of(raw);
  }
  JS_HD static Type At(const In* x, int64_t count) {
    return count >= M::kLanes ? At(x) : Of(internal::LoadFirst<Raw>(x, static_cast<int>(count)));
  }
  JS_HD static Type Larger(Type a, Type b) { return a > b ? a : b; }

  template <int kMask = M::kLanes / 2>
  JS_HD static Scalar LargestLane(Type x) {
    if constexpr (kMask == 0) {
      return x[0];
    } else {
      const Type other = SwapLanes<kMask>(x, std::make_integer_sequence<int, M::kLanes>{});
      return LargestLane<kMask / 2>(Larger(x, other));
    }
  }

  static float ToFloat(int32_t bits) {
    const Type all = Type{} + static_cast<Scalar>(bits);
    return internal::RawOf<M, In>::Decode((Raw)all)[0];
  }
};

template <typename In>
JS_HD int32_t LargestOf(const In* x, int64_t count) {
  using Magnitudes = MagnitudesOf<In>;
  typename Magnitudes::Type top[kFold] = {};
  int64_t c = 0;
  for (; c + kFold * M::kLanes <= count; c += kFold * M::kLanes) {
    JS_UNROLL
    for (int i = 0; i < kFold; ++i) {
      top[i] = Magnitudes::Larger(top[i], Magnitudes::At(x + c + i * M::kLanes));
    }
  }
  for (; c < count; c += M::kLanes) {
    top[0] = Magnitudes::Larger(top[0], Magnitudes::At(x + c, count - c));
  }
  return Magnitudes::LargestLane(
      Magnitudes::Larger(Magnitudes::Larger(top[0], top[1]), Magnitudes::Larger(top[2], top[3])));
}

// What becomes of an element, and of its row.
template <typename In>
struct Scaled {
  using Y = In;
  float absmax, one;

  explicit Scaled(float absmax) : absmax(absmax), one(absmax == 0 ? 0 : 1) {}
  float OfRow() const { return absmax; }
  JS_HD T operator()(T x) const {
    const M::Bits sign = (M::Bits)x & std::numeric_limits<int32_t>::min();
    const T magnitude = (T)((M::Bits)x ^ sign);
    const T signed_one = (T)((M::Bits)(T{} + one) | sign);
    // Of zeros and of infinities, the quotient would be NaN.
    return magnitude == absmax ? signed_one : x / absmax;
  }
};

template <typename Out>
struct Quantised {
  using Y = Out;
  float scale;

  explicit Quantised(float absmax) {
    const float wanted = absmax / Out::kLargest;
    const float tiny = std::numeric_limits<float>::min();
    scale = wanted < tiny ? tiny : wanted;
  }
  float OfRow() const { return scale; }
  JS_HD T operator()(T x) const { return x / scale; }
};

template <typename In, typename Result>
JS_HD void FinishElements(const In* x, typename Result::Y* y, int64_t count, const Result& result) {
  int64_t c = 0;
  for (; c + M::kLanes <= count; c += M::kLanes) Store<M>(y + c, result(Load<M>(x + c)));
  if (c < count) StoreUpTo<M>(y + c, result(LoadUpTo<M>(x + c, count - c)), count - c);
}

template <typename In>
int32_t Largest(const Absmax& call, int64_t row, int64_t begin, int64_t end) {
  return LargestOf(static_cast<const In*>(call.x) + row * call.rows.columns + begin, end - begin);
}

template <typename In, typename Result>
void Finish(const Absmax& call, int64_t row, int64_t begin, int64_t end, int32_t largest) {
  const Result result(MagnitudesOf<In>::ToFloat(largest));
  const int64_t first = row * call.rows.columns + begin;
  if (begin == 0) static_cast<float*>(call.of_row)[row] = result.OfRow();
  FinishElements(static_cast<const In*>(call.x) + first,
                 static_cast<typename Result::Y*>(call.y) + first, end - begin, result);
}

template <typename In, typename Result>
void RunRows(const Absmax& call, int64_t begin, int64_t end) {
  const int64_t columns = call.rows.columns;
  for (int64_t row = begin; row < end; ++row) {
    Finish<In, Result>(call, row, 0, columns, Largest<In>(call, row, 0, columns));
  }
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
