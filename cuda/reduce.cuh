// All-reduces of a statistic: within a group of lanes, then within a block.
#pragma once

#include "plan.h"
#include "stats.h"

namespace jax_softmax::JS_ISA {

// Any trivially copyable statistic, each of whose words `exchange` brings from another lane.
template <typename S, typename Exchange>
__device__ __forceinline__ S FromOther(const S& own, Exchange exchange) {
  static_assert(sizeof(S) % sizeof(int) == 0);
  constexpr int kWords = sizeof(S) / sizeof(int);
  union Words {
    __device__ Words() {}
    S statistic;
    int word[kWords];
  } words;
  words.statistic = own;
#pragma unroll
  for (int i = 0; i < kWords; ++i) words.word[i] = exchange(words.word[i]);
  return words.statistic;
}

// From the lane whose index differs in the bits of `mask`.
template <typename S>
__device__ __forceinline__ S FromLane(const S& own, int mask) {
  return FromOther(own, [mask](int word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
}

// From the lane that is `distance` further on, or this one where there is none.
template <typename S>
__device__ __forceinline__ S FromLaneAfter(const S& own, int distance) {
  return FromOther(own, [=](int word) { return __shfl_down_sync(0xffffffffu, word, distance); });
}

// Butterfly over aligned groups of `lanes` lanes, a power of two; all lanes of the warp take part.
template <typename S>
__device__ __forceinline__ S Butterfly(S statistic, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) statistic.Merge(FromLane(statistic, mask));
  return statistic;
}

template <typename S>
__device__ __forceinline__ S LaneGroupReduce(const S& statistic, int lanes) {
  return S(Butterfly(statistic.Cross(), lanes));
}

// Whether a warp merges the statistic in one instruction: the largest float32, from sm_80 on.
template <typename S>
inline constexpr bool kInOneStep = false;
#if __CUDA_ARCH__ >= 800
template <typename M>
inline constexpr bool kInOneStep<Max<M>> = std::is_same_v<typename M::T, float>;
#endif

// What the whole warp's lanes exchange, merged. The instruction takes integers: as these, floats
// are in order once the negative ones are turned round.
template <typename S>
__device__ __forceinline__ typename S::Crossing CrossWarp(const S& statistic) {
  if constexpr (kInOneStep<S>) {
    const auto turned = [](int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
    S all;
    all.value = __int_as_float(
        turned(__reduce_max_sync(0xffffffffu, turned(__float_as_int(statistic.value)))));
    return all;
  } else {
    return Butterfly(statistic.Cross(), kWarpLanes);
  }
}

template <typename S>
__device__ __forceinline__ S WarpReduce(const S& statistic) {
  return S(CrossWarp(statistic));
}

// The same over kLanes lanes that lie kSpread apart.
template <int kLanes, int kSpread, typename S>
__device__ __forceinline__ S SpreadReduce(const S& statistic) {
  auto crossing = statistic.Cross();
#pragma unroll
  for (int mask = kLanes * kSpread / 2; mask >= kSpread; mask /= 2) {
    crossing.Merge(FromLane(crossing, mask));
  }
  return S(crossing);
}

// Merges all parts that a warp's lanes have.
template <typename Op, int kParts>
__device__ __forceinline__ Partial<Op> WarpMerge(const Op& op, const Partial<Op> (&parts)[kParts]) {
  Partial<Op> total;
#pragma unroll
  for (int i = 0; i < kParts; ++i) total.first.Merge(parts[i].first);
  total.first = WarpReduce(total.first);
  if constexpr (Op::kSweeps == 2) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      Partial<Op> part = parts[i];
      op.Rescale(part.second, part.first, total.first);
      total.second.Merge(part.second);
    }
    total.second = WarpReduce(total.second);
  }
  return total;
}

// Merges `count` parts, at most kMost, by a warp.
template <int kMost, typename Op>
__device__ __forceinline__ Partial<Op> MergeParts(const Op& op, const Partial<Op>* from,
                                                  int count) {
  Partial<Op> parts[(kMost + kWarpLanes - 1) / kWarpLanes];
#pragma unroll
  for (int i = 0; i * kWarpLanes < kMost; ++i) {
    const int part = i * kWarpLanes + threadIdx.x % kWarpLanes;
    if (part < count) parts[i] = from[part];
  }
  return WarpMerge(op, parts);
}

// Over the block's warps; `scratch` holds one statistic per warp, and may be written again only
// after another barrier of the block.
template <typename S>
__device__ __forceinline__ S BlockReduce(const S& statistic, void* scratch) {
  using Crossing = typename S::Crossing;
  auto* of_warp = static_cast<Crossing*>(scratch);
  const Crossing own = CrossWarp(statistic);
  const int warps = blockDim.x / kWarpLanes;
  if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = own;
  __syncthreads();
  const int lane = threadIdx.x % kWarpLanes;
  const auto of_warps = [&](int i) { return i < warps ? of_warp[i] : S{}.Cross(); };
  // A step of the butterfly is a row's latency: no more of them than few warps need.
  if constexpr (kInOneStep<S>) return S(CrossWarp(S(of_warps(lane))));
  if (warps == 1) return S(of_warp[0]);
  constexpr int kFew = 4;
  if (warps <= kFew) return S(Butterfly(of_warps(lane % kFew), kFew));
  return S(Butterfly(of_warps(lane), kWarpLanes));
}

// Merges the parts that the block's warps have, kMostWarps at most, all lanes of one the same;
// `scratch` as above, for a part each.
template <int kMostWarps, typename Op>
__device__ __forceinline__ Partial<Op> BlockMerge(const Op& op, const Partial<Op>& own,
                                                  void* scratch) {
  auto* of_warp = static_cast<Partial<Op>*>(scratch);
  const int warps = blockDim.x / kWarpLanes;
  if (threadIdx.x % kWarpLanes == 0) of_warp[threadIdx.x / kWarpLanes] = own;
  __syncthreads();
  const auto merged = [&]<int kLanes>() {
    const int warp = threadIdx.x % kLanes;
    Partial<Op> part, total;
    if (warp < warps) part = of_warp[warp];
    if constexpr (kInOneStep<typename Op::First>) {
      total.first = WarpReduce(part.first);
    } else {
      total.first = LaneGroupReduce(part.first, kLanes);
    }
    op.Rescale(part.second, part.first, total.first);
    total.second = LaneGroupReduce(part.second, kLanes);
    return total;
  };
  static_assert(kMostWarps <= 16);
  if (kMostWarps <= 4 || warps <= 4) return merged.template operator()<4>();
  if (kMostWarps <= 8 || warps <= 8) return merged.template operator()<8>();
  return merged.template operator()<16>();
}

// The threads that share a row: `Reduce` merges a statistic over them, `Any` is a vote of those
// that must call it together, with which the other threads of the row agree.
struct OneThread {
  template <typename S>
  __device__ __forceinline__ static S Reduce(const S& statistic) {
    return statistic;
  }
  __device__ __forceinline__ static bool Any(bool vote) { return vote; }
};

struct LanesOfWarp {
  __device__ __forceinline__ static bool Any(bool vote) { return __any_sync(0xffffffffu, vote); }
};

struct WholeWarp : LanesOfWarp {
  template <typename S>
  __device__ __forceinline__ static S Reduce(const S& statistic) {
    return WarpReduce(statistic);
  }
};

struct LaneGroup : LanesOfWarp {
  int lanes;
  __device__ __forceinline__ explicit LaneGroup(int lanes) : lanes(lanes) {}
  template <typename S>
  __device__ __forceinline__ S Reduce(const S& statistic) const {
    return LaneGroupReduce(statistic, lanes);
  }
};

template <int kLanes, int kSpread>
struct SpreadLanes : LanesOfWarp {
  template <typename S>
  __device__ __forceinline__ static S Reduce(const S& statistic) {
    return SpreadReduce<kLanes, kSpread>(statistic);
  }
};

// Those of a block of at most kMostThreads, with the two halves of `scratch` by turns. Lanes may
// differ in the last digit of a compensated sum, which they have merged in another order each; all
// warps' lanes of one index have the same, and so a warp's vote is the block's.
template <int kMostThreads>
struct WholeBlock : LanesOfWarp {
  static constexpr int kMostWarps = kMostThreads / kWarpLanes;
  unsigned char* scratch;
  int turn = 0;
  __device__ __forceinline__ explicit WholeBlock(unsigned char* scratch) : scratch(scratch) {}
  template <typename S>
  __device__ __forceinline__ S Reduce(const S& statistic) {
    return BlockReduce(statistic, Next());
  }
  template <typename Op>
  __device__ __forceinline__ Partial<Op> Merge(const Op& op, const Partial<Op>& of_warp) {
    static_assert(sizeof(Partial<Op>) * kMostWarps <= kScratchBytes / 2);
    return BlockMerge<kMostWarps>(op, of_warp, Next());
  }

