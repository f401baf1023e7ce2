// Vectors to and from memory: element types, conversions, and vectors that memory ends within.
#pragma once

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace jax_softmax::JS_ISA {

// 16-bit floats as their bits.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The arithmetic behind results of type Out.
template <typename Out>
struct MathFor {
  using Type = SimdMath<float, sizeof(Out) != 2>;
};
template <>
struct MathFor<double> {
  using Type = SimdMath<double, true>;
};

namespace internal {
inline constexpr int kFloats = VectorOf<float>::kLanes;
typedef uint16_t Words __attribute__((vector_size(kFloats * 2)));
typedef uint32_t Longs __attribute__((vector_size(kFloats * 4)));
using Floats = VectorOf<float>::Type;

// Between words and the low halves of longs. The compiler's own conversions take five instructions
// for the first and a two-source permutation for the second (g++ 12, AVX-512).
JS_HD Longs Lengthen(Words words) {
#if defined(__AVX512F__)
  return (Longs)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)words);
#elif defined(__AVX2__)
  return (Longs)_mm256_cvtepu16_epi32((__m128i)words);
#else
  return __builtin_convertvector(words, Longs);
#endif
}
JS_HD Words Shorten(Longs longs) {
#if defined(__AVX512F__)
  return (Words)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)longs);
#else
  return __builtin_convertvector(longs, Words);
#endif
}

JS_HD Floats Widen(Words words, BFloat16) { return (Floats)(Lengthen(words) << 16); }
JS_HD Words Narrow(Floats x, BFloat16) {
  const Longs bits = (Longs)x;
  const Longs rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  return Shorten(x == x ? rounded : (Longs{} + 0x7fc0));
}

#if defined(__AVX512F__)
// With a mask of all lanes: g++ 12 warns of the headers' own forms without one.
JS_HD Floats Widen(Words words, Half) { return _mm512_maskz_cvtph_ps(0xffff, (__m256i)words); }
JS_HD Words Narrow(Floats x, Half) {
  return (Words)_mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
JS_HD Floats Widen(Words words, Half) { return _mm256_cvtph_ps((__m128i)words); }
JS_HD Words Narrow(Floats x, Half) {
  return (Words)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
// Float16 through float32 arithmetic: scaling by 2^112 moves the exponent bias from 15 to 127.
// Subnormals go through integers instead: as float32 bits they would be subnormal too, and XLA's
// threads take those for zero.
JS_HD Floats Widen(Words words, Half) {
  typedef int32_t Ints __attribute__((vector_size(kFloats * 4)));
  const Longs bits = __builtin_convertvector(words, Longs);
  const Longs magnitude = bits & 0x7fff;
  const Floats normal = (Floats)(magnitude << 13) * 0x1p112f;
  const Floats subnormal = __builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f;
  const Longs finite = magnitude < 0x400 ? (Longs)subnormal : (Longs)normal;
  const Longs special = (magnitude << 13) | 0x7f800000;  // infinity or NaN
  return (Floats)((magnitude >= 0x7c00 ? special : finite) | ((bits & 0x8000) << 16));
}
JS_HD Words Narrow(Floats x, Half) {
  const Longs bits = (Longs)x;
  const Longs magnitude = bits & 0x7fffffff;
  // Subnormal results: adding 0.5 aligns the wanted bits with the end of the fraction, rounded.
  const Longs small = (Longs)((Floats)magnitude + 0.5f) - 0x3f000000;
  const Longs rebias = magnitude - (112u << 23);
  const Longs normal = (rebias + 0xfff + ((rebias >> 13) & 1)) >> 13;
  const Longs finite = magnitude < (113u << 23) ? small : normal;
  const Longs large = magnitude > 0x7f800000 ? (Longs{} + 0x7e00) : (Longs{} + 0x7c00);
  const Longs result = magnitude >= 0x477ff000 ? large : finite;  // 65520 and up
  return __builtin_convertvector(result | ((bits >> 16) & 0x8000), Words);
}
#endif

// A vector's worth of In, as it lies in memory.
template <typename M, typename In>
struct RawOf {
  typedef typename M::T Type;
  JS_HD static typename M::T Decode(Type raw) { return raw; }
  JS_HD static Type Encode(typename M::T x) { return x; }
};
template <typename M, typename In>
  requires(sizeof(In) == 2)
struct RawOf<M, In> {
  using Type = Words;
  JS_HD static typename M::T Decode(Words raw) { return Widen(raw, In{}); }
  JS_HD static Words Encode(typename M::T x) { return Narrow(x, In{}); }
};

// A vector's worth of bytes, and each as an integer of a lane's size: the compiler's own conversion
// takes them one by one (g++ 12).
template <typename M>
struct BytesOf {
  typedef uint8_t Type __attribute__((vector_size(M::kLanes)));
};
template <typename M>
JS_HD typename M::Bits LengthenBytes(typename BytesOf<M>::Type bytes) {
  using Bits = typename M::Bits;
#ifdef __AVX2__
  __m128i low{};
  std::memcpy(&low, &bytes, sizeof(bytes));
#endif
#if defined(__AVX512F__)
  if constexpr (M::kLanes == 16) return (Bits)_mm512_maskz_cvtepu8_epi32(0xffff, low);
  if constexpr (M::kLanes == 8) return (Bits)_mm512_maskz_cvtepu8_epi64(0xff, low);
#elif defined(__AVX2__)
  if constexpr (M::kLanes == 8) return (Bits)_mm256_cvtepu8_epi32(low);
  if constexpr (M::kLanes == 4) return (Bits)_mm256_cvtepu8_epi64(low);
#else
  return __builtin_convertvector(bytes, Bits);
#endif
}

#ifdef __AVX512BW__
template <typename Raw>
JS_HD Raw LoadFirst(const void* from, int count) {
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(Raw{}[0]) == 1) {
    const __m128i bytes = _mm_maskz_loadu_epi8(mask, from);
    Raw raw;
    std::memcpy(&raw, &bytes, sizeof(raw));
    return raw;
  } else if constexpr (sizeof(Raw) == 32) {
    return (Raw)_mm256_maskz_loadu_epi16(mask, from);
  } else if constexpr (sizeof(Raw{}[0]) == 4) {
    return (Raw)_mm512_maskz_loadu_ps(mask, from);
  } else {
    return (Raw)_mm512_maskz_loadu_pd(mask, from);
  }
}
template <typename Raw>
JS_HD void StoreFirst(void* to, Raw raw, int count) {
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(Raw) == 16) {
    _mm_mask_storeu_epi8(to, mask, (__m128i)raw);
  } else if constexpr (sizeof(Raw) == 32) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)raw);
  } else if constexpr (sizeof(Raw{}[0]) == 4) {
    _mm512_mask_storeu_ps(to, mask, (__m512)raw);
  } else {
    _mm512_mask_storeu_pd(to, mask, (__m512d)raw);
  }
}
#else
template <typename Raw>
JS_HD Raw LoadFirst(const void* from, int count) {
  Raw raw{};
  std::memcpy(&raw, from, count * sizeof(raw[0]));
  return raw;
}
template <typename Raw>
JS_HD void StoreFirst(void* to, Raw raw, int count) {
  std::memcpy(to, &raw, count * sizeof(raw[0]));
}
#endif
}  // namespace internal

