// One op for one pair of types: the build compiles this file once for each, with JS_OP, JS_IN,
// JS_OUT and JS_RUNNER (the name that launch.cc knows it by) defined.
#include "launch.cuh"
#include "ops/all.h"

namespace jax_softmax {

cudaError_t JS_RUNNER(const Call& call, cudaStream_t stream, int* resident) {
  return JS_ISA::RunAs<JS_ISA::JS_OP, JS_IN, JS_OUT>(call, stream, resident);
}

}  // namespace jax_softmax
