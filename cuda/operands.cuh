// How elements arrive and leave: LOAD and STORE functors, aligned vectors, rows' edges.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "math.cuh"
#include "plan.h"

namespace jax_softmax::JS_ISA {

// One memory access. Without this type the compiler splits accesses to a Pack into its elements.
//
// kLastUse: nothing reads this again soon, so that it may leave the cache first.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = unsigned char;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

template <typename Io, int kVector>
struct Pack {
  static constexpr int kBytes = sizeof(Io) * kVector;
  using Word = typename WordOf<std::min(kBytes, kVectorBytes)>::Type;
  // Results that are wider than the inputs take several accesses for the vector that is one there.
  static constexpr int kWords = kBytes / sizeof(Word);
  Io element[kVector];

  // By instructions of its own: beside the masked stores of a row's edges, the compiler splits an
  // assignment into elements all the same (nvcc 13.0).
  template <bool kLastUse = false>
  __device__ __forceinline__ void StoreGlobal(void* to) const {
    Word words[kWords];
    memcpy(words, this, sizeof(words));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      Word* word = static_cast<Word*>(to) + i;
      kLastUse ? __stcs(word, words[i]) : __stwb(word, words[i]);
    }
  }
};

__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ double Widen(double x) { return x; }
__device__ __forceinline__ float Widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename Io>
__device__ __forceinline__ Io NarrowTo(float x) {
  if constexpr (sizeof(Io) == 4) {
    return x;
  } else if constexpr (std::is_same_v<Io, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}
template <typename Io>
__device__ __forceinline__ Io NarrowTo(double x) {
  return x;
}

// Values as their type in memory holds them.
template <typename Io, typename T, int kVector>
__device__ __forceinline__ Pack<Io, kVector> PackOf(const T (&values)[kVector]) {
  Pack<Io, kVector> pack;
#pragma unroll
  for (int i = 0; i < kVector; ++i) pack.element[i] = NarrowTo<Io>(values[i]);
  return pack;
}

// The same as words that nothing has looked into yet: a choice between two is made word by word,
// where that between two packs would be made element by element.
template <typename Io, int kVector>
struct Words {
  using Values = Pack<Io, kVector>;
  using Word = typename Values::Word;
  static constexpr int kBytes = Values::kBytes;
  Word word[Values::kWords];

  Words() = default;
  __device__ __forceinline__ explicit Words(const Values& values) {
    memcpy(word, &values, sizeof(word));
  }
  template <bool kLastUse = false>
  __device__ __forceinline__ static Words Load(const void* from) {
    const auto* source = static_cast<const Word*>(from);
    Words words;
#pragma unroll
    for (int i = 0; i < Values::kWords; ++i) {
      words.word[i] = kLastUse ? __ldcs(source + i) : source[i];
    }
    return words;
  }
  __device__ __forceinline__ void Store(void* to) const {
#pragma unroll
    for (int i = 0; i < Values::kWords; ++i) static_cast<Word*>(to)[i] = word[i];
  }
  __device__ __forceinline__ Values Unpack() const {
    Values values;
    memcpy(&values, word, sizeof(values));
    return values;
  }
};

// How a row is covered by vectors: a Window masks the edges, a Body leaves them out.

// A row as the aligned vectors that it touches. Offsets are in elements from the operand's start,
// so that the same window serves every operand.
//
// kWhole: rows consist of whole vectors, and no edge needs a mask. Index counts within the row.
template <int kVector_, bool kWhole_, typename Index_ = int>
struct Window {
  static constexpr int kVector = kVector_;
  static constexpr bool kWhole = kWhole_;
  static constexpr bool kMasks = !kWhole;  // whether a vector may have elements of no use
  using Index = Index_;

  int64_t base;   // offset of the first vector: a multiple of kVector
  Index head;     // how many of its elements lie before the row
  Index columns;  // of the row
  Index packs;    // vectors that the row touches

  __device__ __forceinline__ Window(int64_t row, int64_t row_columns)
      : base(row * row_columns), head(0), columns(static_cast<Index>(row_columns)) {
    if constexpr (!kWhole) {
      head = static_cast<Index>(base % kVector);
      base -= head;
    }
    packs = (head + columns + kVector - 1) / kVector;
  }
  __device__ __forceinline__ int64_t Offset(Index pack) const {
    return base + static_cast<int64_t>(pack) * kVector;
  }
  // Whether element i of the vector is of this row.
  __device__ __forceinline__ bool Has(Index pack, int i) const {
    const Index column = pack * kVector + i - head;
    return column >= 0 && column < columns;
  }
  __device__ __forceinline__ bool IsWhole(Index pack) const {
    return kWhole || (pack * kVector >= head && (pack + 1) * kVector <= head + columns);
  }
};

// A row that may start anywhere as the aligned vectors within it. The edges, the elements before
// and after these, are fewer than two vectors': an Edge of single threads has them.
template <int kVector_>
struct Body {
  static constexpr int kVector = kVector_;
  static constexpr bool kWhole = false;
  static constexpr bool kMasks = false;
  using Index = int;

  int64_t base;  // offset of the first vector
  int head;      // minus the number of edge elements before it
  int columns;   // of the row
  int packs;

  __device__ __forceinline__ Body(int64_t row, int64_t row_columns)
      : columns(static_cast<int>(row_columns)) {
    const int64_t start = row * row_columns;
    const int before = min(static_cast<int>(-start & (kVector - 1)), columns);
    base = start + before;
    head = -before;
    packs = (columns - before) / kVector;
  }
  __device__ __forceinline__ int64_t Offset(int pack) const {
    return base + static_cast<int64_t>(pack) * kVector;
  }
  // The column after the last vector's.
  __device__ __forceinline__ int End() const { return packs * kVector - head; }
  // How many elements are in no vector, and their columns.
  __device__ __forceinline__ int Edges() const { return columns - packs * kVector; }
  __device__ __forceinline__ int EdgeColumn(int i) const {
    return i < -head ? i : i + packs * kVector;
  }
};

template <int kVector, bool kWhole>
using BodyOf = std::conditional_t<kWhole, Window<kVector, true>, Body<kVector>>;

// How many vectors of a line of the cache lie before a window's first one. Of rows of whole vectors
// none: these are shared out alike wherever they lie.
template <typename W>
__device__ __forceinline__ int PacksBeforeInLine(const W& window) {
  return W::kWhole ? 0 : static_cast<int>(window.base / W::kVector % kLinePacks);
}

// The part of a row that one of `blocks` blocks takes: `packs` vectors of the row's window.
template <typename W>
struct Slice {
  W window;
  int begin;
  int packs;

  __device__ __forceinline__ Slice(int64_t row, int64_t columns, int rank, int blocks)
      : window(row, columns) {
    const int share = (window.packs + blocks - 1) / blocks;
    begin = min(rank * share, window.packs);
    packs = min(share, window.packs - begin);
  }
};

// Which elements of a vector take part, where all do.
struct AllKept {};

// Which terms there may be: code for the others costs time where there are none.
enum class TermsKind {
  kNone,
  kMasksAlone,
  kMasks,      // masks and scales
  kBiasAlone,  // a bias whose columns lie side by side, in vectors if rows are these, and scales
  kBiased,     // masks as well, of rows that are whole vectors
  kAny
};
template <TermsKind kKind>
inline constexpr bool kIsMasks = kKind == TermsKind::kMasksAlone || kKind == TermsKind::kMasks;
// Whether masked logits may be a number, and take part.
template <TermsKind kKind>
inline constexpr bool kMayFill = kIsMasks<kKind> || kKind == TermsKind::kAny;

// LOAD: elements in the op's compute type, converted from `Io`.
template <typename Op_, typename Io_>
struct DirectLoad {
  static constexpr auto kTerms = TermsKind::kNone;
  using Op = Op_;
  using Io = Io_;
  using T = typename Op::T;
  using E = Element<T, Op::kInputs>;
  template <int kVector>
  using Raw = Words<Io, kVector>;

  const Io* source[Op::kInputs];
  int64_t elements;  // of each operand

  struct Row {};  // what is the same for all elements of a row
  using Kept = AllKept;
  __device__ __forceinline__ static Row ForRow(int64_t, const Rows&) { return {}; }

  __device__ __forceinline__ static Io AbsentIo(int input) {
    return NarrowTo<Io>(Op::Absent(input));
  }
  template <int kVector>
  __device__ __forceinline__ static Raw<kVector> AbsentRaw(int input) {
    Pack<Io, kVector> absent;
#pragma unroll
    for (int i = 0; i < kVector; ++i) absent.element[i] = AbsentIo(input);
    return Raw<kVector>(absent);
  }

  // The row that is worked on as the i-th; the first of the i-th `count` neighbours.
  __device__ __forceinline__ static int64_t RowAt(int64_t i, const Rows&) { return i; }
  __device__ __forceinline__ static int64_t FirstOf(int64_t i, int count) { return i * count; }

  // Whether the vector has anything to look at.
  template <typename W>
  __device__ __forceinline__ static constexpr bool Sees(Row, const W&, typename W::Index) {
    return true;
  }

  // One input's vector as it lies in memory, neighbours of the row's edges included; all of a
  // vector that is not `present` is absent, or garbage where it is not filled. Nothing is done with
  // the elements: the next load would wait.
  template <bool kLastUse = false, bool kFills = true, typename W>
  __device__ __forceinline__ Raw<W::kVector> Fetch(Row, int input, const W& window,
                                                   typename W::Index pack,
                                                   bool present = true) const {
    using Whole = Raw<W::kVector>;
    const int64_t offset = window.Offset(pack);
    const Io* from = source[input] + offset;
    Whole raw;
    if constexpr (kFills || W::kMasks) raw = AbsentRaw<W::kVector>(input);
    if constexpr (!W::kMasks) {
      if (present) raw = Whole::template Load<kLastUse>(from);
    } else {
      if (present && offset + W::kVector <= elements) {
        raw = Whole::template Load<kLastUse>(from);
      } else if (present) {
        // The end of the operand.
        auto values = raw.Unpack();
#pragma unroll
        for (int i = 0; i < W::kVector; ++i) {
          if (offset + i < elements) values.element[i] = from[i];
        }
        raw = Whole(values);
      }
    }
    return raw;
  }

  template <int kVector>
  __device__ __forceinline__ static void Decode(const Raw<kVector> (&raw)[Op::kInputs],
                                                E (&e)[kVector]) {
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) {
      const auto values = raw[input].Unpack();
#pragma unroll
      for (int i = 0; i < kVector; ++i) e[i].value[input] = Widen(values.element[i]);
    }
  }

  // The same of one row's vector: its neighbours' elements are absent.
  template <typename W>
  __device__ __forceinline__ static Kept Decode(Row, const W& window, typename W::Index pack,
                                                const Raw<W::kVector> (&raw)[Op::kInputs],
                                                E (&e)[W::kVector]) {
    Decode(raw, e);
    if constexpr (W::kMasks) {
      if (window.IsWhole(pack)) return {};
#pragma unroll
      for (int i = 0; i < W::kVector; ++i) {
        if (!window.Has(pack, i)) e[i] = Absent();
      }
    }
    return {};
  }

  // Of a row's elements, kStep columns apart, that something else has brought.
  template <int kStep, int kCount>
  __device__ __forceinline__ static Kept Apply(Row, int, E (&)[kCount]) {
    return {};
  }

  // A single element anywhere: of an edge, or for strategies without vectors.
  __device__ __forceinline__ Kept At(Row, int64_t, int64_t offset, E& e) const {
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Widen(source[input][offset]);
    return {};
  }

  __device__ __forceinline__ static E Absent() {
    E e;
#pragma unroll
    for (int input = 0; input < Op::kInputs; ++input) e.value[input] = Op::Absent(input);
    return e;
  }
};

