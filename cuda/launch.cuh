// From plan to kernel: the only place where run time becomes compile time, and the only launch.
#pragma once

#include <bit>
#include <type_traits>

#include "launch.h"
#include "math.cuh"
#include "ops/logsumexp.h"
#include "ops/row_pairs.h"
#include "strategies/block.cuh"
#include "strategies/cluster.cuh"
#include "strategies/panel.cuh"
#include "strategies/registers.cuh"
#include "strategies/ring.cuh"
#include "strategies/slab.cuh"
#include "strategies/split.cuh"
#include "strategies/stream.cuh"
#include "strategies/strided.cuh"
#include "strategies/tile.cuh"
#include "strategies/warp.cuh"
#include "terms.cuh"

namespace jax_softmax::JS_ISA {

// Calls f with the one of kValues that equals `value`; no match is an error, never a no-op.
template <int... kValues, typename F>
cudaError_t WithConstant(int value, F f) {
  cudaError_t status = cudaErrorInvalidValue;
  (void)((value == kValues && (status = f(std::integral_constant<int, kValues>{}), true)) || ...);
  return status;
}

template <typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Args...), const Plan& plan, cudaStream_t stream,
                         int* resident, Args... args) {
  constexpr int kSharedWithoutAsking = 48 * 1024;
  if (plan.shared_bytes + kStaticSharedBytes > kSharedWithoutAsking) {
    // The device's limit, not this plan's need: the attribute is the kernel's, and another thread
    // may be about to launch it with more.
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             plan.shared_limit - kStaticSharedBytes);
    if (status != cudaSuccess) return status;
  }
  if (resident != nullptr) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(resident, kernel, plan.threads,
                                                         plan.shared_bytes);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(plan.blocks);
  config.blockDim = static_cast<unsigned>(plan.threads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  config.attrs = &attribute;
  if (plan.overlaps) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 1;
  }
  if (plan.together) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.numAttrs = 1;
  }
  if (const unsigned blocks = plan.cluster_blocks * plan.abreast; blocks > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t status =
        ResidentClusters(reinterpret_cast<const void*>(kernel), config, &clusters);
    if (status != cudaSuccess) return status;
    if (plan.stays) config.gridDim = std::min(config.gridDim.x, clusters * blocks);
  }
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// The counts of a lane's elements that "tile" is compiled for, and the kernel for `lanes` of them.
// With lanes that the plan passes on, 378 kernels fewer, softmax of 21 to 300 bf16 columns takes
// 1.06 to 1.19 times as long, with terms up to 320 1.2 to 1.6; with those of interleaved rows
// alone, 171 kernels fewer, these up to 1.14 (benchmarks/results/h200-tile-lanes.json).
template <typename Op, typename Load, typename Store, bool kInterleaved, typename Launch>
cudaError_t LaunchTile(const Plan& plan, const Rows& rows, Launch launch) {
  return WithConstant<1, 2, 4, 8, 16, kWarpLanes>(plan.lanes_per_row, [&](auto lanes) {
    return WithConstant<4, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64>(
        plan.count_per_lane, [&](auto count) {
          constexpr int kLanes = lanes, kCount = count;
          constexpr bool kTerms = kTakesTerms<Op>;
          constexpr bool kConverts =
              !kPerRow<Op> && !std::is_same_v<typename Load::Io, typename Store::Io>;
          constexpr int kMost =
              kInterleaved ? kTileInterleavedColumns / kWarpLanes
              : kLanes < kWarpLanes
                  ? (kTerms ? kTileTermsElements : kTileShareElements)
                  : TileElements(kTerms, kPerRow<Op>, Op::kInputs, sizeof(typename Load::Io),
                                 kIsKept<Op>, kConverts);
          // What the plan chooses, and the fewest elements that a lane then has.
          constexpr bool kFew = kCount == kTileFewElements && kLanes <= kTileFewLanes;
          constexpr bool kMany = kCount == 2 * kTileElements && kLanes == kWarpLanes;
          constexpr bool kChosen =
              kCount <= kMost && (kInterleaved ? kFew || kCount == kTileElements || kMany
                                  : kTerms     ? kLanes > 1 && kCount >= kTileElements
                                               : kLanes == 1 || kCount > 10);
          constexpr int kFewest = kInterleaved  ? (kLanes == 1 && kFew ? 1 : kCount / 2)
                                  : kLanes == 1 ? kCount - 3
                                                : TileFewest(kTerms, kCount);
          if constexpr (kChosen) {
            return launch(
                TileKernel<Op, Load, Store, kLanes, kCount, kCount - kFewest, kInterleaved>,
                static_cast<int>(plan.rows_per_block / rows.inner), plan.rows_apart);
          } else {
            return cudaErrorInvalidValue;
          }
        });
  });
}

