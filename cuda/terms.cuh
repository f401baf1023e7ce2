// LOAD and STORE functors that apply scale, softcap, bias and masks to logits on their way in, and
// the masks again on the way out.
#pragma once

#include "broadcast.h"
#include "math.cuh"
#include "operands.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Io_, TermsKind kKind>
struct TermsLoad : DirectLoad<Op, Io_> {
  using Base = DirectLoad<Op, Io_>;
  using Io = Io_;
  using T = typename Op::T;
  using E = typename Base::E;
  static_assert(Op::kInputs == 1);
  static constexpr TermsKind kTerms = kKind;
  static constexpr bool kAny = kKind == TermsKind::kAny;
  static constexpr bool kMayMask = kKind != TermsKind::kBiasAlone;  // any element
  static constexpr bool kHasBias = !kIsMasks<kKind>;
  static constexpr bool kFills = kMayFill<kKind>;
  // Whether vectors that are not present are passed over. Without a branch the compiler puts loads
  // off until others are used: softmax of 8,192 bf16 columns with a bias took 88 us, and 76 so. Not
  // so of float32, 41 us of which became 45, and of log-softmax, 76 of which became 90
  // (benchmarks/results/h200-bias.json).
  static constexpr bool kSkips =
      kKind == TermsKind::kBiasAlone && sizeof(Io) == 2 && kFinishesFromTerm<Op>;

  Terms terms;

  // What lies in memory for a vector of logits.
  template <int kVector>
  struct Raw {
    Words<Io, kVector> x;  // with masks alone, garbage in vectors that are not present
    // Garbage where the terms have none, and in vectors that are not present.
    unsigned mask[kVector / 4 + 1];  // in the words that have it, wherever it begins in the first
    Words<Io, kVector> bias;
  };

  // What is the same for all elements of a row.
  struct Row {
    int64_t mask, bias;  // where its elements begin
    int64_t seen;        // columns that masks of whole rows and the causal one leave
    T scale;
    T shift;  // the bias, where the row has one
    T sink;
    T fill;  // what masked logits are; where it is a constant, some kernels of log-softmax spill
    bool has_sink;
  };
  // One bit for each element of a vector: whether it takes part.
  using Kept = std::conditional_t<kMayMask, unsigned, AllKept>;
  __device__ __forceinline__ static Kept KeptAs(unsigned bits) {
    if constexpr (kMayMask) {
      return bits;
    } else {
      return {};
    }
  }

  __device__ __forceinline__ Row ForRow(int64_t row, const Rows& rows) const {
    const uint32_t index = min(static_cast<uint32_t>(row), terms.rows - 1);
    const auto at = [&](const void* operand, const Broadcast& broadcast) {
      return static_cast<const T*>(operand)[broadcast.Offset(index)];
    };
    Row of{0, 0, rows.columns, Factor(), T{}, T{}, Fill(), kAny && terms.sink != nullptr};
    if (kMayMask && terms.causal) {
      const int64_t after = terms.causal_rows.divisor - 1 - terms.causal_rows.Remainder(index);
      of.seen = max(rows.columns - after, int64_t{0});
    }
    if (kMayMask && terms.mask != nullptr) {
      of.mask = terms.mask_at.Offset(index);
      if (IsPerRow(terms.mask_at) && static_cast<const uint8_t*>(terms.mask)[of.mask] == 0) {
        of.seen = 0;
      }
    }
    if (kHasBias && terms.bias != nullptr) {
      of.bias = terms.bias_at.Offset(index);
      if (kAny && IsPerRow(terms.bias_at)) of.shift = BiasOf(of.bias);
    }
    if (terms.scale != nullptr) of.scale *= at(terms.scale, terms.scale_at);
    if (of.has_sink) of.sink = at(terms.sink, terms.sink_at);
    return of;
  }

