// One op for all pairs of types, or two that are alike: the build compiles this file for each, with
// JS_NAME, and maybe JS_LIKE, defined as their names.
#include "launch.cuh"
#include "ops/all.h"

namespace jax_softmax {
namespace {

using F32 = float;
using F64 = double;
using F16 = __half;
using BF16 = __nv_bfloat16;

#define JS_STRUCT(name, Op, inputs) \
  template <typename M>             \
  using StructOf_##name = JS_ISA::Op<M>;
JS_FOR_EACH_OP(JS_STRUCT)
#undef JS_STRUCT

}  // namespace

// The name that launch.cc knows it by.
#define JS_DEFINE(in, out, name)                                                                \
  cudaError_t Run_##name##_##in##_##out(const Call& call, cudaStream_t stream, int* resident) { \
    return JS_ISA::RunAs<StructOf_##name, in, out>(call, stream, resident);                     \
  }
#define JS_DEFINE_FOR(in, out, name) JS_DEFINE(in, out, name)
JS_FOR_EACH_TYPE_PAIR(JS_DEFINE_FOR, JS_NAME)
#ifdef JS_LIKE
JS_FOR_EACH_TYPE_PAIR(JS_DEFINE_FOR, JS_LIKE)
#endif

}  // namespace jax_softmax
