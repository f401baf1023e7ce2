// Which strategy runs a problem, and with which geometry: a value chosen by a pure function.
//
// No CUDA and no XLA here: the plan is the same on a machine without a GPU, where it is tested.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include "common.h"
#include "registers.h"
#include "types.h"

namespace jax_softmax {

// ---- The problem ------------------------------------------------------------------------------

// An operand as [outer, columns, inner]: a row is `columns` elements `inner` apart.
struct Rows {
  int64_t outer = 1;
  int64_t columns = 1;
  int64_t inner = 1;

  constexpr int64_t Count() const { return outer * inner; }
  constexpr int64_t Elements() const { return outer * columns * inner; }
  constexpr bool operator==(const Rows&) const = default;
};

// `dims` are the operand's logical dimensions, of which `logical_axis` is the softmax axis; in
// memory the other dimensions keep their order and the softmax axis lies at position `axis`.
constexpr Rows RowsOf(std::span<const int64_t> dims, int64_t logical_axis, int64_t axis) {
  Rows rows;
  int64_t position = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(dims.size()); ++d) {
    if (d == logical_axis) {
      rows.columns = dims[d];
    } else {
      (position++ < axis ? rows.outer : rows.inner) *= dims[d];
    }
  }
  return rows;
}

struct Problem {
  OpKind op;
  int inputs;
  DataType dtype;      // of the inputs
  DataType out_dtype;  // of the result; the two are one of kTypePairs
  Rows rows;
  int alignment;  // bytes that every operand's address is a multiple of, up to kVectorBytes
  // Whether a row's plan must be the same among any number of other rows.
  bool batch_invariant;
  int64_t workspace_bytes = 0;  // of WorkspaceBytes
  bool masks_alone = false;     // of an op that takes terms: there are no others
  bool masks_only = false;      // the same, but maybe a scale
  bool bias_alone = false;      // Terms::AreBiasAlone, and nothing is converted
  bool in_pairs = false;        // of logsumexp: what softmax or log-softmax of rows is made of

  constexpr TypePair Types() const { return {dtype, out_dtype}; }
  // Elements of at most 32 bits, and results of their type: all that some kernels are built for.
  constexpr bool IsUnconverted32() const { return dtype == out_dtype && dtype != DataType::kF64; }
  // Whether one input's rows become rows of wider elements.
  constexpr bool Widens() const {
    return inputs == 1 && !IsPerRow(op) && SizeOf(out_dtype) > SizeOf(dtype);
  }
  constexpr int64_t Results() const { return IsPerRow(op) ? rows.Count() : rows.Elements(); }
  // Every operand once.
  constexpr int64_t BytesMoved() const {
    return rows.Elements() * inputs * SizeOf(dtype) + Results() * SizeOf(out_dtype);
  }
};

// ---- The device -------------------------------------------------------------------------------

struct Device {
  int multiprocessors;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int registers_per_multiprocessor;
  int shared_per_multiprocessor;
  int shared_per_block;  // the most a kernel may opt into
  int shared_reserved;   // taken by the system from every resident block
  int cluster_blocks;    // the most of a cluster; 1 where there are no clusters
};

inline constexpr int kWarpLanes = 32;
inline constexpr int64_t kMaxGrid = 2147483647;
inline constexpr int kVectorBytes = 16;  // the widest access of a thread

struct KnownDevice {
  std::string_view name;
  Device device;
};
// From the CUDA programming guide's table of technical specifications.
inline constexpr std::array kKnownDevices = {
    KnownDevice{"H200", {132, 2048, 32, 65536, 233472, 232448, 1024, 16}},
    KnownDevice{"RTX 5090", {170, 1536, 24, 65536, 102400, 101376, 1024, 8}},
    KnownDevice{"A100", {108, 2048, 32, 65536, 167936, 166912, 1024, 1}},
    KnownDevice{"GTX 1080", {20, 2048, 32, 65536, 98304, 49152, 0, 1}},
};

