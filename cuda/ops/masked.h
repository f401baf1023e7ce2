// Softmax and its logarithm of logits that terms are applied to as they are loaded.
#pragma once

#include "log_softmax.h"
#include "softmax.h"

namespace jax_softmax::JS_ISA {

template <typename M>
struct MaskedSoftmax : Softmax<M> {
  static constexpr bool kTakesTerms = true;
  // The result of an element that is masked.
  JS_HD static typename M::T Masked() { return typename M::T{}; }
};

template <typename M>
struct MaskedLogSoftmax : LogSoftmax<M> {
  static constexpr bool kTakesTerms = true;
  JS_HD static typename M::T Masked() { return Max<M>{}.value; }
};

}  // namespace jax_softmax::JS_ISA
