// An op's operands with their types, and elements that are not there.
#pragma once

#include "../cuda/stats.h"
#include "kernels.h"
#include "memory.h"

namespace jax_softmax::JS_ISA {

// Vectors added pairwise before a sum takes them in.
inline constexpr int kFold = 4;

template <typename Op>
using ElementOf = Element<typename Op::T, Op::kInputs>;

template <typename Op>
JS_HD ElementOf<Op> AbsentElement() {
  ElementOf<Op> e;
  for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Op::Absent(input);
  return e;
}

// The op with what the call says about it.
template <typename Op>
JS_HD Op OpFor(const cpu::Call& call) {
  Op op{};
  if constexpr (requires { op.zeros_are_masked; }) {
    op.scale = static_cast<decltype(op.scale)>(call.extras.scale);
    op.zeros_are_masked = call.extras.zeros_are_masked;
  }
  return op;
}

template <typename Op, typename In, typename Out>
struct Operands {
  using Scalar = typename MathFor<Out>::Type::Scalar;

  const In* inputs[Op::kInputs];
  Out* output;
  Scalar* seconds;  // of rows that have two results each, or null

  // The inputs from `element` on, with its result: that of `row` where rows have one each.
  JS_HD Operands From(int64_t element, int64_t row = 0) const {
    Operands moved = *this;
    for (const In*& input : moved.inputs) input += element;
    moved.output += kPerRow<Op> ? row : element;
    if (kPerRow<Op> && seconds != nullptr) moved.seconds += row;
    return moved;
  }
};

// Stores `count` rows' values, which neighbouring lanes have, `offset` behind the first row's.
template <typename M, typename Op, typename In, typename Out>
JS_HD void StoreOfRows(const Operands<Op, In, Out>& operands, const typename Op::Row& result,
                       int64_t offset, int64_t count) {
  const bool both = operands.seconds != nullptr;
  StoreUpTo<M>(operands.output + offset, both ? result.pivot : result.Whole(), count);
  if (both) StoreUpTo<M>(operands.seconds + offset, result.log_sum, count);
}

template <typename Op, typename In, typename Out>
JS_HD Operands<Op, In, Out> OperandsOf(const cpu::Call& call) {
  Operands<Op, In, Out> operands;
  for (int i = 0; i < Op::kInputs; ++i) {
    operands.inputs[i] = static_cast<const In*>(call.inputs[i]);
  }
  operands.output = static_cast<Out*>(call.output);
  operands.seconds = static_cast<decltype(operands.seconds)>(call.seconds);
  return operands;
}

}  // namespace jax_softmax::JS_ISA
