// One op for one dtype: the build compiles this file once per pair, with JS_OP, JS_IO and JS_RUNNER
// (the name that launch.cc knows it by) defined.
#include "launch.cuh"
#include "ops/all.h"

namespace jax_softmax {

cudaError_t JS_RUNNER(const Call& call, cudaStream_t stream, int* resident) {
  return JS_ISA::RunAs<JS_ISA::JS_OP, JS_IO>(call, stream, resident);
}

}  // namespace jax_softmax