template <typename M, typename In>
JS_HD typename M::T Load(const In* from) {
  using Raw = internal::RawOf<M, In>;
  typename Raw::Type raw;
  std::memcpy(&raw, from, sizeof(raw));
  return Raw::Decode(raw);
}

template <typename M, typename Out>
JS_HD void Store(Out* to, typename M::T x) {
  const auto raw = internal::RawOf<M, Out>::Encode(x);
  std::memcpy(to, &raw, sizeof(raw));
}

// Only the first `count` lanes, which may be none of them or more than all; the others are 0.
template <typename M, typename In>
JS_HD typename M::T LoadUpTo(const In* from, int64_t count) {
  using Raw = internal::RawOf<M, In>;
  if (count >= M::kLanes) return Load<M>(from);
  if (count <= 0) return typename M::T{};
  return Raw::Decode(internal::LoadFirst<typename Raw::Type>(from, static_cast<int>(count)));
}

// The first `count` of the bytes from `from` on, one for each lane; the others are 0.
template <typename M>
JS_HD typename M::Bits LoadBytesUpTo(const uint8_t* from, int64_t count) {
  typename internal::BytesOf<M>::Type bytes{};
  if (count >= M::kLanes) {
    std::memcpy(&bytes, from, sizeof(bytes));
  } else if (count > 0) {
    bytes = internal::LoadFirst<decltype(bytes)>(from, static_cast<int>(count));
  }
  return internal::LengthenBytes<M>(bytes);
}

// The first `count` lanes of x, the others those of `rest`.
template <typename M>
JS_HD typename M::T FirstLanes(typename M::T x, int64_t count, typename M::T rest) {
  typename M::Bits lane;
  for (int i = 0; i < M::kLanes; ++i) lane[i] = i;
  using Index = std::remove_reference_t<decltype(lane[0])>;
  const Index limit = static_cast<Index>(std::clamp<int64_t>(count, 0, M::kLanes));
  return lane < limit ? x : rest;
}

template <typename M, typename Out>
JS_HD void StoreUpTo(Out* to, typename M::T x, int64_t count) {
  if (count >= M::kLanes) return Store<M>(to, x);
  if (count <= 0) return;
  internal::StoreFirst(to, internal::RawOf<M, Out>::Encode(x), static_cast<int>(count));
}

}  // namespace jax_softmax::JS_ISA