  // The row that is worked on as the i-th: those that share an operand too large for the cache
  // follow each other.
  __device__ __forceinline__ int64_t RowAt(int64_t i, const Rows&) const {
    const auto index = static_cast<uint32_t>(i);
    if (terms.turns.divisor == 1 || index >= terms.rows) return index;
    const uint32_t among = terms.turns.Quotient(index);
    const uint32_t turn = index - among * terms.turns.divisor;
    return turn * terms.turns.Quotient(terms.rows) + among;
  }

  // The first row of the i-th `count` neighbours: likewise if the rows between those that share an
  // operand are a whole number of these, otherwise as they lie in memory.
  __device__ __forceinline__ int64_t FirstOf(int64_t i, int count) const {
    const auto index = static_cast<uint32_t>(i);
    const uint32_t apart = terms.turns.Quotient(terms.rows);
    if (terms.turns.divisor == 1 || apart % count != 0) return i * count;
    const uint32_t among = terms.turns.Quotient(index);
    const int64_t turn = index - among * terms.turns.divisor;
    return turn * apart + int64_t{among} * count;
  }

  // Whether the masks of whole rows and the causal one leave anything of the vector. Where there is
  // more to load than masks, the branches take registers that are worth more: bf16 rows of 2,048
  // columns with a bias took 708 us with them, instead of 581 (H200, 2026-11).
  template <typename W>
  __device__ __forceinline__ static bool Sees(const Row& row, const W& window,
                                              typename W::Index pack) {
    if constexpr (kSkips) return pack < window.packs;
    return !kIsMasks<kKind> || IsLeft(row, pack * W::kVector - window.head);
  }

  template <bool kLastUse = false, typename W>
  __device__ __forceinline__ Raw<W::kVector> Fetch(const Row& row, int input, const W& window,
                                                   typename W::Index pack,
                                                   bool present = true) const {
    const auto column = pack * W::kVector - window.head;
    present = present && IsLeft(row, column);
    Raw<W::kVector> raw;
    raw.x = Base::template Fetch<kLastUse, !kIsMasks<kKind>>({}, input, window, pack, present);
    if constexpr (W::kWhole) {
      if (kMayMask && terms.mask_in_vectors && present) {
        const auto mask = Words<uint8_t, W::kVector>::Load(MaskAt(row, column));
        memcpy(raw.mask, mask.word, sizeof(mask.word));
      }
    } else if constexpr (kMaskInWords<W>) {
      if (present && MaskRuns()) {
        const uint8_t* from = MaskAt(row, column);
        const auto* word = reinterpret_cast<const unsigned*>(from - BytesBefore(from));
        constexpr int kWords = W::kVector / 4;
#pragma unroll
        for (int i = 0; i < kWords; ++i) raw.mask[i] = word[i];
        if (BytesBefore(from) > 0) raw.mask[kWords] = word[kWords];
      }
    }
    if constexpr (kHasBias && !W::kMasks) {
      if (present && BiasInVector<W>(row, column)) {
        raw.bias = Words<Io, W::kVector>::Load(BiasAt<Io>(row, column));
      }
    }
    return raw;
  }

