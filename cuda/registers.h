// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "common.h"
#include "ops/list.h"

namespace jax_softmax {

inline constexpr int kBlockRegisters[][4] = {
    // f32, f64, f16, bf16
    {30, 48, 28, 28},  // softmax
    {22, 24, 25, 29},  // softmax_tangent
    {28, 52, 28, 28},  // log_softmax
    {25, 30, 25, 30},  // log_softmax_tangent
    {24, 40, 27, 30},  // log_softmax_cotangent
};

}  // namespace jax_softmax
