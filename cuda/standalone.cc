// The handlers of ops that are no strategy's: decode, check, launch.
#include "standalone.h"

#include "launch.h"

namespace jax_softmax {

namespace {

struct Cuda {
  using Context = ffi::PlatformStream<cudaStream_t>;
  static constexpr std::initializer_list<ffi::Traits> kTraits = {ffi::Traits::kCmdBufferCompatible};

  template <typename Op, typename Call>
  static ffi::Error Run(cudaStream_t stream, const Call& call) {
    const cudaError_t status = Launch(call, stream);
    if (status == cudaSuccess) return ffi::Error::Success();
    return ffi::Error::Internal("jax_softmax." + std::string(Op::kName) +
                                ": launching: " + cudaGetErrorString(status));
  }
};

}  // namespace

std::span<const NamedHandler> StandaloneHandlers() { return Standalone<Cuda>::kHandlers; }

}  // namespace jax_softmax
