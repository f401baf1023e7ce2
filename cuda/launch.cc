// Finds the instantiation of an op for a dtype.
#include "launch.h"

namespace jax_softmax {

using Runner = cudaError_t(const Call& call, cudaStream_t stream, int* resident);

#define JS_DECLARE(name, Op, inputs) \
  Runner Run_##name##_f32, Run_##name##_f64, Run_##name##_f16, Run_##name##_bf16;
JS_FOR_EACH_OP(JS_DECLARE)
#undef JS_DECLARE

namespace {

constexpr Runner* kRunners[][4] = {
#define JS_ENTRY(name, Op, inputs) \
  {Run_##name##_f32, Run_##name##_f64, Run_##name##_f16, Run_##name##_bf16},
    JS_FOR_EACH_OP(JS_ENTRY)
#undef JS_ENTRY
};

Runner* Find(const Problem& problem) {
  return kRunners[static_cast<int>(problem.op)][static_cast<int>(problem.dtype)];
}

}  // namespace

cudaError_t Launch(const Call& call, cudaStream_t stream) {
  return Find(call.problem)(call, stream, nullptr);
}

cudaError_t MeasureResidentBlocks(const Call& call, int* blocks) {
  return Find(call.problem)(call, nullptr, blocks);
}

}  // namespace jax_softmax
