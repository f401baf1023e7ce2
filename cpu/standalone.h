// The kernels of ops that are no strategy's, for one instruction set.
#pragma once

#include "kernels.h"

namespace jax_softmax::JS_ISA {

cpu::AbsmaxKernel FindAbsmax(DataType dtype, AbsmaxResult result);
cpu::GradientKernel FindGradient(DataType dtype);

}  // namespace jax_softmax::JS_ISA
