// Strategy "stream": a block or a cluster of blocks per row of any length, read twice but for what
// shared memory keeps of it, statistics folded online.
#pragma once

#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op>
inline constexpr int kStreamThreads = StreamThreads(Op::kInputs, kPerRow<Op>, kTakesTerms<Op>);

template <typename Op>
inline constexpr bool kKeepsStreamed = KeepsStreamed(kPerRow<Op>, kTakesTerms<Op>);

template <typename Op>
inline constexpr bool kFitsStreamScratch =
    kStreamThreads<Op> / kWarpLanes * sizeof(typename Op::First::Crossing) <= kScratchBytes / 2;

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kStreamThreads<Op>,
                                  StreamBlocks(kStreamThreads<Op>, kTakesTerms<Op>))
    StreamKernel(Op op, Load load, Store store, Rows rows, int kept_bytes,
                 unsigned long long* counter) {
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  // Vectors of a row that a thread loads before it uses the first: fewer where they, their masks or
  // what becomes of them takes more registers.
  constexpr bool kWidens = sizeof(typename Store::Io) > sizeof(typename Load::Io);
  constexpr bool kMost = kWhole && !kTakesTerms<Op> && !kWidens;
  constexpr int kBatch = (kMost ? kStreamPacks : kStreamPacks / 2) / Op::kInputs;
  static_assert(kFitsStreamScratch<Op>);
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Partial<Op> of_block[2];
  __shared__ int64_t told_rows[2];
  const Cluster cluster;
  const int64_t first = int64_t{threadIdx.x} + cluster.rank * blockDim.x;
  const int64_t stride = int64_t{blockDim.x} * cluster.blocks;

  Raw raw[kBatch][Op::kInputs];
  typename Load::Row of_row;
  const auto fetch = [&](const auto& window, int64_t k, auto needs, auto last_use) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t pack = k + b * stride;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[b][input] = load.template Fetch<last_use>(of_row, input, window, pack,
                                                      needs(input) && pack < window.packs);
      }
    }
  };

  // Of the batches that the sweep reads first, and that it has reason to forget, shared memory
  // keeps the inputs that it needs, each thread its own vectors.
  constexpr bool kKeeps = kKeepsStreamed<Op>;
  constexpr auto needed = [](int input) { return SweepsNeed<Op>(input); };
  constexpr int kNeeded = [=] {
    int count = 0;
    for (int input = 0; input < Op::kInputs; ++input) count += needed(input);
    return count;
  }();
  const int place_bytes = static_cast<int>(sizeof(Raw) * blockDim.x);
  const int kept = kKeeps ? kept_bytes / (kBatch * kNeeded * place_bytes) : 0;
  // Calls f with each kept vector of a batch and its place.
  const auto each_kept = [&](int batch, auto f) {
    if constexpr (kKeeps) {
      auto* place = reinterpret_cast<Raw*>(shared + 2 * kScratchBytes) + threadIdx.x;
      place += batch * (kBatch * kNeeded * blockDim.x);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int input = 0; input < Op::kInputs; ++input) {
          if (!needed(input)) continue;
          f(raw[b][input], place);
          place += blockDim.x;
        }
      }
    }
  };

  RowQueue queue(cluster, counter, told_rows);
  if (counter != nullptr) cluster.Meet();  // the others are told their rows
  for (int turn = 0; queue.row < rows.outer; queue.row = queue.Next(turn), turn ^= 1) {
    queue.Ask();
    const Window<kVector, kWhole, int64_t> window(queue.row, rows.columns);
    of_row = load.ForRow(queue.row, rows);
    const int batches = static_cast<int>((window.packs + kBatch * stride - 1) / (kBatch * stride));

    Partial<Op> part;
#pragma unroll 1
    for (int i = 0; i < batches; ++i) {
      fetch(window, first + i * kBatch * stride, needed, std::false_type{});
      if (i < kept) each_kept(i, [](const auto& vector, auto* place) { vector.Store(place); });
      Element<T, Op::kInputs> e[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        load.Decode(of_row, window, first + (i * kBatch + b) * stride, raw[b], e[b]);
      }
      AddOnline(op, part, e);
    }
    queue.Tell(cluster, turn);
    unsigned char* scratch = shared + turn * kScratchBytes;
    const typename Op::First own = part.first;
    part.first = BlockReduce(part.first, scratch);
    if constexpr (Op::kSweeps == 2) {
      op.Rescale(part.second, own, part.first);
      part.second = BlockReduce(part.second, scratch + kScratchBytes / 2);
    }
    cluster.Merge(op, part, of_block[turn]);

    const auto result = CloseRow(op, of_row, part.first, part.second);
    if constexpr (kPerRow<Op>) {
      if (cluster.rank == 0 && threadIdx.x == 0) StoreOfRow(op, store, queue.row, result);
    } else {
      // Backwards: what was read last is still in the cache.
#pragma unroll 1
      for (int i = batches - 1; i >= 0; --i) {
        const int64_t k = first + i * kBatch * stride;
        if (kKeeps && i < kept) {
          fetch(window, k, [&](int input) { return !needed(input); }, std::true_type{});
          each_kept(i, [](auto& vector, auto* place) { vector = vector.Load(place); });
        } else {
          fetch(window, k, [](int) { return true; }, std::true_type{});
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          Element<T, Op::kInputs> e[kVector];
          const auto kept = load.Decode(of_row, window, k + b * stride, raw[b], e);
          T y[kVector];
#pragma unroll
          for (int j = 0; j < kVector; ++j) y[j] = op.Finish(e[j], result);
          if (k + b * stride < window.packs)
            store(window, k + b * stride, y, kept, result, std::true_type{});
        }
      }
    }
  }
  cluster.Meet();
}

