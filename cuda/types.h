// Element types, and the pairs of them, the inputs' and the result's, that there are kernels for.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

// `context` is handed on to JS_PAIR.
// clang-format off
#define JS_FOR_EACH_TYPE_PAIR(JS_PAIR, context) \
  JS_PAIR(F32, F32, context) \
  JS_PAIR(F64, F64, context) \
  JS_PAIR(F16, F16, context) \
  JS_PAIR(BF16, BF16, context) \
  JS_PAIR(F32, F16, context) \
  JS_PAIR(F32, BF16, context) \
  JS_PAIR(F16, F32, context) \
  JS_PAIR(BF16, F32, context)
// clang-format on

namespace jax_softmax {

enum class DataType { kF32, kF64, kF16, kBF16 };
inline constexpr std::array<std::string_view, 4> kTypeNames = {"float32", "float64", "float16",
                                                               "bfloat16"};

constexpr std::string_view NameOf(DataType type) { return kTypeNames[static_cast<int>(type)]; }

constexpr int SizeOf(DataType type) {
  return type == DataType::kF64 ? 8 : type == DataType::kF32 ? 4 : 2;
}

struct TypePair {
  DataType in;
  DataType out;
  constexpr bool operator==(const TypePair&) const = default;
};
inline constexpr std::array kTypePairs = {
#define JS_TYPES(in, out, context) TypePair{DataType::k##in, DataType::k##out},
    JS_FOR_EACH_TYPE_PAIR(JS_TYPES, )
#undef JS_TYPES
};

// The pair's position in kTypePairs; none if there are no kernels for it.
constexpr std::optional<int> IndexOf(TypePair pair) {
  const auto found = std::find(kTypePairs.begin(), kTypePairs.end(), pair);
  if (found == kTypePairs.end()) return std::nullopt;
  return static_cast<int>(found - kTypePairs.begin());
}

inline std::string NoKernelsFor(TypePair pair) {
  return "there are no kernels from " + std::string(NameOf(pair.in)) + " to " +
         std::string(NameOf(pair.out));
}

}  // namespace jax_softmax
