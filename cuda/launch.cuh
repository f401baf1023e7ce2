// From plan to kernel: the only place where run time becomes compile time, and the only launch.
#pragma once

#include <bit>
#include <type_traits>

#include "launch.h"
#include "math.cuh"
#include "strategies/block.cuh"
#include "strategies/stream.cuh"
#include "strategies/strided.cuh"
#include "strategies/warp.cuh"

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
  if (plan.shared_bytes > kSharedWithoutAsking) {
    // The device's limit, not this plan's need: the attribute is the kernel's, and another thread
    // may be about to launch it with more.
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_limit);
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
  return cudaLaunchKernelEx(&config, kernel, args...);
}

// Runs the planned kernel, or with `resident` counts its resident blocks.
template <template <typename> class OpOf, typename In, typename Out>
cudaError_t RunAs(const Call& call, cudaStream_t stream, int* resident) {
  using Op = OpOf<MathFor<Out>>;
  using Load = DirectLoad<Op, In>;
  using Store = DirectStore<Op, Out>;
  constexpr int kFullVector = kVectorBytes / sizeof(In);
  const Plan& plan = call.plan;
  const Rows& rows = call.problem.rows;
  const Op op{};
  Load load;
  for (int i = 0; i < Op::kInputs; ++i) load.source[i] = static_cast<const In*>(call.inputs[i]);
  load.elements = rows.Elements();
  const Store store{static_cast<Out*>(call.output)};
  const auto launch = [&](auto kernel, auto... more) {
    return LaunchKernel(kernel, plan, stream, resident, op, load, store, rows, more...);
  };

  const int log2_lanes = std::countr_zero(static_cast<unsigned>(plan.lanes_per_row));
  if (plan.strategy == Strategy::kStrided) {
    return launch(StridedKernel<Op, Load, Store>, log2_lanes);
  }
  return WithConstant<1, kFullVector>(plan.vector, [&](auto vector) {
    return WithConstant<true, vector == 1>(rows.columns % vector == 0, [&](auto whole) {
      constexpr bool kWhole = whole;
      switch (plan.strategy) {
        case Strategy::kWarp:
          return WithConstant<1, 2, 4, kMaxPacksPerLane>(plan.packs_per_lane, [&](auto packs) {
            constexpr int kRowBytes = vector * packs * sizeof(typename Op::T) * Op::kInputs;
            if constexpr (kRowBytes <= kMaxRowBytesPerLane) {
              return launch(WarpKernel<Op, Load, Store, vector, kWhole, packs>, log2_lanes);
            } else {
              return cudaErrorInvalidValue;
            }
          });
        case Strategy::kBlock:
          return launch(BlockKernel<Op, Load, Store, vector, kWhole>);
        case Strategy::kStream:
          return launch(StreamKernel<Op, Load, Store, vector, kWhole>);
        default:
          return cudaErrorInvalidValue;
      }
    });
  });
}

}  // namespace jax_softmax::JS_ISA
