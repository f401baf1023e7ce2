// The compiled CPU kernels, for the instruction set at hand.
#pragma once

#include <cstddef>
#include <string_view>

#include "../cuda/absmax.h"
#include "../cuda/broadcast.h"
#include "../cuda/cross_entropy.h"
#include "plan.h"

namespace jax_softmax::cpu {

// Space for what a slice of a row is reduced to, in any instruction set.
inline constexpr int kPartialBytes = 256;

// What kernels work on.
struct Call {
  const void* inputs[kMaxInputs];
  void* output;
  void* seconds;  // of logsumexp, where its two terms are wanted: see its op
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

// Of the losses' gradient: takes slices of all rows.
using GradientKernel = void (*)(const CrossEntropyGradient& call, int64_t begin, int64_t end);

// Of absmax: whole rows, or, where threads share a row, its largest magnitude, as bits in which
// integers have the magnitudes' order, and then its results, from columns `begin` to `end`.
struct AbsmaxKernel {
  void (*rows)(const Absmax& call, int64_t begin, int64_t end);
  int32_t (*largest)(const Absmax& call, int64_t row, int64_t begin, int64_t end);
  void (*finish)(const Absmax& call, int64_t row, int64_t begin, int64_t end, int32_t largest);
};

struct KernelTable {
  std::string_view isa;
  int vector_bytes;
  Kernel (*find)(OpKind op, DataType in, DataType out, Strategy strategy);
  AbsmaxKernel (*find_absmax)(DataType dtype, AbsmaxResult result);
  GradientKernel (*find_gradient)(DataType dtype);
};

// The widest instruction set that this machine runs.
const KernelTable& Kernels();

}  // namespace jax_softmax::cpu