// The kernels of "warp", by the vectors of a lane.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole, typename Launch>
cudaError_t LaunchWarp(const Plan& plan, Launch launch) {
  return WithConstant<1, 2, 4, kMaxPacksPerLane>(plan.count_per_lane, [&](auto packs) {
    constexpr int kRowBytes = kVector * packs * sizeof(typename Op::T);
    constexpr bool kMany =
        kExactBlocks<Load, Store, kWhole> && sizeof(typename Load::Io) == 2 && packs == 4;
    if constexpr (kRowBytes <= kMaxRowBytesPerLane || kMany) {
      constexpr int kRows = packs < kWarpPacks ? kWarpPacks / packs : 1;
      return launch(WarpKernel<Op, Load, Store, kVector, kWhole, packs, kRows>,
                    std::countr_zero(static_cast<unsigned>(plan.lanes_per_row)));
    } else {
      return cudaErrorInvalidValue;
    }
  });
}

// The kernels of "registers" for one input of at most 32 bits: by the elements of a lane, and where
// masks are all that there is, by a block's threads.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole, typename Launch>
cudaError_t LaunchRegisters(const Plan& plan, Launch launch) {
  static constexpr RegistersRows kRows = {
      .element_bytes = sizeof(typename Load::Io),
      .terms = kTakesTerms<Op>,
      .bias_alone = Load::kTerms == TermsKind::kBiasAlone,
      .converts = !std::is_same_v<typename Load::Io, typename Store::Io>,
      .keeps = !kFinishesFromTerm<Op> && !kPerRow<Op>,
      .per_row = kPerRow<Op>,
      .whole = kWhole};
  const int held = plan.count_per_lane * kVector;
  const auto launch_with = [&]<int kElements, int kThreads>() {
    return launch(RegistersKernel<Op, Load, Store, kVector, kWhole, kElements / kVector, kThreads>);
  };
  if constexpr (kExactBlocks<Load, Store, kWhole>) {
    return WithConstant<16, 24, 32>(held, [&](auto elements) {
      return WithConstant<32, 64, 96, 128, 160, 192, 224, kMostMaskedThreads>(
          plan.threads, [&](auto threads) {
            if constexpr (HasMaskedBlock(elements, threads, kRows.element_bytes, kRows.keeps)) {
              return launch_with.template operator()<elements, threads>();
            } else {
              return cudaErrorInvalidValue;
            }
          });
    });
  } else {
    if (held == 16) {
      constexpr int kThreads = RegistersThreads(16, kRows);
      constexpr bool kFills = kFillsWithThreads<Op, Load, Store, kWhole>;
      if constexpr ((kThreads > 256 || kFills) && !kRows.bias_alone) {
        if (plan.threads <= kRegistersShortThreads) {
          return launch_with.template operator()<16, kRegistersShortThreads>();
        }
      }
      // Longer rows of a value each have 32 elements a lane where there are kernels with these.
      constexpr bool kShort = kRows.per_row && kRows.element_bytes == 4 && RegistersHoldMany(kRows);
      if constexpr (!kShort) return launch_with.template operator()<16, kThreads>();
    }
    if constexpr (RegistersHoldSome(kRows)) {
      constexpr int kThreads = RegistersThreads(24, kRows);
      if (held == 24) return launch_with.template operator()<24, kThreads>();
    }
    if constexpr (RegistersHoldMany(kRows)) {
      constexpr int kThreads = RegistersThreads(32, kRows);
      if (held == 32) return launch_with.template operator()<32, kThreads>();
    }
    return cudaErrorInvalidValue;
  }
}

