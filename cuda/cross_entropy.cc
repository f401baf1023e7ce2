// The handler of the losses' gradient.
#include "cross_entropy.h"

#include <string>

#include "decode.h"
#include "handlers.h"

namespace jax_softmax {

namespace {

ffi::Error Invalid(const std::string& what) {
  return ffi::Error::InvalidArgument("jax_softmax.cross_entropy_gradient: " + what);
}

// Operands as in CrossEntropyGradient: x[..., n] and five of its rows.
ffi::Error Run(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer lse, ffi::AnyBuffer factor,
               ffi::AnyBuffer everywhere, ffi::AnyBuffer at_label,
               ffi::Buffer<ffi::DataType::S32> labels, ffi::Result<ffi::AnyBuffer> dx) {
  handler_calls.fetch_add(1, std::memory_order_relaxed);
  const auto dims = x.dimensions();
  const std::optional<DataType> dtype = DataTypeOf(x.element_type());
  if (!dtype || dx->element_type() != x.element_type() || dx->dimensions() != dims) {
    return Invalid("wants a result of the type of x, a float32, float64, float16 or bfloat16");
  }
  const auto wide = *dtype == DataType::kF64 ? ffi::DataType::F64 : ffi::DataType::F32;
  if (dims.size() == 0) return Invalid("wants at least one dimension");
  const int64_t last = static_cast<int64_t>(dims.size()) - 1;
  for (const ffi::AnyBuffer* operand : {&lse, &factor, &everywhere, &at_label}) {
    if (operand->element_type() != wide || !IsWithout(operand->dimensions(), dims, last)) {
      return Invalid("wants values of the rows in the compute type");
    }
  }
  if (!IsWithout(labels.dimensions(), dims, last)) return Invalid("wants a label for each row");
  if (x.element_count() == 0) return ffi::Error::Success();
  CrossEntropyGradient call{};
  call.x = x.untyped_data();
  call.lse = lse.untyped_data();
  call.factor = factor.untyped_data();
  call.everywhere = everywhere.untyped_data();
  call.at_label = at_label.untyped_data();
  call.labels = labels.typed_data();
  call.dx = dx->untyped_data();
  call.dtype = *dtype;
  call.rows = RowsOf({dims.begin(), dims.size()}, last, last);
  call.alignment =
      AlignmentOf(reinterpret_cast<uintptr_t>(call.x) | reinterpret_cast<uintptr_t>(call.dx));
  const cudaError_t status = Launch(call, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jax_softmax.cross_entropy_gradient: launching: ") +
                              cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_Error* HandleCrossEntropyGradient(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::DataType::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .To(Run, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

}  // namespace jax_softmax
