// Which strategy runs a problem, and with which geometry: a value chosen by a pure function.
//
// No CUDA and no XLA here: the plan is the same on a machine without a GPU, where it is tested.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
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

  constexpr TypePair Types() const { return {dtype, out_dtype}; }
  // Every operand once.
  constexpr int64_t BytesMoved() const {
    return rows.Elements() * (inputs * SizeOf(dtype) + SizeOf(out_dtype));
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
};

inline constexpr int kWarpLanes = 32;
inline constexpr int kVectorBytes = 16;  // the widest access of a thread

struct KnownDevice {
  std::string_view name;
  Device device;
};
// From the CUDA programming guide's table of technical specifications.
inline constexpr std::array kKnownDevices = {
    KnownDevice{"H200", {132, 2048, 32, 65536, 233472, 232448, 1024}},
    KnownDevice{"A100", {108, 2048, 32, 65536, 167936, 166912, 1024}},
    KnownDevice{"GTX 1080", {20, 2048, 32, 65536, 98304, 49152, 0}},
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

enum class Strategy { kAuto, kWarp, kBlock, kStream, kStrided };
inline constexpr std::array<std::string_view, 5> kStrategyNames = {"auto", "warp", "block",
                                                                   "stream", "strided"};

constexpr std::optional<Strategy> StrategyNamed(std::string_view name) {
  return Named<Strategy>(kStrategyNames, name);
}

struct Plan {
  Strategy strategy = Strategy::kAuto;
  int threads = 0;         // per block
  int64_t blocks = 0;      // in the grid
  int lanes_per_row = 0;   // threads that share a row
  int rows_per_block = 0;  // at a time
  int vector = 1;          // elements per access
  int packs_per_lane = 0;  // vectors of a row that a lane keeps in registers (warp)
  int shared_bytes = 0;    // dynamic shared memory per block
  int shared_limit = 0;    // the most that the device allows it
  int64_t bytes_moved = 0;
  const char* refusal = nullptr;  // why the requested strategy cannot run this problem

  constexpr bool operator==(const Plan&) const = default;
};

// A lane keeps at most this much of a row in registers, in the compute type and over all inputs:
// with twice as much, bf16 backward at 1024 columns fell from 1.02 to 0.82 of the copy limit
// (H200, 2026-11).
inline constexpr int kMaxRowBytesPerLane = 128;
// Lanes take this many vectors each before a row gets more lanes: more loads in flight and fewer
// steps of the butterfly. Fewer than 4 lanes would read less than 64 bytes at a stretch.
inline constexpr int kPacksPerLane = 4;
inline constexpr int kFewestLanes = 4;
inline constexpr int kMaxPacksPerLane = 8;
inline constexpr int kWarpThreads = 128;
// Blocks that the compiler must leave room for on a multiprocessor, by the bytes of row that a lane
// holds. Left to itself it takes up to 158 registers in fp32 and 5 blocks' fewer loads in flight:
// softmax forward at 1024 fp32 columns ran at 0.87 of the copy limit (H200, 2026-11). With more
// blocks than these it spills (ptxas 13.0, sm_90).
constexpr int WarpBlocks(int row_bytes) { return row_bytes <= 64 ? 8 : 5; }
inline constexpr int kStreamThreads = 512;
inline constexpr int kStridedThreads = 256;
// Threads share a row only where there are too few rows to fill the device, and no more of them
// than leave a warp 32 neighbouring rows.
inline constexpr int kStridedMostLanes = kStridedThreads / kWarpLanes;
// Space for one statistic per warp in a block's reductions.
inline constexpr int kScratchBytes = 1024;
// More threads than this are slower in the forward pass at every row length (H200, 2026-11).
inline constexpr std::array kBlockThreads = {128, 256, 512};
inline constexpr int64_t kMaxGrid = 2147483647;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int ComputeBytes(DataType type) { return type == DataType::kF64 ? 8 : 4; }

// Elements per access: 16 bytes of an input where all operands start at such an address (a narrower
// result would do with less). Rows need not: a row is covered by the aligned vectors that it
// touches, with masked edges.
constexpr int VectorOf(const Problem& p) {
  const int full = kVectorBytes / SizeOf(p.dtype);
  return p.alignment % kVectorBytes == 0 ? full : 1;
}

// The most vectors that a row touches, wherever it starts.
constexpr int64_t PacksPerRow(int64_t columns, int vector) {
  return columns % vector == 0 ? columns / vector : (columns + vector - 2) / vector + 1;
}

constexpr Plan Refuse(Plan plan, const char* why) {
  plan.refusal = why;
  return plan;
}

constexpr int64_t GridFor(int64_t rows, int rows_per_block) {
  return std::min(CeilDiv(rows, rows_per_block), kMaxGrid);
}

constexpr Plan WarpPlan(const Problem& p, Plan plan) {
  const int64_t packs = std::max<int64_t>(PacksPerRow(p.rows.columns, plan.vector), 1);
  const int limit = std::min(
      kMaxPacksPerLane, kMaxRowBytesPerLane / (ComputeBytes(p.dtype) * plan.vector * p.inputs));
  if (packs > kWarpLanes * limit) return Refuse(plan, "the row does not fit a warp's registers");
  plan.lanes_per_row = 1;
  while (plan.lanes_per_row < std::min<int64_t>(packs, kWarpLanes) &&
         (plan.lanes_per_row < kFewestLanes ||
          plan.lanes_per_row * std::min(limit, kPacksPerLane) < packs)) {
    plan.lanes_per_row *= 2;
  }
  plan.packs_per_lane = 1;
  while (plan.packs_per_lane * plan.lanes_per_row < packs) plan.packs_per_lane *= 2;
  plan.threads = kWarpThreads;
  plan.rows_per_block = plan.threads / plan.lanes_per_row;
  return plan;
}

constexpr int BlockRegisters(const Problem& p) {
  const bool masked = p.rows.columns % VectorOf(p) != 0;
  return kBlockRegisters[static_cast<int>(p.op)][*IndexOf(p.Types())][masked];
}

constexpr Plan BlockPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t packs = std::max<int64_t>(PacksPerRow(p.rows.columns, plan.vector), 1);
  const int64_t row_bytes = packs * plan.vector * SizeOf(p.dtype) * p.inputs;
  if (row_bytes + kScratchBytes > device.shared_per_block) {
    return Refuse(plan, "the row does not fit a block's shared memory");
  }
  plan.shared_bytes = static_cast<int>(row_bytes + kScratchBytes + 15) / 16 * 16;
  plan.threads = kBlockThreads.front();
  const int registers = BlockRegisters(p);
  const int resident = ResidentBlocks(device, plan.threads, registers, plan.shared_bytes);
  for (int threads : kBlockThreads) {
    // The largest block that leaves as many resident, and that the row keeps busy.
    if (threads <= packs &&
        ResidentBlocks(device, threads, registers, plan.shared_bytes) == resident) {
      plan.threads = threads;
    }
  }
  plan.lanes_per_row = plan.threads;
  plan.rows_per_block = 1;
  return plan;
}

