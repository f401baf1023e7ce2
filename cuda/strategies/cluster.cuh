// Strategy "cluster": a row in the registers of a block, or of the blocks of a cluster, which merge
// their results by messages. While they work on one row, copies bring the next to shared memory.
#pragma once

#include "../async.cuh"
#include "../in_words.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// A row in shared memory on its way to registers, of which each thread takes every blockDim.x-th
// vector. It comes as one copy of an input: of four parts, each with a barrier of its own, so that
// the next row's could follow as soon as all threads have taken one, the forward pass of 65,536
// columns ran at 0.84 of the copy limit instead of 0.93 (bf16, H200, 2026-11), and of two at 0.93.
template <typename Op, typename Load, int kVector, bool kWhole>
class Inbox {
 public:
  using Raw = typename Load::template Raw<kVector>;
  using Share = Slice<Window<kVector, kWhole>>;

  __device__ __forceinline__ Inbox(void* memory, int capacity, ByteBarrier& barrier)
      : words_(static_cast<typename Raw::Word*>(memory)), capacity_(capacity), barrier_(barrier) {}

  // Starts to fetch a slice, neighbouring rows' elements at its edges included. By one thread, when
  // all have taken what was there.
  __device__ __forceinline__ void Fetch(const Load& load, const Share& slice) const {
    const int64_t offset = slice.window.Offset(slice.begin);
    const unsigned bytes = Copied(load, slice) * kVectorBytes;
    barrier_.Expect(bytes * Op::kInputs);
    if (bytes == 0) return;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      CopyToShared(Place(input, 0), load.source[input] + offset, bytes, barrier_);
    }
  }

  // Waits for a slice; neighbouring rows' elements become absent.
  __device__ __forceinline__ void Await(const Load& load, const Share& slice,
                                        unsigned parity) const {
    barrier_.Await(parity);
    if constexpr (!kWhole) {
      Mask(load, slice, 0);
      if (slice.packs > 1) Mask(load, slice, slice.packs - 1);
    }
  }

  __device__ __forceinline__ Raw Take(int input, int k, bool present) const {
    Raw raw = Load::template AbsentRaw<kVector>(input);
    if (present) raw = Raw::Load(Place(input, k));
    return raw;
  }

 private:
  __device__ __forceinline__ typename Raw::Word* Place(int input, int k) const {
    return &words_[input * capacity_ + k];
  }
  __device__ __forceinline__ static int Copied(const Load& load, const Share& slice) {
    using W = decltype(slice.window);
    return CopiedPacks<W>(load, slice.window.Offset(slice.begin), slice.packs);
  }
  // Leaves in vector k what the row has of it, by the thread that takes it. A vector that was not
  // copied is fetched.
  __device__ __forceinline__ void Mask(const Load& load, const Share& slice, int k) const {
    if (k >= slice.packs || k % kClusterThreads != threadIdx.x) return;
    const int pack = slice.begin + k;
    if (slice.window.IsWhole(pack)) return;
    const bool copied = k < Copied(load, slice);
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      auto* elements = reinterpret_cast<typename Load::Io*>(Place(input, k));
      const auto* from = load.source[input] + slice.window.Offset(pack);
#pragma unroll 1
      for (int i = 0; i < kVector; ++i) {
        if (!slice.window.Has(pack, i)) {
          elements[i] = Load::AbsentIo(input);
        } else if (!copied) {
          elements[i] = from[i];
        }
      }
    }
    FenceCopies();
  }

  typename Raw::Word* words_;
  int capacity_;  // vectors of an input
  ByteBarrier& barrier_;
};

// Merges the statistics of all warps of a cluster, by turns through two sets of places.
template <typename Op>
class Exchange {
 public:
  struct Note {
    Partial<Op> part;
    int row;
  };
  static_assert(sizeof(Message<Note>) <= kClusterNoteBytes);

  __device__ __forceinline__ Exchange(void* memory, ByteBarrier (&barriers)[2],
                                      const Cluster& cluster)
      : notes_(static_cast<Message<Note>*>(memory)), barriers_(barriers), cluster_(cluster) {}

  __device__ __forceinline__ void Open() const {
    for (int turn = 0; turn < 2; ++turn) {
      barriers_[turn].Init();
      Expect(turn);
    }
  }

  // Sends a warp's part to all blocks, and what the cluster's first warp says of `row`.
  __device__ __forceinline__ void Post(int turn, const Partial<Op>& part, int row) const {
    const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
    Message<Note>& place = notes_[First(turn) + cluster_.rank * kWarps + warp];
    const Message<Note> note({part, row});
    if (cluster_.blocks == 1) {
      if (lane == 0) place = note;
    } else if (lane < cluster_.blocks) {
      Send(note, place, barriers_[turn], lane);
    }
  }

