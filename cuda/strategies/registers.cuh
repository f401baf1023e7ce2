// Strategy "registers": a block per row, the whole row in its registers, read once.
#pragma once

#include "../architecture.cuh"
#include "../in_registers.cuh"

namespace jax_softmax::JS_ISA {

// Whether there is a kernel for each size of a block; see HasMaskedBlock.
template <typename Load, typename Store, bool kWhole>
inline constexpr bool kExactBlocks =
    kMasksOnly<Load, kWhole> && std::is_same_v<typename Load::Io, typename Store::Io>;

template <typename Op, typename Load, typename Store, bool kWhole, int kThreads, int kRowBytes>
constexpr int RegistersMinBlocks() {
  if constexpr (kExactBlocks<Load, Store, kWhole>) {
    constexpr int kElements = kRowBytes / sizeof(typename Op::T);
    const int threads =
        MaskedBlockThreads(kElements, sizeof(typename Load::Io), !kFinishesFromTerm<Op>);
    return std::min(std::min(threads, kMostResidentThreads) / kThreads, kMostResidentBlocks);
  } else {
    return MinBlocks<Op, Load, Store, kWhole, kThreads, kRowBytes>();
  }
}

template <typename Op, typename Load, typename Store, int kVector, bool kWhole, int kPacks,
          int kThreads>
__global__ void __launch_bounds__(kThreads,
                                  RegistersMinBlocks<Op, Load, Store, kWhole, kThreads,
                                                     kVector * kPacks * sizeof(typename Op::T)>())
    RegistersKernel(Op op, Load load, Store store, Rows rows) {
  __shared__ __align__(16) unsigned char scratch[kScratchBytes];
  const int threads = kExactBlocks<Load, Store, kWhole> ? kThreads : blockDim.x;
  const int64_t row = load.RowAt(blockIdx.x, rows);
  const BodyOf<kVector, kWhole> window(row, rows.columns);

  const auto of_row = load.ForRow(row, rows);
  typename Load::template Raw<kVector> raw[kPacks][Op::kInputs];
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int pack = threadIdx.x + k * threads;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      raw[k][input] = load.Fetch(of_row, input, window, pack, pack < window.packs);
    }
  }
  const Edge edge(load, store, of_row, window);
  typename Load::Kept kept[kPacks] = {};
  const auto result = RowInRegisters<kPacks, kVector>(
      op, of_row,
      [&](int k) {
        return SeesOrStores<Op>(load, store, of_row, window, threadIdx.x + k * threads,
                                window.packs);
      },
      [&](int k, auto& e) {
        kept[k] = load.Decode(of_row, window, threadIdx.x + k * threads, raw[k], e);
      },
      [&](int k, auto& y, const auto& result) {
        const int pack = threadIdx.x + k * threads;
        if (pack < window.packs) store(window, pack, y, kept[k], result);
      },
      edge, WholeBlock<kThreads>(scratch));
  if constexpr (kPerRow<Op>) {
    if (threadIdx.x == 0) StoreOfRow(op, store, row, result);
  }
}

}  // namespace jax_softmax::JS_ISA
