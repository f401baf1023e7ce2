// The Python module `_cuda`: the handlers, and what a GPU test wants to ask.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "device.h"
#include "ffi.h"
#include "launch.h"
#include "python.h"

namespace nb = nanobind;

namespace jax_softmax {

namespace {

nb::dict DeviceLimits(int ordinal) {
  Device device;
  const cudaError_t status = QueryDevice(ordinal, &device);
  if (status != cudaSuccess) throw nb::value_error(cudaGetErrorString(status));
  return ToDict(device);
}

int ResidentBlocksOf(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                     const std::string& dtype, const std::string& out_dtype,
                     const std::string& strategy, bool batch_invariant, int ordinal) {
  Call call{};
  call.problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  Device device;
  cudaError_t status = QueryDevice(ordinal, &device);
  int blocks = 0;
  if (status == cudaSuccess) {
    call.plan = CheckedPlan(call.problem, device, strategy);
    status = MeasureResidentBlocks(call, &blocks);
  }
  if (status != cudaSuccess) throw nb::value_error(cudaGetErrorString(status));
  return blocks;
}

}  // namespace

NB_MODULE(_cuda, m) {
  BindHandlers(m);
  m.def("describe", [] { return std::string("sm ") + JS_CUDA_ARCHITECTURES; });
  m.def("device", &DeviceLimits, nb::arg("ordinal"), "The limits of an attached GPU.");
  m.def("resident_blocks", &ResidentBlocksOf, nb::arg("op"), nb::arg("shape"), nb::arg("axis"),
        nb::arg("dtype"), nb::arg("out_dtype"), nb::arg("strategy"), nb::arg("batch_invariant"),
        nb::arg("ordinal"),
        "Blocks of the planned kernel per multiprocessor, as CUDA counts them.");
}

}  // namespace jax_softmax