// The op in the arithmetic for its types: terms make wide logits of narrow ones.
template <template <typename> class OpOf, typename In, typename Out>
struct OpForTypes {
  using Direct = OpOf<MathFor<In, Out>>;
  using Logits = decltype(Widen(In{}));
  using Math = std::conditional_t<sizeof(Out) == 2, NarrowInputMath, MathFor<Logits, Out>>;
  using Type = std::conditional_t<kTakesTerms<Direct>, OpOf<Math>, Direct>;
};

// Two values for each row, of 16 bits or float32, of rows that are kept, too; in float32 of these
// multiplied by a number.
template <typename Op, typename In, typename Out>
cudaError_t RunPairs(const Call& call, cudaStream_t stream, int* resident) {
  constexpr bool kScales = sizeof(In) == 4;
  using Load = std::conditional_t<kScales, ScaledLoad<Op, In>, DirectLoad<Op, In>>;
  using Store = DirectStore<Op, Out>;
  const Plan& plan = call.plan;
  const Rows& rows = call.problem.rows;
  Op op{};
  op.seconds = static_cast<Out*>(call.pairs.seconds);
  op.log_sums = call.pairs.of == OpKind::kLogSoftmax;
  op.factors = static_cast<Out*>(call.pairs.factors);
  Load load;
  load.source[0] = static_cast<const In*>(call.inputs[0]);
  load.elements = rows.Elements();
  if constexpr (kScales) {
    load.scale = static_cast<float>(call.scale);
  } else if (call.scale != 1) {
    return cudaErrorInvalidValue;
  }
  const Store store{static_cast<Out*>(call.output)};
  const auto launch = [&](auto kernel, auto... more) {
    return LaunchKernel(kernel, plan, stream, resident, op, load, store, rows, more...);
  };
  if constexpr (kIsKept<Op>) {
    constexpr int kVector = kVectorBytes / sizeof(In);
    switch (plan.strategy) {
      case Strategy::kTile:
        return LaunchTile<Op, Load, Store, false>(plan, rows, launch);
      case Strategy::kWarp:
        return LaunchWarp<Op, Load, Store, kVector, true>(plan, launch);
      case Strategy::kRegisters:
        return LaunchRegisters<Op, Load, Store, kVector, true>(plan, launch);
      default:
        return cudaErrorInvalidValue;
    }
  } else {
    if (plan.strategy != Strategy::kStream) return cudaErrorInvalidValue;
    return WithConstant<1, kVectorBytes / sizeof(In)>(plan.vector, [&](auto vector) {
      return WithConstant<true, false>(rows.columns % vector == 0, [&](auto whole) {
        if constexpr (vector == 1 && !whole) {
          return cudaErrorInvalidValue;
        } else if (plan.cluster_blocks == 1) {
          return launch(ReduceKernel<Op, Load, Store, vector, whole>);
        } else {
          constexpr unsigned long long* kNoQueue = nullptr;
          return launch(StreamKernel<Op, Load, Store, vector, whole>, 0, kNoQueue);
        }
      });
    });
  }
}

