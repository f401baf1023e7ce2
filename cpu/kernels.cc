// Every op, pair of types and strategy for one instruction set: the build compiles this file once
// per set, with JS_ISA (its namespace) and JS_SIMD_BYTES defined.
#include "kernels.h"

#include "../cuda/ops/all.h"
#include "rows.h"

namespace jax_softmax::JS_ISA {

namespace {

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

template <template <typename> class OpOf, typename In, typename Out, cpu::Strategy kStrategy>
void Run(const void* const* inputs, void* output, const Rows& rows, int64_t begin, int64_t end) {
  using M = typename IoTraits<Out>::Math;
  using Op = OpOf<M>;
  Operands<Op, In, Out> operands;
  for (int i = 0; i < Op::kInputs; ++i) operands.inputs[i] = static_cast<const In*>(inputs[i]);
  operands.output = static_cast<Out*>(output);
  if constexpr (kStrategy == cpu::Strategy::kRow) {
    RowStrategy<Op, M>(operands, rows, begin, end);
  } else {
    LanesStrategy<Op, M>(operands, rows, begin, end);
  }
}

template <template <typename> class OpOf, DataType kIn, DataType kOut>
cpu::Kernel ForStrategy(cpu::Strategy strategy) {
  using In = typename MemoryTypeOf<kIn>::Type;
  using Out = typename MemoryTypeOf<kOut>::Type;
  return strategy == cpu::Strategy::kRow ? Run<OpOf, In, Out, cpu::Strategy::kRow>
                                         : Run<OpOf, In, Out, cpu::Strategy::kLanes>;
}

template <template <typename> class OpOf>
cpu::Kernel ForTypes(TypePair types, cpu::Strategy strategy) {
#define JS_FIND(in, out, context)                                          \
  if (types == TypePair{DataType::k##in, DataType::k##out}) {              \
    return ForStrategy<OpOf, DataType::k##in, DataType::k##out>(strategy); \
  }
  JS_FOR_EACH_TYPE_PAIR(JS_FIND, )
#undef JS_FIND
  return nullptr;
}

cpu::Kernel Find(OpKind op, DataType in, DataType out, cpu::Strategy strategy) {
  switch (op) {
#define JS_CASE(name, Op, inputs) \
  case OpKind::k##Op:             \
    return ForTypes<Op>({in, out}, strategy);
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
