// Registers per thread of the block kernels, for the occupancy that the plan computes.
// Written by `python tools/check_kernels.py --write` from ptxas' report for sm_90.
#pragma once

#include "ops/list.h"
#include "types.h"

namespace jax_softmax {

// [op][pair of types][whether rows are no whole vectors]
inline constexpr int kBlockRegisters[][kTypePairs.size()][2] = {
    // softmax
    {{32, 32}, {52, 56}, {30, 32}, {30, 32}, {18, 22}, {18, 22}, {32, 32}, {32, 32}},
    // softmax_tangent
    {{22, 25}, {28, 32}, {32, 28}, {30, 29}, {20, 26}, {20, 26}, {29, 32}, {29, 30}},
    // log_softmax
    {{32, 32}, {54, 56}, {26, 32}, {27, 31}, {19, 24}, {19, 24}, {32, 32}, {32, 32}},
    // log_softmax_tangent
    {{29, 31}, {44, 40}, {28, 28}, {29, 28}, {22, 27}, {22, 27}, {32, 31}, {32, 32}},
    // log_softmax_cotangent
    {{26, 30}, {32, 46}, {30, 31}, {30, 29}, {22, 27}, {22, 27}, {32, 31}, {32, 31}},
    // logsumexp
    {{21, 26}, {48, 36}, {21, 23}, {22, 25}, {21, 26}, {21, 26}, {21, 23}, {22, 26}},
    // masked_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    // masked_log_softmax
    {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
};

}  // namespace jax_softmax
