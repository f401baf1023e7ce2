// Which instruction set's kernels run here.
#include <cstdlib>

#include "kernels.h"

namespace jax_softmax {

namespace baseline {
extern const cpu::KernelTable kTable;
}
#ifdef __x86_64__
namespace avx2 {
extern const cpu::KernelTable kTable;
}
namespace avx512 {
extern const cpu::KernelTable kTable;
}
#endif

namespace cpu {

namespace {

const KernelTable& Widest() {
#ifdef __x86_64__
  // For tests: every variant that the machine runs can be asked for.
  const char* wanted = std::getenv("JAX_SOFTMAX_CPU_ISA");
  const auto allowed = [&](const char* isa) {
    return wanted == nullptr || std::string_view(wanted) == isa;
  };
  if (allowed("avx512") && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return avx512::kTable;
  }
  if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return avx2::kTable;
  }
#endif
  return baseline::kTable;
}

}  // namespace

const KernelTable& Kernels() {
  static const KernelTable& table = Widest();
  return table;
}

}  // namespace cpu
}  // namespace jax_softmax