// The same for ops with one value for each row, by blocks alone: each fetches the next vectors, of
// the next row too, before it adds those that have come.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kStreamThreads<Op>, StreamBlocks(kStreamThreads<Op>, false))
    ReduceKernel(Op op, Load load, Store store, Rows rows) {
  using W = BodyOf<kVector, kWhole>;  // longer rows are a cluster's, if there are any
  constexpr int kBatch = kStreamPacks;
  const int threads = blockDim.x;
  __shared__ __align__(16) unsigned char shared[2][kScratchBytes];
  typename Load::template Raw<kVector> raw[kBatch][Op::kInputs];
  const auto fetch = [&](const W& window, int k) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int pack = k + b * threads;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[b][input] = load.Fetch({}, input, window, pack, pack < window.packs);
      }
    }
  };

  int64_t row = blockIdx.x;
  W window(row, rows.columns);
  fetch(window, threadIdx.x);
  for (int turn = 0; row < rows.outer; turn ^= 1) {
    const int64_t next_row = row + gridDim.x;
    const W next(next_row < rows.outer ? next_row : row, rows.columns);
    const Edge edge(load, store, {}, window);
    Partial<Op> part;
    const int packs = max(window.packs, 1);  // at least one turn, to fetch the next row's
#pragma unroll 1
    for (int begin = 0; begin < packs; begin += kBatch * threads) {
      const int k = begin + threadIdx.x;
      Element<typename Op::T, Op::kInputs> e[kBatch][kVector];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) load.Decode({}, window, k + b * threads, raw[b], e[b]);
      const int after = begin + kBatch * threads;
      const bool more = after < packs;
      if (more || next_row < rows.outer) {
        fetch(more ? window : next, (more ? after : 0) + threadIdx.x);
      }
      if (packs - begin > (kBatch - 1) * threads) {
        AddOnline(op, part, e);
        continue;
      }
      // What is left of the row is not worth the arithmetic of a batch.
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (begin + b * threads >= packs) break;
        AddOnline(op, part, e[b]);
      }
    }
    if (edge.IsHere()) AddOnline(op, part, edge.e);
    const typename Op::First own = part.first;
    part.first = BlockReduce(part.first, shared[turn]);
    if constexpr (Op::kSweeps == 2) {
      op.Rescale(part.second, own, part.first);
      part.second = BlockReduce(part.second, shared[turn] + kScratchBytes / 2);
    }
    if (threadIdx.x == 0) StoreOfRow(op, store, row, op.Close(part.first, part.second));
    row = next_row;
    window = next;
  }
}

}  // namespace jax_softmax::JS_ISA
