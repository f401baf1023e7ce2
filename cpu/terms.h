// LOAD functor: a row's logits with scale, softcap, bias and masks applied on their way in, and the
// masks again on the way out.
#pragma once

#include "../cuda/broadcast.h"
#include "operands.h"

namespace jax_softmax::JS_ISA {

// An element of a term in each row, which lies at `row`'s place in it.
template <typename S>
JS_HD S TermOf(const void* term, const Broadcast& at, int64_t row) {
  return static_cast<const S*>(term)[at.Offset(static_cast<uint32_t>(row))];
}

template <typename M, typename In>
struct LogitsRow {
  using T = typename M::T;
  using Scalar = typename M::Scalar;

  // Where its elements begin.
  const In* x;
  const uint8_t* mask;  // null where it has none for each column
  const In* bias;       // the same; it has one of the two, or none
  const Scalar* wide_bias;
  int64_t seen;  // columns that masks of whole rows and the causal one leave
  Scalar scale;
  Scalar shift;  // the bias, where the row has one
  Scalar cap;    // 0 is none
  bool fills;    // whether masked elements take part, as `fill`
  Scalar fill;

  // Becomes row `row` of a call of contiguous rows. In place: a copy of what has just been written
  // in smaller pieces waits for all of them to leave the store buffer.
  JS_HD void PointTo(const cpu::Call& call, int64_t row) {
    const Terms& terms = call.extras.terms;
    x = static_cast<const In*>(call.inputs[0]) + row * call.rows.columns;
    scale = static_cast<Scalar>(terms.factor);
    if (terms.scale != nullptr) scale *= TermOf<Scalar>(terms.scale, terms.scale_at, row);
    cap = static_cast<Scalar>(terms.softcap);
    fills = terms.fills;
    fill = static_cast<Scalar>(terms.fill);
    seen = call.rows.columns;
    if (terms.causal) {
      const auto index = static_cast<uint32_t>(row);
      const int64_t after = terms.causal_rows.divisor - 1 - terms.causal_rows.Remainder(index);
      seen = std::max<int64_t>(seen - after, 0);
    }
    PointToMask(terms, row);
    PointToBias(terms, row);
  }

  // A few vectors from `column` on, of which the first `left` elements are there.
  template <int kVectors, typename Left>
  JS_HD void Load(int64_t column, Left left, T (&z)[kVectors]) const {
    const auto left_at = [&](int i) { return left - i * M::kLanes; };
    AtEach<kVectors>([&](int i, int64_t at) { z[i] = LoadUpTo<M>(x + column + at, left_at(i)); });
    AtEach<kVectors>([&](int i, int64_t) { z[i] *= scale; });
    if (cap != 0) {
      const Scalar per_cap = 1 / cap;
      AtEach<kVectors>([&](int i, int64_t) { z[i] = cap * M::Tanh(z[i] * per_cap); });
    }
    if (bias != nullptr) {
      AtEach<kVectors>(
          [&](int i, int64_t at) { z[i] += LoadUpTo<M>(bias + column + at, left_at(i)); });
    }
    if (wide_bias != nullptr) {
      AtEach<kVectors>(
          [&](int i, int64_t at) { z[i] += LoadUpTo<M>(wide_bias + column + at, left_at(i)); });
    }
    AtEach<kVectors>([&](int i, int64_t) { z[i] += shift; });
    if (mask != nullptr) {
      AtEach<kVectors>(
          [&](int i, int64_t at) { z[i] = Unmasked(z[i], column + at, left_at(i), T{} + fill); });
    }
    const T absent = Max<M>{}.value;
    AtEach<kVectors>([&](int i, int64_t) { z[i] = FirstLanes<M>(z[i], left_at(i), absent); });
  }

  // The result y of the vector at `column`, with that of masked elements put in.
  JS_HD T Mask(T y, int64_t column, T masked) const {
    if (mask != nullptr && !fills) y = Unmasked(y, column, seen - column, masked);
    return FirstLanes<M>(y, seen - column, masked);
  }

 private:
  JS_HD void PointToMask(const Terms& terms, int64_t row) {
    mask = nullptr;
    if (terms.mask == nullptr) return;
    const auto* from =
        static_cast<const uint8_t*>(terms.mask) + terms.mask_at.Offset(static_cast<uint32_t>(row));
    if (terms.mask_at.column_stride != 0) {
      mask = from;
    } else if (*from == 0) {
      seen = 0;
    }
  }

  JS_HD void PointToBias(const Terms& terms, int64_t row) {
    bias = nullptr;
    wide_bias = nullptr;
    shift = 0;
    if (terms.bias == nullptr) return;
    const int64_t at = terms.bias_at.Offset(static_cast<uint32_t>(row));
    const auto* narrow = static_cast<const In*>(terms.bias) + at;
    const auto* wide = static_cast<const Scalar*>(terms.bias) + at;
    if (terms.bias_at.column_stride == 0) {
      shift = terms.wide_bias ? *wide : LoadUpTo<M>(narrow, 1)[0];
    } else if (terms.wide_bias) {
      wide_bias = wide;
    } else {
      bias = narrow;
    }
  }

  template <int kVectors, typename F>
  JS_HD static void AtEach(F f) {
    JS_UNROLL
    for (int i = 0; i < kVectors; ++i) f(i, i * M::kLanes);
  }

  JS_HD T Unmasked(T x, int64_t column, int64_t left, T masked) const {
    return LoadBytesUpTo<M>(mask + column, left) != 0 ? x : masked;
  }
};

}  // namespace jax_softmax::JS_ISA
