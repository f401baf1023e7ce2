// The limits of an attached GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "plan.h"

namespace jax_softmax {

// Asked of the driver once per device, then remembered.
cudaError_t QueryDevice(int ordinal, Device* device);

}  // namespace jax_softmax
