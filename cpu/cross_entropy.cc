// The gradient of losses that saved one logsumexp per row, vectors running along the rows.
#include "memory.h"
#include "standalone.h"

namespace jax_softmax::JS_ISA {

namespace {

// What a row's elements are made with.
template <typename M>
struct RowValues {
  using T = typename M::T;
  T lse, factor, everywhere;

  RowValues(const CrossEntropyGradient& call, int64_t row)
      : lse(At(call.lse, row)), factor(At(call.factor, row)), everywhere(At(call.everywhere, row)) {}
  JS_HD static T At(const void* values, int64_t row) {
    return T{} + static_cast<const typename M::Scalar*>(values)[row];
  }
  JS_HD T operator()(T x) const { return M::Exp(x - lse) * factor + everywhere; }
};

// One part of a row: `count` elements, of which number `label` is the label's unless out of range.
template <typename M, typename Io>
JS_HD void RunSlice(const RowValues<M>& row, const Io* x, Io* dx, int64_t count, int64_t label,
                    const typename M::Scalar& at_label) {
  int64_t c = 0;
  for (; c + M::kLanes <= count; c += M::kLanes) Store<M>(dx + c, row(Load<M>(x + c)));
  if (c < count) StoreUpTo<M>(dx + c, row(LoadUpTo<M>(x + c, count - c)), count - c);
  if (label < 0 || label >= count) return;
  // Once more, before it is rounded.
  StoreUpTo<M>(dx + label, row(LoadUpTo<M>(x + label, 1)) + at_label, 1);
}

template <typename Io>
void Run(const CrossEntropyGradient& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Io>::Type;
  const int64_t columns = call.rows.columns;
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  const auto* at_label = static_cast<const typename M::Scalar*>(call.at_label);
  int64_t row = begin / per_row, slice = begin % per_row;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = slice * cpu::kSliceElements;
    const int64_t count = std::min(cpu::kSliceElements, columns - first);
    const int32_t label = call.labels[row];
    const Io* x = static_cast<const Io*>(call.x) + row * columns + first;
    Io* dx = static_cast<Io*>(call.dx) + row * columns + first;
    if (label == kNoGradient) {
      std::fill_n(dx, count, Io{});
    } else {
      RunSlice<M>(RowValues<M>(call, row), x, dx, count, label - first, at_label[row]);
    }
    if (++slice == per_row) {
      slice = 0;
      ++row;
    }
  }
}

}  // namespace

cpu::GradientKernel FindGradient(DataType dtype) {
  switch (dtype) {
    case DataType::kF32:
      return Run<float>;
    case DataType::kF64:
      return Run<double>;
    case DataType::kF16:
      return Run<Half>;
    case DataType::kBF16:
      return Run<BFloat16>;
  }
  return nullptr;
}

}  // namespace jax_softmax::JS_ISA
