// LOAD and STORE functors that apply scale, softcap, bias and masks to logits on their way in, and
// the masks again on the way out.
#pragma once

#include "broadcast.h"
#include "operands.cuh"

namespace jax_softmax::JS_ISA {

template <typename Op, typename Io_>
struct TermsLoad : DirectLoad<Op, Io_> {
  using Base = DirectLoad<Op, Io_>;
  using Io = Io_;
  using T = typename Op::T;
  using E = typename Base::E;
  static_assert(Op::kInputs == 1);

  Terms terms;

  // What is the same for all elements of a row.
  struct Row {
    int64_t mask, bias;  // where its elements begin
    int64_t seen;        // columns before the causal mask
    T scale;
    T sink;
    bool has_sink;
  };
  // One bit for each element of a vector: whether it takes part.
  using Kept = unsigned;

  __device__ __forceinline__ Row ForRow(int64_t row, const Rows& rows) const {
    const auto index = static_cast<uint32_t>(min(row, rows.outer * rows.inner - 1));
    const auto at = [&](const void* operand, const Broadcast& broadcast) {
      return static_cast<const T*>(operand)[broadcast.Offset(index)];
    };
    Row of{0, 0, rows.columns, static_cast<T>(terms.factor), T{}, terms.sink != nullptr};
    if (terms.mask != nullptr) of.mask = terms.mask_at.Offset(index);
    if (terms.bias != nullptr) of.bias = terms.bias_at.Offset(index);
    if (terms.scale != nullptr) of.scale *= at(terms.scale, terms.scale_at);
    if (of.has_sink) of.sink = at(terms.sink, terms.sink_at);
    if (terms.causal_rows > 0) {
      const int64_t last = index % static_cast<uint32_t>(terms.causal_rows) + 1;
      of.seen = min(max(last + rows.columns - terms.causal_rows, int64_t{0}), rows.columns);
    }
    return of;
  }

  // Rows that share an operand too large for the cache follow each other.
  __device__ __forceinline__ int64_t RowAt(int64_t i, const Rows& rows) const {
    const int64_t count = rows.outer * rows.inner;
    if (terms.turns <= 1 || i >= count) return i;
    const auto index = static_cast<uint32_t>(i);
    const uint32_t turn = index % terms.turns;
    return turn * (count / terms.turns) + index / terms.turns;
  }

  template <bool kLastUse = false, typename W>
  __device__ __forceinline__ auto Fetch(const Row& row, int input, const W& window,
                                        typename W::Index pack, bool present = true) const {
    const bool seen = pack * W::kVector - window.head < row.seen;
    return Base::template Fetch<kLastUse>(typename Base::Row{}, input, window, pack,
                                          present && seen);
  }