// LOAD: the same, multiplied by a positive number, for strategies that have a row's elements from
// it. Products are rounded, as a program has them that multiplies first.
template <typename Op_, typename Io_>
struct ScaledLoad : DirectLoad<Op_, Io_> {
  using Base = DirectLoad<Op_, Io_>;
  using typename Base::E, typename Base::Kept, typename Base::Row, typename Base::T;
  template <int kVector>
  using Raw = typename Base::template Raw<kVector>;

  T scale = 1;

  template <typename W>
  __device__ __forceinline__ Kept Decode(Row row, const W& window, typename W::Index pack,
                                         const Raw<W::kVector> (&raw)[Op_::kInputs],
                                         E (&e)[W::kVector]) const {
    Base::Decode(row, window, pack, raw, e);
    return Multiply(e);
  }
  template <int kStep, int kCount>
  __device__ __forceinline__ Kept Apply(Row, int, E (&e)[kCount]) const {
    return Multiply(e);
  }
  __device__ __forceinline__ Kept At(Row row, int64_t column, int64_t offset, E& e) const {
    E one[1];
    Base::At(row, column, offset, one[0]);
    Multiply(one);
    e = one[0];
    return {};
  }

 private:
  template <int kCount>
  __device__ __forceinline__ Kept Multiply(E (&e)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) e[i].value[0] = ScalarMath<T>::Product(e[i].value[0], scale);
    return {};
  }
};

