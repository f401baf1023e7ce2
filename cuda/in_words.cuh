// Vectors that stay in registers as they lie in memory, from one sweep over them to the next.
#pragma once

#include "operands.cuh"
#include "reduce.cuh"

namespace jax_softmax::JS_ISA {

// Arguments that are 0, which the compiler does not know: see Opaque.
struct Zeros {
  unsigned z[3];
};

// The same vector for another sweep. Otherwise the compiler would keep what 16-bit elements are
// decoded to, twice their size, from one sweep to the next, or elements' differences to the
// maximum, or work on more of them at a time than there are registers for.
template <typename Io, int kVector>
__device__ __forceinline__ Words<Io, kVector> Opaque(Words<Io, kVector> raw, unsigned zero) {
  uint4& word = raw.word[0];
  word = {word.x ^ zero, word.y ^ zero, word.z ^ zero, word.w ^ zero};
  return raw;
}

template <typename Io>
using TwoOf = std::conditional_t<std::is_same_v<Io, __half>, __half2, __nv_bfloat162>;

// Of 16-bit elements the larger ones, two at a time and without decoding them. NaN loses.
template <typename Io, int kVector>
__device__ __forceinline__ Words<Io, kVector> Larger(const Words<Io, kVector>& a,
                                                     const Words<Io, kVector>& b) {
  TwoOf<Io> x[kVector / 2], y[kVector / 2];
  memcpy(x, a.word, sizeof(x));
  memcpy(y, b.word, sizeof(y));
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) x[i] = __hmax2(x[i], y[i]);
  Words<Io, kVector> larger;
  memcpy(larger.word, x, sizeof(x));
  return larger;
}

// The largest of all.
template <typename Io, int kVector, int kPacks>
__device__ __forceinline__ float Largest(const Words<Io, kVector> (&raw)[kPacks][1]) {
  Words<Io, kVector> of_packs = raw[0][0];
#pragma unroll
  for (int k = 1; k < kPacks; ++k) of_packs = Larger(of_packs, raw[k][0]);
  TwoOf<Io> largest[kVector / 2];
  memcpy(largest, of_packs.word, sizeof(largest));
#pragma unroll
  for (int i = 1; i < kVector / 2; ++i) largest[0] = __hmax2(largest[0], largest[i]);
  return fmaxf(Widen(largest[0].x), Widen(largest[0].y));
}

// Calls f with the number and the elements of each vector that a thread has.
template <typename Op, typename Load, int kVector, int kPacks, typename F>
__device__ __forceinline__ void SweepWords(
    const Words<typename Load::Io, kVector> (&raw)[kPacks][Op::kInputs], unsigned zero, F f) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    Words<typename Load::Io, kVector> vector[Op::kInputs];
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      constexpr bool kTempts = sizeof(typename Load::Io) == 2 || kEstimates<Op>;
      vector[i] = kTempts ? Opaque(raw[k][i], zero) : raw[k][i];
    }
    Element<typename Op::T, Op::kInputs> e[kVector];
    Load::Decode(vector, e);
    f(k, e);
  }
}

// Whether it is the statistics' only sweep that takes vectors as they are, or that for results.
template <typename Op>
inline constexpr bool kReducesPlainly = Op::kSweeps == 1;

// Reduces vectors over the warp. The second sweep calls keep with each vector's number and terms.
template <typename Op, typename Load, int kVector, int kPacks, typename Keep>
__device__ __forceinline__ Partial<Op> ReduceWords(
    const Op& op, const Words<typename Load::Io, kVector> (&raw)[kPacks][Op::kInputs],
    const Zeros& zeros, Keep keep) {
  Partial<Op> part;
  if constexpr (kFirstIsMaximum<Op> && sizeof(typename Load::Io) == 2) {
    part.first.value = Largest(raw);
  } else {
    SweepWords<Op, Load>(raw, kReducesPlainly<Op> ? 0 : zeros.z[0],
                         [&](int, const auto& e) { AddFirst(op, part.first, e); });
  }
  int sweeps = 0;
  const auto add = [&](auto& statistic, auto term) {
    SweepWords<Op, Load>(raw, zeros.z[++sweeps],
                         [&](int k, const auto& e) { keep(k, AddTerms(statistic, e, term)); });
  };
  WholeWarp warp;
  return BothSweeps(op, part.first, add, warp);
}

}  // namespace jax_softmax::JS_ISA
