// The geometry of strategy "tile", and when it is the fastest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "../geometry.h"
#include "registers.h"
#include "warp.h"

namespace jax_softmax {

// The most tenths of its threads' places for vectors that a row of one input uses where "tile" is
// faster: of a warp, and where "registers" would take it or elements have 16 bits. Softmax of 160,
// 192 and 320 bf16 columns ran at 0.86, 0.90 and 0.79 of the copy limit by "warp" and at 0.96, 0.94
// and 0.97 by "tile" (benchmarks/results/h200-short.json), log-softmax of 577 and 640 at 0.70 and
// 0.84 by "registers" and at 0.96 and 0.97 by "tile" (h200-tile.json).
inline constexpr int kWarpFull = 8, kFull = 9, kFullest = 10;
// The same of a warp's rows with terms: softmax of 72, 160 and 320 bf16 columns with a mask per key
// ran at 0.51, 0.55 and 0.53 of the copy limit by "warp" and at 0.70, 0.73 and 0.73 by "tile", in
// float32 at 0.67, 0.71 and 0.69, and 0.90, 0.84 and 0.85, but with a mask per element at 0.75,
// 0.78 and 0.76, and 0.76, 0.71 and 0.66 (h200-odd-masks.json).
inline constexpr int kTermsFull = 7;

inline constexpr int kTileThreads = 128;
inline constexpr int kTileBytes = 16 * 1024;   // of inputs; of each where these are few rows
inline constexpr int kTilesResident = 4;       // on a multiprocessor, of rows that are few
inline constexpr int kTileElements = 16;       // of a lane, before a row gets twice as many
inline constexpr int kTileShareElements = 20;  // but rather so many than half of them
// A lane's places are multiples of this, so that few of them stay empty.
constexpr int TileStep(int elements) { return elements > 44 ? 8 : 4; }
// The most of a row with terms, which the fewest lanes share that have room for it, but two. With
// 13 elements in place of 25 more lanes ask what terms there are for the row, with 37 a warp's
// lanes read masks of many rows: of 49 bf16 columns softmax with a mask and a bias ran at 0.48 of
// the copy limit by 13 and at 0.60 by 25, of 577 at 0.57 by 19 and at 0.46 by 37 (H200, 2026-11).
inline constexpr int kTileTermsElements = 28;
// The fewest elements that a lane of several may have, of so many places.
constexpr int TileFewest(bool terms, int places) {
  const bool first = terms && places == kTileElements;
  return first ? kTileTermsElements / 2 : places - TileStep(places);
}
// The most elements of a row with a whole warp. Beyond, others are as fast, of two inputs in 32
// bits from there on; of logsumexp "tile" is the fastest as far as it goes: benchmarks/results/
// h200-tile.json. With terms, "registers" is as fast from 640 float32 columns on, and has not been
// timed beside more than 28 in 16 bits.
constexpr int TileElements(bool terms, bool per_row, int inputs, int element_bytes, bool in_pairs,
                           bool converts) {
  if (converts) return 32;  // more would be 0.1 MB for five architectures
  if (terms) return element_bytes == 2 ? kTileTermsElements : kTileShareElements;
  if (in_pairs) return 32;  // twice the code of other sums: more would be 0.3 MB
  if (per_row) return 64;
  if (inputs == 1) return 44;
  return element_bytes == 2 ? 32 : kTileElements;
}
// Rows of logsumexp that a warp takes if they fill it: "tile" is faster with longer ones.
inline constexpr int kTilePerRowColumns = 128;
inline constexpr int kTileInterleavedColumns = 1024;
// Of interleaved rows that a lane holds where kTileElements would be too many, and the most lanes.
inline constexpr int kTileFewElements = 8, kTileFewLanes = 8;
inline constexpr int kTileMostBytes = 64 * 1024;

// The most words that fall into one bank of shared memory where the groups of a warp access
// elements that begin where `first` says for each, `lanes` of them `step` elements apart: how often
// that is repeated.
template <typename First>
constexpr int BankConflicts(int groups, First first, int lanes, int64_t step, int element_bytes) {
  constexpr int kBanks = 32, kWordBytes = 4;
  std::array<std::array<int64_t, kWarpLanes>, kBanks> words{};
  std::array<int, kBanks> counts{};
  for (int group = 0; group < groups; ++group) {
    for (int lane = 0; lane < lanes; ++lane) {
      const int64_t word = (first(group) + lane * step) * element_bytes / kWordBytes;
      auto& in_bank = words[word % kBanks];
      int& count = counts[word % kBanks];
      if (std::find(in_bank.begin(), in_bank.begin() + count, word) == in_bank.begin() + count) {
        in_bank[count++] = word;
      }
    }
  }
  return *std::max_element(counts.begin(), counts.end());
}

constexpr int InterleavedConflicts(const Rows& rows, int element_bytes, int elements) {
  const int lanes = static_cast<int>(
      std::min<int64_t>(PowerOfTwoFrom(CeilDiv(rows.columns, elements)), kWarpLanes));
  const auto first = [&](int row) {
    return row / rows.inner * rows.columns * rows.inner + row % rows.inner;
  };
  return BankConflicts(kWarpLanes / lanes, first, lanes, rows.inner, element_bytes);
}

// The elements of an interleaved row that a lane of a tile holds: more mean fewer lanes, whose
// exchanges cost time, but more rows side by side, whose elements may fall into the same banks.
constexpr int InterleavedElements(const Rows& rows, int element_bytes) {
  if (rows.columns <= kTileFewElements) return kTileFewElements;
  if (rows.columns > kTileElements * kWarpLanes) return 2 * kTileElements;
  const auto conflicts = [&](int elements) {
    return InterleavedConflicts(rows, element_bytes, elements);
  };
  const int many = conflicts(kTileElements);
  const bool fewer = many > 2 && rows.columns <= kTileFewElements * kTileFewLanes &&
                     conflicts(kTileFewElements) < many;
  return fewer ? kTileFewElements : kTileElements;
}

constexpr int TileElements(const Problem& p) {
  return TileElements(TakesTerms(p.op), IsPerRow(p.op), p.inputs, SizeOf(p.dtype), p.in_pairs,
                      p.dtype != p.out_dtype);
}

// Whether "tile" has kernels for these types: what is converted has results in places of their own,
// along the last axis, but for rows' own values. With kernels for float16, too, five architectures
// would be over 40 MB.
constexpr bool HasTiles(const Problem& p) {
  if (p.dtype == p.out_dtype) return p.dtype != DataType::kF64;
  if (p.in_pairs) return p.rows.inner == 1;
  const bool half = p.dtype == DataType::kF16 || p.out_dtype == DataType::kF16;
  return !half && p.inputs == 1 && p.rows.inner == 1 && !TakesTerms(p.op) && !IsPerRow(p.op);
}

constexpr Plan TilePlan(const Problem& p, const Device& device, Plan plan) {
  const bool interleaved = p.rows.inner > 1;
  const int64_t columns = std::max<int64_t>(p.rows.columns, 1);
  if (!HasTiles(p)) {
    return Refuse(plan, "it takes elements of at most 32 bits, and converts few");
  }
  const bool converts = p.dtype != p.out_dtype && !IsPerRow(p.op);
  const int narrower = std::min(SizeOf(p.dtype), SizeOf(p.out_dtype));
  if (interleaved && TakesTerms(p.op)) {
    return Refuse(plan, "it takes masks and other terms along the last axis alone");
  }
  if (columns > (interleaved ? kTileInterleavedColumns : kWarpLanes * TileElements(p))) {
    return Refuse(plan, "the row does not fit a few lanes' registers");
  }
  if (interleaved) {
    plan.count_per_lane = InterleavedElements(p.rows, SizeOf(p.dtype));
    plan.lanes_per_row = static_cast<int>(PowerOfTwoFrom(CeilDiv(columns, plan.count_per_lane)));
  } else {
    // 11 to 20, or all of them if there are no more, or what a whole warp has to. With 9 or 10
    // where these take 17 to 20, log-softmax of 33, 65, 129 and 257 bf16 columns ran at 0.92, 0.86,
    // 0.86 and 0.89 of the copy limit instead of 0.97, 0.97, 0.92 and 0.95, and logsumexp at 0.66,
    // 0.61, 0.58 and 0.62 instead of 0.80, 0.80, 0.77 and 0.75
    // (benchmarks/results/h200-lanes.json).
    const bool terms = TakesTerms(p.op);
    const int most = terms ? kTileTermsElements : kTileElements;
    int lanes =
        static_cast<int>(std::min<int64_t>(PowerOfTwoFrom(CeilDiv(columns, most)), kWarpLanes));
    if (!terms && lanes > 1 && columns * 2 <= lanes * kTileShareElements) lanes /= 2;
    if (terms && lanes == 1) return Refuse(plan, "a row with terms is too short for two lanes");
    plan.lanes_per_row = lanes;
    const int held = static_cast<int>(CeilDiv(columns, lanes));
    const int step = TileStep(held);
    plan.count_per_lane = held == 9 || held == 10 ? 10 : (held + step - 1) / step * step;
    // Of 16 bits, rows of 21, 33, 65 and 127 columns that are neighbours ran at 0.84, 0.84, 0.65
    // and 0.70 of the copy limit, and at 0.94, 0.91, 0.85 and 0.93 where a warp's are apart (H200,
    // 2026-11). Two words in a bank cost nothing, nor do more of 32 bits.
    constexpr int kWarps = kTileThreads / kWarpLanes;
    const auto conflicts = [&](int apart) {
      const auto first = [&](int row) { return row * apart * columns; };
      return BankConflicts(kWarpLanes / lanes, first, lanes, 1, narrower);
    };
    if (narrower == 2 && conflicts(1) > 2 && conflicts(kWarps) < conflicts(1)) {
      plan.rows_apart = kWarps;
    }
  }
  // As many panels as make whole vectors, and about kTileBytes.
  const int64_t inner = std::max<int64_t>(p.rows.inner, 1);
  const int64_t panel = columns * inner;
  int64_t unit = 1;
  while (unit * panel % (kVectorBytes / narrower) != 0) unit *= 2;
  const int places_bytes = SizeOf(p.dtype) * p.inputs + (converts ? SizeOf(p.out_dtype) : 0);
  const int64_t unit_bytes = unit * panel * places_bytes;
  // Fewer where they are few: as many as a block takes at a time, for each multiprocessor, or whole
  // rounds of these that give each kTilesResident blocks. With one block each, softmax of 7,317
  // rows of 116 bf16 columns took 3.7 us and takes 2.4, of 160,000 of 5 columns 4.2 and 2.4
  // (benchmarks/results/h200-small.json).
  const int64_t at_a_time = kTileThreads / plan.lanes_per_row;
  const int64_t round_units = std::max<int64_t>(at_a_time / (unit * inner), 1);
  const auto share_of = [&](int64_t blocks) { return CeilDiv(p.rows.outer, unit * blocks); };
  const int64_t share = share_of(device.multiprocessors);
  const int64_t rounds_share =
      share_of(int64_t{device.multiprocessors} * kTilesResident) / round_units * round_units;
  const int64_t fill = std::max(std::min(share, round_units), rounds_share);
  const auto panels_of = [&](int64_t bytes) {
    return unit * std::clamp<int64_t>(bytes / unit_bytes, 1, std::max<int64_t>(fill, 1));
  };
  int64_t panels = panels_of(kTileBytes);
  if (interleaved) {
    // More, where the last of the block's rounds would leave an eighth of them all to nothing: of
    // 64 columns and 33 bf16 neighbours, softmax's tangent ran at 0.75 of the copy limit, and so at
    // 0.95 (H200, 2026-11).
    const int64_t rounds = CeilDiv(panels * inner, at_a_time);
    const bool few = rounds == 1 || panels * inner * 8 < rounds * at_a_time * 7;
    if (few) panels = panels_of(p.inputs * kTileBytes);
  } else {
    // As many as the block takes at a time, if there are: with two rows for four warps, the tangent
    // of 704 float32 columns ran at 0.92 of the copy limit, with four at 1.02 (H200, 2026-11).
    if (plan.count_per_lane > kTileElements) panels = panels_of(p.inputs * kTileBytes);
    const int64_t round = std::max<int64_t>(unit, at_a_time);
    if (fill * unit >= round) panels = std::max(round, (panels + round / 2) / round * round);
  }
  const int64_t shared = panels * panel * places_bytes;
  if (shared > std::min(kTileMostBytes, device.shared_per_block - kStaticSharedBytes)) {
    return Refuse(plan, "as many rows as make whole vectors do not fit a tile");
  }
  plan.shared_bytes = static_cast<int>(shared);
  plan.threads = kTileThreads;
  plan.rows_per_block = panels * inner;
  return plan;
}

// Whether it is "tile" that is fastest: for rows that are no whole vectors, or that would leave too
// much of a warp or block idle. Of two inputs, the others' short rows are at the limit all the
// same.
constexpr bool PrefersTile(const Problem& p) {
  const int64_t columns = p.rows.columns, longest = int64_t{kWarpLanes} * TileElements(p);
  if (!HasTiles(p) || columns > longest) return false;
  const bool is_short = columns <= kRegistersColumns;
  if (p.in_pairs && SizeOf(p.dtype) == 2) return IsMasked(p);
  if (is_short && IsMasked(p)) return true;
  // What lanes exchange costs most: log-softmax of 1,024 bf16 columns to float32 ran at 0.84 of the
  // copy limit by "registers" and at 0.91 by "tile".
  if (p.Widens() && !FinishesFromTerms(p.op) && !is_short) return true;
  if (TakesTerms(p.op) && !is_short) return IsMasked(p);
  if (IsPerRow(p.op) && columns > kTilePerRowColumns) return true;
  if (p.inputs == 2) return !is_short && columns < longest;
  const bool is_narrow = SizeOf(p.dtype) == 2;
  const Plan blank{.vector = VectorOf(p)};
  const Plan other = is_short ? WarpPlan(p, blank) : RegistersPlan(p, blank);
  const bool one_warp = other.threads == kWarpLanes && is_narrow;  // few bytes for a block
  const int64_t places = int64_t{other.lanes_per_row} * other.count_per_lane;
  const bool wide = !is_narrow && p.dtype == p.out_dtype;
  const int full = TakesTerms(p.op) ? kTermsFull : is_short && wide ? kWarpFull : kFull;
  return one_warp || PacksPerRow(p) * kFullest <= places * full;
}

}  // namespace jax_softmax
