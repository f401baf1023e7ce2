// The handler of absmax scaling and quantisation.
#include "absmax.h"

#include <string>

#include "decode.h"
#include "handlers.h"

namespace jax_softmax {

namespace {

ffi::Error Invalid(const std::string& what) {
  return ffi::Error::InvalidArgument("jax_softmax.absmax: " + what);
}

std::optional<AbsmaxResult> ResultFor(ffi::DataType from, ffi::DataType to) {
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

// x[..., n] to y of its shape and a float32 for each row.
ffi::Error Run(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
               ffi::Result<ffi::Buffer<ffi::DataType::F32>> of_row) {
  handler_calls.fetch_add(1, std::memory_order_relaxed);
  const auto dims = x.dimensions();
  const std::optional<DataType> dtype = DataTypeOf(x.element_type());
  const std::optional<AbsmaxResult> result = ResultFor(x.element_type(), y->element_type());
  if (!dtype || *dtype == DataType::kF64) return Invalid("wants float32, float16 or bfloat16");
  if (!result) return Invalid("wants a result of the type of x, or of 8 bits");
  if (dims.size() == 0) return Invalid("wants at least one dimension");
  const int64_t last = static_cast<int64_t>(dims.size()) - 1;
  if (y->dimensions() != dims || !IsWithout(of_row->dimensions(), dims, last)) {
    return Invalid("the results' shapes do not follow from the operand's");
  }
  if (of_row->element_count() == 0) return ffi::Error::Success();
  const auto address = reinterpret_cast<uintptr_t>(x.untyped_data()) |
                       reinterpret_cast<uintptr_t>(y->untyped_data());
  const Absmax call{x.untyped_data(),
                    y->untyped_data(),
                    of_row->typed_data(),
                    *dtype,
                    *result,
                    RowsOf({dims.begin(), dims.size()}, last, last),
                    AlignmentOf(address)};
  const cudaError_t status = Launch(call, stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jax_softmax.absmax: launching: ") +
                              cudaGetErrorString(status));
}

}  // namespace

XLA_FFI_Error* HandleAbsmax(XLA_FFI_CallFrame* frame) {
  static const auto handler = ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::DataType::F32>>()
                                  .To(Run, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

}  // namespace jax_softmax
