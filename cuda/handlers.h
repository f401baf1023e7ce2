// Handlers of ops that are no strategy's.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace jax_softmax {

XLA_FFI_Error* HandleAbsmax(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* HandleCrossEntropyGradient(XLA_FFI_CallFrame* frame);

}  // namespace jax_softmax
