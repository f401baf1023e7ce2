// The geometry of strategy "panel", and when it is the fastest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tile.h"

namespace jax_softmax {

// Geometries of "panel": benchmarks/results/h200-panel.json, of 280 columns or more
// h200-panel-geometries.json. With the same 256 threads for rows of 33 columns or more, softmax of
// 40 and 100 bf16 columns ran at 0.53 and 0.67 of the copy limit: what threads exchange cost more
// than what they had in common with their memory.
inline constexpr int kPanelThreads = 256;  // at most
// Blocks of a multiprocessor that the compiler must leave room for. With three, kernels from 16
// bits to float32 spill (ptxas 13.0, sm_90), and float64's.
constexpr int PanelResident(int in_bytes, int out_bytes) {
  return out_bytes == 8 || in_bytes < out_bytes ? 2 : 3;
}
inline constexpr int kPanelFewestLanes = 4;
// Of rows of at most so many columns; half as many of longer ones, or a quarter.
inline constexpr int kPanelLanes = 16;
inline constexpr int kPanelLanesColumns = 128;
// The most of longer rows in a block's shared memory, but with the fewest lanes: three blocks'
// where rows have 16 bits, two of float32. Softmax of 500 bf16 columns took 73.8 us with half of
// the lanes and 71.4 so, of 768 71.0 and 73.0, in float32 133.6 and 131.4.
constexpr int64_t PanelBytes(int inputs, int element_bytes) {
  constexpr int kOf[] = {72, 100, 64};  // by the elements: 2, 4 and 8 bytes
  return (inputs > 1 ? 192 : kOf[element_bytes / 4]) * 1024;
}
// What statistics and rounding up to whole slices may add to that.
inline constexpr int kPanelMargin = 24 * 1024;
// Panels that a cluster's blocks share, but for half panels that start together (below): of one
// input where a multiprocessor has no memory for two or three of four lanes, of two inputs where it
// has none for one of eight. Of 1,400 columns and four lanes, each alone, softmax of bf16 took 80.1
// us in one block and 81.9 in two, of float32 150.0 and 145.3.
inline constexpr std::array kPanelBlocks = {2, 3, 4, 5, 6, 7, 8, 16};
inline constexpr int kPanelSharedLanes = 8;
inline constexpr int kPanelWideBlocks = 8;  // with more lanes than the fewest, at most
constexpr bool SharesPanels(const Problem& p) {
  const int64_t bytes = p.rows.columns * kVectorBytes * p.inputs;  // of a lane
  const int most = p.inputs > 1 ? 96 : SizeOf(p.dtype) == 2 ? 92 : 80;
  return bytes * kPanelFewestLanes > most * 1024;
}
// Neighbouring panels of a block each, and of half a line of the cache, start together: both ask
// for the same lines. Of [64, 1024, 1024] softmax took 77.0 us alone and 73.0 so in bf16, 144.8 and
// 135.1 in float32, by four neighbours 74.0 and 136.2 (H200, 2026-11). Such panels are then faster
// than whole ones from so many columns on, as long as a multiprocessor has room for two: where
// neighbours are whole lines (benchmarks/results/h200-panel-abreast.json), where they are not, and
// of a value for each row in 16 bits; but not where results are narrower, a quarter of a line
// (h200-panel-halves.json).
inline constexpr int kPanelAbreast = 2;
inline constexpr int kPanelHalfColumns = 256, kPanelHalfOddColumns = 577;
inline constexpr int kPanelHalfValuesColumns = 512;
constexpr bool PrefersHalfPanels(const Problem& p) {
  const bool whole_lines = p.rows.inner * SizeOf(p.dtype) % kLineBytes == 0;
  const bool narrow = SizeOf(p.dtype) == 2;
  if (IsPerRow(p.op)) return narrow && whole_lines && p.rows.columns >= kPanelHalfValuesColumns;
  if (SizeOf(p.out_dtype) < SizeOf(p.dtype)) return false;
  return p.rows.columns >= (whole_lines ? kPanelHalfColumns : kPanelHalfOddColumns);
}
// About what a thread takes of a row.
constexpr int PanelColumns(int inputs) { return inputs == 1 ? 20 : 8; }
inline constexpr int kPanelFewestSlices = 2;
// The fewest vectors side by side with which rows are faster in panels than in tiles, and than in
// tiles with few conflicts in shared memory; and of how many eighths of a panel's lanes one input
// must make use. Softmax of 128 bf16 columns ran at 0.58, 0.78, 0.96 and 0.79 of the copy limit in
// panels of 2, 3, 4 and 6 vectors, and at 0.95, 0.97, 0.69 and 0.97 in tiles: see
// benchmarks/results/h200-interleaved.json.
constexpr int64_t PanelVectors(int64_t columns) {
  return columns <= 16 ? 16 : columns <= 64 ? 8 : columns <= 128 ? 4 : 2;
}
// Of 5 to 8 columns, where neighbours together, of each input, are more bytes than this: softmax of
// [1000, 8, 2048] and [65, 8, 2048] in bf16 took 29.7 and 7.9 us in tiles and 23.2 and 3.4 in
// panels, of [1000, 8, 512] in float32 9.2 and 11.3; the tangent of that 16.1 and 12.7
// (benchmarks/results/h200-small.json).
inline constexpr int kPanelFewest = 5, kPanelFew = 8;
constexpr int64_t PanelFewBytes(int inputs) { return (inputs == 1 ? 16 : 4) * 1024; }
inline constexpr int64_t kPanelVectors = 4;
inline constexpr int kPanelFull = 7, kPanelFullest = 8;

// A panel of so many lanes and slices, of whose columns each of `blocks` blocks has a part.
constexpr Plan PanelOf(const Problem& p, const Device& device, int lanes, int slices, int blocks,
                       Plan plan) {
  plan.threads = lanes * slices;
  plan.cluster_blocks = blocks;
  plan.lanes_per_row = slices * blocks;
  plan.rows_per_block = lanes * plan.vector;
  plan.blocks = p.rows.outer * CeilDiv(p.rows.inner, plan.rows_per_block) * blocks;
  // A statistic of every row and warp, and the one before it of every row.
  const int64_t statistics = (int64_t{plan.threads} / kWarpLanes + 1) * plan.rows_per_block;
  const int values = NeighbourStatistic(SizeOf(p.out_dtype), IsPerRow(p.op));
  plan.scratch_bytes = static_cast<int>(statistics * values * ComputeBytes(p.dtype));
  // Of a thread, as the kernel counts them.
  const int64_t part = CeilDiv(CeilDiv(std::max<int64_t>(p.rows.columns, 1), blocks), slices);
  const int64_t exchanged =
      blocks > 1 ? plan.rows_per_block * kNeighbourValues * ComputeBytes(p.dtype) : 0;
  const int64_t shared =
      plan.scratch_bytes + part * plan.threads * kVectorBytes * p.inputs + exchanged;
  if (shared + kStaticSharedBytes > device.shared_per_block) {
    return Refuse(plan, "the rows side by side do not fit the shared memory");
  }
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many panels");
  plan.shared_bytes = static_cast<int>(shared);
  return plan;
}

// The same of the most slices up to `slices`, and at least `fewest`, whose statistics leave room.
constexpr Plan PanelThatFits(const Problem& p, const Device& device, int lanes, int slices,
                             int fewest, int blocks, const Plan& blank) {
  Plan panel = PanelOf(p, device, lanes, slices, blocks, blank);
  while (panel.refusal != nullptr && slices > fewest) {
    slices /= 2;
    panel = PanelOf(p, device, lanes, slices, blocks, blank);
  }
  return panel;
}

constexpr int PanelFewestSlices(int lanes) {
  return std::max(kPanelFewestSlices, kWarpLanes / lanes);
}
// Of a panel that a block has alone.
constexpr int PanelSlices(const Problem& p, int lanes) {
  const int64_t columns = std::max<int64_t>(p.rows.columns, 1);
  const int64_t slices = PowerOfTwoFrom(CeilDiv(columns, PanelColumns(p.inputs)));
  return static_cast<int>(
      std::clamp<int64_t>(slices, PanelFewestSlices(lanes), kPanelThreads / lanes));
}

// Whether so many neighbours fill panels of that width.
constexpr bool FillPanels(int64_t neighbours, int64_t width) {
  return neighbours * kPanelFullest >= CeilDiv(neighbours, width) * width * kPanelFull;
}

// The most lanes up to `lanes` that neighbours make use of, or of longer rows of most of them.
constexpr int PanelLanes(const Problem& p, int lanes, int vector) {
  const int64_t vectors = CeilDiv(p.rows.inner, vector);
  const auto places = [&](int of) { return CeilDiv(vectors, of) * of; };
  const bool is_long = p.rows.columns > 2 * kPanelLanesColumns;
  while (lanes > kPanelFewestLanes &&
         (lanes / 2 >= vectors ||
          (is_long && !FillPanels(vectors, lanes) && places(lanes / 2) < places(lanes)))) {
    lanes /= 2;
  }
  return lanes;
}

// Of the panels that clusters may have, the one of which the most is in a multiprocessor's memory
// at a time: by a fiftieth more for more blocks, and by a fourth more for half panels. One block
// has nothing to overlap with.
constexpr Plan SharedPanelPlan(const Problem& p, const Device& device, const Plan& blank) {
  Plan best = Refuse(blank, "the rows side by side do not fit a cluster");
  int64_t most = 0;
  for (int lanes = PanelLanes(p, kPanelSharedLanes, blank.vector); lanes >= kPanelFewestLanes;
       lanes /= 2) {
    const bool wide = lanes > kPanelFewestLanes;
    for (int blocks : kPanelBlocks) {
      if (blocks > device.cluster_blocks || (wide && blocks > kPanelWideBlocks)) continue;
      const int slices = kPanelThreads / lanes;
      const Plan plan = PanelThatFits(p, device, lanes, slices, slices / 2, blocks, blank);
      if (plan.refusal != nullptr) continue;
      const int most_resident = PanelResident(SizeOf(p.dtype), SizeOf(p.out_dtype));
      const int resident = std::min(most_resident, RoomFor(plan, device));
      const int64_t columns = CeilDiv(p.rows.columns, blocks) * lanes * resident;
      const int64_t score = columns * (resident > 1 ? 5 : 3) * (wide ? 5 : 4);
      if (score * 50 <= most * 51) continue;
      most = score;
      best = plan;
    }
  }
  return best;
}

// Blocks that a multiprocessor has room for at a time, by its memory and the registers that the
// compiler leaves them.
constexpr int PanelsAtATime(const Problem& p, const Device& device, const Plan& panel) {
  const int full = PanelResident(SizeOf(p.dtype), SizeOf(p.out_dtype)) * kPanelThreads;
  return std::min({full / panel.threads, RoomFor(panel, device), device.blocks_per_multiprocessor});
}

// Has neighbours start together where there are more than the device has room for: fewer do anyway.
constexpr Plan InCompany(const Problem& p, const Device& device, Plan panel) {
  const bool shares_lines =
      panel.rows_per_block < std::min(p.rows.inner, int64_t{kLinePacks} * panel.vector);
  if (panel.refusal != nullptr || device.cluster_blocks < kPanelAbreast || !shares_lines) {
    return panel;
  }
  const int64_t resident = PanelsAtATime(p, device, panel);
  if (panel.blocks <= resident * device.multiprocessors) return panel;
  panel.abreast = kPanelAbreast;
  panel.blocks = CeilDiv(panel.blocks, kPanelAbreast) * kPanelAbreast;
  return panel;
}

// Panels that blocks have read before they compute would all be waited for at first, and memory
// then for them. So a multiprocessor's first blocks start one after the other, when its share of an
// H200's memory has brought what those before them read, if there are enough for all turns. Beside
// kernels without, softmax of [64, 1024, 1024] in bf16 took 69.3 us in place of 71.1, of [16, 1024,
// 1024] 20.6 and 22.2, over 96 calls of panels 1.8 % less in geometric mean. Thirteen half panels
// that started so took up to 2 % longer, eleven 1 %. Derivatives, "registers" and "block" gained
// nothing, and "tile" lost by the code (benchmarks/results/h200-turns.json). Other devices were not
// measured.
inline constexpr int kTurnCycles = 56;  // for a kilobyte
inline constexpr int kTurnsOfHalves = 8;
constexpr Plan ByTurns(const Problem& p, const Device& device, Plan panel) {
  const bool gains = p.inputs == 1 && SizeOf(p.dtype) <= 4 && !IsPerRow(p.op);
  if (panel.refusal != nullptr || !gains) return panel;
  const int resident = PanelsAtATime(p, device, panel);
  const bool fit = panel.abreast == 1 || resident <= kTurnsOfHalves;
  if (resident > 1 && fit && panel.blocks >= int64_t{resident} * device.multiprocessors) {
    panel.turns = {.blocks = device.multiprocessors,
                   .count = resident,
                   .cycles = panel.shared_bytes / 1024 * kTurnCycles};
  }
  return panel;
}

constexpr Plan PanelPlan(const Problem& p, const Device& device, Plan plan) {
  if (p.rows.inner % plan.vector != 0) {
    return Refuse(plan, "the inner dimension is not whole vectors");
  }
  const auto started = [&](const Plan& panel) {
    return ByTurns(p, device, InCompany(p, device, panel));
  };
  const int64_t columns = std::max<int64_t>(p.rows.columns, 1);
  if (device.cluster_blocks >= kPanelAbreast && PrefersHalfPanels(p)) {
    const int slices = PanelSlices(p, kPanelFewestLanes);
    const Plan half = PanelThatFits(p, device, kPanelFewestLanes, slices, slices, 1, plan);
    if (half.refusal == nullptr && RoomFor(half, device) >= 2) return started(half);
  }
  if (device.cluster_blocks > 1 && !IsPerRow(p.op) && SharesPanels(p)) {
    return SharedPanelPlan(p, device, plan);
  }
  int64_t most = device.shared_per_block - kPanelMargin;
  int lanes = kPanelLanes;
  if (columns > kPanelLanesColumns) {
    lanes /= 2;
    most = std::min(most, PanelBytes(p.inputs, SizeOf(p.dtype)));
  }
  lanes = PanelLanes(p, lanes, plan.vector);
  while (lanes > kPanelFewestLanes && columns * lanes * kVectorBytes * p.inputs > most) lanes /= 2;
  const int slices = PanelSlices(p, lanes);
  const int fewest = PanelFewestSlices(lanes);
  return started(PanelThatFits(p, device, lanes, slices, fewest, 1, plan));
}

// Whether rows along another axis are faster side by side than in tiles.
constexpr bool PrefersPanel(const Problem& p, const Device& device) {
  const auto& [outer, columns, inner] = p.rows;
  const int64_t vectors = inner / VectorOf(p);
  const int bytes = SizeOf(p.dtype);
  if (inner % VectorOf(p) != 0) return false;
  const auto fills_panels = [&] {
    const Plan panel = PanelPlan(p, device, Plan{.vector = VectorOf(p)});
    return panel.refusal == nullptr && FillPanels(inner, panel.rows_per_block);
  };
  if (columns <= kPanelFew) {
    const bool many = columns * inner * bytes > PanelFewBytes(p.inputs);
    return columns >= kPanelFewest && many && fills_panels();
  }
  if (vectors < PanelVectors(columns)) return false;
  const bool few = vectors < kPanelVectors;
  const int conflicts = InterleavedConflicts(p.rows, bytes, InterleavedElements(p.rows, bytes));
  const bool fit = columns * inner * bytes * p.inputs <= (few ? kTileMostBytes : 2 * kTileBytes);
  if (!fit || conflicts > bytes * (few && p.inputs == 1 ? 2 : 1)) return true;
  if (few || p.inputs == 2) return !few;
  return fills_panels();
}

}  // namespace jax_softmax
