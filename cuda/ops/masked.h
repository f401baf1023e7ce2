// Softmax and its logarithm of logits that terms are applied to as they are loaded.
#pragma once

#include <limits>

#include "log_softmax.h"
#include "softmax.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct MaskedSoftmax : Softmax<M, AsTheyLie<M>> {
  static constexpr bool kTakesTerms = true;
  static constexpr bool kExactLogits = M::kExact;
  using T = typename M::T;
  static constexpr auto kInfinity = std::numeric_limits<typename M::Scalar>::infinity();
  // The result of an element that is masked.
  JS_HD static T Masked() { return T{}; }
  // Whether that comes of itself: not in a row without any element, or with NaN.
  JS_HD static auto MasksItself(typename MaskedSoftmax::Row row) { return row.factor < kInfinity; }
};

template <typename M>
struct MaskedLogSoftmax : LogSoftmax<M, AsTheyLie<M>> {
  static constexpr bool kTakesTerms = true;
  static constexpr bool kExactLogits = M::kExact;
  using T = typename M::T;
  static constexpr auto kInfinity = std::numeric_limits<typename M::Scalar>::infinity();
  JS_HD static T Masked() { return Max<M>{}.value; }
  JS_HD static auto MasksItself(typename MaskedLogSoftmax::Row row) {
    return row.log_sum < kInfinity && row.log_sum > Masked();
  }
};

}  // namespace jax_softmax::JS_ISA
