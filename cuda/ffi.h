// The handlers, by op name: all that the Python binding needs to know.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "plan.h"
#include "xla/ffi/api/c_api.h"

namespace jax_softmax {

struct NamedHandler {
  std::string_view op;
  XLA_FFI_Handler* handler;
};

std::span<const NamedHandler> Handlers();
// Those of ops that are no strategy's.
std::span<const NamedHandler> StandaloneHandlers();

// How often any handler has run in this process. A call replayed by a CUDA graph does not count.
int64_t HandlerCalls();

}  // namespace jax_softmax