  template <typename W>
  __device__ __forceinline__ Kept Decode(const Row& row, const W& window, typename W::Index pack,
                                         const Pack<Io, W::kVector> (&raw)[1],
                                         E (&e)[W::kVector]) const {
    constexpr int kVector = W::kVector;
    const auto column = pack * kVector - window.head;  // of the first element
    const auto end = static_cast<typename W::Index>(row.seen);
    Kept kept = (1u << kVector) - 1;
    const bool inside = column >= 0 && column + kVector <= end;
    if (!inside) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column + i < 0 || column + i >= end) kept &= ~(1u << i);
      }
    }
    if (terms.mask != nullptr && kept != 0) kept &= MaskOf<kVector>(row, column, inside, kept);
    T z[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) z[i] = Widen(raw[0].element[i]);
    if (row.scale != 1) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) z[i] *= row.scale;
    }
    if (terms.softcap != 0) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) z[i] = Capped(z[i]);
    }
    if (terms.bias != nullptr && kept != 0) {
      if (terms.wide_bias) {
        AddBias<T, kVector>(row, column, inside, kept, z);
      } else {
        AddBias<Io, kVector>(row, column, inside, kept, z);
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) e[i].value[0] = kept >> i & 1 ? z[i] : Op::Absent(0);
    return kept;
  }

  // A single element, for strategies without vectors.
  __device__ __forceinline__ Kept At(const Row& row, int64_t column, int64_t offset, E& e) const {
    bool kept = column < row.seen;
    if (kept && terms.mask != nullptr) {
      kept = static_cast<const uint8_t*>(
                 terms.mask)[row.mask + column * terms.mask_at.column_stride] != 0;
    }
    e.value[0] = Op::Absent(0);
    if (kept) {
      T z = Widen(this->source[0][offset]) * row.scale;
      if (terms.softcap != 0) z = Capped(z);
      if (terms.bias != nullptr) {
        const int64_t at = row.bias + column * terms.bias_at.column_stride;
        z += terms.wide_bias ? static_cast<const T*>(terms.bias)[at]
                             : Widen(static_cast<const Io*>(terms.bias)[at]);
      }
      e.value[0] = z;
    }
    return kept;
  }

 private:
  __device__ __forceinline__ T Capped(T z) const {
    const T cap = static_cast<T>(terms.softcap);
    if constexpr (sizeof(T) == 4) {
      return cap * tanhf(z / cap);
    } else {
      return cap * tanh(z / cap);
    }
  }

  // Of four bytes that are 0 or 1: the product has each at a bit of its highest byte.
  __device__ __forceinline__ static Kept BitsOf(unsigned bytes) {
    return bytes * 0x01020408u >> 24;
  }

  template <int kVector>
  __device__ __forceinline__ Kept MaskOf(const Row& row, int64_t column, bool inside,
                                         Kept wanted) const {
    const auto* from = static_cast<const uint8_t*>(terms.mask) + row.mask;
    const int64_t stride = terms.mask_at.column_stride;
    if (stride == 0) return *from ? ~0u : 0u;
    from += column * stride;
    Kept kept = 0;
    if (kVector > 1 && inside && stride == 1 && reinterpret_cast<uintptr_t>(from) % kVector == 0) {
      if constexpr (kVector == 8) {
        const uint2 bytes = *reinterpret_cast<const uint2*>(from);
        kept = BitsOf(bytes.x) | BitsOf(bytes.y) << 4;
      } else if constexpr (kVector == 4) {
        kept = BitsOf(*reinterpret_cast<const unsigned*>(from));
      } else {
        for (int i = 0; i < kVector; ++i) kept |= unsigned{from[i]} << i;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (wanted >> i & 1) kept |= (from[i * stride] != 0 ? 1u : 0u) << i;
      }
    }
    return kept;
  }

  template <typename B, int kVector>
  __device__ __forceinline__ void AddBias(const Row& row, int64_t column, bool inside, Kept wanted,
                                          T (&z)[kVector]) const {
    using Vector = Pack<B, kVector>;
    const int64_t stride = terms.bias_at.column_stride;
    const B* from = static_cast<const B*>(terms.bias) + row.bias + column * stride;
    if (inside && stride == 1 &&
        reinterpret_cast<uintptr_t>(from) % sizeof(typename Vector::Word) == 0) {
      const Vector bias = Vector::Load(from);
#pragma unroll
      for (int i = 0; i < kVector; ++i) z[i] += Widen(bias.element[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (wanted >> i & 1) z[i] += Widen(from[i * stride]);
      }
    }
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
    if (!Op::MasksItself(row)) {
#pragma unroll
      for (int i = 0; i < W::kVector; ++i) y[i] = kept >> i & 1 ? y[i] : Op::Masked();
    }
    Base::operator()(window, pack, y, last_use);
  }
  __device__ __forceinline__ void At(int64_t offset, T y, unsigned kept, const Row&) const {
    Base::At(offset, kept ? y : Op::Masked());
  }
};

}  // namespace jax_softmax::JS_ISA
