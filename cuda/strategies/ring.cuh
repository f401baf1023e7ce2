// Strategy "ring": parts of rows pass through places of a block's shared memory, in a queue that
// all blocks take from; a row's parts tell each other their results through global memory.
#pragma once

#include "../async.cuh"
#include "../in_words.cuh"
#include "../operands.cuh"
#include "../reduce.cuh"

namespace jax_softmax::JS_ISA {

// A queue of parts and what is told of them, in global memory whose bits are all 1 at first.
//
// A message is read until it is there: no word of one that is has all bits set where this is looked
// for. Nobody waits for a part that is not taken by a block that runs.
template <typename Op>
class Board {
  using Note = Message<Partial<Op>>;
  static constexpr int kVectors = Note::kVectors;
  static constexpr int kAtOnce = 4 / kVectors;  // notes that a lane asks for before it looks at one

 public:
  __device__ __forceinline__ explicit Board(void* memory)
      : taken_(static_cast<unsigned long long*>(memory)),
        notes_(reinterpret_cast<Note*>(static_cast<unsigned char*>(memory) + kRingQueueBytes)) {}

  // The next part, by one thread.
  __device__ __forceinline__ int64_t Take() const {
    return static_cast<int64_t>(atomicAdd(taken_, 1) + 1);
  }

  // By one thread.
  __device__ __forceinline__ void Post(int64_t part, const Partial<Op>& result) const {
    Note note;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) note.vector[i] = {};
    note.value = result;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint4 v = note.vector[i];
      if (v.w == kUnset) v.w = kOtherNaN;
      asm volatile(
          "{\n"
          ".reg .b64 low, high;\n"
          ".reg .b128 all;\n"
          "mov.b64 low, {%1, %2};\n"
          "mov.b64 high, {%3, %4};\n"
          "mov.b128 all, {low, high};\n"
          "st.relaxed.gpu.global.b128 [%0], all;\n"
          "}" ::"l"(&notes_[part].vector[i]),
          "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
          : "memory");
    }
  }

  // The results of `count` parts from `first` on, merged, when they have come. By a warp, whose
  // lanes stay together: where some had nothing to wait for, float32 rows of 16 parts took a tenth
  // longer (H200, 2026-11).
  __device__ __forceinline__ Partial<Op> Await(const Op& op, int64_t first, int count) const {
    Partial<Op> total;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kAtOnce * kWarpLanes) {
      const int left = count - begin;
      Note notes[kAtOnce];
      AwaitSome(first + begin, left, notes);
      Partial<Op> parts[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (k * kWarpLanes + Lane() < left) parts[k] = notes[k].value;
      }
      const Partial<Op> some = WarpMerge(op, parts);
      if (begin == 0) {
        total = some;
      } else {
        JS_ISA::Merge(op, total, some);
      }
    }
    return total;
  }

 private:
  static constexpr unsigned kUnset = 0xffffffffu;
  static constexpr unsigned kOtherNaN = 0xfff80000u;  // of float32, and the upper word of float64

  __device__ __forceinline__ static int Lane() { return threadIdx.x % kWarpLanes; }

  // Lanes read `count` notes from `first` on in turn, each again only until it is there.
  __device__ __forceinline__ void AwaitSome(int64_t first, int count,
                                            Note (&notes)[kAtOnce]) const {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) notes[k].vector[v].w = kUnset;
    }
    bool here;
    do {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (k * kWarpLanes >= count) break;
        const Note& note = notes_[first + min(k * kWarpLanes + Lane(), count - 1)];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (notes[k].vector[v].w == kUnset) notes[k].vector[v] = Look(&note.vector[v]);
        }
      }
      here = true;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (k * kWarpLanes >= count) break;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) here &= notes[k].vector[v].w != kUnset;
      }
    } while (!__all_sync(0xffffffffu, here));
  }

  __device__ __forceinline__ static uint4 Look(const uint4* place) {
    uint4 v;
    asm volatile(
        "{\n"
        ".reg .b64 low, high;\n"
        ".reg .b128 all;\n"
        "ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all;\n"
        "mov.b64 {%0, %1}, low;\n"
        "mov.b64 {%2, %3}, high;\n"
        "}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(place)
        : "memory");
    return v;
  }

  unsigned long long* taken_;
  Note* notes_;
};

// The places of a block, in shared memory before what they hold, and whose turn each is.
template <typename Op>
struct Places {
  static constexpr int64_t kEnd = -1;  // in place of a part: there are no more

