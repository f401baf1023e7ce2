// The list of ops: name of the primitive, struct, number of inputs. The build reads it too.
#pragma once

#include <array>
#include <string_view>

#include "../types.h"

// clang-format off
#define JS_FOR_EACH_OP(JS_OP) \
  JS_OP(softmax, Softmax, 1) \
  JS_OP(softmax_tangent, SoftmaxTangent, 2) \
  JS_OP(log_softmax, LogSoftmax, 1) \
  JS_OP(log_softmax_tangent, LogSoftmaxTangent, 2) \
  JS_OP(log_softmax_cotangent, LogSoftmaxCotangent, 2) \
  JS_OP(logsumexp, LogSumExp, 1) \
  JS_OP(masked_softmax, MaskedSoftmax, 1) \
  JS_OP(masked_log_softmax, MaskedLogSoftmax, 1)
// clang-format on

namespace jax_softmax {

enum class OpKind {
#define JS_KIND(name, Op, inputs) k##Op,
  JS_FOR_EACH_OP(JS_KIND)
#undef JS_KIND
};

struct OpFacts {
  std::string_view name;
  OpKind kind;
  int inputs;
};
inline constexpr std::array kOps = {
#define JS_FACTS(name, Op, inputs) OpFacts{#name, OpKind::k##Op, inputs},
    JS_FOR_EACH_OP(JS_FACTS)
#undef JS_FACTS
};

// kFinishesFromTerm and kPerRow of the op, for plans, which know no struct of an op; cpu/kernels.cc
// compares.
constexpr bool FinishesFromTerms(OpKind op) {
  return op == OpKind::kSoftmax || op == OpKind::kMaskedSoftmax;
}
constexpr bool IsPerRow(OpKind op) { return op == OpKind::kLogSumExp; }
// Whether the op has kernels for these types. What reads a row's one value may as well round it.
constexpr bool HasKernels(OpKind op, TypePair types) {
  return IndexOf(types) && !(IsPerRow(op) && SizeOf(types.out) < SizeOf(types.in));
}
// Whether a handler on a GPU takes a number that logits of at most 32 bits are multiplied with,
// where results have their type.
constexpr bool ScalesLogits(OpKind op) {
  return op == OpKind::kSoftmax || op == OpKind::kLogSoftmax;
}
constexpr bool TakesTerms(OpKind op) {
  return op == OpKind::kMaskedSoftmax || op == OpKind::kMaskedLogSoftmax;
}

}  // namespace jax_softmax
