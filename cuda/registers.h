// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// [op][pair of types][whether rows need masks, not being whole vectors]
inline constexpr int kBlockRegisters[][kTypePairs.size()][2] = {
    // softmax
    {{32, 31}, {52, 52}, {30, 28}, {30, 28}, {22, 21}, {22, 21}, {32, 32}, {32, 32}},
    // softmax_tangent
    {{24, 36}, {26, 28}, {32, 32}, {32, 30}, {24, 27}, {24, 27}, {30, 32}, {30, 32}},
    // log_softmax
    {{32, 32}, {52, 52}, {32, 32}, {32, 32}, {22, 23}, {22, 23}, {32, 32}, {32, 32}},
    // log_softmax_tangent
    {{26, 35}, {35, 32}, {28, 30}, {29, 30}, {23, 27}, {23, 27}, {32, 32}, {32, 32}},
    // log_softmax_cotangent
    {{28, 35}, {46, 32}, {32, 32}, {32, 32}, {25, 26}, {25, 26}, {32, 32}, {32, 32}},
};

}  // namespace jax_softmax
