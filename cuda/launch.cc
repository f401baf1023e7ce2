// Finds the instantiation of an op for a pair of types.
#include "launch.h"

namespace jax_softmax {

using Runner = cudaError_t(const Call& call, cudaStream_t stream, int* resident);

#define JS_DECLARE_FOR(in, out, name) Runner Run_##name##_##in##_##out;
#define JS_DECLARE(name, Op, inputs) JS_FOR_EACH_TYPE_PAIR(JS_DECLARE_FOR, name)
JS_FOR_EACH_OP(JS_DECLARE)
#undef JS_DECLARE
#undef JS_DECLARE_FOR

namespace {

constexpr Runner* kRunners[][kTypePairs.size()] = {
#define JS_ENTRY_FOR(in, out, name) Run_##name##_##in##_##out,
#define JS_ENTRY(name, Op, inputs) {JS_FOR_EACH_TYPE_PAIR(JS_ENTRY_FOR, name)},
    JS_FOR_EACH_OP(JS_ENTRY)
#undef JS_ENTRY
#undef JS_ENTRY_FOR
};

Runner* Find(const Problem& problem) {
  return kRunners[static_cast<int>(problem.op)][*IndexOf(problem.Types())];
}

}  // namespace

cudaError_t Launch(const Call& call, cudaStream_t stream) {
  return Find(call.problem)(call, stream, nullptr);
}

cudaError_t MeasureResidentBlocks(const Call& call, int* blocks) {
  return Find(call.problem)(call, nullptr, blocks);
}

}  // namespace jax_softmax
