// What both Python modules share: names to values and back, and the handlers as capsules.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "ffi.h"
#include "plan.h"

namespace jax_softmax {

namespace nb = nanobind;

inline constexpr struct {
  const char* name;
  int Device::* field;
} kDeviceFields[] = {
    {"multiprocessors", &Device::multiprocessors},
    {"threads_per_multiprocessor", &Device::threads_per_multiprocessor},
    {"blocks_per_multiprocessor", &Device::blocks_per_multiprocessor},
    {"registers_per_multiprocessor", &Device::registers_per_multiprocessor},
    {"shared_per_multiprocessor", &Device::shared_per_multiprocessor},
    {"shared_per_block", &Device::shared_per_block},
    {"shared_reserved", &Device::shared_reserved},
    {"cluster_blocks", &Device::cluster_blocks},
};

inline nb::dict ToDict(const Device& device) {
  nb::dict limits;
  for (const auto& [name, field] : kDeviceFields) limits[name] = device.*field;
  return limits;
}

inline Device DeviceFrom(const nb::dict& limits) {
  Device device{};
  for (const auto& [name, field] : kDeviceFields) device.*field = nb::cast<int>(limits[name]);
  return device;
}

// "a, b, c", for messages that say what there is.
template <typename Names>
std::string Listed(const Names& names) {
  std::string text;
  for (std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

inline DataType TypeNamed(const std::string& name) {
  const std::optional<DataType> type = Named<DataType>(kTypeNames, name);
  if (!type) {
    throw nb::value_error(("the kernels take " + Listed(kTypeNames) + ", not " + name).c_str());
  }
  return *type;
}

inline Problem ProblemOf(const std::string& op, const std::vector<int64_t>& shape, int64_t axis,
                         const std::string& dtype, const std::string& out_dtype,
                         bool batch_invariant) {
  Problem problem{};
  std::vector<std::string_view> ops;
  bool found = false;
  for (const OpFacts& facts : kOps) {
    ops.push_back(facts.name);
    if (facts.name != op) continue;
    problem.op = facts.kind;
    problem.inputs = facts.inputs;
    found = true;
  }
  if (!found) throw nb::value_error(("op '" + op + "' is unknown: use " + Listed(ops)).c_str());
  problem.dtype = TypeNamed(dtype);
  problem.out_dtype = TypeNamed(out_dtype);
  if (!HasKernels(problem.op, problem.Types())) {
    throw nb::value_error(NoKernelsFor(problem.Types()).c_str());
  }
  problem.rows = RowsOf(shape, axis, axis);
  problem.alignment = kVectorBytes;  // what XLA allocates
  problem.batch_invariant = batch_invariant;
  problem.masks_only = TakesTerms(problem.op);
  return problem;
}

[[noreturn]] inline void ThrowUnknownStrategy(const std::string& strategy,
                                              const std::string& known) {
  throw nb::value_error(("strategy '" + strategy + "' is unknown: use " + known).c_str());
}

[[noreturn]] inline void ThrowRefusal(const std::string& strategy, const char* why) {
  throw nb::value_error(("strategy '" + strategy + "' cannot run this problem: " + why).c_str());
}

inline Strategy KnownStrategy(const std::string& name) {
  const std::optional<Strategy> strategy = StrategyNamed(name);
  if (!strategy) ThrowUnknownStrategy(name, Listed(kStrategyNames));
  return *strategy;
}

inline Plan CheckedPlan(Problem problem, const Device& device, const std::string& strategy) {
  const Strategy requested = KnownStrategy(strategy);
  // The lowering sees to it.
  problem.workspace_bytes = problem.rows.Count() * WorkspaceBytes(problem, requested);
  const Plan plan = ChoosePlan(problem, device, requested);
  if (plan.refusal != nullptr) ThrowRefusal(strategy, plan.refusal);
  return plan;
}

inline void BindHandlers(nb::module_& m) {
  m.def("ffi_api_version", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  m.def("handler_calls", &HandlerCalls, "How often any handler has run in this process.");
  m.def(
      "type_pairs",
      [] {
        nb::list pairs;
        for (const auto& [in, out] : kTypePairs) {
          pairs.append(nb::make_tuple(nb::str(NameOf(in).data()), nb::str(NameOf(out).data())));
        }
        return pairs;
      },
      "The dtypes (of the operands, of the result) that there are kernels for.");
  m.def(
      "handlers",
      [] {
        nb::dict capsules;
        for (const auto handlers : {Handlers(), StandaloneHandlers()}) {
          for (const NamedHandler& named : handlers) {
            capsules[nb::str(named.op.data(), named.op.size())] =
                nb::capsule(reinterpret_cast<void*>(named.handler));
          }
        }
        return capsules;
      },
      "The FFI handlers by op.");
}

}  // namespace jax_softmax