// STORE: results in the compute type, converted to `Io`.
template <typename Op, typename Io_>
struct DirectStore {
  using Io = Io_;
  using T = typename Op::T;

  Io* target;

  template <typename W, bool kLastUse = false>
  __device__ __forceinline__ void operator()(const W& window, typename W::Index pack,
                                             const T (&y)[W::kVector],
                                             std::bool_constant<kLastUse> = {}) const {
    const auto packed = PackOf<Io>(y);
    Io* to = target + window.Offset(pack);
    if constexpr (W::kMasks) {
      if (!window.IsWhole(pack)) {
#pragma unroll
        for (int i = 0; i < W::kVector; ++i) {
          if (window.Has(pack, i)) to[i] = packed.element[i];
        }
        return;
      }
    }
    packed.template StoreGlobal<kLastUse>(to);
  }

  // The same of a row with that result, of which only the `kept` elements took part.
  template <typename W, typename Row, bool kLastUse = false>
  __device__ __forceinline__ void operator()(const W& window, typename W::Index pack,
                                             const T (&y)[W::kVector], AllKept, const Row&,
                                             std::bool_constant<kLastUse> last_use = {}) const {
    (*this)(window, pack, y, last_use);
  }
  template <typename Row>
  __device__ __forceinline__ void At(int64_t offset, T y, AllKept, const Row&) const {
    At(offset, y);
  }

