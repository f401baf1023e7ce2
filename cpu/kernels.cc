// Every op, dtype and strategy for one instruction set: the build compiles this file once per set,
// with JS_ISA (its namespace) and JS_SIMD_BYTES defined.
#include "kernels.h"

#include "../cuda/ops/all.h"
#include "rows.h"

namespace jax_softmax::JS_ISA {

namespace {

template <template <typename> class OpOf, typename Io, cpu::Strategy kStrategy>
void Run(const void* const* inputs, void* output, const Rows& rows, int64_t begin, int64_t end) {
  using M = typename IoTraits<Io>::Math;
  using Op = OpOf<M>;
  Operands<Op, Io> operands;
  for (int i = 0; i < Op::kInputs; ++i) operands.inputs[i] = static_cast<const Io*>(inputs[i]);
  operands.output = static_cast<Io*>(output);
  if constexpr (kStrategy == cpu::Strategy::kRow) {
    RowStrategy<Op, M>(operands, rows, begin, end);
  } else {
    LanesStrategy<Op, M>(operands, rows, begin, end);
  }
}

template <template <typename> class OpOf, typename Io>
cpu::Kernel ForStrategy(cpu::Strategy strategy) {
  return strategy == cpu::Strategy::kRow ? Run<OpOf, Io, cpu::Strategy::kRow>
                                         : Run<OpOf, Io, cpu::Strategy::kLanes>;
}

template <template <typename> class OpOf>
cpu::Kernel ForType(DataType dtype, cpu::Strategy strategy) {
  switch (dtype) {
    case DataType::kF32:
      return ForStrategy<OpOf, float>(strategy);
    case DataType::kF64:
      return ForStrategy<OpOf, double>(strategy);
    case DataType::kF16:
      return ForStrategy<OpOf, Half>(strategy);
    case DataType::kBF16:
      return ForStrategy<OpOf, BFloat16>(strategy);
  }
  return nullptr;
}

cpu::Kernel Find(OpKind op, DataType dtype, cpu::Strategy strategy) {
  switch (op) {
#define JS_CASE(name, Op, inputs) \
  case OpKind::k##Op:             \
    return ForType<Op>(dtype, strategy);
    JS_FOR_EACH_OP(JS_CASE)
#undef JS_CASE
  }
  return nullptr;
}

}  // namespace

#define JS_STRING_(x) #x
#define JS_STRING(x) JS_STRING_(x)
extern const cpu::KernelTable kTable;
const cpu::KernelTable kTable = {JS_STRING(JS_ISA), JS_SIMD_BYTES, Find};

}  // namespace jax_softmax::JS_ISA
