// What the handlers of ops that are no strategy's share: turning XLA's buffers into a call, or
// saying what is wrong with them.
#pragma once

#include <string>
#include <utility>

#include "absmax.h"
#include "cross_entropy.h"
#include "decode.h"

namespace jax_softmax {

template <typename Op>
ffi::Unexpected<ffi::Error> Refuse(const std::string& what) {
  return ffi::Unexpected(
      ffi::Error::InvalidArgument("jax_softmax." + std::string(Op::kName) + ": " + what));
}

// Operands as in CrossEntropyGradient: x[..., n] and five of its rows.
struct CrossEntropyGradientOp {
  static constexpr std::string_view kName = "cross_entropy_gradient";

  template <typename Binding>
  static auto Bind(Binding binding) {
    return std::move(binding)
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::AnyBuffer>()
        .template Arg<ffi::Buffer<ffi::DataType::S32>>()
        .template Ret<ffi::AnyBuffer>();
  }

  static ffi::ErrorOr<CrossEntropyGradient> Decode(ffi::AnyBuffer x, ffi::AnyBuffer shift,
                                                   ffi::AnyBuffer factor, ffi::AnyBuffer everywhere,
                                                   ffi::AnyBuffer at_label,
                                                   ffi::Buffer<ffi::DataType::S32> labels,
                                                   ffi::Result<ffi::AnyBuffer> dx) {
    const auto refuse = Refuse<CrossEntropyGradientOp>;
    const auto dims = x.dimensions();
    const std::optional<DataType> dtype = DataTypeOf(x.element_type());
    if (!dtype || dx->element_type() != x.element_type() || dx->dimensions() != dims) {
      return refuse("wants a result of the type of x, a float32, float64, float16 or bfloat16");
    }
    const auto wide = *dtype == DataType::kF64 ? ffi::DataType::F64 : ffi::DataType::F32;
    if (dims.size() == 0) return refuse("wants at least one dimension");
    const int64_t last = static_cast<int64_t>(dims.size()) - 1;
    for (const ffi::AnyBuffer* operand : {&shift, &factor, &everywhere, &at_label}) {
      if (operand->element_type() != wide || !IsWithout(operand->dimensions(), dims, last)) {
        return refuse("wants values of the rows in the compute type");
      }
    }
    if (!IsWithout(labels.dimensions(), dims, last)) return refuse("wants a label for each row");
    CrossEntropyGradient call{};
    call.x = x.untyped_data();
    call.shift = shift.untyped_data();
    call.factor = factor.untyped_data();
    call.everywhere = everywhere.untyped_data();
    call.at_label = at_label.untyped_data();
    call.labels = labels.typed_data();
    call.dx = dx->untyped_data();
    call.dtype = *dtype;
    call.rows = RowsOf({dims.begin(), dims.size()}, last, last);
    call.alignment =
        AlignmentOf(reinterpret_cast<uintptr_t>(call.x) | reinterpret_cast<uintptr_t>(call.dx));
    return call;
  }
};

// x[..., n] to y of its shape and a float32 for each row.
struct AbsmaxOp {
  static constexpr std::string_view kName = "absmax";

  template <typename Binding>
  static auto Bind(Binding binding) {
    return std::move(binding)
        .template Arg<ffi::AnyBuffer>()
        .template Ret<ffi::AnyBuffer>()
        .template Ret<ffi::Buffer<ffi::DataType::F32>>();
  }

  static std::optional<AbsmaxResult> ResultFor(ffi::DataType from, ffi::DataType to) {
    if (from == to) return AbsmaxResult::kScaled;
    switch (to) {
      case ffi::DataType::F8E4M3FN:
        return AbsmaxResult::kE4M3;
      case ffi::DataType::F8E5M2:
        return AbsmaxResult::kE5M2;
      case ffi::DataType::S8:
        return AbsmaxResult::kI8;
      default:
        return std::nullopt;
    }
  }

  static ffi::ErrorOr<Absmax> Decode(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                                     ffi::Result<ffi::Buffer<ffi::DataType::F32>> of_row) {
    const auto refuse = Refuse<AbsmaxOp>;
    const auto dims = x.dimensions();
    const std::optional<DataType> dtype = DataTypeOf(x.element_type());
    const std::optional<AbsmaxResult> result = ResultFor(x.element_type(), y->element_type());
    if (!dtype || *dtype == DataType::kF64) return refuse("wants float32, float16 or bfloat16");
    if (!result) return refuse("wants a result of the type of x, or of 8 bits");
    if (dims.size() == 0) return refuse("wants at least one dimension");
    const int64_t last = static_cast<int64_t>(dims.size()) - 1;
    if (y->dimensions() != dims || !IsWithout(of_row->dimensions(), dims, last)) {
      return refuse("the results' shapes do not follow from the operand's");
    }
    const auto addresses = reinterpret_cast<uintptr_t>(x.untyped_data()) |
                           reinterpret_cast<uintptr_t>(y->untyped_data());
    return Absmax{x.untyped_data(),
                  y->untyped_data(),
                  of_row->typed_data(),
                  *dtype,
                  *result,
                  RowsOf({dims.begin(), dims.size()}, last, last),
                  AlignmentOf(addresses)};
  }
};

// The handlers of all of these: decode, check, and `Backend::Run<Op>(context, call)`.
template <typename Backend>
struct Standalone {
  template <typename Op>
  static XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame) {
    static const auto handler = Op::Bind(ffi::Ffi::Bind().Ctx<typename Backend::Context>())
                                    .To(
                                        [](auto context, auto... operands) -> ffi::Error {
                                          handler_calls.fetch_add(1, std::memory_order_relaxed);
                                          const auto call = Op::Decode(operands...);
                                          if (call.has_error()) return call.error();
                                          if (call->IsEmpty()) return ffi::Error::Success();
                                          return Backend::template Run<Op>(context, *call);
                                        },
                                        Backend::kTraits);
    return handler->Call(frame);
  }

  static constexpr std::array kHandlers = {
      NamedHandler{AbsmaxOp::kName, Handle<AbsmaxOp>},
      NamedHandler{CrossEntropyGradientOp::kName, Handle<CrossEntropyGradientOp>}};
};

}  // namespace jax_softmax
