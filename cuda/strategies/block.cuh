// Strategy "block": a block per row, the row in shared memory in its own dtype, or what terms make
// of its logits in the compute type, read once.
#pragma once

#include <cuda_pipeline.h>

#include <type_traits>

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// Vectors in shared memory, of which a thread has those at `first`, first + blockDim.x, …: every
// thread reads back just what it fetched itself, so that none waits for another.
template <typename Op, typename Load, int kVector>
class Cache {
 public:
  using T = typename Op::T;
  using E = Element<T, Op::kInputs>;
  using Raw = typename Load::template Raw<kVector>;
  // Where they have the elements' type, the second sweep's terms take the elements' places.
  static constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<typename Load::Io, T>;

  __device__ __forceinline__ Cache(void* memory, int capacity, int first)
      : words_(static_cast<typename Raw::Word*>(memory)), capacity_(capacity), first_(first) {}

  // Starts to fetch vector k.
  template <typename W>
  __device__ __forceinline__ void Fetch(const Load& load, const W& window, int k) const {
    static_assert(!W::kMasks && Raw::kBytes == kVectorBytes);
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      __pipeline_memcpy_async(Place(input, k), load.source[input] + window.Offset(k), kVectorBytes);
    }
  }

  // Waits for this thread's vectors.
  __device__ __forceinline__ static void Await() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
  }

  // Keeps values that their type in memory can hold as vector k.
  __device__ __forceinline__ void Keep(int k, const T (&values)[kVector]) const {
    typename Raw::Values kept;
#pragma unroll
    for (int i = 0; i < kVector; ++i) kept.element[i] = NarrowTo<typename Load::Io>(values[i]);
    Raw(kept).Store(Place(0, k));
  }

  // The first sweep over this thread's vectors of `packs`.
  __device__ __forceinline__ void AddFirstOf(const Op& op, int packs,
                                             typename Op::First& first) const {
    E e[kVector];
    for (int k = first_; k < packs; k += blockDim.x) {
      Read(k, e);
      AddFirst(op, first, e);
    }
  }

  // Reduces `packs` vectors and what they leave out, of which threads have had the first sweep,
  // over the block.
  template <typename Edge>
  __device__ __forceinline__ Partial<Op> Reduce(const Op& op, const typename Op::First& first,
                                                int packs, Edge& edge,
                                                unsigned char* scratch) const {
    const auto add = [&](auto& statistic, auto term) {
      E e[kVector];
      for (int k = first_; k < packs; k += blockDim.x) {
        Read(k, e);
        const auto terms = AddTerms(statistic, e, term);
        if constexpr (kKeepsTerms) Keep(k, terms.x);
      }
      if constexpr (Edge::kAny) {
        if (!Edge::IsHere()) return;
        const auto terms = AddTerms(statistic, edge.e, term);
        if constexpr (kKeepsTerms) edge.e[0].value[0] = terms.x[0];
      }
    };
    WholeBlock<kMostBlockThreads> block(scratch);
    return BothSweeps(op, first, add, block);
  }

  // The results of vector k.
  __device__ __forceinline__ void Finish(const Op& op, int k, const typename Op::Row& result,
                                         T (&y)[kVector]) const {
    E e[kVector];
    Read(k, e);
#pragma unroll
    for (int i = 0; i < kVector; ++i) y[i] = Finish(op, e[i], result);
  }
  // Of what the sweeps left.
  __device__ __forceinline__ static T Finish(const Op& op, const E& e,
                                             const typename Op::Row& result) {
    if constexpr (kKeepsTerms) {
      return op.FinishFromTerm(e[0], result);
    } else {
      return op.Finish(e, result);
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
  typename Raw::Word* words_;
  int capacity_;  // vectors of an input
  int first_;
};

// The first vector of this thread where warps take whole lines of the cache, wherever a row that is
// no whole vectors starts.
template <typename W>
__device__ __forceinline__ int FirstByLines(const W& window) {
  int first = threadIdx.x;
  if constexpr (!W::kWhole) {
    first -= PacksBeforeInLine(window);
    if (first < 0) first += blockDim.x;
  }
  return first;
}

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kMostBlockThreads)
    BlockKernel(Op op, Load load, Store store, Rows rows) {
  extern __shared__ __align__(16) unsigned char shared[];
  const BodyOf<kVector, kWhole> window(blockIdx.x, rows.columns);
  const int begin = FirstByLines(window);
  const Cache<Op, Load, kVector> cache(shared + kScratchBytes, window.packs, begin);

  for (int k = begin; k < window.packs; k += blockDim.x) cache.Fetch(load, window, k);
  Edge edge(load, store, {}, window);
  cache.Await();
  typename Op::First first;
  cache.AddFirstOf(op, window.packs, first);
  if (edge.IsHere()) AddFirst(op, first, edge.e);
  const Partial<Op> total = cache.Reduce(op, first, window.packs, edge, shared);
  const auto result = op.Close(total.first, total.second);
  if constexpr (kPerRow<Op>) {
    if (threadIdx.x == 0) StoreOfRow(op, store, blockIdx.x, result);
  } else {
    for (int k = begin; k < window.packs; k += blockDim.x) {
      typename Op::T y[kVector];
      cache.Finish(op, k, result, y);
      store(window, k, y);
    }
    edge.Put(cache.Finish(op, edge.e[0], result), result);
  }
}

