// The compiled CPU kernels, for the instruction set at hand.
#pragma once

#include <cstddef>
#include <string_view>

#include "../cuda/broadcast.h"
#include "plan.h"

namespace jax_softmax::cpu {

// Space for what a slice of a row is reduced to, in any instruction set.
inline constexpr int kPartialBytes = 256;

// What kernels work on.
struct Call {
  const void* inputs[kMaxInputs];
  void* output;
  Rows rows;
  Extras extras;
  std::byte* partials;  // kPartialBytes for each slice of each row, where the plan has slices
};

// The parts of a call: `run` takes units of the plan. Where `reduce` is not null it goes first,
// over all units, and then `merge`, over all rows; `run` is null where nothing is left to do.
struct Kernel {
  using Part = void (*)(const Call& call, int64_t begin, int64_t end);
  Part run = nullptr;
  Part reduce = nullptr;
  Part merge = nullptr;
};

struct KernelTable {
  std::string_view isa;
  int vector_bytes;
  Kernel (*find)(OpKind op, DataType in, DataType out, Strategy strategy);
};

// The widest instruction set that this machine runs.
const KernelTable& Kernels();

}  // namespace jax_softmax::cpu
