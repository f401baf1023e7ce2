// Strategy "block": a block per row, the row in shared memory in its own dtype, read once.
#pragma once

#include <cuda_pipeline.h>

#include <type_traits>

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// Vectors in shared memory, of which thread t has those at t, t + blockDim.x, …: every thread reads
// back just what it fetched itself, so that none waits for another.
template <typename Op, typename Load, int kVector>
class Cache {
 public:
  using T = typename Op::T;
  using E = Element<T, Op::kInputs>;
  using Raw = typename Load::template Raw<kVector>;
  // Where they have the elements' type, the second sweep's terms take the elements' places.
  static constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<typename Load::Io, T>;

  __device__ __forceinline__ Cache(void* memory, int capacity)
      : words_(static_cast<typename Raw::Word*>(memory)), capacity_(capacity) {}

  // Starts to fetch vector k of the slice, neighbouring rows' elements at its edges included.
  template <typename S>
  __device__ __forceinline__ void Fetch(const Load& load, const S& slice, int k) const {
    const int64_t offset = slice.window.Offset(slice.begin + k);
    // At the end of the operand there may be less than a vector left.
    const int64_t missing = S::kWhole ? 0 : max(offset + kVector - load.elements, int64_t{0});
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      const auto* from = load.source[input] + offset;
      if constexpr (Raw::kBytes == kVectorBytes) {
        __pipeline_memcpy_async(Place(input, k), from, kVectorBytes,
                                missing * sizeof(typename Load::Io));
      } else {
        Raw::Load(from).Store(Place(input, k));
      }
    }
  }

  // Waits for this thread's vectors and masks those of its edges.
  template <typename S>
  __device__ __forceinline__ void Await(const Load& load, const S& slice) const {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    if constexpr (!S::kWhole) {
      Mask(slice, 0);
      Mask(slice, slice.packs - 1);
    }
  }

  // Reduces `packs` vectors over the block.
  __device__ __forceinline__ Partial<Op> Reduce(const Op& op, int packs,
                                                unsigned char* scratch) const {
    Partial<Op> total;
    E e[kVector];
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      Read(k, e);
      AddFirst(op, total.first, e);
    }
    int turn = 0;
    const auto reduce = [&](const auto& statistic) {
      return BlockReduce(statistic, scratch + (turn++ & 1) * (kScratchBytes / 2));
    };
    total.first = reduce(total.first);
    if constexpr (Op::kSweeps == 2) {
      const auto add = [&](auto& statistic, auto term) {
        for (int k = threadIdx.x; k < packs; k += blockDim.x) {
          Read(k, e);
          const auto terms = AddTerms(statistic, e, term);
          if constexpr (kKeepsTerms) {
            typename Raw::Values kept;
#pragma unroll
            for (int i = 0; i < kVector; ++i) kept.element[i] = terms.x[i];
            Raw(kept).Store(Place(0, k));
          }
        }
      };
      total.second =
          SecondSweep(op, op.Pivot(total.first), add, reduce, [](bool vote) { return vote; });
    }
    return total;
  }

  // The results of vector k.
  __device__ __forceinline__ void Finish(const Op& op, int k, const typename Op::Row& result,
                                         T (&y)[kVector]) const {
    E e[kVector];
    Read(k, e);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kKeepsTerms) {
        y[i] = op.FinishFromTerm(e[i][0], result);
      } else {
        y[i] = op.Finish(e[i], result);
      }
    }
  }

 private:
  __device__ __forceinline__ typename Raw::Word* Place(int input, int k) const {
    return &words_[input * capacity_ + k];
  }
  __device__ __forceinline__ void Read(int k, E (&e)[kVector]) const {
    Raw raw[Op::kInputs];
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) raw[input] = Raw::Load(Place(input, k));
    Load::Decode(raw, e);
  }
  template <typename S>
  __device__ __forceinline__ void Mask(const S& slice, int k) const {
    if (k < 0 || k % blockDim.x != threadIdx.x || slice.window.IsWhole(slice.begin + k)) return;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      auto values = Raw::Load(Place(input, k)).Unpack();
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (!slice.window.Has(slice.begin + k, i)) values.element[i] = Load::AbsentIo(input);
      }
      Raw(values).Store(Place(input, k));
    }
  }

  typename Raw::Word* words_;
  int capacity_;  // vectors of an input
};

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kBlockThreads.back())
    BlockKernel(Op op, Load load, Store store, Rows rows) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Slice<kVector, kWhole> slice(blockIdx.x, rows.columns, 0, 1);
  const Cache<Op, Load, kVector> cache(shared + kScratchBytes, slice.packs);

  for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) cache.Fetch(load, slice, k);
  cache.Await(load, slice);
  const Partial<Op> total = cache.Reduce(op, slice.packs, shared);
  const auto result = op.Close(total.first, total.second);
  if constexpr (kPerRow<Op>) {
    if (threadIdx.x == 0) store.At(blockIdx.x, result);
  } else {
    for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) {
      typename Op::T y[kVector];
      cache.Finish(op, k, result, y);
      store(slice.window, slice.begin + k, y);
    }
  }
}

}  // namespace jax_softmax::JS_ISA