 private:
  __device__ __forceinline__ unsigned char* Next() {
    return scratch + (turn++ & 1) * (kScratchBytes / 2);
  }
};

// Whether the warps of a block have terms by their own first statistic, and wait for each other
// once, with all that they have: in log-softmax of float32 results, which are not finished from
// terms, as these would have to tell by whose maximum they were taken. Of float32, 1,001 columns
// took 0.973 of the time so, 5,001 0.967, 8,192 0.987, of float64, whose arithmetic is what counts,
// 1,024 1.03 times it (benchmarks/results/h200-log-warps.json). Of 16 bits, whose sums cross in one
// word, it is no faster, and with terms the kernels would spill.
template <typename Op, typename Threads>
inline constexpr bool kMergesWarps =
    std::is_same_v<typename Op::T, float> && Op::kSweeps == 2 && !kFinishesFromTerm<Op> &&
    !kEstimates<Op> && !kPerRow<Op> && !kTakesTerms<Op> &&
    requires(Threads threads, Partial<Op> part) { threads.Merge(Op{}, part); };

// The second sweep's statistic: `add` takes a term of all of this thread's elements into one.
template <typename Op, typename Add, typename Threads>
__device__ __forceinline__ typename Op::Second SecondSweep(const Op& op, typename Op::T pivot,
                                                           Add add, Threads&& threads) {
  if constexpr (kEstimates<Op>) {
    const auto sum = [&](auto term) {
      typename Op::Estimate estimate;
      add(estimate, term);
      return threads.Reduce(estimate);
    };
    const auto estimate = sum([&](const auto& one) { return op.EstimateTerm(one, pivot); });
    typename Op::Second second = op.FromEstimate(estimate, pivot);
    const bool poor = !op.IsGood(second);
    if (threads.Any(poor)) {
      // The other rows of the vote keep their estimates: no row's bits depend on its neighbours.
      const auto refined = sum([&](const auto& one) { return op.RefinedTerm(one, pivot); });
      if (poor) second = op.FromRefined(refined, second);
    }
    return second;
  } else {
    typename Op::Second second;
    add(second, [&](const auto& one) { return op.SecondTerm(one, pivot); });
    return threads.Reduce(second);
  }
}

// The statistics of a row, of which `first` is this thread's.
template <typename Op, typename Add, typename Threads>
__device__ __forceinline__ Partial<Op> BothSweeps(const Op& op, const typename Op::First& first,
                                                  Add add, Threads& threads) {
  Partial<Op> total;
  if constexpr (kMergesWarps<Op, Threads>) {
    Partial<Op> of_warp;
    of_warp.first = WarpReduce(first);
    of_warp.second = SecondSweep(op, op.Pivot(of_warp.first), add, WholeWarp{});
    total = threads.Merge(op, of_warp);
  } else {
    total.first = threads.Reduce(first);
    if constexpr (Op::kSweeps == 2) {
      total.second = SecondSweep(op, op.Pivot(total.first), add, threads);
    }
  }
  return total;
}

// The cluster that a block is one of. Before sm_90 there are none, and a block is alone. Written in
// the compiler's functions: cooperative_groups.h, which wraps them, takes more than a second of
// every object's time to compile.
struct Cluster {
  int blocks = 1;
  int rank = 0;

