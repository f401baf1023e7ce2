// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// [op][pair of types][whether rows need masks, not being whole vectors]
inline constexpr int kBlockRegisters[][kTypePairs.size()][2] = {
    // softmax
    {{30, 31}, {56, 52}, {28, 32}, {28, 32}, {20, 26}, {20, 26}, {32, 32}, {32, 32}},
    // softmax_tangent
    {{24, 26}, {28, 30}, {30, 28}, {30, 30}, {22, 26}, {22, 26}, {32, 31}, {30, 30}},
    // log_softmax
    {{32, 30}, {56, 52}, {31, 31}, {29, 32}, {20, 29}, {20, 29}, {32, 32}, {32, 32}},
    // log_softmax_tangent
    {{29, 29}, {46, 32}, {28, 28}, {28, 28}, {24, 25}, {24, 25}, {32, 31}, {32, 31}},
    // log_softmax_cotangent
    {{28, 31}, {32, 34}, {32, 32}, {30, 32}, {23, 28}, {23, 28}, {32, 32}, {32, 32}},
    // logsumexp
    {{24, 25}, {50, 36}, {22, 24}, {24, 26}, {24, 25}, {24, 25}, {23, 24}, {24, 26}},
    // masked_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    // masked_log_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
};

}  // namespace jax_softmax