  ByteBarrier full[kRingPlaces];     // the part is there
  ByteBarrier reduced[kRingPlaces];  // by all warps of a team
  ByteBarrier closed[kRingPlaces];   // its row's result is known, and its own is told
  ByteBarrier empty[kRingPlaces];    // written by all warps of a team
  int64_t part[kRingPlaces];
  Partial<Op> of_warp[kRingPlaces][kRingReducers];
  typename Op::Row result[kRingPlaces];
  // Of each group of vectors that a warp reduces together, the maximum, and the row's result for
  // their terms.
  static constexpr int kGroups =
      kFinishesFromTerm<Op>
          ? CeilDiv(kRingLong.bytes, int64_t{kVectorBytes} * kRingPacks * kWarpLanes)
          : 1;
  typename Op::First of_group[kRingPlaces][kGroups];
  typename Op::Row of_terms[kRingPlaces][kGroups];

  // By one thread.
  __device__ __forceinline__ void Init() {
    for (int place = 0; place < kRingPlaces; ++place) {
      full[place].Init();
      reduced[place].Init(kRingReducers);
      closed[place].Init(2);
      empty[place].Init(kRingWriters);
    }
    PublishBarriers();
  }
};

// A place and the parity of the phases that its barriers are in, for one that goes round by `step`
// places at a time: a number that `places` divides by, so that nobody misses a phase.
struct Turn {
  int place = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void Advance(int step, int places) {
    place += step;
    if (place >= places) {
      place -= places;
      parity ^= 1;
    }
  }
};

// A part of a row: vectors of its window, whole lines of it. Where rows start anywhere, all but a
// row's first part begin at a line of the cache: softmax of 100,001 bf16 columns ran at 0.92 of the
// copy limit where lines were shared by parts, and so at 0.97. Rows of whole vectors are cut alike
// wherever they lie, so that their bits do not depend on that.
//
// Every warp divides a part's number. Where they were told its row and index instead, and barriers
// were awaited in the scope of the block, 64 rows took 3 to 6 % less time, but of many rows
// log-softmax of a million float32 columns ran at 0.90 of the copy limit instead of 0.93, of
// 128,256 bf16 columns at 0.94 instead of 0.955 (benchmarks/results/h200-ring-steps.json).
template <typename W>
struct RingPart {
  W window;
  int begin;
  int packs;

  __device__ __forceinline__ RingPart(int64_t number, int64_t columns, const RingShape& shape)
      : window(number / shape.parts, columns) {
    const int index = static_cast<int>(number % shape.parts);
    const int in_line = PacksBeforeInLine(window);
    begin = min(max(index * shape.packs - in_line, 0), window.packs);
    packs = min((index + 1) * shape.packs - in_line, window.packs) - begin;
  }

  // The row's first vector (`end` is 0) or its last one, if it is in this part and neighbouring
  // rows have some of its elements, as its number here; or -1.
  __device__ __forceinline__ int Edge(int end) const {
    const int of_row = end == 0 ? 0 : window.packs - 1;
    if (of_row < begin || of_row >= begin + packs || window.IsWhole(of_row)) return -1;
    return end == 1 && of_row == 0 ? -1 : of_row - begin;  // a single vector is the first one
  }
  // Its vectors without these: from one to before another.
  __device__ __forceinline__ int FirstWhole() const { return Edge(0) < 0 ? 0 : 1; }
  __device__ __forceinline__ int EndOfWhole() const { return Edge(1) < 0 ? packs : packs - 1; }
};

// What the warps of a block do, by turns of places. None but Close waits for other blocks, so that
// a part that has been taken is told of in any case. Before a lane says what its warp has done,
// they meet, as shuffles alone do not order memory. What copies have brought is only read, but that
// softmax of float32 overwrites its whole vectors with the second sweep's terms.
template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
class Ring {
  using T = typename Op::T;
  using Io = typename Load::Io;
  using E = Element<T, Op::kInputs>;
  using Raw = typename Load::template Raw<kVector>;
  using Part = RingPart<Window<kVector, kWhole>>;
  static constexpr int kEdgeLanes = 2 * kVector;
  // Softmax of 50,257 float32 columns ran at 0.945 of the copy limit so and at 0.924 without, of
  // 524,288 at 0.94 and 0.925; but of 65,536 float64 columns at 0.32 and 0.33
  // (benchmarks/results/h200-ring-steps.json).
  static constexpr bool kKeepsTerms = kFinishesFromTerm<Op> && std::is_same_v<Io, float>;
  // Vectors that a thread has under way, when it reduces and when it writes. With twice as many
  // writes at a time, in a form that was not kept, softmax of 65,536 float32 columns ran at 0.93 of
  // the copy limit instead of 0.96 (benchmarks/results/h200-ring-odd.json).
  static constexpr int kPacks = kRingPacks / Op::kInputs;
  static constexpr int kHeld = kPacks * kWarpLanes;  // by a warp
  static constexpr int kWritten = kPacks / 2;