// The same for logits with terms, by a block or a cluster of them: what terms leave of a row is
// kept, so that no term is read twice.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kTermsThreads.back(), TermsBlocks(sizeof(typename Op::T)))
    TermsKernel(Op op, Load load, Store store, Rows rows) {
  using T = typename Op::T;
  using Io = std::conditional_t<Load::kTerms == TermsKind::kMasksAlone, typename Load::Io, T>;
  // Vectors of logits that lie apart, so that neighbouring threads' are neighbours.
  constexpr int kKept = kVectorBytes / sizeof(Io), kParts = kVector / kKept;
  using Kept = Cache<Op, DirectLoad<Op, Io>, kKept>;
  constexpr int kBatch = Load::kTerms != TermsKind::kAny && kWhole ? 4 : 2;  // vectors under way
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Partial<Op> of_block[2];
  const Cluster cluster;
  const int step = gridDim.x / cluster.blocks;
  int turn = 0;
  for (int64_t i = blockIdx.x / cluster.blocks; i < rows.outer; i += step, turn ^= 1) {
    const int64_t row = load.RowAt(i, rows);
    const auto of_row = load.ForRow(row, rows);
    const Slice<BodyOf<kVector, kWhole>> slice(row, rows.columns, cluster.rank, cluster.blocks);
    const Kept cache(shared + kScratchBytes, 0, threadIdx.x);

    Edge edge(load, store, of_row, slice.window, cluster.rank == 0);
    typename Op::First first;
    if (edge.IsHere()) AddFirst(op, first, edge.e);
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
    Partial<Op> total = cache.Reduce(op, first, kParts * slice.packs, edge, shared);
    const typename Op::First own = total.first;
    cluster.Merge(op, total, of_block[turn]);
    const auto result = CloseRow(op, of_row, total.first, total.second);
    auto of_terms = result;
    if constexpr (Kept::kKeepsTerms) of_terms = op.ForTermsOf(own, total.first, result);

    for (int k = threadIdx.x; k < slice.packs; k += blockDim.x) {
      T y[kVector];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        T finished[kKept];
        cache.Finish(op, part * slice.packs + k, of_terms, finished);
#pragma unroll
        for (int j = 0; j < kKept; ++j) y[part * kKept + j] = finished[j];
      }
      typename Load::Kept kept = Load::KeptAs(~0u);
      if (Load::kMayMask && !Op::MasksItself(result)) {
        const typename Load::template Raw<kVector> raw[1] = {
            load.Fetch(of_row, 0, slice.window, slice.begin + k)};
        Element<T, 1> e[kVector];
        kept = load.Decode(of_row, slice.window, slice.begin + k, raw, e);
      }
      store(slice.window, slice.begin + k, y, kept, result);
    }
    edge.Put(cache.Finish(op, edge.e[0], of_terms), result);
    __syncthreads();
  }
  cluster.Meet();
}

}  // namespace jax_softmax::JS_ISA
