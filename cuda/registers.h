// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "common.h"
#include "ops/list.h"

namespace jax_softmax {

inline constexpr int kBlockRegisters[][4] = {
    // f32, f64, f16, bf16
    {32, 54, 32, 32},  // softmax
    {32, 30, 32, 30},  // softmax_tangent
    {32, 56, 35, 35},  // log_softmax
    {32, 40, 32, 32},  // log_softmax_tangent
    {32, 39, 32, 32},  // log_softmax_cotangent
};

}  // namespace jax_softmax