// Runs the planned kernel, or with `resident` counts its resident blocks.
template <typename Op, typename In, typename Out, TermsKind kKind = TermsKind::kAny>
cudaError_t Run(const Call& call, cudaStream_t stream, int* resident) {
  constexpr bool kTerms = kTakesTerms<Op>;
  constexpr bool kFewTerms = kKind != TermsKind::kAny;
  // In shared memory alone are logits what they are in memory.
  constexpr bool kShared = kKind == TermsKind::kMasksAlone;
  using Load = std::conditional_t<kTerms, TermsLoad<Op, In, kKind>, DirectLoad<Op, In>>;
  constexpr bool kMasked = kTerms && kKind != TermsKind::kBiasAlone;
  using Store = std::conditional_t<kMasked, MaskedStore<Op, Out>, DirectStore<Op, Out>>;
  constexpr int kFullVector = kVectorBytes / sizeof(In);
  constexpr bool kUnconverted32 = sizeof(In) <= 4 && std::is_same_v<In, Out>;
  // See HasTiles.
  constexpr bool kHalf = std::is_same_v<In, __half> || std::is_same_v<Out, __half>;
  constexpr bool kPlain = Op::kInputs == 1 && !kTerms && !kPerRow<Op>;
  constexpr bool kTiles = kUnconverted32 || (sizeof(In) <= 4 && kPlain && !kHalf);
  const Plan& plan = call.plan;
  const Rows& rows = call.problem.rows;
  Op op{};
  if constexpr (requires { op.scale; }) {
    op.scale = static_cast<typename Op::T>(call.scale);
    op.zeros_are_masked = call.zeros_are_masked;
  } else if constexpr (kScalesLogits<Op>) {
    op.logits.scale = static_cast<typename Op::T>(call.scale);
  } else if (call.scale != 1) {
    return cudaErrorInvalidValue;
  }
  if constexpr (requires { op.seconds; }) {
    op.seconds = static_cast<typename Op::T*>(call.pairs.seconds);
  }
  Load load;
  for (int i = 0; i < Op::kInputs; ++i) load.source[i] = static_cast<const In*>(call.inputs[i]);
  load.elements = rows.Elements();
  if constexpr (kTerms) load.terms = call.terms;
  const Store store{static_cast<Out*>(call.output)};
  const auto launch = [&](auto kernel, auto... more) {
    return LaunchKernel(kernel, plan, stream, resident, op, load, store, rows, more...);
  };

  const auto launch_queue = [&](auto kernel, auto... more) {
    auto* counter = plan.queues ? static_cast<unsigned long long*>(call.workspace) : nullptr;
    if (counter != nullptr && resident == nullptr) {
      const cudaError_t status = cudaMemsetAsync(counter, 0, kQueueBytes, stream);
      if (status != cudaSuccess) return status;
    }
    return launch(kernel, more..., counter);
  };

  // The kernel that reduces parts of rows, and the one that writes; where rows have one value each,
  // a block for all parts.
  const auto launch_split = [&](auto reduce, auto write, auto... more) {
    const int parts = plan.lanes_per_row / plan.threads;
    const auto split = [&](auto kernel, int64_t blocks, bool overlaps) {
      Plan one = plan;
      one.blocks = blocks;
      one.overlaps = overlaps;
      return LaunchKernel(kernel, one, stream, resident, op, load, store, rows, more..., parts,
                          static_cast<Partial<Op>*>(call.workspace));
    };
    const cudaError_t status = split(reduce, plan.blocks, false);
    if (status != cudaSuccess || resident != nullptr) return status;
    return split(write, kPerRow<Op> ? plan.blocks / parts : plan.blocks, plan.overlaps);
  };

  const int log2_lanes = std::countr_zero(static_cast<unsigned>(plan.lanes_per_row));
  switch (plan.strategy) {
    case Strategy::kStrided:
      if constexpr (kFewTerms) {
        return cudaErrorInvalidValue;
      } else {
        if constexpr (!kTerms) {
          if (plan.count_per_lane > 0) {
            if constexpr (kPerRow<Op> || !kUnconverted32) {
              return cudaErrorInvalidValue;
            } else {
              return WithConstant<2, 3, 4>(plan.count_per_lane, [&](auto columns) {
                return launch(StridedHeldKernel<Op, Load, Store, kFullVector, columns>);
              });
            }
          }
          if (plan.vector > 1) {
            return launch(StridedVectorsKernel<Op, Load, Store, kFullVector>, log2_lanes);
          }
        }
        return launch(StridedKernel<Op, Load, Store>, log2_lanes);
      }
    case Strategy::kTile:
      if constexpr (kFewTerms || !kTiles) {
        return cudaErrorInvalidValue;
      } else if (rows.inner == 1) {
        return LaunchTile<Op, Load, Store, false>(plan, rows, launch);
      } else if constexpr (!kTerms && kUnconverted32) {
        return LaunchTile<Op, Load, Store, true>(plan, rows, launch);
      } else {
        return cudaErrorInvalidValue;
      }
    case Strategy::kPanel: {
      if constexpr (kTerms) {
        return cudaErrorInvalidValue;
      } else {
        const auto launch_panel = [&](auto kernel) {
          const unsigned lanes = static_cast<unsigned>(plan.rows_per_block / plan.vector);
          return launch(kernel, std::countr_zero(lanes), std::countr_zero(plan.threads / lanes),
                        plan.scratch_bytes, plan.turns);
        };
        if constexpr (!kPerRow<Op>) {
          if (plan.cluster_blocks > 1) {
            return launch_panel(PanelKernel<Op, Load, Store, kFullVector, true>);
          }
        }
        return launch_panel(PanelKernel<Op, Load, Store, kFullVector, false>);
      }
    }
    case Strategy::kSlab:
      if constexpr (kTerms || kPerRow<Op> || !kUnconverted32) {
        return cudaErrorInvalidValue;
      } else {
        const SlabShape shape = SlabShapeOf(rows, kFullVector, plan.threads, plan.cluster_blocks);
        return launch(SlabKernel<Op, Load, Store, kFullVector>, shape, plan.scratch_bytes);
      }
    case Strategy::kSplit:
      if (rows.inner > 1) {
        if constexpr (kTerms || !kUnconverted32) {
          return cudaErrorInvalidValue;
        } else {
          const auto period = static_cast<int>(PeriodOf(rows, kFullVector));
          return launch_split(SplitAcrossKernel<Op, Load, Store, kFullVector, false>,
                              SplitAcrossKernel<Op, Load, Store, kFullVector, true>, period);
        }
      }
      break;
    default:
      break;
  }
  const auto launch_stream = [&](auto vector, auto whole) {
    if constexpr (kPerRow<Op>) {
      if (plan.cluster_blocks == 1) {
        return launch(ReduceKernel<Op, Load, Store, vector, whole>);
      }
    }
    if constexpr (!kFewTerms) {
      return launch_queue(StreamKernel<Op, Load, Store, vector, whole>,
                          plan.shared_bytes - plan.scratch_bytes);
    }
    return cudaErrorInvalidValue;
  };
  if (plan.vector == 1) {
    if constexpr (!kFewTerms) {
      constexpr std::integral_constant<int, 1> kSingle;
      if (plan.strategy == Strategy::kStream) return launch_stream(kSingle, std::true_type{});
    }
    return cudaErrorInvalidValue;
  }
  return WithConstant<true, kKind == TermsKind::kBiased>(
      rows.columns % kFullVector == 0, [&](auto whole) {
        constexpr bool kWhole = whole;
        constexpr std::integral_constant<int, kFullVector> kVector;
        switch (plan.strategy) {
          case Strategy::kWarp:
            if constexpr (!kShared && (kWhole || kKind != TermsKind::kBiasAlone)) {
              return LaunchWarp<Op, Load, Store, kVector, kWhole>(plan, launch);
            }
            return cudaErrorInvalidValue;
          case Strategy::kRegisters:
            if constexpr (Op::kInputs == 1 && kVector > 2 && !kShared) {
              return LaunchRegisters<Op, Load, Store, kVector, kWhole>(plan, launch);
            }
            return cudaErrorInvalidValue;
          case Strategy::kStream:
            return launch_stream(kVector, whole);
          default:
            break;
        }
        if constexpr (kTerms && kKind != TermsKind::kBiased) {
          if (plan.strategy == Strategy::kBlock || plan.strategy == Strategy::kCluster) {
            return launch(TermsKernel<Op, Load, Store, kVector, kWhole>);
          }
        } else if constexpr (!kTerms) {
          switch (plan.strategy) {
            case Strategy::kBlock:
              return launch(BlockKernel<Op, Load, Store, kVector, kWhole>);
            case Strategy::kRing:
              if constexpr (!kPerRow<Op>) {
                RingShape shape = RingShapeOf(call.problem);
                shape.places = plan.places;
                if (resident == nullptr) {
                  const int64_t bytes = kRingQueueBytes + rows.outer * RingNotesBytes(call.problem);
                  const cudaError_t status = cudaMemsetAsync(call.workspace, 0xff, bytes, stream);
                  if (status != cudaSuccess) return status;
                }
                return launch(RingKernel<Op, Load, Store, kVector, kWhole>, shape, Zeros{},
                              call.workspace);
              }
              return cudaErrorInvalidValue;
            case Strategy::kCluster:
              if constexpr (!kPerRow<Op>) {
                constexpr int kPacks = ClusterPacks(sizeof(In), Op::kInputs);
                const int64_t all = PacksPerRow(rows.columns, kVector);
                return launch_queue(ClusterKernel<Op, Load, Store, kVector, kWhole, kPacks>,
                                    static_cast<int>(CeilDiv(all, plan.cluster_blocks)), Zeros{});
              }
              return cudaErrorInvalidValue;
            case Strategy::kSplit:
              if constexpr (kWhole && Op::kInputs == 1 && !kPerRow<Op> && kUnconverted32 &&
                            !std::is_same_v<In, __half>) {
                if (plan.cluster_blocks > 1) {
                  return launch(SplitClusterKernel<Op, Load, Store, kVector, kSplitClusterPacks>);
                }
              }
              return launch_split(SplitKernel<Op, Load, Store, kVector, kWhole, false>,
                                  SplitKernel<Op, Load, Store, kVector, kWhole, true>);
            default:
              break;
          }
        }
        return cudaErrorInvalidValue;
      });
}

