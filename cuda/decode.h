// What the FFI handlers of both backends share: turning XLA's buffers and attributes into a Problem
// or saying what is wrong with them, and the list of handlers.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi.h"
#include "plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_softmax {

namespace ffi = ::xla::ffi;

constexpr std::optional<DataType> DataTypeOf(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return DataType::kF32;
    case ffi::DataType::F64:
      return DataType::kF64;
    case ffi::DataType::F16:
      return DataType::kF16;
    case ffi::DataType::BF16:
      return DataType::kBF16;
    default:
      return std::nullopt;
  }
}

inline std::string NameOf(OpKind op) { return std::string(kOps[static_cast<int>(op)].name); }

inline ffi::Error Invalid(OpKind op, const std::string& what) {
  return ffi::Error::InvalidArgument("jax_softmax." + NameOf(op) + ": " + what);
}

// What a handler was called with.
struct Operands {
  const void* inputs[kMaxInputs];
  void* output;
  Problem problem;
};

// What all of the addresses whose bits are joined in `addresses` are a multiple of: the lowest set
// bit, up to a vector.
inline int AlignmentOf(uintptr_t addresses) {
  addresses |= kVectorBytes;
  return static_cast<int>(addresses & -addresses);
}

// Whether `shorter` is `dims` without dimension `axis`.
inline bool IsWithout(ffi::AnyBuffer::Dimensions shorter, ffi::AnyBuffer::Dimensions dims,
                      int64_t axis) {
  return shorter.size() + 1 == dims.size() &&
         std::equal(dims.begin(), dims.begin() + axis, shorter.begin()) &&
         std::equal(dims.begin() + axis + 1, dims.end(), shorter.begin() + axis);
}

// `axis` and `logical_axis` as in RowsOf. All operands must agree in shape, the inputs in dtype; a
// result with one value for each row lacks the axis.
// Operands behind the inputs are the terms of an op that takes some.
inline ffi::ErrorOr<Operands> Decode(OpKind op, ffi::RemainingArgs args,
                                     ffi::Result<ffi::AnyBuffer> out, int64_t axis,
                                     int64_t logical_axis, bool batch_invariant) {
  const int inputs = kOps[static_cast<int>(op)].inputs;
  const int given = static_cast<int>(args.size());
  if (TakesTerms(op) ? given < inputs : given != inputs) {
    return ffi::Unexpected(Invalid(
        op, "wants " + std::to_string(inputs) + " operands, got " + std::to_string(args.size())));
  }
  const auto first = args.get<ffi::AnyBuffer>(0);
  if (first.has_error()) return ffi::Unexpected(first.error());
  const ffi::AnyBuffer::Dimensions dims = first->dimensions();
  const int64_t rank = static_cast<int64_t>(dims.size());
  if (axis < 0 || axis >= rank || logical_axis < 0 || logical_axis >= rank) {
    return ffi::Unexpected(Invalid(op, "axis " + std::to_string(axis) + " (logical " +
                                           std::to_string(logical_axis) + ") is not one of " +
                                           std::to_string(rank) + " dimensions"));
  }
  if (IsPerRow(op) ? !IsWithout(out->dimensions(), dims, logical_axis)
                   : out->dimensions() != dims) {
    return ffi::Unexpected(Invalid(op, "the result's shape does not follow from the operand's"));
  }
  Operands operands{};
  operands.output = out->untyped_data();
  ffi::DataType in{};
  uintptr_t addresses = reinterpret_cast<uintptr_t>(operands.output);
  for (int i = 0; i < inputs; ++i) {
    const auto arg = args.get<ffi::AnyBuffer>(i);
    if (arg.has_error()) return ffi::Unexpected(arg.error());
    if (arg->dimensions() != dims) {
      return ffi::Unexpected(
          Invalid(op, "operand " + std::to_string(i) + " differs from the first in shape"));
    }
    if (i > 0 && arg->element_type() != in) {
      return ffi::Unexpected(
          Invalid(op, "operand " + std::to_string(i) + " differs from the first in dtype"));
    }
    in = arg->element_type();
    operands.inputs[i] = arg->untyped_data();
    addresses |= reinterpret_cast<uintptr_t>(operands.inputs[i]);
  }
  const std::optional<DataType> dtype = DataTypeOf(in), out_dtype = DataTypeOf(out->element_type());
  if (!dtype || !out_dtype) {
    return ffi::Unexpected(Invalid(op, "wants float32, float64, float16 or bfloat16"));
  }
  if (!HasKernels(op, {*dtype, *out_dtype})) {
    return ffi::Unexpected(Invalid(op, NoKernelsFor({*dtype, *out_dtype})));
  }
  operands.problem = {
      op,
      inputs,
      *dtype,
      *out_dtype,
      RowsOf(std::span<const int64_t>(dims.begin(), dims.size()), logical_axis, axis),
      AlignmentOf(addresses),
      batch_invariant};
  return operands;
}

// Whether two results with values of the rows agree in type and shape.
inline bool AreAlike(ffi::Result<ffi::AnyBuffer> a, ffi::Result<ffi::AnyBuffer> b) {
  return a->element_type() == b->element_type() && a->dimensions() == b->dimensions();
}

// What is wrong with results that are logsumexp's two terms.
inline std::optional<ffi::Error> WrongParts(ffi::Result<ffi::AnyBuffer> largest,
                                            ffi::Result<ffi::AnyBuffer> log_sums) {
  const std::optional<DataType> dtype = DataTypeOf(largest->element_type());
  if (dtype && SizeOf(*dtype) >= 4 && AreAlike(largest, log_sums)) return std::nullopt;
  return Invalid(OpKind::kLogSumExp, "has two values for each row, both in float32 or float64");
}

// Calls of any handler in this extension.
inline std::atomic<int64_t> handler_calls{0};

// A binding to the request, as handlers take it.
template <typename Binding>
auto WithRequest(Binding binding) {
  return std::move(binding)
      .template Attr<int64_t>("axis")
      .template Attr<int64_t>("logical_axis")
      .template Attr<std::string_view>("strategy")
      .template Attr<bool>("batch_invariant");
}

// The handlers `Backend::Handle<op>` of every op, by name, and that of logsumexp's two terms.
template <typename Backend>
std::vector<NamedHandler> HandlersOf(XLA_FFI_Handler* of_parts) {
#define JS_HANDLER(name, Op, inputs) NamedHandler{#name, Backend::template Handle<OpKind::k##Op>},
  return {JS_FOR_EACH_OP(JS_HANDLER){"logsumexp_parts", of_parts}};
#undef JS_HANDLER
}

}  // namespace jax_softmax
