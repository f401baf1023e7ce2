// Every op, pair of element types and strategy for one instruction set: the build compiles this
// file once per set, with JS_ISA (its namespace) and JS_SIMD_BYTES defined.
#include "kernels.h"

#include "../cuda/ops/all.h"
#include "lanes.h"
#include "masked_lanes.h"
#include "masked_row.h"
#include "row.h"
#include "standalone.h"
#include "strided.h"

namespace jax_softmax::JS_ISA {

namespace {

template <template <typename> class OpOf, typename In, typename Out>
cpu::Kernel ForTypes(cpu::Strategy strategy) {
  using Op = OpOf<typename MathFor<Out>::Type>;
  switch (strategy) {
    case cpu::Strategy::kRow:
      return {RunRows<Op, In, Out>};
    case cpu::Strategy::kSlices:
      if constexpr (kPerRow<Op>) {
        return {nullptr, ReduceSlices<Op, In, Out>, CloseSlices<Op, In, Out>};
      } else {
        return {FinishSlices<Op, In, Out>, ReduceSlices<Op, In, Out>, MergeSlices<Op>};
      }
    case cpu::Strategy::kLanes:
      return {RunLanes<Op, In, Out>};
    case cpu::Strategy::kStrided:
      return {RunStrided<Op, In, Out>};
    case cpu::Strategy::kAuto:
      break;
  }
  return {};
}

template <template <typename> class OpOf, typename In, typename Out>
  requires kTakesTerms<OpOf<typename MathFor<Out>::Type>>
cpu::Kernel ForTypes(cpu::Strategy strategy) {
  using Op = OpOf<typename MathFor<Out>::Type>;
  if (strategy == cpu::Strategy::kRow) return {RunMaskedRows<Op, In, Out>};
  if (strategy == cpu::Strategy::kLanes) return {RunMaskedLanes<Op, In, Out>};
  return {};
}

// For types without kernels: see HasKernels.
template <template <typename> class OpOf, typename In, typename Out>
  requires(kPerRow<OpOf<typename MathFor<Out>::Type>> && sizeof(Out) < sizeof(In))
cpu::Kernel ForTypes(cpu::Strategy) {
  return {};
}

template <DataType kType>
struct MemoryTypeOf;
template <>
struct MemoryTypeOf<DataType::kF32> {
  using Type = float;
};
template <>
struct MemoryTypeOf<DataType::kF64> {
  using Type = double;
};
template <>
struct MemoryTypeOf<DataType::kF16> {
  using Type = Half;
};
template <>
struct MemoryTypeOf<DataType::kBF16> {
  using Type = BFloat16;
};
template <DataType kType>
using MemoryType = typename MemoryTypeOf<kType>::Type;

template <template <typename> class OpOf>
cpu::Kernel ForOp(TypePair types, cpu::Strategy strategy) {
#define JS_CASE(in, out, context)                           \
  if (types == TypePair{DataType::k##in, DataType::k##out}) \
    return ForTypes<OpOf, MemoryType<DataType::k##in>, MemoryType<DataType::k##out>>(strategy);
  JS_FOR_EACH_TYPE_PAIR(JS_CASE, )
#undef JS_CASE
  return {};
}

cpu::Kernel Find(OpKind op, DataType in, DataType out, cpu::Strategy strategy) {
  switch (op) {
#define JS_CASE(name, Op, inputs)                                                               \
  case OpKind::k##Op:                                                                           \
    static_assert(FinishesFromTerms(OpKind::k##Op) ==                                           \
                  kFinishesFromTerm<Op<typename MathFor<float>::Type>>);                        \
    static_assert(IsPerRow(OpKind::k##Op) == kPerRow<Op<typename MathFor<float>::Type>>);       \
    static_assert(TakesTerms(OpKind::k##Op) == kTakesTerms<Op<typename MathFor<float>::Type>>); \
    return ForOp<Op>({in, out}, strategy);
    JS_FOR_EACH_OP(JS_CASE)
#undef JS_CASE
  }
  return {};
}

}  // namespace

#define JS_STRING_(x) #x
#define JS_STRING(x) JS_STRING_(x)
extern const cpu::KernelTable kTable;
const cpu::KernelTable kTable = {JS_STRING(JS_ISA), JS_SIMD_BYTES, Find, FindAbsmax, FindGradient};

}  // namespace jax_softmax::JS_ISA
