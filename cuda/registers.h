// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "common.h"
#include "ops/list.h"

namespace jax_softmax {

// [op][dtype][whether rows need masks, not being whole vectors]
inline constexpr int kBlockRegisters[][4][2] = {
    // f32, f64, f16, bf16
    {{32, 32}, {52, 52}, {30, 30}, {30, 30}},  // softmax
    {{24, 36}, {26, 28}, {32, 32}, {32, 32}},  // softmax_tangent
    {{32, 32}, {52, 52}, {32, 32}, {32, 32}},  // log_softmax
    {{26, 35}, {35, 32}, {28, 32}, {29, 32}},  // log_softmax_tangent
    {{28, 35}, {46, 32}, {32, 32}, {32, 32}},  // log_softmax_cotangent
};

}  // namespace jax_softmax