  __device__ __forceinline__ Cluster() {
#if __CUDA_ARCH__ >= 900
    blocks = __clusterSizeInBlocks();
    rank = __clusterRelativeBlockRank();
#endif
  }

  // Merges the blocks' parts, through `of_block` in shared memory: a place that may be written
  // again after the next call with another place.
  template <typename Op>
  __device__ __forceinline__ void Merge(const Op& op, Partial<Op>& part,
                                        Partial<Op>& of_block) const {
#if __CUDA_ARCH__ >= 900
    if (blocks == 1) return;
    if (threadIdx.x == 0) of_block = part;
    Meet();
    const int lane = threadIdx.x % kWarpLanes;
    Partial<Op> parts[1];
    if (lane < blocks) parts[0] = *InBlock(lane, &of_block);
    part = WarpMerge(op, parts);
#endif
  }

  // Writes `value` to all blocks' `place` in shared memory, which they may read after the next
  // Merge.
  template <typename T>
  __device__ __forceinline__ void Tell(T& place, T value) const {
#if __CUDA_ARCH__ >= 900
    for (int b = 0; b < blocks; ++b) *InBlock(b, &place) = value;
#else
    place = value;
#endif
  }

  // All blocks get here before any goes on: a block's shared memory may be used once it has
  // started, and until it leaves.
  __device__ __forceinline__ void Meet() const {
    if (blocks == 1) return;
    Arrive();
    Await();
  }
  // The same in two steps.
  __device__ __forceinline__ static void Arrive() {
#if __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive();
#endif
  }
  // The first step where the others need to know no more than that this thread has what it read of
  // them, and all await the second before they end. Arrive would show its writes to the whole
  // device.
  __device__ __forceinline__ static void ArriveAfterReads() {
#if __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive_relaxed();
#endif
  }
  __device__ __forceinline__ static void Await() {
#if __CUDA_ARCH__ >= 900
    __cluster_barrier_wait();
#endif
  }

