// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// [op][pair of types][whether rows are no whole vectors]
inline constexpr int kBlockRegisters[][kTypePairs.size()][2] = {
    // softmax
    {{31, 32}, {54, 56}, {30, 32}, {30, 32}, {19, 23}, {19, 23}, {32, 32}, {32, 32}},
    // softmax_tangent
    {{22, 27}, {28, 30}, {32, 29}, {30, 31}, {21, 26}, {21, 26}, {32, 32}, {30, 30}},
    // log_softmax
    {{32, 30}, {54, 58}, {30, 32}, {28, 31}, {20, 27}, {20, 27}, {32, 32}, {32, 32}},
    // log_softmax_tangent
    {{29, 31}, {44, 40}, {29, 29}, {29, 28}, {22, 27}, {22, 27}, {32, 32}, {32, 32}},
    // log_softmax_cotangent
    {{28, 32}, {32, 40}, {30, 29}, {30, 31}, {23, 29}, {23, 29}, {32, 31}, {32, 32}},
    // logsumexp
    {{25, 30}, {50, 38}, {23, 25}, {25, 27}, {25, 30}, {25, 30}, {24, 26}, {26, 28}},
    // masked_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    // masked_log_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
};

}  // namespace jax_softmax
