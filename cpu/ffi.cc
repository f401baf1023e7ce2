// The XLA FFI handlers on the CPU: decode, check, plan, run over the thread pool.
#include "../cuda/ffi.h"

#include <algorithm>
#include <string>
#include <vector>

#include "../cuda/decode_terms.h"
#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace jax_softmax {

namespace {

ffi::Error Run(OpKind op, const Extras& extras, ffi::ThreadPool pool, ffi::RemainingArgs args,
               ffi::Result<ffi::AnyBuffer> out, int64_t axis, int64_t logical_axis,
               std::string_view strategy, bool batch_invariant, void* seconds = nullptr) {
  handler_calls.fetch_add(1, std::memory_order_relaxed);
  const ffi::ErrorOr<Operands> operands =
      Decode(op, args, out, axis, logical_axis, batch_invariant);
  if (operands.has_error()) return operands.error();
  const Problem& problem = operands->problem;
  // Where an op gives one value for each row, rows without columns have theirs too.
  if (problem.Results() == 0) return ffi::Error::Success();

  const std::optional<cpu::Strategy> requested = cpu::StrategyNamed(strategy);
  if (!requested) return Invalid(op, "no strategy is called '" + std::string(strategy) + "'");
  const cpu::Plan plan = cpu::ChoosePlan(problem, cpu::Kernels().vector_bytes, *requested);
  if (plan.refusal != nullptr) {
    return Invalid(op, "strategy '" + std::string(strategy) + "' cannot run this: " + plan.refusal);
  }

  const cpu::Kernel kernel =
      cpu::Kernels().find(op, problem.dtype, problem.out_dtype, plan.strategy);
  cpu::Call call{{}, operands->output, seconds, problem.rows, extras, nullptr};
  std::copy_n(operands->inputs, problem.inputs, call.inputs);
  const auto run = [&](cpu::Kernel::Part part) {
    cpu::ParallelFor(pool, plan.chunks, [&](int64_t chunk) {
      const int64_t begin = chunk * plan.units_per_chunk;
      part(call, begin, std::min(begin + plan.units_per_chunk, plan.units));
    });
  };
  std::vector<std::byte> partials;
  if (kernel.reduce != nullptr) {
    partials.resize(plan.units * cpu::kPartialBytes);
    call.partials = partials.data();
    run(kernel.reduce);
    kernel.merge(call, 0, problem.rows.outer);
  }
  if (kernel.run != nullptr) {
    cpu::AdviseHugePages(call.output, problem.Results() * SizeOf(problem.out_dtype));
    run(kernel.run);
  }
  return ffi::Error::Success();
}

ffi::Error RunWithTerms(OpKind op, ffi::ThreadPool pool, ffi::RemainingArgs args,
                        ffi::Result<ffi::AnyBuffer> out, int64_t axis, int64_t logical_axis,
                        std::string_view strategy, bool batch_invariant, std::string_view names,
                        double factor, double softcap, bool causal, bool fills, double fill) {
  const auto terms =
      DecodeTerms(op, args, axis, logical_axis, names, factor, softcap, causal, fills, fill);
  if (terms.has_error()) return terms.error();
  return Run(op, {*terms}, pool, args, out, axis, logical_axis, strategy, batch_invariant);
}

ffi::Error RunParts(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out,
                    ffi::Result<ffi::AnyBuffer> seconds, int64_t axis, int64_t logical_axis,
                    std::string_view strategy, bool batch_invariant) {
  const auto wrong = WrongParts(out, seconds);
  if (wrong) return *wrong;
  return Run(OpKind::kLogSumExp, {}, pool, args, out, axis, logical_axis, strategy, batch_invariant,
             seconds->untyped_data());
}

auto BindingToResult() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().Ret<ffi::AnyBuffer>();
}

auto Binding() { return WithRequest(BindingToResult()); }

template <OpKind kOp>
auto BoundTo() {
  if constexpr (TakesTerms(kOp)) {
    return WithTerms(Binding()).To([](auto... args) { return RunWithTerms(kOp, args...); });
  } else if constexpr (kOp == OpKind::kSoftmaxTangent) {
    return Binding()
        .Attr<double>("scale")
        .Attr<bool>("zeros_are_masked")
        .To([](ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out,
               int64_t axis, int64_t logical_axis, std::string_view strategy, bool batch_invariant,
               double scale, bool zeros_are_masked) {
          return Run(kOp, {{}, scale, zeros_are_masked}, pool, args, out, axis, logical_axis,
                     strategy, batch_invariant);
        });
  } else {
    return Binding().To([](auto... args) { return Run(kOp, {}, args...); });
  }
}

struct Cpu {
  template <OpKind kOp>
  static XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame) {
    static const auto handler = BoundTo<kOp>();
    return handler->Call(frame);
  }
};

XLA_FFI_Error* HandleParts(XLA_FFI_CallFrame* frame) {
  static const auto handler = WithRequest(BindingToResult().Ret<ffi::AnyBuffer>()).To(RunParts);
  return handler->Call(frame);
}

}  // namespace

std::span<const NamedHandler> Handlers() {
  static const auto handlers = HandlersOf<Cpu>(HandleParts);
  return handlers;
}

int64_t HandlerCalls() { return handler_calls.load(std::memory_order_relaxed); }

}  // namespace jax_softmax
