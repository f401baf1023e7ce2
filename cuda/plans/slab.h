// The geometry of strategy "slab", and when it is the fastest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "panel.h"
#include "tile.h"

namespace jax_softmax {

// Geometries of "slab": benchmarks/results/h200-slab-geometries.json.
inline constexpr int kSlabThreads = 256;  // at most
// Of a block on any device from sm_80 on. Before, where blocks have 64 KB, the extension is 0.1 MB
// smaller without the kernels.
inline constexpr int kSlabDeviceBytes = 96 * 1024;
constexpr int SlabResident(int inputs, int element_bytes) {
  return inputs > 1 && element_bytes == 2 ? 2 : 3;  // with three it would spill
}
// The longest period of which a warp merges its threads' statistics by shuffles.
inline constexpr int kSlabLanes = 16;
// Threads of a block by what it has of all inputs: fewer have less to tell each other. Of two
// periods, if it can be.
inline constexpr int kSlabFewThreads = 64, kSlabSomeThreads = 128, kSlabManyThreads = 192;
constexpr int SlabThreads(int64_t bytes, int64_t period, int inputs, int element_bytes) {
  if (bytes <= 20 * 1024) return kSlabFewThreads;
  if (bytes <= 45 * 1024) return kSlabSomeThreads;
  const bool two = period > kSlabManyThreads / 2;
  if (bytes > 76 * 1024 || two) return kSlabThreads;
  return inputs > 1 && element_bytes == 2 ? kSlabSomeThreads : kSlabManyThreads;
}
inline constexpr int kSlabMostResident = 3;
// Of a cluster: of 5 or 7 blocks, fewer are resident at a time.
inline constexpr std::array kSlabBlocks = {1, 2, 3, 4, 6, 8, 12, 16};
// No more of them than these where a slab fits these, if periods are longer, or if with more a
// multiprocessor has still no room for two.
inline constexpr int kSlabFewBlocks = 8, kSlabFewBlocksPeriod = 64;
// The least part of a slab that is worth a block, where few of them leave multiprocessors idle.
inline constexpr int64_t kSlabPartBytes = 8 * 1024;
// Slabs of more bytes than these, of all inputs, are faster than tiles: the more rows there are,
// the more statistics. Those of whole vectors, from so many columns on, and of one input from so
// many vectors (benchmarks/results/h200-slab-strategies.json).
constexpr int64_t SlabFewBytes(int64_t neighbours) { return 10 * 1024 + 200 * neighbours; }
inline constexpr int64_t kSlabColumns = 256, kSlabVectors = 512;
// Of more whole vectors side by side than panels have lanes at least, those of an odd number, from
// so many in all on: a panel's rows begin within sectors of the cache. Of two inputs fewer than
// this many, of one, of at most so many bytes, four times as many.
inline constexpr int64_t kSlabOddPlaces = 1024;
inline constexpr int64_t kSlabOddVectors = 8, kSlabOddBytes = 400 * 1024;

// How a block's threads share a slab.
struct SlabShape {
  int period;        // vectors after which elements are of the same rows again
  int step;          // threads that have any: whole periods
  int share;         // vectors of an input that a block has at most: whole periods
  bool in_warps;     // whether a warp's first lanes, so many as make a period, merge all of it
  int groups;        // of threads that each have a period then: warps, or as many as make one
  int log2_repeats;  // of a row in a period
  int log2_lanes;    // that merge what groups have of a row
};

constexpr SlabShape SlabShapeOf(const Rows& rows, int vector, int threads, int64_t blocks) {
  SlabShape shape = {};
  const int64_t inner = std::max<int64_t>(rows.inner, 1), period = PeriodOf(rows, vector);
  const int64_t periods = CeilDiv(PacksPerRow(rows.columns * inner, vector), period);
  shape.period = static_cast<int>(period);
  shape.step = static_cast<int>(std::max<int64_t>(threads / period, 1) * period);
  shape.share = static_cast<int>(CeilDiv(periods, blocks) * period);
  shape.in_warps = period <= kSlabLanes;
  shape.groups = shape.in_warps ? threads / kWarpLanes : shape.step / shape.period;
  while (inner << shape.log2_repeats < period * vector) ++shape.log2_repeats;
  // Each repeat of a row has a lane, or where many warps have a period, several.
  shape.log2_lanes = shape.log2_repeats;
  while (shape.in_warps && 1 << shape.log2_lanes < kWarpLanes &&
         inner << (shape.log2_lanes + 1) <= threads) {
    ++shape.log2_lanes;
  }
  return shape;
}

// A block with up to so many threads, or a cluster of them.
constexpr Plan SlabOf(const Problem& p, const Device& device, int threads, int64_t blocks,
                      Plan plan) {
  const int64_t inner = p.rows.inner;
  const SlabShape shape = SlabShapeOf(p.rows, plan.vector, threads, blocks);
  plan.threads = static_cast<int>(CeilDiv(shape.step, kWarpLanes) * kWarpLanes);
  plan.cluster_blocks = static_cast<int>(blocks);
  plan.lanes_per_row = static_cast<int>(plan.threads * blocks);
  plan.rows_per_block = std::max<int64_t>(inner, 1);
  plan.blocks = p.rows.outer * blocks;
  // A statistic of every element of the groups' periods, and two of every row.
  const int statistic =
      NeighbourStatistic(SizeOf(p.out_dtype), IsPerRow(p.op)) * ComputeBytes(p.dtype);
  const int64_t elements = int64_t{shape.groups} * shape.period * plan.vector;
  plan.scratch_bytes =
      static_cast<int>(CeilDiv((elements + 2 * inner) * statistic, kVectorBytes) * kVectorBytes);
  const int64_t share = int64_t{shape.share} * kVectorBytes * p.inputs;
  const int64_t exchanged = blocks > 1 ? inner * kNeighbourValues * ComputeBytes(p.dtype) : 0;
  const int64_t shared = plan.scratch_bytes + share + exchanged;
  if (shared + kStaticSharedBytes > device.shared_per_block) {
    return Refuse(plan, "the neighbouring rows do not fit a cluster");
  }
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many slabs");
  plan.shared_bytes = static_cast<int>(shared);
  return plan;
}

constexpr Plan SlabPlan(const Problem& p, const Device& device, Plan plan) {
  if (!p.IsUnconverted32() || IsPerRow(p.op)) {
    return Refuse(plan, "it takes elements of at most 32 bits, and gives as many");
  }
  if (device.shared_per_block < kSlabDeviceBytes) {
    return Refuse(plan, "its kernels are for devices whose blocks have 96 KB of memory");
  }
  const int64_t period = PeriodOf(p.rows, plan.vector);
  if (p.rows.inner > kMaxGrid / kVectorBytes || period > kSlabThreads) {
    return Refuse(plan, "vectors and rows meet in too many ways");
  }
  const int64_t slab = std::max<int64_t>(p.rows.columns, 1) * p.rows.inner;
  const int64_t bytes = slab * SizeOf(p.dtype) * p.inputs;
  Plan best = Refuse(plan, "the neighbouring rows do not fit a cluster");
  if (bytes > int64_t{device.shared_per_block} * device.cluster_blocks) return best;
  const auto resident = [&](const Plan& of) {
    const int most =
        of.threads > kSlabManyThreads ? SlabResident(p.inputs, SizeOf(p.dtype)) : kSlabMostResident;
    return std::min(most, RoomFor(of, device));
  };
  const int wide = period > kSlabFewBlocksPeriod ? kSlabFewBlocks : device.cluster_blocks;
  // The plan of which the most is in a multiprocessor's memory at a time.
  int64_t most = 0;
  for (int blocks : kSlabBlocks) {
    const int64_t part = bytes / blocks;
    if (blocks > device.cluster_blocks || part * kSlabMostResident < most) break;
    // Twice as many would leave as many multiprocessors idle.
    const bool idles = 2 * blocks <= wide && part >= 2 * kSlabPartBytes &&
                       4 * blocks * p.rows.outer <= device.multiprocessors;
    if (part > device.shared_per_block || (!p.batch_invariant && idles)) continue;
    const int threads = SlabThreads(part, period, p.inputs, SizeOf(p.dtype));
    Plan one = SlabOf(p, device, threads, blocks, plan);
    // Fewer threads have fewer statistics, which may leave room for a block more.
    const bool crowded = one.refusal != nullptr || resident(one) < kSlabMostResident;
    if (threads > kSlabSomeThreads && crowded) {
      const int fewer = threads == kSlabThreads ? kSlabManyThreads : kSlabSomeThreads;
      const Plan narrow = SlabOf(p, device, fewer, blocks, plan);
      const bool fits = narrow.refusal == nullptr;
      if (fits && (one.refusal != nullptr || resident(narrow) > resident(one))) one = narrow;
    }
    if (one.refusal != nullptr) continue;
    const bool alone = resident(one) == 1;
    const bool fewer_do = best.refusal == nullptr && best.cluster_blocks <= kSlabFewBlocks;
    if (blocks > kSlabFewBlocks && fewer_do && (alone || period > kSlabFewBlocksPeriod)) continue;
    // Of blocks that have a multiprocessor each, the smallest.
    const int64_t score = alone ? 0 : part * resident(one);
    if (score * 50 < most * 51) continue;
    most = score;
    best = one;
  }
  if (best.refusal == nullptr || p.batch_invariant) return best;
  // With more blocks than would do, it does not fit.
  Problem of_any_number = p;
  of_any_number.batch_invariant = true;
  return SlabPlan(of_any_number, device, plan);
}

// Whether slabs have room for rows along another axis, and clusters of them are fast.
constexpr bool FitsSlab(const Problem& p, const Device& device) {
  if (!HasFullVectors(p)) return false;
  const Plan slab = SlabPlan(p, device, Plan{.vector = VectorOf(p)});
  if (slab.refusal != nullptr) return false;
  return slab.cluster_blocks <= kSlabFewBlocks ||
         PeriodOf(p.rows, slab.vector) <= kSlabFewBlocksPeriod;
}

// Whether they are faster in slabs than in tiles, or than in panels that they do not fill.
constexpr bool PrefersSlab(const Problem& p) {
  const auto& [outer, columns, inner] = p.rows;
  const int64_t bytes = columns * inner * SizeOf(p.dtype) * p.inputs;
  if (inner % VectorOf(p) != 0) {
    return columns > kTileInterleavedColumns || bytes > SlabFewBytes(inner);
  }
  const int64_t vectors = inner / VectorOf(p);
  if (vectors < kPanelFewestLanes) {
    return columns > kSlabColumns && columns * vectors * p.inputs > kSlabVectors;
  }
  const bool more = p.inputs == 1 && vectors < 4 * kSlabOddVectors && bytes <= kSlabOddBytes;
  const bool is_odd = vectors % 2 == 1 && (vectors < kSlabOddVectors || more);
  return is_odd && columns * vectors > kSlabOddPlaces;
}

}  // namespace jax_softmax
