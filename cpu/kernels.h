// The compiled CPU kernels, for the instruction set at hand.
#pragma once

#include <string_view>

#include "plan.h"

namespace jax_softmax::cpu {

// Runs rows `begin` to `end`.
using Kernel = void (*)(const void* const* inputs, void* output, const Rows& rows, int64_t begin,
                        int64_t end);

struct KernelTable {
  std::string_view isa;
  int vector_bytes;
  Kernel (*find)(OpKind op, DataType in, DataType out, Strategy strategy);
};

// The widest instruction set that this machine runs.
const KernelTable& Kernels();

}  // namespace jax_softmax::cpu
