// The XLA FFI handlers: decode, check, plan, launch.
#include "ffi.h"

#include <string>
#include <vector>

#include "decode.h"
#include "decode_terms.h"
#include "device.h"
#include "launch.h"

namespace jax_softmax {

namespace {

ffi::Error Failed(OpKind op, const char* doing, cudaError_t status) {
  return ffi::Error::Internal("jax_softmax." + NameOf(op) + ": " + doing + ": " +
                              cudaGetErrorString(status));
}

ffi::Error Run(OpKind op, const Extras& extras, const PairsOfRows& pairs, cudaStream_t stream,
               int32_t ordinal, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out,
               ffi::RemainingRets more, int64_t axis, int64_t logical_axis,
               std::string_view strategy, bool batch_invariant) {
  handler_calls.fetch_add(1, std::memory_order_relaxed);
  ffi::ErrorOr<Operands> operands = Decode(op, args, out, axis, logical_axis, batch_invariant);
  if (operands.has_error()) return operands.error();
  if (TakesTerms(op)) {
    Problem& problem = operands->problem;
    problem.masks_alone = extras.terms.AreMasksAlone();
    problem.masks_only = extras.terms.AreMasksOnly();
    const bool whole = problem.rows.columns % VectorOf(problem) == 0;
    problem.bias_alone = extras.terms.AreBiasAlone(whole) && problem.dtype == problem.out_dtype;
  }
  if (operands->problem.Results() == 0) return ffi::Error::Success();
  // Only a shape that was symbolic gets here: the lowering takes the others to XLA.
  if (operands->problem.rows.columns == 0) return Invalid(op, "wants rows of at least one column");

  void* workspace = nullptr;
  if (more.size() > 0 && pairs.factors == nullptr) {
    auto buffer = more.get<ffi::AnyBuffer>(0);
    if (buffer.has_error()) return buffer.error();
    workspace = (*buffer)->untyped_data();
    operands->problem.workspace_bytes = static_cast<int64_t>((*buffer)->size_bytes());
  }

  operands->problem.in_pairs = pairs.of != OpKind::kLogSumExp;
  const std::optional<Strategy> requested = StrategyNamed(strategy);
  if (!requested) return Invalid(op, "no strategy is called '" + std::string(strategy) + "'");
  Device device;
  cudaError_t status = QueryDevice(ordinal, &device);
  if (status != cudaSuccess) return Failed(op, "asking for the device's limits", status);
  Plan plan = ChoosePlan(operands->problem, device, *requested);
  // A strategy is asked for with the function; what its derivatives read may be too much for it,
  // and where XLA puts operands is nobody's to choose.
  const bool asked = operands->problem.inputs == 1 && HasFullVectors(operands->problem);
  if (plan.refusal != nullptr && !asked) {
    plan = ChoosePlan(operands->problem, device, Strategy::kAuto);
  }
  if (plan.refusal != nullptr) {
    return Invalid(op, "strategy '" + std::string(strategy) + "' cannot run this: " + plan.refusal);
  }

  const Call call{{operands->inputs[0], operands->inputs[1]},
                  operands->output,
                  workspace,
                  operands->problem,
                  plan,
                  extras.terms,
                  extras.scale,
                  extras.zeros_are_masked,
                  pairs};
  status = Launch(call, stream);
  return status == cudaSuccess ? ffi::Error::Success() : Failed(op, "launching", status);
}

ffi::Error RunWithTerms(OpKind op, cudaStream_t stream, int32_t ordinal, ffi::RemainingArgs args,
                        ffi::Result<ffi::AnyBuffer> out, ffi::RemainingRets more, int64_t axis,
                        int64_t logical_axis, std::string_view strategy, bool batch_invariant,
                        std::string_view names, double factor, double softcap, bool causal,
                        bool fills, double fill) {
  const auto terms =
      DecodeTerms(op, args, axis, logical_axis, names, factor, softcap, causal, fills, fill);
  if (terms.has_error()) return terms.error();
  return Run(op, {*terms}, {}, stream, ordinal, args, out, more, axis, logical_axis, strategy,
             batch_invariant);
}

// See PairsOfRows.
ffi::Error RunPairs(cudaStream_t stream, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> seconds,
                    ffi::RemainingRets more, int64_t axis, int64_t logical_axis,
                    std::string_view strategy, bool batch_invariant, bool log_sums, double scale) {
  constexpr auto kOp = OpKind::kLogSumExp;
  const auto first = args.get<ffi::AnyBuffer>(0);
  if (first.has_error()) return first.error();
  const std::optional<DataType> in = DataTypeOf(first->element_type());
  const bool known = in && (SizeOf(*in) == 2 || (*in == DataType::kF32 && log_sums));
  if (!known || out->element_type() != ffi::DataType::F32 || !AreAlike(out, seconds)) {
    return Invalid(kOp,
                   "has two values for each row of 16 bits, or of float32 for log-softmax, "
                   "both in float32");
  }
  if (!(scale > 0) || (scale != 1 && *in != DataType::kF32)) {
    return Invalid(kOp, "wants a positive scale, and of 16 bits none but 1");
  }
  PairsOfRows pairs{seconds->untyped_data(), log_sums ? OpKind::kLogSoftmax : OpKind::kSoftmax};
  if (more.size() > 0) {
    auto factors = more.get<ffi::AnyBuffer>(0);
    if (factors.has_error()) return factors.error();
    if (!log_sums || !AreAlike(out, *factors)) {
      return Invalid(kOp, "has a third value for each row beside log-softmax's two, of their type");
    }
    pairs.factors = (*factors)->untyped_data();
  }
  return Run(kOp, {{}, scale}, pairs, stream, ordinal, args, out, more, axis, logical_axis,
             strategy, batch_invariant);
}

ffi::Error RunParts(cudaStream_t stream, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> seconds,
                    ffi::RemainingRets more, int64_t axis, int64_t logical_axis,
                    std::string_view strategy, bool batch_invariant) {
  const auto wrong = WrongParts(out, seconds);
  if (wrong) return *wrong;
  return Run(OpKind::kLogSumExp, {}, {seconds->untyped_data()}, stream, ordinal, args, out, more,
             axis, logical_axis, strategy, batch_invariant);
}

// With one result, after which there may be others.
auto BindingToResult() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>();
}

auto Binding() { return WithRequest(BindingToResult().RemainingRets()); }

template <OpKind kOp>
auto BoundTo() {
  // Nothing here allocates on the device or synchronises, so XLA may record it in a CUDA graph.
  constexpr auto kTrait = ffi::Traits::kCmdBufferCompatible;
  if constexpr (TakesTerms(kOp)) {
    return WithTerms(Binding()).To([](auto... args) { return RunWithTerms(kOp, args...); },
                                   {kTrait});
  } else if constexpr (kOp == OpKind::kSoftmaxTangent) {
    return Binding()
        .Attr<double>("scale")
        .Attr<bool>("zeros_are_masked")
        .To(
            [](cudaStream_t stream, int32_t ordinal, ffi::RemainingArgs args,
               ffi::Result<ffi::AnyBuffer> out, ffi::RemainingRets more, int64_t axis,
               int64_t logical_axis, std::string_view strategy, bool batch_invariant, double scale,
               bool zeros_are_masked) {
              return Run(kOp, {{}, scale, zeros_are_masked}, {}, stream, ordinal, args, out, more,
                         axis, logical_axis, strategy, batch_invariant);
            },
            {kTrait});
  } else if constexpr (ScalesLogits(kOp)) {
    return Binding().Attr<double>("scale").To(
        [](cudaStream_t stream, int32_t ordinal, ffi::RemainingArgs args,
           ffi::Result<ffi::AnyBuffer> out, ffi::RemainingRets more, int64_t axis,
           int64_t logical_axis, std::string_view strategy, bool batch_invariant, double scale) {
          if (!(scale > 0)) return Invalid(kOp, "wants a positive scale");
          return Run(kOp, {{}, scale}, {}, stream, ordinal, args, out, more, axis, logical_axis,
                     strategy, batch_invariant);
        },
        {kTrait});
  } else {
    return Binding().To([](auto... args) { return Run(kOp, {}, {}, args...); }, {kTrait});
  }
}

struct Cuda {
  template <OpKind kOp>
  static XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame) {
    static const auto handler = BoundTo<kOp>();
    return handler->Call(frame);
  }
};

// With two results, after which there may be others.
auto BindingToPairs() {
  return WithRequest(BindingToResult().Ret<ffi::AnyBuffer>().RemainingRets());
}

XLA_FFI_Error* HandleParts(XLA_FFI_CallFrame* frame) {
  static const auto handler = BindingToPairs().To(RunParts, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

XLA_FFI_Error* HandlePairs(XLA_FFI_CallFrame* frame) {
  static const auto handler = BindingToPairs()
                                  .Attr<bool>("log_sums")
                                  .Attr<double>("scale")
                                  .To(RunPairs, {ffi::Traits::kCmdBufferCompatible});
  return handler->Call(frame);
}

}  // namespace

std::span<const NamedHandler> Handlers() {
  static const auto handlers = [] {
    auto all = HandlersOf<Cuda>(HandleParts);
    all.push_back({"row_pairs", HandlePairs});
    return all;
  }();
  return handlers;
}

int64_t HandlerCalls() { return handler_calls.load(std::memory_order_relaxed); }

}  // namespace jax_softmax
