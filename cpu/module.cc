// The Python module `_cpu`: the CPU handlers, and the plans of every device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../cuda/broadcast.h"
#include "../cuda/python.h"
#include "kernels.h"
#include "plan.h"

namespace jax_softmax {

namespace {

nb::dict CudaPlan(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                  const std::string& dtype, const std::string& out_dtype,
                  const std::string& strategy, bool batch_invariant, const nb::dict& limits) {
  const Problem problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  const Plan plan = CheckedPlan(problem, DeviceFrom(limits), strategy);
  nb::dict facts;
  facts["strategy"] = std::string(kStrategyNames[static_cast<int>(plan.strategy)]);
  facts["threads"] = plan.threads;
  facts["blocks"] = plan.blocks;
  facts["cluster_blocks"] = plan.cluster_blocks;
  facts["abreast"] = plan.abreast;
  facts["turns"] = plan.turns.count;
  facts["lanes_per_row"] = plan.lanes_per_row;
  facts["rows_per_block"] = plan.rows_per_block;
  facts["vector_bytes"] = plan.vector * SizeOf(problem.dtype);
  facts["shared_bytes"] = plan.shared_bytes;
  facts["bytes_moved"] = plan.bytes_moved;
  return facts;
}

int ComputedResidentBlocks(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                           const std::string& dtype, const std::string& out_dtype,
                           bool batch_invariant, int threads, int shared_bytes,
                           const nb::dict& limits) {
  const Problem problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  return ResidentBlocks(DeviceFrom(limits), threads, BlockRegisters(problem), shared_bytes);
}

int64_t WorkspaceOf(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                    const std::string& dtype, const std::string& out_dtype,
                    const std::string& strategy, bool batch_invariant) {
  const Problem problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  return WorkspaceBytes(problem, KnownStrategy(strategy));
}

nb::dict CpuPlan(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                 const std::string& dtype, const std::string& out_dtype,
                 const std::string& strategy, bool batch_invariant) {
  const Problem problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  const std::optional<cpu::Strategy> requested = cpu::StrategyNamed(strategy);
  if (!requested) ThrowUnknownStrategy(strategy, Listed(cpu::kStrategyNames));
  const cpu::Plan plan = cpu::ChoosePlan(problem, cpu::Kernels().vector_bytes, *requested);
  if (plan.refusal != nullptr) ThrowRefusal(strategy, plan.refusal);
  const bool along_row =
      plan.strategy == cpu::Strategy::kRow || plan.strategy == cpu::Strategy::kSlices;
  nb::dict facts;
  facts["strategy"] = std::string(cpu::kStrategyNames[static_cast<int>(plan.strategy)]);
  facts["threads"] = 1;
  facts["blocks"] = plan.chunks;
  facts["cluster_blocks"] = 1;
  facts["abreast"] = 1;
  facts["turns"] = 1;
  facts["lanes_per_row"] =
      along_row ? cpu::Kernels().vector_bytes / ComputeBytes(problem.dtype) : 1;
  facts["rows_per_block"] = plan.RowsPerChunk(problem.rows);
  facts["vector_bytes"] =
      cpu::Kernels().vector_bytes / ComputeBytes(problem.dtype) * SizeOf(problem.dtype);
  facts["shared_bytes"] = 0;
  facts["bytes_moved"] = plan.bytes_moved;
  return facts;
}

// What a call on a platform takes: `terms` are the shapes of its terms.
bool TakesTermsOf(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                  const std::string& dtype, const std::string& out_dtype,
                  const std::string& strategy, bool batch_invariant, const std::string& platform,
                  const std::vector<std::vector<int64_t>>& terms) {
  const Problem problem = ProblemOf(op, shape, axis, dtype, out_dtype, batch_invariant);
  for (const std::vector<int64_t>& term : terms) {
    if (!BroadcastOf(shape, term, axis, axis)) return false;
  }
  if (platform == "cpu") {
    const std::optional<cpu::Strategy> requested = cpu::StrategyNamed(strategy);
    const int vector_bytes = cpu::Kernels().vector_bytes;
    return requested && cpu::ChoosePlan(problem, vector_bytes, *requested).refusal == nullptr;
  }
  const std::optional<Strategy> requested = StrategyNamed(strategy);
  // A kernel along another axis is for those who name it: XLA takes a third of the time
  // or less (H200, 2026-11).
  if (requested == Strategy::kAuto) return problem.rows.inner == 1;
  // Rows of softmax's own go through tiles along any axis, and longer ones.
  if (requested == Strategy::kTile) {
    return ChoosePlan(problem, kKnownDevices.front().device, *requested).refusal == nullptr;
  }
  return requested && CanTakeTerms(*requested);
}

// Where a broadcast operand's rows begin, and the stride along them; None if they are too many
// groups.
nb::object BroadcastOffsets(const std::vector<int64_t>& dims, const std::vector<int64_t>& shape,
                            int64_t logical_axis, int64_t axis) {
  const std::optional<Broadcast> broadcast = BroadcastOf(dims, shape, logical_axis, axis);
  if (!broadcast) return nb::none();
  std::vector<int64_t> offsets(RowsOf(dims, logical_axis, axis).Count());
  for (size_t row = 0; row < offsets.size(); ++row) {
    offsets[row] = broadcast->Offset(static_cast<uint32_t>(row));
  }
  return nb::make_tuple(offsets, broadcast->column_stride);
}

nb::dict LimitsOf(const std::string& name) {
  std::vector<std::string_view> names = {"cpu"};
  for (const KnownDevice& known : kKnownDevices) {
    if (known.name == name) return ToDict(known.device);
    names.push_back(known.name);
  }
  throw nb::value_error(("device '" + name + "' is unknown: use " + Listed(names)).c_str());
}

}  // namespace

NB_MODULE(_cpu, m) {
  BindHandlers(m);
  m.def("describe", [] { return std::string(cpu::Kernels().isa); });
  m.def("cuda_plan", &CudaPlan, nb::arg("op"), nb::arg("shape"), nb::arg("axis"), nb::arg("dtype"),
        nb::arg("out_dtype"), nb::arg("strategy"), nb::arg("batch_invariant"), nb::arg("limits"));
  m.def("cuda_workspace", &WorkspaceOf, nb::arg("op"), nb::arg("shape"), nb::arg("axis"),
        nb::arg("dtype"), nb::arg("out_dtype"), nb::arg("strategy"), nb::arg("batch_invariant"),
        "Bytes that a call on a GPU is given for each row, beside its operands and result.");
  m.def("cpu_plan", &CpuPlan, nb::arg("op"), nb::arg("shape"), nb::arg("axis"), nb::arg("dtype"),
        nb::arg("out_dtype"), nb::arg("strategy"), nb::arg("batch_invariant"));
  m.def("takes_terms", &TakesTermsOf, nb::arg("op"), nb::arg("shape"), nb::arg("axis"),
        nb::arg("dtype"), nb::arg("out_dtype"), nb::arg("strategy"), nb::arg("batch_invariant"),
        nb::arg("platform"), nb::arg("terms"),
        "Whether a platform's kernels apply terms of these shapes, by that strategy.");
  m.def("resident_blocks", &ComputedResidentBlocks, nb::arg("op"), nb::arg("shape"),
        nb::arg("axis"), nb::arg("dtype"), nb::arg("out_dtype"), nb::arg("batch_invariant"),
        nb::arg("threads"), nb::arg("shared_bytes"), nb::arg("limits"),
        "Blocks of the block kernel per multiprocessor, as the plan computes them.");
  m.def("broadcast_offsets", &BroadcastOffsets, nb::arg("dims"), nb::arg("shape"),
        nb::arg("logical_axis"), nb::arg("axis"),
        "Where kernels find the rows of an operand that is broadcast.");
  m.def(
      "quotient", [](uint32_t n, uint32_t divisor) { return Divisor(divisor).Quotient(n); },
      nb::arg("n"), nb::arg("divisor"), "n / divisor by a multiplication, for n < 2^31.");
  m.def("known_device", &LimitsOf, nb::arg("name"), "The limits of a GPU by name.");
}

}  // namespace jax_softmax