 public:
  __device__ __forceinline__ Ring(const Op& op, const Load& load, const Store& store,
                                  const Rows& rows, const RingShape& shape, const Zeros& zeros,
                                  void* board, Places<Op>& places, unsigned char* memory)
      : op_(op),
        load_(load),
        store_(store),
        rows_(rows),
        shape_(shape),
        zeros_(zeros),
        board_(board),
        places_(places),
        memory_(memory) {}

  // Takes parts and has them copied to places as these are empty. By one thread.
  __device__ __forceinline__ void Bring() const {
    static_assert(kRingAlone - 2 <= kRingTeams,
                  "every warp that takes places by turns finds an end");
    const int64_t all = rows_.outer * shape_.parts;
    Turn turn, copied;
    int ends = 0;
    for (int64_t filled = 0; ends < kRingTeams; ++filled, turn.Advance(1, shape_.places)) {
      if (filled >= shape_.places) places_.empty[turn.place].Await(turn.parity ^ 1);
      if (filled >= kRingCopies) {
        places_.full[copied.place].Await(copied.parity);
        copied.Advance(1, shape_.places);
      }
      int64_t part = all;
      if (ends == 0) part = board_.Take();
      if (part < all) {
        places_.part[turn.place] = part;
        Fetch(turn.place, PartAt(part));
      } else {
        places_.part[turn.place] = Places<Op>::kEnd;  // for each team
        places_.full[turn.place].Arrive();
        ++ends;
      }
    }
  }

  // Reduces parts, by a warp of a team. Warps take neighbouring vectors, so that all of a warp's
  // threads have as many as they can hold or the warp has none.
  __device__ __forceinline__ void Reduce(int team, int warp) const {
    ForParts(Turn{team}, kRingTeams, [&](const Turn& turn, int64_t, const Part& part) {
      Partial<Op> total;
      const int first = part.FirstWhole() + warp * kHeld, end = part.EndOfWhole();
#pragma unroll 1
      for (int begin = first; begin < end; begin += kRingReducers * kHeld) {
        const Partial<Op> some = ReduceSome(turn.place, begin + Lane(), end);
        if (kKeepsTerms && Lane() == 0) {
          places_.of_group[turn.place][GroupOf(part, begin)] = some.first;
        }
        if (begin == first) {
          total = some;
        } else {
          JS_ISA::Merge(op_, total, some);
        }
      }
      if constexpr (kKeepsTerms) FenceCopies();
      __syncwarp();
      if (Lane() == 0) {
        places_.of_warp[turn.place][warp] = total;
        places_.reduced[turn.place].Arrive();
      }
    });
  }

  // Merges what warps have reduced with the elements of the row's edges, and tells it to the row's
  // other parts. By a warp, of which each lane has one or the other.
  __device__ __forceinline__ void Tell() const {
    static_assert(kRingReducers + kEdgeLanes <= kWarpLanes);
    ForParts({}, 1, [&](const Turn& turn, int64_t number, const Part& part) {
      Partial<Op> parts[1];
      ForEdge(part, Lane() - kRingReducers, [&](int pack, int i) {
        const E e[1] = {EdgeAt(turn.place, part, pack, i)};
        AddOnline(op_, parts[0], e);
      });
      places_.reduced[turn.place].Await(turn.parity);
      if (Lane() < kRingReducers) parts[0] = places_.of_warp[turn.place][Lane()];
      const Partial<Op> total = WarpMerge(op_, parts);
      if (shape_.parts == 1) {
        CloseWith(turn, total);
      } else if (Lane() == 0) {
        board_.Post(number, total);
      }
      __syncwarp();
      if (Lane() == 0) places_.closed[turn.place].Arrive();
    });
  }

