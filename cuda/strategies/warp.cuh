// Strategy "warp": a group of 1 to 32 lanes per row, the whole row in registers, read once.
#pragma once

#include "../in_registers.cuh"

namespace jax_softmax::JS_ISA {

// A group takes kRows rows at a time: short rows alone would leave too few loads in flight.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole, int kPacks,
          int kRows>
__global__ void __launch_bounds__(
    kWarpThreads,
    MinBlocks<Op, Load, Store, kWhole, kWarpThreads,
              kVector * kPacks * kRows * sizeof(typename Op::T) * kOperands<Op, Load, kWhole>>())
    WarpKernel(Op op, Load load, Store store, Rows rows, int log2_lanes) {
  const int lanes = 1 << log2_lanes;
  const int groups = kWarpThreads >> log2_lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t first_row =
      static_cast<int64_t>(blockIdx.x) * groups * kRows + (threadIdx.x >> log2_lanes);
  // Lanes past the last row stay for the shuffles, with nothing to load.
  const auto packs_of = [&](int64_t row, const auto& window) {
    return row < rows.outer ? window.packs : 0;
  };

  // All loads before the first use: with the conversions in between, some would wait for others.
  typename Load::template Raw<kVector> raw[kRows][kPacks][Op::kInputs];
  typename Load::Row of_row[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = load.RowAt(first_row + r * groups, rows);
    const Window<kVector, kWhole> window(row, rows.columns);
    of_row[r] = load.ForRow(row, rows);
    const int packs = packs_of(row, window);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[r][k][input] =
            load.Fetch(of_row[r], input, window, lane + k * lanes, lane + k * lanes < packs);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = load.RowAt(first_row + r * groups, rows);
    const Window<kVector, kWhole> window(row, rows.columns);
    const int packs = packs_of(row, window);
    typename Load::Kept kept[kPacks] = {};
    const auto result = RowInRegisters<kPacks, kVector>(
        op, of_row[r],
        [&](int k) {
          const int pack = lane + k * lanes;
          // What masks left undefined of a row that is not there would reach the shuffles.
          if (Load::kTerms == TermsKind::kMasks && pack >= packs) return false;
          return SeesOrStores<Op>(load, store, of_row[r], window, pack, packs);
        },
        [&](int k, auto& e) {
          kept[k] = load.Decode(of_row[r], window, lane + k * lanes, raw[r][k], e);
        },
        [&](int k, auto& y, const auto& result) {
          if (lane + k * lanes < packs) store(window, lane + k * lanes, y, kept[k], result);
        },
        NoEdge{}, LaneGroup(lanes));
    if constexpr (kPerRow<Op>) {
      if (lane == 0 && row < rows.outer) StoreOfRow(op, store, row, result);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
