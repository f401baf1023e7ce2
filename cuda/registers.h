// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "common.h"
#include "ops/list.h"

namespace jax_softmax {

// [op][dtype][whether rows need masks, not being whole vectors]
inline constexpr int kBlockRegisters[][4][2] = {
    // f32, f64, f16, bf16
    {{32, 32}, {52, 54}, {30, 32}, {30, 32}},  // softmax
    {{24, 32}, {26, 30}, {32, 32}, {32, 30}},  // softmax_tangent
    {{32, 32}, {52, 56}, {32, 35}, {32, 35}},  // log_softmax
    {{26, 32}, {35, 40}, {28, 32}, {29, 32}},  // log_softmax_tangent
    {{28, 32}, {46, 39}, {32, 32}, {32, 32}},  // log_softmax_cotangent
};

}  // namespace jax_softmax
