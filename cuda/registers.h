// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// [op][pair of types][whether rows are no whole vectors]
inline constexpr int kBlockRegisters[][kTypePairs.size()][2] = {
    // softmax
    {{32, 30}, {54, 56}, {30, 32}, {30, 32}, {19, 24}, {19, 24}, {32, 32}, {32, 32}},
    // softmax_tangent
    {{22, 28}, {28, 30}, {32, 32}, {30, 32}, {21, 27}, {21, 27}, {32, 32}, {30, 32}},
    // log_softmax
    {{32, 30}, {54, 58}, {32, 31}, {28, 31}, {20, 26}, {20, 26}, {32, 31}, {32, 32}},
    // log_softmax_tangent
    {{29, 32}, {44, 39}, {29, 28}, {29, 29}, {22, 28}, {22, 28}, {32, 31}, {32, 32}},
    // log_softmax_cotangent
    {{28, 31}, {32, 46}, {30, 30}, {30, 29}, {23, 29}, {23, 29}, {32, 32}, {32, 32}},
    // logsumexp
    {{24, 26}, {32, 52}, {22, 24}, {24, 26}, {0, 0}, {0, 0}, {22, 24}, {24, 26}},
    // masked_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    // masked_log_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
};

}  // namespace jax_softmax