  // Waits for the results of rows. By one of the warps that take places by turns.
  __device__ __forceinline__ void Close(int closer) const {
    if (shape_.parts == 1 || closer >= shape_.closers) return;
    ForParts(Turn{closer}, shape_.closers, [&](const Turn& turn, int64_t number, const Part&) {
      // The others' may take as long as this one's; to ask sooner would only add to the traffic.
      places_.reduced[turn.place].Await(turn.parity);
      const int64_t first = number - number % shape_.parts;
      CloseWith(turn, board_.Await(op_, first, shape_.parts));
    });
  }

  // Writes the results of parts, by a warp of a team.
  __device__ __forceinline__ void Write(int team, int warp) const {
    constexpr int kStride = kRingWriters * kWarpLanes;
    ForParts(Turn{team}, kRingTeams, [&](const Turn& turn, int64_t, const Part& part) {
      places_.closed[turn.place].Await(turn.parity);
      const auto result = places_.result[turn.place];
      const int first = part.FirstWhole() + warp * kWarpLanes, end = part.EndOfWhole();
#pragma unroll 1
      for (int k = first + Lane(); k < end; k += kWritten * kStride) {
        Raw raw[kWritten][Op::kInputs];
#pragma unroll
        for (int w = 0; w < kWritten; ++w) {
          const int pack = min(k + w * kStride, end - 1);
#pragma unroll
          for (int input = 0; input < Op::kInputs; ++input) {
            raw[w][input] = Raw::Load(At(turn.place, input, pack));
          }
        }
#pragma unroll
        for (int w = 0; w < kWritten; ++w) {
          const int pack = k + w * kStride;
          if (pack >= end) break;
          E e[kVector];
          Load::Decode(raw[w], e);
          const auto of_terms =
              kKeepsTerms ? places_.of_terms[turn.place][GroupOf(part, pack)] : result;
          T y[kVector];
#pragma unroll
          for (int i = 0; i < kVector; ++i) y[i] = Finish(e[i], result, of_terms);
          store_.Put(part.window.Offset(part.begin + pack), y, std::true_type{});
        }
      }
      if (warp == 0) {
        ForEdge(part, Lane(), [&](int pack, int i) {
          store_.At(part.window.Offset(part.begin + pack) + i,
                    op_.Finish(EdgeAt(turn.place, part, pack, i), result));
        });
      }
      __syncwarp();
      if (Lane() == 0) places_.empty[turn.place].Arrive();
    });
  }

 private:
  __device__ __forceinline__ static int Lane() { return threadIdx.x % kWarpLanes; }

  __device__ __forceinline__ Part PartAt(int64_t number) const {
    return Part(number, rows_.columns, shape_);
  }
  __device__ __forceinline__ typename Raw::Word* At(int place, int input, int pack) const {
    return reinterpret_cast<typename Raw::Word*>(memory_) +
           ((place * Op::kInputs + input) * shape_.packs + pack);
  }

  // Calls f with each turn, the number of the part in that place, and the part.
  template <typename F>
  __device__ __forceinline__ void ForParts(Turn turn, int step, F f) const {
    for (;; turn.Advance(step, shape_.places)) {
      places_.full[turn.place].Await(turn.parity);
      // By the lane that says what the warp has done: it is not overwritten while another reads it.
      int64_t number = Lane() == 0 ? places_.part[turn.place] : 0;
      number = __shfl_sync(0xffffffffu, number, 0);
      if (number == Places<Op>::kEnd) return;
      f(turn, number, PartAt(number));
    }
  }

  __device__ __forceinline__ int Copied(const Part& part) const {
    return CopiedPacks<decltype(part.window)>(load_, part.window.Offset(part.begin), part.packs);
  }