  // The place in another block's shared memory.
  template <typename T>
  __device__ __forceinline__ static T* InBlock(int rank, T* place) {
#if __CUDA_ARCH__ >= 900
    return static_cast<T*>(
        __cluster_map_shared_rank(const_cast<std::remove_const_t<T>*>(place), rank));
#else
    return place;
#endif
  }
};

// Rows for blocks or clusters that stay for many of them, in "stream": in turn, or with a counter
// that starts at 0, always to the next one that is free. Multiprocessors differ in how near their
// memory is: without, the farthest one's rows took 4 to 8 % longer than the mean (H200, 2026-11).
class RowQueue {
 public:
  int64_t row;

  // `places` are two in shared memory, by turns as in Cluster::Merge.
  __device__ __forceinline__ RowQueue(const Cluster& cluster, unsigned long long* counter,
                                      int64_t (&places)[2])
      : row(blockIdx.x / cluster.blocks),
        step_(gridDim.x / cluster.blocks),
        leads_(cluster.rank == 0 && threadIdx.x == 0),
        counter_(counter),
        places_(places) {}

  // Asks for the row after this one, whose number is a while on its way.
  __device__ __forceinline__ void Ask() {
    if (counter_ != nullptr && leads_) asked_ = atomicAdd(counter_, 1);
  }
  // Before the block's and the cluster's next barrier.
  __device__ __forceinline__ void Tell(const Cluster& cluster, int turn) {
    if (counter_ != nullptr && leads_) {
      cluster.Tell(places_[turn], step_ + static_cast<int64_t>(asked_));
    }
  }
  // After it.
  __device__ __forceinline__ int64_t Next(int turn) const {
    return counter_ != nullptr ? places_[turn] : row + step_;
  }

 private:
  int64_t step_;
  bool leads_;
  unsigned long long* counter_;
  unsigned long long asked_ = 0;
  int64_t (&places_)[2];
};

}  // namespace jax_softmax::JS_ISA