  template <typename W>
  __device__ __forceinline__ Kept Decode(const Row& row, const W& window, typename W::Index pack,
                                         const Raw<W::kVector> (&raw)[1],
                                         E (&e)[W::kVector]) const {
    constexpr int kVector = W::kVector;
    const auto column = pack * kVector - window.head;  // of the first element
    const unsigned there = ThereOf(row, window, column);
    const unsigned kept = there & MaskOf(row, window, column, there, raw[0]);
    T z[kVector];
    const auto x = raw[0].x.Unpack();
#pragma unroll
    for (int i = 0; i < kVector; ++i) z[i] = Widen(x.element[i]);
    if constexpr (kKind != TermsKind::kMasksAlone) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) z[i] *= row.scale;
    }
    if (kAny && terms.caps) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) z[i] = Capped(z[i]);
    }
    if constexpr (kHasBias) {
      if (!W::kMasks && BiasInVector<W>(row, column)) {
        const auto bias = raw[0].bias.Unpack();
#pragma unroll
        for (int i = 0; i < kVector; ++i) z[i] += Widen(bias.element[i]);
      } else if (kAny && terms.bias != nullptr && IsPerRow(terms.bias_at)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) z[i] += row.shift;
      } else if (kAny && terms.bias != nullptr && terms.wide_bias) {
        AddBias<T>(row.bias, column, kept, z);
      } else if (!kAny || terms.bias != nullptr) {
        AddBias<Io>(row.bias, column, kept, z);
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      e[i].value[0] = kSkips || (kept >> i & 1) ? z[i] : MaskedAt<W>(row, there, i);
    }
    return KeptAs(kFills && terms.fills ? ~0u : kept);
  }

  // Logits from `column` on, kStep columns apart, that something else has brought. Columns of masks
  // and biases lie side by side, as the row's do.
  template <int kStep, int kCount>
  __device__ __forceinline__ Kept Apply(const Row& row, int column, E (&e)[kCount]) const {
    static_assert(kCount <= 32, "one bit for each");
    const int left = static_cast<int>(row.seen) - column;
    Kept kept = 0;
    if (terms.mask != nullptr && !IsPerRow(terms.mask_at)) {
      const uint8_t* from = MaskAt(row, column);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const unsigned bit = i * kStep < left ? from[i * kStep] : 0;
        kept |= bit << i;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) kept |= unsigned{i * kStep < left} << i;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) e[i].value[0] *= row.scale;
    if (terms.caps) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) e[i].value[0] = Capped(e[i].value[0]);
    }
    if (terms.bias != nullptr && IsPerRow(terms.bias_at)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) e[i].value[0] += row.shift;
    } else if (terms.bias != nullptr && terms.wide_bias) {
      AddApart<T, kStep>(row.bias + column, left, e);
    } else if (terms.bias != nullptr) {
      AddApart<Io, kStep>(row.bias + column, left, e);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(kept >> i & 1)) e[i].value[0] = Op::Absent(0);
    }
    // Apart: with what fills in the loop above, some kernels spill.
    if (!terms.fills) return kept;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(kept >> i & 1) && i * kStep < left) e[i].value[0] = Fill();
    }
    return ~0u;
  }

  // A single element: of an edge, or for strategies without vectors.
  __device__ __forceinline__ Kept At(const Row& row, int64_t column, int64_t offset, E& e) const {
    e.value[0] = Op::Absent(0);
    if (column >= row.seen) return {};
    // Before the mask, which would otherwise be waited for.
    const T x = Widen(this->source[0][offset]);
    const bool kept = !kMayMask || terms.mask == nullptr ||
                      *MaskAt(row, column * terms.mask_at.column_stride) != 0;
    if (kept) {
      T z = kKind == TermsKind::kMasksAlone ? x : x * row.scale;
      if (kAny && terms.caps) z = Capped(z);
      if (terms.bias != nullptr) z += BiasOf(row.bias + column * terms.bias_at.column_stride);
      e.value[0] = z;
    } else {
      e.value[0] = Fill();
    }
    return KeptAs(kept || (kFills && terms.fills));
  }

 private:
  // Whether masks of rows without edges are loaded in words, where columns lie side by side: those
  // that hold a byte of the mask, and up to three bytes on either side.
  template <typename W>
  static constexpr bool kMaskInWords = !W::kWhole && !W::kMasks && W::kVector % 4 == 0;
  __device__ __forceinline__ bool MaskRuns() const {
    return kMayMask && terms.mask != nullptr && terms.mask_at.column_stride == 1;
  }
  __device__ __forceinline__ const uint8_t* MaskAt(const Row& row, int64_t offset) const {
    return static_cast<const uint8_t*>(terms.mask) + row.mask + offset;
  }
  __device__ __forceinline__ static int BytesBefore(const uint8_t* at) {
    return reinterpret_cast<uintptr_t>(at) % 4;
  }
  // In its own type, of the logits' or the compute type's.
  template <typename B>
  __device__ __forceinline__ const B* BiasAt(const Row& row, int64_t offset) const {
    return static_cast<const B*>(terms.bias) + row.bias + offset;
  }
  // Whether the bias of a vector is one too: of rows that are no whole vectors, where it lies as
  // they do.
  template <typename W>
  __device__ __forceinline__ bool BiasInVector(const Row& row, int64_t column) const {
    if constexpr (W::kWhole) {
      return !kAny || terms.bias_in_vectors;
    } else {
      const auto at = reinterpret_cast<uintptr_t>(BiasAt<Io>(row, column));
      return (!kAny || terms.BiasRuns()) && at % kVectorBytes == 0;
    }
  }

  // Which elements of the vector masks of whole rows and the causal one leave.
  template <typename W>
  __device__ __forceinline__ static unsigned ThereOf(const Row& row, const W& window,
                                                     typename W::Index column) {
    constexpr int kVector = W::kVector;
    auto end = static_cast<typename W::Index>(row.seen);
    if constexpr (!W::kWhole && !W::kMasks) end = min(end, window.End());
    unsigned kept = (1u << kVector) - 1;
    if constexpr (!kMayMask) {
      static_assert(!W::kMasks);
      return column < end ? kept : 0;
    }
    if constexpr (W::kWhole) {
      const auto there = min(max(end - column, typename W::Index{0}), typename W::Index{kVector});
      kept = (1u << there) - 1;
    } else if (column < 0 || column + kVector > end) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column + i < 0 || column + i >= end) kept &= ~(1u << i);
      }
    }
    return kept;
  }

  // Which of those that are `there` the mask leaves; any others may be among them.
  template <typename W>
  __device__ __forceinline__ unsigned MaskOf(const Row& row, const W&, typename W::Index column,
                                             unsigned there, const Raw<W::kVector>& raw) const {
    constexpr int kVector = W::kVector;
    if constexpr (!kMayMask) {
      return there;
    }
    if (W::kWhole && terms.mask_in_vectors) {
      return BitsOf<kVector>(raw.mask);
    } else if (kMaskInWords<W> && MaskRuns()) {
      const int shift = BytesBefore(MaskAt(row, column)) * 8;
      unsigned mask[kVector / 4 + 1];
#pragma unroll
      for (int i = 0; i < kVector / 4; ++i) {
        mask[i] = __funnelshift_r(raw.mask[i], raw.mask[i + 1], shift);
      }
      return BitsOf<kVector>(mask);
    } else if (terms.mask != nullptr && !IsPerRow(terms.mask_at)) {
      // All at once: one after the other, each would be waited for.
      const uint8_t* from = MaskAt(row, column);
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        bits |= unsigned{there >> i & 1 ? from[i] : uint8_t{0}} << i;
      }
      return bits;
    }
    return there;
  }

  template <typename Index>
  __device__ __forceinline__ static bool IsLeft(const Row& row, Index column) {
    return column < static_cast<Index>(row.seen);
  }
  __device__ __forceinline__ T Factor() const {
    if constexpr (sizeof(T) == 4) {
      return terms.narrow_factor;
    } else {
      return terms.factor;
    }
  }
  // The i-th element of a vector, which is masked or not there. Without edges all of a vector is
  // there, or nothing; of rows of whole vectors, which masks alone are applied to, something is.
  template <typename W>
  __device__ __forceinline__ T MaskedAt(const Row& row, unsigned there, int i) const {
    if constexpr (!kFills) {
      return Op::Absent(0);
    } else if constexpr (kIsMasks<kKind> && W::kWhole) {
      return kFinishesFromTerm<Op> ? Fill() : row.fill;
    } else {
      return (W::kMasks ? there >> i & 1 : there) ? Fill() : Op::Absent(0);
    }
  }
  // Absent where they take no part.
  __device__ __forceinline__ T Fill() const {
    if constexpr (!kFills) {
      return Op::Absent(0);
    } else if constexpr (sizeof(T) == 4) {
      return terms.narrow_fill;
    } else {
      return terms.fill;
    }
  }
  __device__ __forceinline__ static bool IsPerRow(const Broadcast& broadcast) {
    return broadcast.column_stride == 0;
  }
  __device__ __forceinline__ T BiasOf(int64_t at) const {
    return terms.wide_bias ? static_cast<const T*>(terms.bias)[at]
                           : Widen(static_cast<const Io*>(terms.bias)[at]);
  }

  template <typename B, int kVector>
  __device__ __forceinline__ void AddBias(int64_t begin, int64_t column, unsigned kept,
                                          T (&z)[kVector]) const {
    const int64_t stride = kAny ? terms.bias_at.column_stride : 1;
    const B* from = static_cast<const B*>(terms.bias) + begin + column * stride;
    B bias[kVector];  // all at once, as masks are
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      bias[i] = kept >> i & 1 ? *from : B{};
      from += stride;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) z[i] += Widen(bias[i]);
  }

  template <typename B, int kStep, int kCount>
  __device__ __forceinline__ void AddApart(int64_t begin, int left, E (&e)[kCount]) const {
    const B* from = static_cast<const B*>(terms.bias) + begin;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * kStep < left) e[i].value[0] += Widen(from[i * kStep]);
    }
  }

  // cap * tanh(z / cap)
  __device__ __forceinline__ T Capped(T z) const {
    const T cap = static_cast<T>(terms.softcap);
    const T u = z * static_cast<T>(terms.per_softcap);
    if constexpr (sizeof(T) == 8) {
      return cap * tanh(u);
    } else if constexpr (Op::kExactLogits) {
      return cap * tanhf(u);
    } else {
      // 1 - 2 / (1 + exp(2 u)): absolutely as exact as results of 16 bits show.
      return cap - 2 * cap * __fdividef(1, 1 + NarrowMath::Exp(2 * u));
    }
  }

  // One bit for each byte, which is 0 or 1. A product has four of them at bits of its highest byte.
  template <int kVector>
  __device__ __forceinline__ static unsigned BitsOf(const unsigned* mask) {
    unsigned kept = 0;
    if constexpr (kVector % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kVector; i += 4) kept |= mask[i / 4] * 0x01020408u >> 24 << i;
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) kept |= (mask[0] >> 8 * i & 1) << i;
    }
    return kept;
  }
};