  // Neighbouring rows' elements at a part's ends come too. By one thread.
  __device__ __forceinline__ void Fetch(int place, const Part& part) const {
    const int64_t offset = part.window.Offset(part.begin);
    const unsigned bytes = Copied(part) * kVectorBytes;
    places_.full[place].Expect(bytes * Op::kInputs);
    if (bytes == 0) return;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      CopyToShared(At(place, input, 0), load_.source[input] + offset, bytes, places_.full[place]);
    }
  }

  // Which of the vectors that warps reduce together.
  __device__ __forceinline__ static int GroupOf(const Part& part, int pack) {
    return static_cast<int>(static_cast<unsigned>(pack - part.FirstWhole()) / kHeld);
  }

  // By a warp.
  __device__ __forceinline__ void CloseWith(const Turn& turn, const Partial<Op>& total) const {
    const auto result = op_.Close(total.first, total.second);
    if constexpr (kKeepsTerms) {
      static_assert(Places<Op>::kGroups <= kWarpLanes);
      if (Lane() < Places<Op>::kGroups) {
        const auto own = places_.of_group[turn.place][Lane()];
        places_.of_terms[turn.place][Lane()] = op_.ForTermsOf(own, total.first, result);
      }
    }
    if (Lane() == 0) places_.result[turn.place] = result;
    __syncwarp();
    if (Lane() == 0) places_.closed[turn.place].Arrive();
  }

  // Of what the reduction has left of an element.
  __device__ __forceinline__ T Finish(const E& e, const typename Op::Row& result,
                                      const typename Op::Row& of_terms) const {
    if constexpr (kKeepsTerms) {
      return op_.FinishFromTerm(e[0], of_terms);
    } else {
      return op_.Finish(e, result);
    }
  }

  // Reduces this thread's next kPacks vectors, from k on and before `end`, over the warp.
  __device__ __forceinline__ Partial<Op> ReduceSome(int place, int k, int end) const {
    Raw raw[kPacks][Op::kInputs];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = k + p * kWarpLanes;
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[p][input] = Load::template AbsentRaw<kVector>(input);
        if (!SweepsNeed<Op>(input)) continue;
        if (pack < end) raw[p][input] = Raw::Load(At(place, input, pack));
      }
    }
    return ReduceWords<Op, Load>(op_, raw, zeros_, [&](int p, const auto& terms) {
      if constexpr (kKeepsTerms) {
        const int pack = k + p * kWarpLanes;
        if (pack < end) Raw(PackOf<Io>(terms.x)).Store(At(place, 0, pack));
      }
    });
  }

  // Calls f with the vector and the number in it of the row's element at a part's ends that is the
  // lane's, if there is one.
  template <typename F>
  __device__ __forceinline__ static void ForEdge(const Part& part, int lane, F f) {
    if constexpr (!kWhole) {
      if (lane < 0 || lane >= kEdgeLanes) return;
      const int pack = part.Edge(lane / kVector), i = lane % kVector;
      if (pack >= 0 && part.window.Has(part.begin + pack, i)) f(pack, i);
    }
  }
  __device__ __forceinline__ E EdgeAt(int place, const Part& part, int pack, int i) const {
    const bool copied = pack < Copied(part);
    const int64_t offset = part.window.Offset(part.begin + pack);
    E e;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      const auto* from = reinterpret_cast<const Io*>(At(place, input, pack));
      e.value[input] = Widen(copied ? from[i] : load_.source[input][offset + i]);
    }
    return e;
  }

  const Op& op_;
  const Load& load_;
  const Store& store_;
  const Rows& rows_;
  const RingShape& shape_;
  const Zeros& zeros_;
  Board<Op> board_;
  Places<Op>& places_;
  unsigned char* memory_;
};

template <typename Op>
inline constexpr bool kNotesFit =
    sizeof(Message<Partial<Op>>) == RingNoteBytes(sizeof(typename Op::T));

template <typename Op, typename Load, typename Store, int kVector, bool kWhole>
__global__ void __launch_bounds__(kRingThreads, 1)
    RingKernel(Op op, Load load, Store store, Rows rows, RingShape shape, Zeros zeros,
               void* board) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared[];
  static_assert(sizeof(Places<Op>) <= kRingPlacesBytes);
  static_assert(kNotesFit<Op>);
  auto& places = *reinterpret_cast<Places<Op>*>(shared);
  const Ring<Op, Load, Store, kVector, kWhole> ring(op, load, store, rows, shape, zeros, board,
                                                    places, shared + kRingPlacesBytes);
  if (threadIdx.x == 0) places.Init();
  __syncthreads();

  // Warps of their own, then the teams'.
  int warp = static_cast<int>(threadIdx.x) / kWarpLanes - kRingAlone;
  if (warp < 0) {
    switch (warp + kRingAlone) {
      case 0:
        if (threadIdx.x == 0) ring.Bring();
        return;
      case 1:
        return ring.Tell();
      default:
        return ring.Close(warp + kRingAlone - 2);
    }
  }
  constexpr int kReducers = kRingTeams * kRingReducers;
  if (warp < kReducers) return ring.Reduce(warp / kRingReducers, warp % kRingReducers);
  warp -= kReducers;
  ring.Write(warp / kRingWriters, warp % kRingWriters);
#endif
}

}  // namespace jax_softmax::JS_ISA