// Blocks of a kernel that fit on a multiprocessor at a time: what CUDA's occupancy API answers.
constexpr int ResidentBlocks(const Device& device, int threads, int registers, int shared_bytes) {
  constexpr int kRegisterUnit = 256;  // registers are handed out to a warp in units
  constexpr int kSharedUnit = 128;    // bytes
  constexpr int kSubPartitions = 4;   // each with its share of the registers
  const int warps = (threads + kWarpLanes - 1) / kWarpLanes;
  const int per_warp = (registers * kWarpLanes + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit;
  const int resident_warps =
      device.registers_per_multiprocessor / kSubPartitions / per_warp * kSubPartitions;
  const int shared =
      (shared_bytes + device.shared_reserved + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  int blocks =
      std::min({device.blocks_per_multiprocessor,
                device.threads_per_multiprocessor / (warps * kWarpLanes), resident_warps / warps});
  if (shared > 0) blocks = std::min(blocks, device.shared_per_multiprocessor / shared);
  return blocks;
}

// The enumerator at the position of `name` among `names`.
template <typename Enum, size_t kCount>
constexpr std::optional<Enum> Named(const std::array<std::string_view, kCount>& names,
                                    std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

// ---- The plan ---------------------------------------------------------------------------------

enum class Strategy {
  kAuto,
  kWarp,
  kRegisters,
  kTile,
  kBlock,
  kRing,
  kCluster,
  kSplit,
  kStream,
  kPanel,
  kSlab,
  kStrided
};
inline constexpr std::array<std::string_view, 12> kStrategyNames = {
    "auto",    "warp",  "registers", "tile",  "block", "ring",
    "cluster", "split", "stream",    "panel", "slab",  "strided"};

constexpr std::optional<Strategy> StrategyNamed(std::string_view name) {
  return Named<Strategy>(kStrategyNames, name);
}

// When a kernel's first blocks start: so many at a time, so many times, and how many cycles of the
// clock apart.
struct Turns {
  int blocks = 1;
  int count = 1;
  int cycles = 0;

  constexpr bool operator==(const Turns&) const = default;
};

struct Plan {
  Strategy strategy = Strategy::kAuto;
  int threads = 0;             // per block
  int64_t blocks = 0;          // in the grid
  int cluster_blocks = 1;      // that share a row
  int abreast = 1;             // blocks that start together, what they read being side by side
  Turns turns = {};            // of the first blocks (panel)
  int lanes_per_row = 0;       // threads that share a row
  bool overlaps = false;       // its second kernel may start before the first ends (split)
  bool stays = false;          // clusters take one row after another: no more than are resident
  bool queues = false;         // rows go to the next block or cluster that is free
  bool together = false;       // all blocks start at once or none (ring)
  int places = 0;              // for parts of rows, of a block (ring)
  int64_t rows_per_block = 0;  // at a time; in a cluster, the blocks' together
  int rows_apart = 1;          // of those that a warp takes side by side (tile)
  int vector = 1;              // elements per access
  int count_per_lane = 0;      // vectors of a row that a thread keeps in registers; tile: elements;
                               // strided: columns
  int scratch_bytes = 0;       // of the shared memory, for reductions (panel, stream)
  int shared_bytes = 0;        // dynamic shared memory per block
  int shared_limit = 0;        // the most that the device allows it
  int64_t bytes_moved = 0;
  const char* refusal = nullptr;  // why the requested strategy cannot run this problem

  constexpr bool operator==(const Plan&) const = default;
};

// Where no other source is named, constants are from sweeps over strategies and geometries on an
// H200 (2026-11): benchmarks/results/h200-strategies.json, and by hand where geometries compete.
// benchmarks/sweep.py compares strategies on the device present.

// A lane keeps at most this much of an input's row in registers, in the compute type: with twice as
// much, bf16 backward at 1024 columns fell from 1.02 to 0.82 of the copy limit (H200, 2026-11).
inline constexpr int kMaxRowBytesPerLane = 64;
// Lanes take this many elements each before a row gets more lanes: more loads in flight and fewer
// steps of the butterfly.
inline constexpr int kElementsPerLane = 16;
// The longest whole rows of softmax of float32 of which lanes take half as many: 128 and 256
// columns ran at 0.965 and 0.97 of the copy limit with four vectors a lane and at 0.99 with two and
// half the registers. (Log-softmax of 128 at 0.97 and 0.965.)
inline constexpr int kTwoPacksColumns = 256;
inline constexpr int kMaxPacksPerLane = 8;
inline constexpr int kWarpThreads = 128;
// With masks and no other terms, 16-bit rows of so many columns or more have 32 elements a lane:
// with 16, log-softmax of 256 and 512 columns with a mask per key ran at 0.69 and 0.67 of the copy
// limit, and so at 0.82 and 0.81, softmax of 512, causal, at 0.72 and 0.86, of 128 at 0.75 and 0.71
// (benchmarks/results/h200-registers.json).
constexpr int WarpManyColumns(bool finishes_from_terms) { return finishes_from_terms ? 256 : 128; }
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
// Lanes with few vectors of a row take as many rows as makes these.
inline constexpr int kWarpPacks = 2;
// Threads of a multiprocessor that the compiler must leave room for where a lane holds at most
// kMaxRowBytesPerLane, and where it holds more. Left to itself it takes up to 158 registers in fp32
// and 640 threads' fewer loads in flight: softmax forward at 1024 fp32 columns ran at 0.87 of the
// copy limit (H200, 2026-11). With more threads than these it spills (ptxas 13.0, sm_90).
inline constexpr int kResidentThreads = 1024;
inline constexpr int kResidentLongThreads = 640;
// Of 16-bit rows and results: log-softmax of 512 and 2048 bf16 columns ran at 0.94 and 0.93 of the
// copy limit with 48 registers, and at 0.97 with the 40 that these leave (H200, 2026-11). Of blocks
// of 512 threads any fewer would be two.
inline constexpr int kResidentNarrowThreads = 1536;
// With masks and no other terms: causal rows of 1024 fp32 columns took 3 % longer without, and of
// 256 columns by "warp" a mask per key ran at 0.96 of the copy limit and at 1.00 with these, in 16
// bits at 0.86 and with the 40 registers of the line above at 0.89
// (benchmarks/results/h200-registers.json).
inline constexpr int kResidentMaskedThreads = 1280;

// The shortest rows of "registers". Only for ops of one input: two are at the limit from shared
// memory.
inline constexpr int kRegistersColumns = 512;
// The longest whose results are wider. Of 8,192 bf16 columns softmax to float32 ran at 0.79 of the
// copy limit by "registers" and at 0.85 by "block", of 2,048 log-softmax at 0.81 and 0.85.
constexpr int RegistersWidened(bool finishes_from_terms) {
  return finishes_from_terms ? 6144 : 1999;
}
// A lane holds 16 elements, or 24 (PrefersSome), or 32 of longer rows; for masks see
// HasMaskedBlock. So many threads are the most of its blocks, and of those of the shorter rows that
// have registers of their own. 16 are as fast as 32 where blocks then fill all threads that there
// are registers for, of 16-bit rows faster: softmax of 4096 bf16 columns ran at 1.00 of the copy
// limit with 16 and at 0.99 with 32, of 3584 at 0.96 and 1.01. Of float32, 32 are slower where rows
// are no whole vectors or have terms: softmax of 3001 and 4001 columns ran at 0.90 and 0.95 with 32
// and at 0.98 with 16 (benchmarks/results/h200-registers.json).
inline constexpr int kRegistersShortThreads = 128;
struct RegistersRows {
  int element_bytes;
  bool terms;
  bool bias_alone;
  bool converts;
  bool keeps;    // an op that needs the elements again after the second sweep
  bool per_row;  // an op that gives one value for each row
  bool whole;    // rows are whole vectors
};
constexpr int RegistersThreads(int elements, const RegistersRows& rows) {
  const bool plain = !rows.terms && !rows.converts;
  if (rows.bias_alone) return 512;
  if (elements == 24) return 192;
  if (rows.element_bytes == 2) return elements == 32 || plain ? 256 : kRegistersShortThreads;
  if (elements == 32) return 128;
  return plain ? 512 : 256;  // with 512, log-softmax spills where results have 16 bits
}

// Whether "registers" has kernels with 32 elements a lane. An op that needs the elements again
// after the second sweep keeps them, and has registers for so many where nothing else takes any.
constexpr bool RegistersHoldMany(const RegistersRows& rows) {
  if (rows.bias_alone) return false;
  const bool terms = rows.terms;
  return rows.element_bytes == 2 ? !rows.keeps || (!terms && !rows.converts)
                                 : !rows.keeps && !terms && rows.whole;
}

// Whether it has kernels with 24 elements a lane; see PrefersSome.
constexpr bool RegistersHoldSome(const RegistersRows& rows) {
  const bool plain = !rows.terms && !rows.converts && !rows.per_row;
  return rows.element_bytes == 4 && plain && rows.whole;
}

// Rows of whole vectors with masks and no other terms have kernels for blocks of one size each, so
// that a lane's vectors lie at constant distances: softmax of 2048 float32 columns, causal, ran at
// 0.906 of the copy limit without and at 0.919 so, of 8192 bf16 columns with a mask per key at 0.90
// and 0.95. What lanes exchange costs more than what they compute, in log-softmax most, and more
// elements a lane mean fewer lanes: with 16, 24 and 32, log-softmax of 2048 float32 columns with a
// mask per key ran at 0.91, 0.89 and 0.97, causal at 0.81, 0.83 and 0.92, and with 16 and 32, of
// 4096 bf16 columns, at 0.80 and 0.94, causal at 0.79 and 0.88
// (benchmarks/results/h200-registers.json). Whether there is one with so many elements a lane, of
// so many threads up to the most:
inline constexpr int kMostMaskedThreads = 256;
constexpr bool HasMaskedBlock(int elements, int threads, int element_bytes, bool keeps) {
  if (element_bytes == 2) return elements == 32 || (elements == 24 && threads <= 96);
  if (elements == 16) return threads == 32 || (threads == 64 && !keeps);
  const bool power_of_two = (threads & (threads - 1)) == 0;
  return elements == 24 || threads > 192 || (keeps && power_of_two);
}

// The threads of a multiprocessor that these kernels' registers leave room for: with any more they
// spill, or nearly so.
constexpr int MaskedBlockThreads(int elements, int element_bytes, bool keeps) {
  if (element_bytes == 2) return elements == 32 && keeps ? 1024 : 1280;
  if (elements == 16) return kResidentMaskedThreads;
  return (elements == 24 ? 1152 : 1024) - (keeps ? 128 : 0);
}

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

// More threads than 512 are slower in the forward pass at every row length (H200, 2026-11).
inline constexpr std::array kBlockThreads = {128, 256, 512};
// In float64, arithmetic is what counts, and every warp of a row adds to it: softmax of 1,024
// columns ran at 0.75 of the copy limit with four, and at 0.92 with two
// (benchmarks/results/h200-float64.json).
inline constexpr std::array kWideBlockThreads = {32, 64, 128, 256, 512};
constexpr std::span<const int> BlockThreads(int compute_bytes) {
  if (compute_bytes == 8) return kWideBlockThreads;
  return kBlockThreads;
}
// Of all inputs' rows, in a block's shared memory: with more, too few blocks are resident to
// overlap one's arithmetic with another's copies, and a ring is faster
// (benchmarks/results/h200-ring-strategies.json). Softmax of 24,576 and 28,001 float32 columns ran
// at 0.94 and 0.89 of the copy limit by "block", at 0.95 and 0.93 by "ring"; the tangent of 20,001,
// rows that are no whole vectors, at 0.96 and 0.99 (benchmarks/results/h200-ring-blocks.json); and
// softmax of 50,257 bf16 columns at 0.93 and 0.94 (benchmarks/results/h200-ring-parts.json).
// Of one input, softmax of 10,001 and 16,384 bf16 columns to float32 ran at 0.77 and 0.69 by
// "block" and at 0.82 and 0.83 by "ring", of 24,576 float32 columns to bf16 at 0.98 and 0.89
// (benchmarks/results/h200-conversion-strategies.json).
constexpr int64_t BlockRowBytes(int inputs, int element_bytes, int result_bytes, bool masked) {
  if (inputs == 1 && result_bytes > element_bytes) return 16 * 1024;
  if (inputs == 1 && result_bytes < element_bytes) return 96 * 1024;
  if (inputs == 1 && element_bytes == 4) return 92 * 1024;
  if (inputs == 1) return (masked && element_bytes == 2 ? 88 : 112) * 1024;
  return (masked && element_bytes < 8 ? 124 : 192) * 1024;
}

// Of one input, what a multiprocessor has of rows at a time: what is read and written far apart
// costs more than what idles. Softmax of 16,384 bf16 columns ran at 0.955 of the copy limit with
// six rows and at 0.97 with three, of 20,001 at 0.935 with five and at 0.955 with three, of 12,288
// float32 columns at 0.955 with four and at 0.96 with three
// (benchmarks/results/h200-resident-rows.json).
constexpr int64_t BlockResidentBytes(int element_bytes) {
  return (element_bytes == 2 ? 96 : 120) * 1024;
}

// Of logits with terms: the registers of four blocks on a multiprocessor leave a thread 64, for the
// vectors that it has under way. With 512 threads of 40 registers, that had half as many, masked
// bf16 rows of 9,216 columns took 30 % longer, of 32,000 10 %, and of 50,257 a third (H200,
// 2026-11).
inline constexpr std::array kTermsThreads = {128, 192, 256};
// Of a row with masks alone, a thread takes so many vectors before it gets more threads: 8,192,
// 12,288 and 16,384 bf16 columns, a mask for each element, ran at 0.99, 0.91 and 0.89 of the copy
// limit with 128, and at 0.83, 0.98 and 0.98 with 192, the last at 0.99 with 256 (H200, 2026-11).
inline constexpr int kMaskedPacks = 9;
constexpr int TermsBlocks(int compute_bytes) { return compute_bytes == 8 ? 2 : 4; }
constexpr int TermsRegisters(int compute_bytes) { return compute_bytes == 8 ? 128 : 64; }
inline constexpr int64_t kTermsBytes = 72 * 1024;
// Larger clusters are slower than reading a row twice.
inline constexpr int kTermsClusterBlocks = 8;

// "cluster" was the fastest with long rows before there was "ring", at 0.88 to 0.93 of the copy
// limit in the forward pass. One block on a multiprocessor, with half of its registers for the row
// and most of its shared memory for the next one. With 256 threads and two blocks the speed is the
// same, of rows half as long.
inline constexpr int kClusterThreads = 512;
inline constexpr int kClusterRegisters = 128;  // the most that a thread can have then
// Vectors that a thread keeps, of each input. With 20, bf16 rows of 65,536 columns ran at 0.86 of
// the copy limit instead of 0.93.
constexpr int ClusterPacks(int element_bytes, int inputs) {
  return ((element_bytes == 8 ? 10 : 13) + inputs - 1) / inputs;
}
// What a warp tells the others about a row; two sets of notes from all warps of a block.
inline constexpr int kClusterNoteBytes = 48;
inline constexpr int kClusterNotesBytes = 2 * kClusterThreads / kWarpLanes * kClusterNoteBytes;

// A block of "ring" has four warps of their own, then teams that take places by turns: those that
// reduce what is there and those that write the results. With 6 that reduce in place of 7,
// log-softmax of 65,536 float32 columns ran at 0.97 of the copy limit instead of 0.99, of 50,257 at
// 0.94 instead of 0.96; with 8 and 4 float32 is as fast, bf16 of 65,536 columns at 0.97 instead of
// 0.98 (benchmarks/results/h200-ring-odd.json).
inline constexpr int kRingAlone = 4, kRingTeams = 2, kRingReducers = 7, kRingWriters = 6;
inline constexpr int kRingThreads =
    kWarpLanes * (kRingAlone + kRingTeams * (kRingReducers + kRingWriters));
inline constexpr int kRingPacks = 8;   // that a thread reduces at a time, over all inputs
inline constexpr int kRingCopies = 3;  // under way
inline constexpr int kLinePacks = 8;   // vectors of a line of the cache
inline constexpr int kLineBytes = kLinePacks * kVectorBytes;
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

// Of a multiprocessor's threads, with room for the vectors that each has under way, half.
inline constexpr int kStreamResidentThreads = 1024;
constexpr int StreamThreads(int inputs, bool per_row, bool terms) {
  return per_row ? 128 : terms ? 256 : inputs == 1 ? 512 : 1024;
}
// Blocks of a multiprocessor: terms take registers.
constexpr int StreamBlocks(int threads, bool terms) {
  return terms ? 3 : kStreamResidentThreads / threads;
}
inline constexpr int kStreamBlocks = 8;  // the most of a cluster
inline constexpr int kStreamPacks = 4;   // that a thread loads before it uses any
// Whether it keeps what it has read in shared memory. Of a million bf16 columns' two inputs of 4 MB
// that is a fifth of the traffic: 605 us became 548 (H200, 2026-11).
constexpr bool KeepsStreamed(bool per_row, bool terms) { return !per_row && !terms; }

inline constexpr int kQueueBytes = 8;  // a counter of rows that are taken

inline constexpr int kSplitThreads = 256;
// A row's parts have at least so many vectors each; rows are cut into so many blocks together, or
// into more, so that a part has no more than the most vectors: logsumexp of 32 rows of 262,144
// float32 columns took 12.8 us in 8 parts a row, 10.5 in 32. A row is cut into the fewest or the
// most parts (benchmarks/results/h200-split-parts.json).
inline constexpr int kSplitPacks = 512;
inline constexpr int kSplitMostPacks = 2048;
inline constexpr int kSplitBlocks = 256;
inline constexpr int kSplitFewestParts = 8;
inline constexpr int kSplitMostParts = 128;
inline constexpr int kSplitPartBytes = 32;  // of a part's statistics, at most
// One kernel of clusters where these have a row in registers, so many vectors a thread: 12 rows of
// 128,256 bf16 columns took 3.7 us in place of 4.6, 8 of 32,768 2.6 in place of 3.1. More blocks
// than these only where rows are longer, and fewer where the device would be more than filled; with
// more vectors a thread, or more threads, 1.03 to 1.2 times as long
// (benchmarks/results/h200-split-clusters.json).
inline constexpr int kSplitClusterPacks = 4;
inline constexpr int kSplitClusterBlocks = 8;
inline constexpr int kSplitMostClusterBlocks = 16;
// The fewest columns. Of 16,384, up to 16 rows took 2.2 to 2.7 us, not split 3.0 to 4.8, of 8,192
// 2.1 to 2.5 and 1.9 to 2.9 (h200-few-long-rows.json).
inline constexpr int64_t kSplitClusterColumns = 16384;
// Of float16 there are none, to keep the library small.
constexpr bool HasSplitClusters(DataType dtype, DataType out_dtype) {
  return dtype == out_dtype && (dtype == DataType::kF32 || dtype == DataType::kBF16);
}
// Along another axis: the blocks of a multiprocessor that a thread has registers for. A block reads
// the statistics of all parts of its rows: of parts, whose square is at most the columns divided by
// kSplitReading, all blocks together read fewer bytes than the rows have.
inline constexpr int kSplitResident = 2;
inline constexpr int kSplitReading = 16;
// Neighbours' elements together, of all inputs, for which a block is worth its start: [192, 4096,
// 5] in bf16 took 156 us in 16 parts, 47 in three, and 52 by "strided".
inline constexpr int64_t kSplitAcrossBytes = 64 * 1024;
// The fewest parts, and the fewest columns, that are split rather than read twice by "strided":
// softmax of [1, 145,344, 10], [9, 32,768, 10] and [1, 131,072, 64] in bf16 took 25, 25 and 63 us,
// by "strided" 1,689, 409 and 1,482 (benchmarks/results/h200-split-across.json).
// Fewer columns where the number of parts may depend on the rows'.
inline constexpr int64_t kSplitFewestAcross = 2;
constexpr int64_t SplitAcrossColumns(bool batch_invariant) {
  return batch_invariant ? 16384 : 4096;
}
// With more rows, or with shorter ones of an input, a second kernel costs more than it gains
// (benchmarks/results/h200-few-rows.json). More bytes in all than stay in the cache are better read
// once, where a ring takes the rows: 16 of a million bf16 columns took 35.7 us, by "ring" 24.6, the
// tangent of 262,144 float32 columns 20.1 and 15.1 (h200-split-rows.json).
inline constexpr int64_t kSplitRows = 16;
inline constexpr int64_t kSplitRowBytes = 64 * 1024;
inline constexpr int64_t kSplitBytes = 16 * 1024 * 1024;
// Of values for each row, which one block takes 13 us for at 128,256 bf16 columns: 64 of these rows
// took 7.1 us, by "stream" 13.7, and 128 rows 14.9 and 14.0, in the same file.
inline constexpr int64_t kSplitValueRows = 64;
// Of longer rows more: one for so many of their columns. 264 rows of 262,144 bf16 columns took
// 44 us, by "stream" 54, 528 rows 77 and 74, 400 rows of a million 207 and 231
// (h200-split-values.json).
inline constexpr int64_t kSplitValueColumns = 1024;

// Of rows that are neighbours, in "panel" and "slab": the most compute values that blocks exchange
// of a row, and that a thread or a warp has of it. Results of 16 bits take plain sums.
inline constexpr int kNeighbourValues = 8;
constexpr int NeighbourStatistic(int out_bytes, bool per_row) {
  return out_bytes == 2 && !per_row ? 1 : 3;
}

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

inline constexpr int kStridedThreads = 256;
// Threads take this many elements each before they share a row. Softmax of 20,000 columns and 12
// neighbours ran at 0.12 of the copy limit with 8 of them, at 0.21 with 16, of 4,096 columns and 3
// neighbours at 0.12 and 0.19; 32 are no faster (bf16, H200, 2026-11).
inline constexpr int kStridedColumns = 64;
inline constexpr int kStridedMostLanes = 16;
// Of vectors; and of their threads side by side, between which it takes as many as neighbours are
// whole vectors (one, of 2,048 bf16 columns: backward at 0.58 of the copy limit with 4, and at 0.40
// with 16; 128, of 4,096: 0.48 and 0.59). Few rows leave multiprocessors idle.
inline constexpr int kStridedResident = 2;
inline constexpr int kStridedFewestAcross = 4, kStridedMostAcross = 16;
// The fewest and the most columns of which a thread holds all: softmax of [8000, 2, 1024] and
// [3000, 3, 5000] in bf16 takes 19 and 44 us, in float32 33 and 87, log-softmax 23, 53, 39 and 94,
// by "tile" 69, 123, 95 and 237 (benchmarks/results/h200-few-columns.json). Eight spill.
inline constexpr int kStridedFewestHeld = 2, kStridedMostHeld = 4;
// Of rows that are neighbours, where the operands are not aligned; with more, blocks share one.
inline constexpr int kUnalignedColumns = 256;
// Space for two statistics per warp in a block's reductions.
inline constexpr int kScratchBytes = 1024;
// What kernels may declare beside that.
inline constexpr int kStaticSharedBytes = 1024;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t PowerOfTwoFrom(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

constexpr int ComputeBytes(DataType type) { return type == DataType::kF64 ? 8 : 4; }

constexpr bool HasFullVectors(const Problem& p) { return p.alignment % kVectorBytes == 0; }

// Elements per access: 16 bytes of an input where all operands start at such an address (a narrower
// result would do with less). Rows need not: see Window and Body in operands.cuh.
constexpr int VectorOf(const Problem& p) {
  return HasFullVectors(p) ? kVectorBytes / SizeOf(p.dtype) : 1;
}

// The most vectors that a row touches, wherever it starts.
constexpr int64_t PacksPerRow(int64_t columns, int vector) {
  const int64_t packs =
      columns % vector == 0 ? columns / vector : (columns + vector - 2) / vector + 1;
  return std::max<int64_t>(packs, 1);
}

constexpr int64_t PacksPerRow(const Problem& p) { return PacksPerRow(p.rows.columns, VectorOf(p)); }

// The bytes of a row of every input, in whole vectors.
constexpr int64_t RowBytes(const Problem& p) {
  return PacksPerRow(p) * VectorOf(p) * SizeOf(p.dtype) * p.inputs;
}

// Whether a row with terms keeps its type in shared memory: masks alone leave an element as it is
// or make it -inf.
constexpr bool KeepsNarrow(const Problem& p) {
  return TakesTerms(p.op) && p.masks_alone && SizeOf(p.dtype) == 2;
}

// Of an element in shared memory: what other terms make of it is in the compute type.
constexpr int SharedBytes(const Problem& p) {
  return TakesTerms(p.op) && !KeepsNarrow(p) ? ComputeBytes(p.dtype) : SizeOf(p.dtype);
}

constexpr int64_t SharedRowBytes(const Problem& p) {
  return RowBytes(p) / SizeOf(p.dtype) * SharedBytes(p);
}

constexpr Plan Refuse(Plan plan, const char* why) {
  plan.refusal = why;
  return plan;
}

// Whether masks are the only terms of rows of whole vectors that are not converted.
constexpr bool IsMasksOnly(const Problem& p) {
  return p.masks_only && p.rows.columns % VectorOf(p) == 0 && p.dtype == p.out_dtype;
}

constexpr Plan WarpPlan(const Problem& p, Plan plan) {
  const int64_t packs = PacksPerRow(p);
  const bool holds_many = IsMasksOnly(p) && SizeOf(p.dtype) == 2 &&
                          p.rows.columns >= WarpManyColumns(FinishesFromTerms(p.op));
  const int limit =
      std::min(kMaxPacksPerLane, kMaxRowBytesPerLane / (ComputeBytes(p.dtype) * plan.vector));
  if (packs > kWarpLanes * limit) return Refuse(plan, "the row does not fit a warp's registers");
  const bool two = p.op == OpKind::kSoftmax && p.dtype == DataType::kF32 &&
                   p.rows.columns % plan.vector == 0 && p.rows.columns <= kTwoPacksColumns;
  int64_t per_lane = std::clamp(kElementsPerLane / plan.vector, 1, std::min(limit, 4));
  if (two) per_lane = 2;
  // Of 32 bf16 columns softmax to float32 ran at 0.58 of the copy limit with two vectors a lane,
  // and at 0.93 with one.
  if (p.Widens() && !TakesTerms(p.op) && packs == 4) per_lane = 1;
  if (holds_many) per_lane = 2 * kElementsPerLane / plan.vector;
  // At least 2 lanes, or 4 where each still has two vectors: fewer read too little at a stretch.
  const int64_t fewest = std::clamp<int64_t>(packs / 2, 2, 4);
  plan.lanes_per_row = static_cast<int>(std::min<int64_t>(
      kWarpLanes, std::max(PowerOfTwoFrom(fewest), PowerOfTwoFrom(CeilDiv(packs, per_lane)))));
  plan.count_per_lane = static_cast<int>(PowerOfTwoFrom(CeilDiv(packs, plan.lanes_per_row)));
  plan.threads = kWarpThreads;
  plan.rows_per_block =
      plan.threads / plan.lanes_per_row * std::max(1, kWarpPacks / plan.count_per_lane);
  return plan;
}

// Whether 24 elements a lane are faster: softmax of 2048 and 4096 columns ran at 0.965 of the copy
// limit with 16 and at 0.97 and 0.975 with 24, log-softmax of 4096 at 0.965 and 0.96, softmax of
// 3072 at 0.995 and 0.99 (benchmarks/results/h200-registers.json).
constexpr bool PrefersSome(const Problem& p) {
  const int64_t columns = p.rows.columns;
  return columns == 2048 || (columns == 4096 && FinishesFromTerms(p.op));
}

// The block of HasMaskedBlock with the fewest places that a row has room in; no threads if none
// has.
struct MaskedBlock {
  int elements = 0;
  int threads = 0;
};
constexpr MaskedBlock MaskedBlockFor(int64_t columns, int element_bytes, bool keeps) {
  MaskedBlock best;
  for (const int elements : {16, 24, 32}) {
    const int64_t threads = CeilDiv(columns, elements * kWarpLanes) * kWarpLanes;
    const bool fewest = best.threads == 0 || elements * threads < best.elements * best.threads;
    if (threads <= kMostMaskedThreads && fewest &&
        HasMaskedBlock(elements, static_cast<int>(threads), element_bytes, keeps)) {
      best = {elements, static_cast<int>(threads)};
    }
  }
  return best;
}

constexpr Plan RegistersPlan(const Problem& p, Plan plan) {
  if (p.inputs != 1 || p.dtype == DataType::kF64) {
    return Refuse(plan, "it takes one input of at most 32 bits an element");
  }
  // Those within the row: see Body in operands.cuh.
  const int64_t packs = std::max<int64_t>(p.rows.columns / plan.vector, 1);
  const RegistersRows rows = {.element_bytes = SizeOf(p.dtype),
                              .terms = TakesTerms(p.op),
                              .bias_alone = p.bias_alone,
                              .converts = p.dtype != p.out_dtype,
                              .keeps = !FinishesFromTerms(p.op) && !IsPerRow(p.op),
                              .per_row = IsPerRow(p.op),
                              .whole = p.rows.columns % plan.vector == 0};
  const bool narrow = rows.element_bytes == 2;
  const auto most = [&](int elements) { return RegistersThreads(elements, rows); };
  plan.rows_per_block = 1;
  const int64_t columns = packs * plan.vector;
  if (IsMasksOnly(p)) {
    const MaskedBlock block = MaskedBlockFor(columns, rows.element_bytes, rows.keeps);
    if (block.threads == 0) return Refuse(plan, "the row does not fit a block's registers");
    plan.count_per_lane = block.elements / plan.vector;
    plan.threads = plan.lanes_per_row = block.threads;
    return plan;
  }
  // Terms of 16-bit rows cost a thread as much for 16 elements as for 32.
  const bool short_row = columns <= 16 * kRegistersShortThreads && !(narrow && rows.terms);
  const int64_t few = CeilDiv(columns, int64_t{16} * kWarpLanes) * kWarpLanes;
  const bool fills = narrow && rows.whole && !rows.terms && !rows.converts && few <= most(16) &&
                     kResidentNarrowThreads % few == 0;
  const bool many =
      RegistersHoldMany(rows) && !short_row && !fills && (narrow || columns <= 32 * most(32));
  const bool some = RegistersHoldSome(rows) && PrefersSome(p);
  const int elements = some ? 24 : many ? 32 : 16;
  int threads = most(elements);
  if (IsPerRow(p.op)) threads = std::min(threads, 256);  // longer ones are at the limit by "stream"
  plan.count_per_lane = elements / plan.vector;
  if (packs > threads * plan.count_per_lane) {
    return Refuse(plan, "the row does not fit a block's registers");
  }
  plan.threads =
      static_cast<int>(CeilDiv(CeilDiv(packs, plan.count_per_lane), kWarpLanes)) * kWarpLanes;
  plan.lanes_per_row = plan.threads;
  return plan;
}

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

constexpr bool IsMasked(const Problem& p) { return p.rows.columns % VectorOf(p) != 0; }

constexpr int BlockRegisters(const Problem& p) {
  if (TakesTerms(p.op)) return TermsRegisters(ComputeBytes(p.dtype));
  return kBlockRegisters[static_cast<int>(p.op)][*IndexOf(p.Types())][IsMasked(p)];
}

constexpr Plan BlockPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t row_bytes = SharedRowBytes(p);
  if (row_bytes + kScratchBytes + kStaticSharedBytes > device.shared_per_block) {
    return Refuse(plan, "the row does not fit a block's shared memory");
  }
  plan.shared_bytes = static_cast<int>(row_bytes + kScratchBytes + 15) / 16 * 16;
  const std::span<const int> sizes =
      TakesTerms(p.op) ? kTermsThreads : BlockThreads(ComputeBytes(p.dtype));
  plan.threads = sizes.front();
  const int registers = BlockRegisters(p);
  const auto resident_with = [&](int threads) {
    return ResidentBlocks(device, threads, registers, plan.shared_bytes);
  };
  const bool one_input = p.inputs == 1 && !TakesTerms(p.op) && !IsPerRow(p.op);
  const int64_t wanted = CeilDiv(BlockResidentBytes(SizeOf(p.dtype)), row_bytes);
  if (one_input && ComputeBytes(p.dtype) == 4 && wanted > 1 &&
      wanted < resident_with(plan.threads)) {
    // Shared memory that is asked for and not used keeps the others out.
    const int64_t share = device.shared_per_multiprocessor / wanted - device.shared_reserved;
    const int64_t most = std::min<int64_t>(share, device.shared_per_block) - kStaticSharedBytes;
    plan.shared_bytes = std::max(plan.shared_bytes, static_cast<int>(most / 128 * 128));
  }
  const int resident = resident_with(plan.threads);
  for (int threads : sizes) {
    // The largest block that leaves as many resident, and that the row keeps busy.
    const bool as_many = resident_with(threads) == resident;
    const bool crowded = KeepsNarrow(p) && PacksPerRow(p) > int64_t{plan.threads} * kMaskedPacks;
    if ((threads <= PacksPerRow(p) && as_many) || crowded) plan.threads = threads;
  }
  plan.lanes_per_row = plan.threads;
  plan.rows_per_block = 1;
  return plan;
}

constexpr bool HasQueue(const Problem& p) { return p.workspace_bytes >= kQueueBytes; }

// A grid of clusters of the plan's blocks, of which a multiprocessor has room for `resident`: as
// many as there is room for at a time, or one for each row.
constexpr Plan OfClusters(const Problem& p, const Device& device, int resident, Plan plan) {
  const int64_t clusters = int64_t{device.multiprocessors} * resident / plan.cluster_blocks;
  plan.blocks = std::max<int64_t>(std::min(clusters, p.rows.Count()), 1) * plan.cluster_blocks;
  plan.stays = true;
  plan.queues = HasQueue(p) && p.rows.Count() > clusters && !IsPerRow(p.op);
  return plan;
}

// Rows of logits with terms, each over the blocks of a cluster.
constexpr Plan TermsClusterPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t blocks =
      std::max<int64_t>(PowerOfTwoFrom(CeilDiv(SharedRowBytes(p), kTermsBytes)), 2);
  if (blocks > std::min(device.cluster_blocks, kTermsClusterBlocks)) {
    return Refuse(plan, "the row does not fit a cluster");
  }
  const int64_t share = CeilDiv(PacksPerRow(p), blocks) * VectorOf(p) * SharedBytes(p);
  plan.cluster_blocks = static_cast<int>(blocks);
  plan.shared_bytes = static_cast<int>(share) + kScratchBytes;
  plan.threads = kTermsThreads.back();
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  const int resident = ResidentBlocks(device, plan.threads, BlockRegisters(p), plan.shared_bytes);
  return OfClusters(p, device, std::max(resident, 1), plan);
}

constexpr Plan ClusterPlan(const Problem& p, const Device& device, Plan plan) {
  if (device.cluster_blocks < 2) return Refuse(plan, "the device has no clusters");
  if (TakesTerms(p.op)) return TermsClusterPlan(p, device, plan);
  if (IsPerRow(p.op)) return Refuse(plan, "a value for each row needs no row kept");
  if (p.rows.Count() > kMaxGrid / 2) return Refuse(plan, "there are too many rows");
  const int64_t packs = PacksPerRow(p);
  plan.count_per_lane = ClusterPacks(SizeOf(p.dtype), p.inputs);
  int64_t blocks = PowerOfTwoFrom(CeilDiv(packs, kClusterThreads * plan.count_per_lane));
  const auto shared = [&] {
    return CeilDiv(packs, blocks) * kVectorBytes * p.inputs + blocks * kClusterNotesBytes;
  };
  while (shared() + kStaticSharedBytes > device.shared_per_block && packs > blocks) blocks *= 2;
  if (blocks > device.cluster_blocks) return Refuse(plan, "the row does not fit a cluster");
  plan.cluster_blocks = static_cast<int>(blocks);
  plan.shared_bytes = static_cast<int>(shared());
  plan.threads = kClusterThreads;
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  // A cluster that had to wait for others to finish would double the time.
  const int resident = ResidentBlocks(device, plan.threads, kClusterRegisters, plan.shared_bytes);
  return OfClusters(p, device, std::max(resident, 1), plan);
}

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

constexpr Plan StreamPlan(const Problem& p, const Device& device, Plan plan) {
  plan.threads = StreamThreads(p.inputs, IsPerRow(p.op), TakesTerms(p.op));
  // Threads take some vectors each before a row gets more blocks; many where nothing is written, or
  // where a last batch of few vectors costs as much as a full one.
  const int packs = IsPerRow(p.op) ? 128 : p.dtype == DataType::kF64 ? 64 : 16;
  const int64_t wanted = PowerOfTwoFrom(CeilDiv(PacksPerRow(p), plan.threads * packs));
  plan.cluster_blocks =
      static_cast<int>(std::min<int64_t>(wanted, std::min(kStreamBlocks, device.cluster_blocks)));
  plan.lanes_per_row = plan.threads * plan.cluster_blocks;
  plan.rows_per_block = 1;
  plan.scratch_bytes = 2 * kScratchBytes;
  plan.shared_bytes = plan.scratch_bytes;
  const int resident = StreamBlocks(plan.threads, TakesTerms(p.op));
  if (KeepsStreamed(IsPerRow(p.op), TakesTerms(p.op))) {
    const int64_t room =
        std::min(device.shared_per_block,
                 device.shared_per_multiprocessor / resident - device.shared_reserved) -
        kStaticSharedBytes - plan.shared_bytes;
    // Whole batches: of what is left, the multiprocessor makes cache.
    const int64_t batch = int64_t{plan.threads} * kStreamPacks * kVectorBytes;
    const int64_t batches = CeilDiv(CeilDiv(RowBytes(p), plan.cluster_blocks), batch);
    plan.shared_bytes += static_cast<int>(std::min(room / batch, batches) * batch);
  }
  return OfClusters(p, device, resident, plan);
}

// After so many vectors, one after the other in memory, elements are of the same rows again.
constexpr int64_t PeriodOf(const Rows& rows, int vector) {
  return std::max<int64_t>(rows.inner / std::gcd(rows.inner, int64_t{vector}), 1);
}

// Why interleaved rows have no kernels that split them; null if they do.
constexpr const char* WhyNotSplitAcross(const Problem& p) {
  // A block has a whole period, or one that is a column.
  const int vector = kVectorBytes / SizeOf(p.dtype);
  if (p.rows.inner % vector != 0 && PeriodOf(p.rows, vector) > kSplitThreads) {
    return "vectors and rows meet in too many ways";
  }
  if (!p.IsUnconverted32()) {
    return "of 64 bits, and converted, it takes rows along the last axis alone";
  }
  return p.rows.inner > kMaxGrid / kVectorBytes ? "there are too many neighbours" : nullptr;
}

// The most parts of a row.
constexpr int64_t SplitMostParts(const Problem& p) {
  if (p.rows.inner == 1) return kSplitMostParts;
  const int64_t bytes = p.rows.columns * p.rows.inner * p.inputs * SizeOf(p.dtype);
  const int64_t most = std::min<int64_t>(bytes / kSplitAcrossBytes, kSplitMostParts);
  int64_t parts = 1;
  while (parts < most && (parts + 1) * (parts + 1) * kSplitReading <= p.rows.columns) ++parts;
  return parts;
}

constexpr bool CanSplit(const Problem& p) {
  return p.workspace_bytes >= p.rows.Count() * SplitMostParts(p) * kSplitPartBytes;
}

// Interleaved rows, a part of each in a block.
constexpr Plan SplitAcrossPlan(const Problem& p, const Device& device, Plan plan) {
  if (const char* why = WhyNotSplitAcross(p)) return Refuse(plan, why);
  const int64_t period = PeriodOf(p.rows, plan.vector);
  const int64_t lanes = std::min<int64_t>(period, kSplitThreads);
  const int64_t places = p.rows.outer * CeilDiv(period, lanes);
  int64_t parts = SplitMostParts(p);
  if (!p.batch_invariant) {
    parts = std::min(parts, CeilDiv(2 * kSplitBlocks, std::max<int64_t>(places, 1)));
  }
  plan.threads = kSplitThreads;
  plan.lanes_per_row = static_cast<int>(plan.threads * parts);
  plan.rows_per_block = std::min(p.rows.inner, lanes * plan.vector);
  plan.shared_bytes = kSplitThreads * plan.vector * 4 * ComputeBytes(p.dtype);
  plan.blocks = places * parts;
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many rows");
  plan.overlaps = device.cluster_blocks > 1;
  return plan;
}

// The blocks of the clusters that have a row each; 0 where two kernels do better.
constexpr int64_t SplitClusterBlocks(const Problem& p, const Device& device) {
  const bool forward = p.inputs == 1 && !IsPerRow(p.op) && !TakesTerms(p.op);
  const int vector = kVectorBytes / SizeOf(p.dtype);
  if (p.batch_invariant || !forward || p.rows.inner > 1) return 0;
  if (!HasSplitClusters(p.dtype, p.out_dtype)) return 0;
  if (p.rows.columns % vector != 0 || p.rows.columns == 0) return 0;
  const int64_t rows = p.rows.Count();
  const int64_t held = kSplitThreads * kSplitClusterPacks;
  int64_t blocks = std::max<int64_t>(PowerOfTwoFrom(CeilDiv(PacksPerRow(p), held)), 2);
  // Three quarters of the multiprocessors have one each, or all have one and some two.
  while (blocks < kSplitClusterBlocks && 2 * blocks * rows * 4 <= device.multiprocessors * 3) {
    blocks *= 2;
  }
  if (blocks > std::min(device.cluster_blocks, kSplitMostClusterBlocks)) return 0;
  if (blocks * rows * 2 > device.multiprocessors * 3) return 0;
  return blocks;
}

constexpr Plan SplitPlan(const Problem& p, const Device& device, Plan plan) {
  if (const int64_t blocks = SplitClusterBlocks(p, device); blocks > 0) {
    plan.threads = kSplitThreads;
    plan.cluster_blocks = static_cast<int>(blocks);
    plan.count_per_lane = kSplitClusterPacks;
    plan.lanes_per_row = static_cast<int>(plan.threads * blocks);
    plan.rows_per_block = 1;
    plan.blocks = p.rows.Count() * blocks;
    return plan;
  }
  if (!CanSplit(p)) return Refuse(plan, "it needs a workspace");
  if (p.rows.inner > 1) return SplitAcrossPlan(p, device, plan);
  if (p.rows.columns > kMaxGrid - kVectorBytes) return Refuse(plan, "the row is too long");
  const int64_t packs = PacksPerRow(p), rows = std::max<int64_t>(p.rows.Count(), 1);
  const int64_t by_row = PowerOfTwoFrom(CeilDiv(packs, kSplitPacks));
  int64_t parts = kSplitFewestParts;
  if (!p.batch_invariant) {
    const int64_t wanted = std::max(CeilDiv(kSplitBlocks, rows), CeilDiv(packs, kSplitMostPacks));
    parts = std::clamp<int64_t>(PowerOfTwoFrom(wanted), kSplitFewestParts, kSplitMostParts);
  }
  parts = std::min(by_row, parts);
  plan.threads = kSplitThreads;
  plan.lanes_per_row = static_cast<int>(plan.threads * parts);
  plan.rows_per_block = 1;
  plan.blocks = p.rows.Count() * parts;
  if (plan.blocks > kMaxGrid) return Refuse(plan, "there are too many rows");
  plan.overlaps = device.cluster_blocks > 1;  // from sm_90 on, as clusters are
  return plan;
}

// Whether rows along another axis that no block keeps are better split than read twice. A value for
// each row only where it may depend on the number of rows: the rule by which many such rows are the
// kernels' (_rule.py) was measured with "strided".
constexpr bool SplitsAcross(const Problem& p) {
  if (p.rows.inner == 1 || TakesTerms(p.op) || (IsPerRow(p.op) && p.batch_invariant)) return false;
  return p.rows.columns >= SplitAcrossColumns(p.batch_invariant) &&
         SplitMostParts(p) >= kSplitFewestAcross && WhyNotSplitAcross(p) == nullptr;
}

// Whether rows are few enough to be split, where the caller lets their number decide.
constexpr bool MaySplit(const Problem& p) {
  if (p.batch_invariant || TakesTerms(p.op) || p.rows.inner != 1) return false;
  if (RowBytes(p) < kSplitRowBytes * p.inputs) return false;
  const int64_t of_values = std::max(kSplitValueRows, p.rows.columns / kSplitValueColumns);
  return p.rows.Count() <= (IsPerRow(p.op) ? of_values : kSplitRows);
}

// What a call may need beside operands and result, for each row: XLA allocates it before a device
// and its plan are known.
constexpr int64_t WorkspaceBytes(const Problem& p, Strategy requested) {
  using enum Strategy;
  const bool chooses = requested == kAuto;
  int64_t bytes = 0;
  // Partitioned afterwards, neighbours may turn out to be none.
  if (requested == kSplit) bytes = kSplitMostParts * kSplitPartBytes;
  if (chooses && (MaySplit(p) || SplitsAcross(p))) bytes = SplitMostParts(p) * kSplitPartBytes;
  if (TakesTerms(p.op) || IsPerRow(p.op)) return bytes;
  if (requested == kRing || (chooses && PrefersRing(p))) {
    return std::max(bytes, kRingQueueBytes + RingNotesBytes(p));
  }
  return requested == kCluster || requested == kStream ? kQueueBytes : bytes;
}

// ---- Any axis -----------------------------------------------------------------------------------

// The plan's blocks that a multiprocessor's shared memory has room for at a time.
constexpr int RoomFor(const Plan& plan, const Device& device) {
  return device.shared_per_multiprocessor / (plan.shared_bytes + device.shared_reserved);
}

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

// Whether a thread of "strided" holds its rows, vectors of neighbours.
constexpr bool HoldsColumns(const Problem& p) {
  if (TakesTerms(p.op) || IsPerRow(p.op) || !p.IsUnconverted32()) return false;
  const bool few = p.rows.columns >= kStridedFewestHeld && p.rows.columns <= kStridedMostHeld;
  return few && HasFullVectors(p) && p.rows.inner % VectorOf(p) == 0;
}

constexpr Plan StridedPlan(const Problem& p, Plan plan) {
  if (p.rows.inner % plan.vector != 0 || TakesTerms(p.op)) plan.vector = 1;
  plan.threads = kStridedThreads;
  if (HoldsColumns(p)) {
    plan.count_per_lane = static_cast<int>(p.rows.columns);
    plan.lanes_per_row = 1;
    plan.rows_per_block = kStridedThreads * plan.vector;
    return plan;
  }
  if (plan.vector == 1) {
    plan.lanes_per_row = static_cast<int>(std::clamp<int64_t>(
        PowerOfTwoFrom(CeilDiv(p.rows.columns, kStridedColumns)), 1, kStridedMostLanes));
  } else {
    const int64_t fewest =
        std::max<int64_t>(kStridedFewestAcross,
                          kStridedThreads / PowerOfTwoFrom(std::max<int64_t>(p.rows.columns, 1)));
    const int64_t across = std::clamp<int64_t>(PowerOfTwoFrom(p.rows.inner / plan.vector), fewest,
                                               std::max<int64_t>(fewest, kStridedMostAcross));
    plan.lanes_per_row = static_cast<int>(kStridedThreads / across);
  }
  plan.rows_per_block = kStridedThreads / plan.lanes_per_row * plan.vector;
  // Partial results (at most four compute values each) of every thread's rows.
  plan.shared_bytes = kStridedThreads * plan.vector * 4 * ComputeBytes(p.dtype);
  return plan;
}

// The strategies whose kernels apply terms to the logits.
constexpr bool CanTakeTerms(Strategy strategy) {
  using enum Strategy;
  return strategy != kRing && strategy != kSplit && strategy != kPanel && strategy != kSlab;
}

constexpr Plan Forced(const Problem& p, const Device& device, Strategy strategy, Plan plan) {
  plan.strategy = strategy;
  if (!HasFullVectors(p) && strategy != Strategy::kStream && strategy != Strategy::kStrided) {
    return Refuse(plan, "it wants aligned operands");
  }
  if (TakesTerms(p.op) && !CanTakeTerms(strategy)) {
    return Refuse(plan, "its kernels take no masks or other terms");
  }
  switch (strategy) {
    case Strategy::kTile:
      return TilePlan(p, device, plan);
    case Strategy::kPanel:
      return PanelPlan(p, device, plan);
    case Strategy::kSlab:
      return SlabPlan(p, device, plan);
    case Strategy::kStrided:
      return StridedPlan(p, plan);
    case Strategy::kSplit:
      return SplitPlan(p, device, plan);
    default:
      break;
  }
  if (p.rows.inner != 1) return Refuse(plan, "it takes rows that are contiguous in memory");
  switch (strategy) {
    case Strategy::kWarp:
      return WarpPlan(p, plan);
    case Strategy::kRegisters:
      return RegistersPlan(p, plan);
    case Strategy::kBlock:
      return BlockPlan(p, device, plan);
    case Strategy::kRing:
      return RingPlan(p, device, plan);
    case Strategy::kCluster:
      return ClusterPlan(p, device, plan);
    default:
      return StreamPlan(p, device, plan);
  }
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

// The most columns of kept rows that have two values each. Terms that are 8 or more from the
// largest lose 8 units in their last place by rounding the difference: of so many columns they are
// together less than 0.95, where they are summed once more. Of 4,096, logarithms were up to 6.01
// units off.
inline constexpr int64_t kPairsColumns = 2816;
// Of 16 bits no such digits are lost: up to here rows were timed (h200-widened-pairs.json).
inline constexpr int64_t kNarrowPairsColumns = 4096;
constexpr int64_t PairsColumns(const Problem& p) {
  return SizeOf(p.dtype) == 2 ? kNarrowPairsColumns : kPairsColumns;
}

// The strategies in order of preference.
constexpr std::array<Strategy, 6> Preferred(const Problem& p, const Device& device) {
  using enum Strategy;
  if (p.in_pairs) {
    const bool contiguous = p.rows.inner == 1 && HasFullVectors(p);
    if (!contiguous) return {kStream};
    if (PrefersTile(p)) return {kTile, kStream};
    if (IsMasked(p) || p.rows.columns > PairsColumns(p)) return {kStream};
    return {p.rows.columns > kRegistersColumns ? kRegisters : kWarp, kStream};
  }
  // XLA's buffers are aligned, but for slices of others that it hands on as they are.
  if (!HasFullVectors(p) && p.rows.inner == 1) {
    return {p.rows.columns > kUnalignedColumns ? kStream : kStrided};
  }
  if (TakesTerms(p.op) && p.rows.inner != 1) return {kStrided};
  if (p.rows.inner != 1) {
    if (HoldsColumns(p)) return {kStrided};
    const bool slab = PrefersSlab(p), whole = p.rows.inner % VectorOf(p) == 0;
    if (slab && FitsSlab(p, device)) return {kSlab};
    // Most of a panel's threads would have nothing to do: of 2,048 columns and 8 bf16 neighbours it
    // ran at 0.18 of the copy limit, "strided" at 0.48 (H200, 2026-11); of 1,280 and 8 in float32
    // the derivatives at 0.55, and at 0.58 and 0.67 (benchmarks/results/h200-panel-few.json).
    const int64_t fewest = p.inputs == 1 ? 2 : kPanelFewestLanes;
    const Strategy last = SplitsAcross(p) ? kSplit : kStrided;
    if (p.rows.columns > kTileInterleavedColumns && whole && p.rows.inner / VectorOf(p) < fewest) {
      return {last, kStrided};
    }
    // Tiles may have no room for as many short slabs as make whole vectors.
    if (!slab && !whole) return {kTile, kSlab, last, kStrided};
    if (PrefersPanel(p, device)) return {kPanel, kTile, last, kStrided};
    return {kTile, kPanel, last, kStrided};
  }
  if (TakesTerms(p.op)) {
    const bool shares = SharedRowBytes(p) > kTermsBytes && device.cluster_blocks > 1;
    const Strategy shared = shares ? kCluster : kBlock;
    if (PrefersTile(p)) return {kTile, kWarp, kRegisters, shared, kStream};
    // A block of a warp has constant addresses: softmax of 512 float32 columns with a mask per
    // element ran at 0.94 of the copy limit by "warp" and at 0.98 so (h200-registers.json).
    const bool one_warp =
        IsMasksOnly(p) && p.dtype == DataType::kF32 && p.rows.columns > kRegistersColumns / 2;
    if (p.rows.columns <= kRegistersColumns && !one_warp) return {kWarp, kStream};
    return {kRegisters, kWarp, shared, kStream};
  }
  const bool shares = PrefersRing(p) && device.cluster_blocks > 1;
  // A value for each row wants a row read once, which needs no room for it. In float64 exponentials
  // want threads that others' copies do not keep waiting: softmax and log-softmax of 32,768 columns
  // ran at 0.46 and 0.41 of the copy limit in clusters and at 0.54 and 0.60 by stream
  // (benchmarks/results/h200-float64.json); but the tangent of 65,536 at 0.67 by stream and at 1.00
  // by ring (h200-ring-float64.json).
  const bool streams = IsPerRow(p.op) || (shares && p.dtype == DataType::kF64 && p.inputs == 1);
  const Strategy shared = streams ? kStream : shares ? kRing : kBlock;
  const bool few = p.rows.Count() <= kSplitRows && p.rows.columns >= kSplitClusterColumns;
  if (few && SplitClusterBlocks(p, device) > 0) return {kSplit, kStream};
  if (MaySplit(p) && CanSplit(p)) {
    const bool many = p.rows.Count() * RowBytes(p) > kSplitBytes;
    if (many && shared == kRing) return {kRing, kSplit, kStream};
    return {kSplit, kStream};
  }
  if (PrefersTile(p)) return {kTile, kWarp, kRegisters, shared, kStream};
  // Of so many columns, 16-bit rows are too few bytes for a block each.
  const int64_t shortest = kRegistersColumns + (SizeOf(p.dtype) == 2 ? 1 : 0);
  if (p.Widens() && p.rows.columns > RegistersWidened(FinishesFromTerms(p.op))) {
    return {shared, kBlock, kCluster, kStream};
  }
  // With less shared memory than a ring wants, clusters take what does not fit a block.
  if (p.rows.columns >= shortest) return {kRegisters, kWarp, shared, kBlock, kCluster, kStream};
  return {kWarp, shared, kStream};
}

// The plan for `requested`, or for the best strategy if that is kAuto; see Plan::refusal.
constexpr Plan ChoosePlan(const Problem& p, const Device& device, Strategy requested) {
  Plan blank;
  blank.vector = VectorOf(p);
  blank.shared_limit = device.shared_per_block;
  blank.bytes_moved = p.BytesMoved();
  Plan plan;
  if (requested == Strategy::kAuto) {
    for (Strategy strategy : Preferred(p, device)) {
      plan = Forced(p, device, strategy, blank);
      if (plan.refusal == nullptr) break;
    }
  } else {
    plan = Forced(p, device, requested, blank);
  }
  // Some have counted their blocks themselves.
  if (plan.refusal == nullptr && plan.blocks == 0) {
    plan.blocks = std::min(CeilDiv(p.rows.Count(), plan.rows_per_block), kMaxGrid);
  }
  return plan;
}

}  // namespace jax_softmax