constexpr Plan StreamPlan(Plan plan) {
  plan.threads = plan.lanes_per_row = kStreamThreads;
  plan.rows_per_block = 1;
  plan.shared_bytes = kScratchBytes;
  return plan;
}

constexpr Plan StridedPlan(const Problem& p, const Device& device, Plan plan) {
  const int64_t enough = int64_t{device.multiprocessors} * device.threads_per_multiprocessor;
  plan.vector = 1;
  plan.threads = kStridedThreads;
  plan.lanes_per_row = 1;
  while (plan.lanes_per_row < kStridedMostLanes && p.rows.Count() * plan.lanes_per_row < enough) {
    plan.lanes_per_row *= 2;
  }
  plan.rows_per_block = kStridedThreads / plan.lanes_per_row;
  // One partial result (at most four compute values) per thread.
  plan.shared_bytes = kStridedThreads * 4 * ComputeBytes(p.dtype);
  return plan;
}

constexpr Plan Choose(const Problem& p, const Device& device, Strategy requested, Plan plan) {
  const bool contiguous = p.rows.inner == 1;
  if (requested == Strategy::kAuto) {
    for (Strategy s : {Strategy::kWarp, Strategy::kBlock, Strategy::kStream, Strategy::kStrided}) {
      const Plan choice = Choose(p, device, s, plan);
      if (choice.refusal == nullptr) return choice;
    }
  }
  plan.strategy = requested;
  if (requested == Strategy::kStrided) return StridedPlan(p, device, plan);
  if (!contiguous) return Refuse(plan, "it takes rows that are contiguous in memory");
  if (requested == Strategy::kWarp) return WarpPlan(p, plan);
  if (requested == Strategy::kBlock) return BlockPlan(p, device, plan);
  return StreamPlan(plan);
}

// The plan for `requested`, or for the best strategy if that is kAuto; see Plan::refusal.
constexpr Plan ChoosePlan(const Problem& p, const Device& device, Strategy requested) {
  Plan plan;
  plan.vector = VectorOf(p);
  plan.shared_limit = device.shared_per_block;
  plan.bytes_moved = p.BytesMoved();
  plan = Choose(p, device, requested, plan);
  if (plan.refusal == nullptr) plan.blocks = GridFor(p.rows.Count(), plan.rows_per_block);
  return plan;
}

}  // namespace jax_softmax
