// Turning a handler's operands into the terms that logits are loaded with.
#pragma once

#include <algorithm>
#include <utility>

#include "broadcast.h"
#include "decode.h"

namespace jax_softmax {

// What stays in a GPU's cache while other operands pass.
inline constexpr size_t kCachedBytes = 16 << 20;

// A binding to what DecodeTerms wants to be told behind it.
template <typename Binding>
auto WithTerms(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("terms")
      .template Attr<double>("factor")
      .template Attr<double>("softcap")
      .template Attr<bool>("causal")
      .template Attr<bool>("fills")
      .template Attr<double>("fill");
}

// The operands behind the logits, of which `names` says the first letters: mask, bias, scale, sink;
// and terms that are no operands. With `fills` masked logits are `fill`, and take part. None where
// there are no logits.
inline ffi::ErrorOr<Terms> DecodeTerms(OpKind op, ffi::RemainingArgs args, int64_t axis,
                                       int64_t logical_axis, std::string_view names, double factor,
                                       double softcap, bool causal, bool fills, double fill) {
  Terms terms;
  const auto x = args.get<ffi::AnyBuffer>(0);
  if (x.has_error()) return ffi::Unexpected(x.error());
  if (x->element_count() == 0) return terms;
  const std::span<const int64_t> all_dims(x->dimensions().begin(), x->dimensions().size());
  const int64_t rows = RowsOf(all_dims, logical_axis, axis).Count();
  if (rows >= int64_t{1} << 31) return ffi::Unexpected(Invalid(op, "takes less than 2^31 rows"));
  terms.rows = static_cast<uint32_t>(rows);
  terms.factor = factor;
  terms.narrow_factor = static_cast<float>(factor);
  terms.caps = softcap != 0;
  terms.softcap = softcap;
  terms.per_softcap = 1 / softcap;
  if (causal) {
    const auto rank = static_cast<int64_t>(all_dims.size());
    if (rank < 2 || axis + 1 != rank || axis != logical_axis) {
      return ffi::Unexpected(Invalid(op, "causal wants the last of at least two axes"));
    }
    terms.causal = true;
    terms.causal_rows = Divisor(static_cast<uint32_t>(all_dims[rank - 2]));
  }
  if (fills) {
    terms.fills = true;
    terms.fill = fill;
    terms.narrow_fill = static_cast<float>(fill);
  }
  if (args.size() != names.size() + 1) {
    return ffi::Unexpected(Invalid(op, "wants an operand for each of its terms"));
  }
  const auto wide =
      x->element_type() == ffi::DataType::F64 ? ffi::DataType::F64 : ffi::DataType::F32;
  const struct {
    char name;
    const void* Terms::* data;
    Broadcast Terms::* at;
  } kinds[] = {{'m', &Terms::mask, &Terms::mask_at},
               {'b', &Terms::bias, &Terms::bias_at},
               {'f', &Terms::scale, &Terms::scale_at},
               {'s', &Terms::sink, &Terms::sink_at}};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto operand = args.get<ffi::AnyBuffer>(i + 1);
    if (operand.has_error()) return ffi::Unexpected(operand.error());
    const auto dims = x->dimensions(), shape = operand->dimensions();
    const auto fits = [](int64_t size, int64_t full) { return size == 1 || size == full; };
    const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                    [&](const auto& k) { return k.name == names[i]; });
    if (kind == std::end(kinds) || shape.size() != dims.size() ||
        !std::equal(shape.begin(), shape.end(), dims.begin(), fits)) {
      return ffi::Unexpected(Invalid(op, "operand " + std::to_string(i + 1) + " is no term"));
    }
    const auto type = operand->element_type();
    const bool is_bias = kind->name == 'b';
    if (kind->name == 'm' ? type != ffi::DataType::PRED
                          : type != wide && !(is_bias && type == x->element_type())) {
      return ffi::Unexpected(
          Invalid(op, "operand " + std::to_string(i + 1) + " is of a dtype no term has"));
    }
    const auto at =
        BroadcastOf({dims.begin(), dims.size()}, {shape.begin(), shape.size()}, logical_axis, axis);
    if (!at) return ffi::Unexpected(Invalid(op, "a term is broadcast in too many dimensions"));
    terms.*kind->data = operand->untyped_data();
    terms.*kind->at = *at;
    const bool in_vectors =
        axis + 1 == static_cast<int64_t>(dims.size()) && at->column_stride == 1 &&
        AlignmentOf(reinterpret_cast<uintptr_t>(operand->untyped_data())) == kVectorBytes;
    if (kind->name == 'm') {
      terms.mask_in_vectors = in_vectors;
      if (fills && (causal || at->column_stride == 0)) {
        return ffi::Unexpected(Invalid(op, "fills by a mask of elements or columns alone"));
      }
    }
    if (is_bias) {
      terms.wide_bias = type != x->element_type();
      terms.bias_in_vectors = in_vectors && !terms.wide_bias;
    }
    const int outermost = at->groups - 1;
    if (at->stride[outermost] == 0 && operand->size_bytes() > kCachedBytes) {
      terms.turns = at->size[outermost];
    }
  }
  return terms;
}

}  // namespace jax_softmax
