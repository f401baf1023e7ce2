// One op for all pairs of types: the build compiles this file once for each op, with JS_NAME and
// JS_OP, the op's name and struct, defined.
#include "launch.cuh"
#include "ops/all.h"

namespace jax_softmax {
namespace {

using F32 = float;
using F64 = double;
using F16 = __half;
using BF16 = __nv_bfloat16;

}  // namespace

// The name that launch.cc knows it by.
#define JS_DEFINE(in, out, name)                                                                \
  cudaError_t Run_##name##_##in##_##out(const Call& call, cudaStream_t stream, int* resident) { \
    return JS_ISA::RunAs<JS_ISA::JS_OP, in, out>(call, stream, resident);                       \
  }
#define JS_DEFINE_FOR(in, out, name) JS_DEFINE(in, out, name)
JS_FOR_EACH_TYPE_PAIR(JS_DEFINE_FOR, JS_NAME)

}  // namespace jax_softmax