  // Of a row's elements that something else stores: nothing is masked.
  template <int kCount, typename Row>
  __device__ __forceinline__ static void Mask(T (&)[kCount], AllKept, const Row&) {}

  // A whole vector anywhere: kVector neighbouring elements.
  template <int kVector, bool kLastUse = false>
  __device__ __forceinline__ void Put(int64_t offset, const T (&y)[kVector],
                                      std::bool_constant<kLastUse> = {}) const {
    PackOf<Io>(y).template StoreGlobal<kLastUse>(target + offset);
  }
  // A single element anywhere, or the result of a row.
  __device__ __forceinline__ void At(int64_t offset, T y) const {
    target[offset] = NarrowTo<Io>(y);
  }
};

// Stores the value of a row, or its two or three where there are places for these.
template <typename Op, typename Store>
__device__ __forceinline__ void StoreOfRow(const Op& op, const Store& store, int64_t row,
                                           const typename Op::Row& result) {
  if constexpr (requires { result.Whole(); }) {
    const bool both = op.seconds != nullptr;
    store.At(row, both ? result.pivot : result.Whole());
    if (both) op.seconds[row] = result.log_sum;
  } else {
    store.At(row, result.pivot);
    op.seconds[row] = result.second;
    if (op.factors != nullptr) op.factors[row] = result.factor;
  }
}

// Where vectors leave nothing out.
struct NoEdge {
  static constexpr bool kAny = false;
};

// A thread's element of the edges that a Body leaves out, of which the first warp has all; nothing
// where rows are whole vectors.
template <typename Load, typename Store, typename W>
struct Edge {
  using Op = typename Load::Op;
  static constexpr bool kAny = !W::kWhole;
  static_assert(2 * kVectorBytes / sizeof(typename Load::Io) <= kWarpLanes);
  using E = Element<typename Op::T, Op::kInputs>;

  E e[1] = {Load::Absent()};

  // `takes` is for one of a row's blocks.
  __device__ __forceinline__ Edge(const Load& load, const Store& store,
                                  const typename Load::Row& row, const W& body, bool takes = true)
      : store_(store), body_(body), takes_(takes) {
    if constexpr (kAny) {
      if (Has()) kept_ = load.At(row, Column(), Offset(), e[0]);
    }
  }
  // Whether this thread's warp has any.
  __device__ __forceinline__ static bool IsHere() { return kAny && threadIdx.x < kWarpLanes; }

  __device__ __forceinline__ void Put(typename Op::T y, const typename Op::Row& result) const {
    if constexpr (kAny) {
      if (Has()) store_.At(Offset(), y, kept_, result);
    }
  }

 private:
  __device__ __forceinline__ bool Has() const { return takes_ && threadIdx.x < body_.Edges(); }
  __device__ __forceinline__ int Column() const { return body_.EdgeColumn(threadIdx.x); }
  __device__ __forceinline__ int64_t Offset() const {
    return body_.Offset(0) + body_.head + Column();
  }

  const Store& store_;
  const W& body_;
  bool takes_;
  typename Load::Kept kept_ = {};
};

}  // namespace jax_softmax::JS_ISA
