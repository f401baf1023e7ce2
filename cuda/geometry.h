// What a plan is, and what it is for: a device's limits, and who does what in a kernel.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "problem.h"

namespace jax_softmax {

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

inline constexpr int kQueueBytes = 8;  // a counter of rows that are taken

// Of rows that are neighbours, in "panel" and "slab": the most compute values that blocks exchange
// of a row, and that a thread or a warp has of it. Results of 16 bits take plain sums.
inline constexpr int kNeighbourValues = 8;
constexpr int NeighbourStatistic(int out_bytes, bool per_row) {
  return out_bytes == 2 && !per_row ? 1 : 3;
}

// Space for a statistic, or both, of each warp in either half, for a block's reductions by turns.
inline constexpr int kScratchBytes = 1024;
// What kernels may declare beside that.
inline constexpr int kStaticSharedBytes = 1024;

constexpr Plan Refuse(Plan plan, const char* why) {
  plan.refusal = why;
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

// The plan's blocks that a multiprocessor's shared memory has room for at a time.
constexpr int RoomFor(const Plan& plan, const Device& device) {
  return device.shared_per_multiprocessor / (plan.shared_bytes + device.shared_reserved);
}

}  // namespace jax_softmax
