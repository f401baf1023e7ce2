// Strategy "block": a block per row, the row in shared memory in its own dtype, or its logits in
// the compute type, read once.
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

  // Keeps elements in the compute type as vector k.
  __device__ __forceinline__ void Keep(int k, const T (&values)[kVector]) const {
    static_assert(std::is_same_v<typename Load::Io, T>);
    typename Raw::Values kept;
#pragma unroll
    for (int i = 0; i < kVector; ++i) kept.element[i] = values[i];
    Raw(kept).Store(Place(0, k));
  }

  // The first sweep over this thread's vectors of `packs`.
  __device__ __forceinline__ typename Op::First First(const Op& op, int packs) const {
    typename Op::First first;
    E e[kVector];
    for (int k = threadIdx.x; k < packs; k += blockDim.x) {
      Read(k, e);
      AddFirst(op, first, e);
    }
    return first;
  }

  // Reduces `packs` vectors, of which threads have had the first sweep, over the block.
  __device__ __forceinline__ Partial<Op> Reduce(const Op& op, const typename Op::First& first,
                                                int packs, unsigned char* scratch) const {
    Partial<Op> total;
    int turn = 0;
    const auto reduce = [&](const auto& statistic) {
      return BlockReduce(statistic, scratch + (turn++ & 1) * (kScratchBytes / 2));
    };
    total.first = reduce(first);
    if constexpr (Op::kSweeps == 2) {
      const auto add = [&](auto& statistic, auto term) {
        E e[kVector];
        for (int k = threadIdx.x; k < packs; k += blockDim.x) {
          Read(k, e);
          const auto terms = AddTerms(statistic, e, term);
          if constexpr (kKeepsTerms) Keep(k, terms.x);
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
  const Partial<Op> total = cache.Reduce(op, cache.First(op, slice.packs), slice.packs, shared);
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

// The same for logits with terms, by a block or a cluster of them: what terms leave of a row is
// kept in the compute type, so that no term is read twice.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kTermsThreads.back(), TermsBlocks(sizeof(typename Op::T)))
    TermsKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  // Vectors of logits that lie apart, so that neighbouring threads' are neighbours.
  constexpr int kFull = kVectorBytes / sizeof(T);
  constexpr int kKept = kVector < kFull ? kVector : kFull, kParts = kVector / kKept;
  constexpr int kBatch = Load::kTerms == TermsKind::kMasks ? 4 : 2;  // vectors under way
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Partial<Op> of_block[2];
  const Cluster cluster;
  const int step = gridDim.x / cluster.blocks;
  int turn = 0;
  for (int64_t i = blockIdx.x / cluster.blocks; i < rows.outer; i += step, turn ^= 1) {
    const int64_t row = load.RowAt(i, rows);
    const auto of_row = load.ForRow(row, rows);
    const Slice<kVector, kWhole> slice(row, rows.columns, cluster.rank, cluster.blocks);
    const Cache<Op, DirectLoad<Op, T>, kKept> cache(shared + kScratchBytes, 0);

    typename Op::First first;
    for (int k = threadIdx.x; k < slice.packs; k += kBatch * blockDim.x) {
      typename Load::template Raw<kVector> raw[kBatch][1];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int pack = k + b * blockDim.x;
        raw[b][0] = load.Fetch(of_row, 0, slice.window, slice.begin + pack, pack < slice.packs);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int pack = k + b * blockDim.x;
        Element<T, 1> e[kVector];
        load.Decode(of_row, slice.window, slice.begin + pack, raw[b], e);
        if (pack >= slice.packs) break;
        AddFirst(op, first, e);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          T logits[kKept];
#pragma unroll
          for (int j = 0; j < kKept; ++j) logits[j] = e[part * kKept + j][0];
          cache.Keep(part * slice.packs + pack, logits);
        }
      }
    }
    Partial<Op> total = cache.Reduce(op, first, kParts * slice.packs, shared);
    const typename Op::First own = total.first;
    cluster.Merge(op, total, of_block[turn]);
    const auto result = CloseRow(op, of_row, total.first, total.second);
    auto of_terms = result;
    if constexpr (kFinishesFromTerm<Op>) of_terms = op.ForTermsOf(own, total.first, result);

    for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) {
      T y[kVector];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        T finished[kKept];
        cache.Finish(op, part * slice.packs + k, of_terms, finished);
#pragma unroll
        for (int j = 0; j < kKept; ++j) y[part * kKept + j] = finished[j];
      }
      typename Load::Kept kept = ~0u;
      if (!Op::MasksItself(result)) {
        const typename Load::template Raw<kVector> raw[1] = {
            load.Fetch(of_row, 0, slice.window, slice.begin + k)};
        Element<T, 1> e[kVector];
        kept = load.Decode(of_row, slice.window, slice.begin + k, raw, e);
      }
      store(slice.window, slice.begin + k, y, kept, result);
    }
    __syncthreads();
  }
  cluster.Meet();
}

}  // namespace jax_softmax::JS_ISA
