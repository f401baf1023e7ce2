// The geometry of strategy "ring", and when it is the fastest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../geometry.h"
#include "block.h"

namespace jax_softmax {

// A block of "ring" has four warps of their own, then teams that take places by turns: those that
// reduce what is there and those that write the results. With 6 that reduce in place of 7,
// log-softmax of 65,536 float32 columns ran at 0.97 of the copy limit instead of 0.99, of 50,257 at
// 0.94 instead of 0.96; with 8 and 4 float32 is as fast, bf16 of 65,536 columns at 0.97 instead of
// 0.98 (benchmarks/results/h200-ring-odd.json).
inline constexpr int kRingAlone = 4, kRingTeams = 2, kRingReducers = 7, kRingWriters = 6;
inline constexpr int kRingThreads =
    kWarpLanes * (kRingAlone + kRingTeams * (kRingReducers + kRingWriters));
inline constexpr int kRingPacks = 8;           // that a thread reduces at a time, over all inputs
inline constexpr int kRingCopies = 3;          // under way
inline constexpr int kRingPlacesBytes = 4096;  // for what is known of places
// As many parts as have room at a time, and the most of one, of all inputs: what that many have
// room for in the shared memory of compute capability 9.0, and of one input in 16 bits and whole
// vectors what 6 warps' registers hold. Softmax of 262,144 bf16 columns in 22 parts of 23 KB ran at
// 0.97 of the copy limit, in 19 of 27 KB at 0.96, in 16 of 32 KB at 0.93 (there is room for six);
// of 32,768 float32 columns in 5 of 26 KB at 0.97, in 6 of 21 KB at 0.94, in 4 of 32 KB at 0.95
// (benchmarks/results/h200-ring.json). Results of more parts cost more to read: 524,288 float32
// columns ran at 0.89 in 74 usual parts and at 0.95 in 56 long ones
// (benchmarks/results/h200-ring-long.json). Rows that are no whole vectors are faster in fewer
// parts: 50,257 bf16 columns ran at 0.92 in 5 narrow ones, at 0.94 in 4 usual ones, 65,537 at 0.93
// in 6 and at 0.94 in 5 (benchmarks/results/h200-ring-parts.json); of these, the 99 KB of compute
// capability 12.0 have room for three, too few for a ring. Of 26 KB in place of 24, bf16 rows of
// whole vectors ran as fast within 0.006, but 100,000 columns at 0.95 instead of 0.94, and 64 rows
// of 128,256 took 12.8 us instead of 12.2 (the same file); of 22 KB, in 12 parts in place of 11,
// the same 12.8 (benchmarks/results/h200-ring-narrow.json).
struct RingSize {
  int places;
  int64_t bytes;
};
inline constexpr int kRingPlaces = 8, kRingFewestPlaces = 4;
inline constexpr RingSize kRingNarrow = {kRingPlaces, 24 * 1024}, kRingUsual = {kRingPlaces, 28416},
                          kRingLong = {6, 37888};
// The most parts of these sizes. Of one input in 16 bits more usual ones do: log-softmax of a
// million columns ran at 0.98 in 74, at 0.96 in 56 long ones (h200-ring-long.json).
inline constexpr int64_t kRingParts = 48, kRingUsualPartsForNarrow = 80;
// One warp waits for rows' results, a part's after the other's, so that all places are filled and
// copies follow writes: with two, softmax of 65,536 float32 columns ran at 0.92 instead of 0.98
// (benchmarks/results/h200-ring-paces.json). Of more than so many long parts one takes too much
// time: the tangent of a million float32 columns ran at 0.94 in 222 parts, and with two warps at
// 0.96 in 296 usual ones (benchmarks/results/h200-ring-long.json).
inline constexpr int64_t kRingLongParts = 128;
// Rows that are no whole vectors and fill parts so far are as fast by "ring" as by "block" or
// faster, from three parts on: softmax of 21,001 float32 columns ran at 0.94 and 0.92 of the copy
// limit, of 21,301, in one part more, at 0.86 and 0.92, the tangent of 14,001 at 1.00 and 0.97
// (benchmarks/results/h200-ring-parts.json).
inline constexpr int64_t kRingFullBytes = 26 * 1024;
// The queue, and what is told of a part.
inline constexpr int kRingQueueBytes = kVectorBytes;
constexpr int RingNoteBytes(int compute_bytes) { return 4 * compute_bytes; }

// How rows are shared out, as a kernel of "ring" takes it.
struct RingShape {
  int parts;    // of a row
  int places;   // of a block
  int packs;    // vectors of an input that a place has room for: whole lines
  int closers;  // warps that wait for rows' results
};

constexpr RingShape RingShapeOf(const Problem& p) {
  const int64_t packs = PacksPerRow(p) + (IsMasked(p) ? kLinePacks - 1 : 0);
  const auto parts_of = [&](const RingSize& size) {
    const int64_t most = size.bytes / (kVectorBytes * p.inputs * kLinePacks) * kLinePacks;
    return CeilDiv(packs, most);
  };
  const auto fits = [&](const RingSize& size, int64_t most) { return parts_of(size) <= most; };
  const bool narrow = p.inputs == 1 && SizeOf(p.dtype) == 2;
  const bool is_usual = fits(kRingUsual, narrow ? kRingUsualPartsForNarrow : kRingParts);
  const bool is_long = !is_usual && fits(kRingLong, kRingLongParts);
  RingSize size = is_long ? kRingLong : kRingUsual;
  if (narrow && !IsMasked(p) && fits(kRingNarrow, kRingParts)) size = kRingNarrow;
  const int64_t parts = parts_of(size);
  return {.parts = static_cast<int>(parts),
          .places = size.places,
          .packs = static_cast<int>(CeilDiv(packs, parts * kLinePacks) * kLinePacks),
          .closers = is_usual || is_long ? 1 : 2};
}

// Of the workspace, but for the queue.
constexpr int64_t RingNotesBytes(const Problem& p) {
  return int64_t{RingShapeOf(p).parts} * RingNoteBytes(ComputeBytes(p.dtype));
}

constexpr Plan RingPlan(const Problem& p, const Device& device, Plan plan) {
  if (device.cluster_blocks < 2) return Refuse(plan, "the device has no copies by the block");
  if (IsPerRow(p.op)) return Refuse(plan, "a value for each row needs no row kept");
  if (p.rows.columns > kMaxGrid - kVectorBytes) return Refuse(plan, "the row is too long");
  const RingShape shape = RingShapeOf(p);
  const int64_t bytes = int64_t{shape.packs} * kVectorBytes * p.inputs;
  const int64_t room = device.shared_per_block - kStaticSharedBytes - kRingPlacesBytes;
  plan.places =
      static_cast<int>(std::min<int64_t>(room / bytes, shape.places)) / kRingTeams * kRingTeams;
  if (plan.places < kRingFewestPlaces) {
    return Refuse(plan, "the device has too little shared memory");
  }
  // Half of the blocks must do: others may have to wait for what else runs on the device.
  if (int64_t{shape.parts} * 2 > int64_t{device.multiprocessors} * plan.places) {
    return Refuse(plan, "the row is too long");
  }
  if (p.workspace_bytes < kRingQueueBytes + p.rows.Count() * RingNotesBytes(p)) {
    return Refuse(plan, "it needs a workspace");
  }
  plan.shared_bytes = static_cast<int>(kRingPlacesBytes + plan.places * bytes);
  plan.threads = kRingThreads;
  plan.lanes_per_row = shape.parts * kRingReducers * kWarpLanes;
  plan.rows_per_block = 1;
  plan.blocks =
      std::clamp<int64_t>(p.rows.Count() * shape.parts, 1, int64_t{device.multiprocessors});
  plan.together = shape.parts > device.multiprocessors;  // a few blocks do for other rows
  return plan;
}

// Whether rows are better shared out over all blocks, where there are copies by the block.
constexpr bool PrefersRing(const Problem& p) {
  if (p.rows.inner != 1 || TakesTerms(p.op) || IsPerRow(p.op)) return false;
  const int64_t most = BlockRowBytes(p.inputs, SizeOf(p.dtype), SizeOf(p.out_dtype), IsMasked(p));
  if (RowBytes(p) > most) return true;
  const int parts = RingShapeOf(p).parts;
  const bool fills = parts >= 3 && RowBytes(p) >= parts * kRingFullBytes;
  return fills && IsMasked(p) && SizeOf(p.dtype) < 8;
}

}  // namespace jax_softmax