template <typename Op, typename Io>
struct MaskedStore : DirectStore<Op, Io> {
  using Base = DirectStore<Op, Io>;
  using T = typename Op::T;
  using Row = typename Op::Row;

  template <typename W, bool kLastUse = false>
  __device__ __forceinline__ void operator()(const W& window, typename W::Index pack,
                                             T (&y)[W::kVector], unsigned kept, const Row& row,
                                             std::bool_constant<kLastUse> last_use = {}) const {
    Mask(y, kept, row);
    Base::operator()(window, pack, y, last_use);
  }
  // The results of a vector of which masks leave nothing, whatever the row's are.
  template <typename W>
  __device__ __forceinline__ void Masked(const W& window, typename W::Index pack) const {
    T y[W::kVector];
#pragma unroll
    for (int i = 0; i < W::kVector; ++i) y[i] = Op::Masked();
    Base::operator()(window, pack, y);
  }
  template <int kCount>
  __device__ __forceinline__ static void Mask(T (&y)[kCount], unsigned kept, const Row& row) {
    if (Op::MasksItself(row)) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) y[i] = kept >> i & 1 ? y[i] : Op::Masked();
  }
  __device__ __forceinline__ void At(int64_t offset, T y, unsigned kept, const Row&) const {
    Base::At(offset, kept ? y : Op::Masked());
  }
};

}  // namespace jax_softmax::JS_ISA