template <template <typename> class OpOf, typename In, typename Out>
cudaError_t RunAs(const Call& call, cudaStream_t stream, int* resident) {
  using Op = typename OpForTypes<OpOf, In, Out>::Type;
  if constexpr (std::is_same_v<Op, LogSumExp<MathFor<In, float>>>) {
    using Math = std::conditional_t<sizeof(In) == 2, WideningMath::ForPairs, ExactMath<float>>;
    if (call.problem.in_pairs) {
      if (call.plan.strategy != Strategy::kStream) {
        return RunPairs<KeptRowPairs<Math>, In, Out>(call, stream, resident);
      }
      return RunPairs<RowPairs<Math>, In, Out>(call, stream, resident);
    }
  }
  if constexpr (kTakesTerms<Op>) {
    const Terms& terms = call.terms;
    const Plan& plan = call.plan;
    const bool warp = plan.strategy == Strategy::kWarp;
    const bool registers = plan.strategy == Strategy::kRegisters;
    const bool shared = plan.strategy == Strategy::kBlock || plan.strategy == Strategy::kCluster;
    const bool whole = call.problem.rows.columns % plan.vector == 0;
    if constexpr (sizeof(In) == 2) {
      if (call.problem.masks_alone && shared) {
        using Direct = typename OpForTypes<OpOf, In, Out>::Direct;
        return Run<Direct, In, Out, TermsKind::kMasksAlone>(call, stream, resident);
      }
    }
    if constexpr (sizeof(In) <= 4) {  // float64 gets no kernels without code for what is absent
      if (terms.AreMasksOnly() && (registers || shared || warp)) {
        return Run<Op, In, Out, TermsKind::kMasks>(call, stream, resident);
      }
      if constexpr (std::is_same_v<In, Out>) {
        if (call.problem.bias_alone && (registers || shared || (warp && whole))) {
          return Run<Op, In, Out, TermsKind::kBiasAlone>(call, stream, resident);
        }
      }
      const bool others = terms.sink != nullptr || terms.caps || terms.fills;
      if (!others && whole && terms.bias_in_vectors && (registers || warp)) {
        return Run<Op, In, Out, TermsKind::kBiased>(call, stream, resident);
      }
    }
  }
  return Run<Op, In, Out>(call, stream, resident);
}

// For types without kernels: see HasKernels.
template <template <typename> class OpOf, typename In, typename Out>
  requires(kPerRow<typename OpForTypes<OpOf, In, Out>::Type> && sizeof(Out) < sizeof(In))
cudaError_t RunAs(const Call&, cudaStream_t, int*) {
  return cudaErrorInvalidValue;
}

}  // namespace jax_softmax::JS_ISA