  // Waits for all warps' parts, which it merges into `part`; returns the first warp's row.
  __device__ __forceinline__ int Await(const Op& op, int turn, unsigned parity,
                                       Partial<Op>& part) const {
    if (cluster_.blocks == 1) {
      __syncthreads();
    } else {
      barriers_[turn].Await(parity);
      if (threadIdx.x == 0) Expect(turn);
    }
    const auto* notes = notes_ + First(turn);
    part = {};
#pragma unroll 1
    for (int i = threadIdx.x % kWarpLanes; i < Notes(); i += kWarpLanes) {
      JS_ISA::Merge(op, part, notes[i].value.part);
    }
#pragma unroll 1
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      JS_ISA::Merge(op, part, FromLane(part, mask));
    }
    return notes[0].value.row;
  }

 private:
  static constexpr int kWarps = kClusterThreads / kWarpLanes;

  __device__ __forceinline__ int Notes() const { return cluster_.blocks * kWarps; }
  __device__ __forceinline__ int First(int turn) const { return turn * Notes(); }
  __device__ __forceinline__ void Expect(int turn) const {
    barriers_[turn].Expect(Notes() * sizeof(Message<Note>));
  }

  Message<Note>* notes_;
  ByteBarrier (&barriers_)[2];
  const Cluster& cluster_;
};

// Reads a row's vectors into registers, reduces them within warps, then over the cluster, and
// finishes them. Rows come by turns or, with a `counter` that starts at 0, as clusters are free.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole, int kPacks>
__global__ void __launch_bounds__(kClusterThreads, 1)
    ClusterKernel(Op op, Load load, Store store, Rows rows, int capacity, Zeros zeros,
                  unsigned long long* counter) {
#if __CUDA_ARCH__ >= 900
  using T = typename Op::T;
  using Raw = typename Load::template Raw<kVector>;
  // Where they have the elements' type, the second sweep's terms take the elements' places.
  constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<typename Load::Io, T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ ByteBarrier arrival, meetings[2];
  const Cluster cluster;
  const Exchange<Op> exchange(shared, meetings, cluster);
  const Inbox<Op, Load, kVector, kWhole> inbox(shared + cluster.blocks * kClusterNotesBytes,
                                               capacity, arrival);
  if (threadIdx.x == 0) {
    arrival.Init();
    exchange.Open();
    PublishBarriers();
  }
  __syncthreads();
  cluster.Meet();

  const int count = static_cast<int>(rows.outer), step = gridDim.x / cluster.blocks;
  int row = blockIdx.x / cluster.blocks, next_row = row + step;
  const auto slice_of = [&](int of_row) {
    return Slice<Window<kVector, kWhole>>(of_row, rows.columns, cluster.rank, cluster.blocks);
  };
  auto slice = slice_of(row);
  if (threadIdx.x == 0) inbox.Fetch(load, slice);

  for (unsigned done = 0; row < count; ++done) {
    const unsigned turn = done % 2;
    // The row after the next one, whose number is a while on its way.
    int later = next_row + step;
    if (counter != nullptr && cluster.rank == 0 && threadIdx.x == 0) {
      later = 2 * step + static_cast<int>(atomicAdd(counter, 1));
    }
    inbox.Await(load, slice, turn);
    Raw raw[kPacks][Op::kInputs];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int pack = threadIdx.x + k * kClusterThreads;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[k][input] = inbox.Take(input, pack, pack < slice.packs);
      }
    }
    __syncthreads();
    if (next_row < count && threadIdx.x == 0) inbox.Fetch(load, slice_of(next_row));

    Partial<Op> part = ReduceWords<Op, Load>(op, raw, zeros, [&](int k, const auto& terms) {
      if constexpr (kKeepsTerms) {
        raw[k][0] = Opaque(Raw(PackOf<typename Load::Io>(terms.x)), zeros.z[2]);
      }
    });
    const typename Op::First own = part.first;
    exchange.Post(turn, part, __shfl_sync(0xffffffffu, later, 0));
    later = exchange.Await(op, turn, done / 2 % 2, part);
    auto result = op.Close(part.first, part.second);
    if constexpr (kKeepsTerms) result = op.ForTermsOf(own, part.first, result);

    SweepWords<Op, Load>(raw, kReducesPlainly<Op> ? zeros.z[0] : 0, [&](int k, const auto& e) {
      T y[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if constexpr (kKeepsTerms) {
          y[i] = op.FinishFromTerm(e[i][0], result);
        } else {
          y[i] = op.Finish(e[i], result);
        }
      }
      const int pack = threadIdx.x + k * kClusterThreads;
      if (pack < slice.packs) store(slice.window, slice.begin + pack, y);
    });
    row = next_row;
    slice = slice_of(row);
    next_row = later;
  }
  cluster.Meet();  // none leaves while another may send to it
#endif
}

}  // namespace jax_softmax::JS_ISA
