// The gradient of losses that saved logsumexp's terms of each row, vectors running along the rows.
#include "memory.h"
#include "standalone.h"

namespace jax_softmax::JS_ISA {

namespace {

// What a row's elements are made with.
template <typename M>
struct RowValues {
  using T = typename M::T;
  using Index = typename M::Format::Bits;
  T shift, factor, everywhere, at_label;
  Index label;

  RowValues(const CrossEntropyGradient& call, int64_t row)
      : shift(At(call.shift, row)),
        factor(At(call.factor, row)),
        everywhere(At(call.everywhere, row)),
        at_label(At(call.at_label, row)),
        label(call.labels[row]) {}
  JS_HD static T At(const void* values, int64_t row) {
    return T{} + static_cast<const typename M::Scalar*>(values)[row];
  }

  // For the elements from `column` on.
  JS_HD T operator()(T x, int64_t column) const {
    typename M::Bits lane;
    for (int i = 0; i < M::kLanes; ++i) lane[i] = i;
    const T gradient = M::Exp(x - shift) * factor + everywhere;
    return lane == label - static_cast<Index>(column) ? gradient + at_label : gradient;
  }
};

template <typename M, typename Io>
JS_HD void RunSlice(const RowValues<M>& row, const Io* x, Io* dx, int64_t begin, int64_t end) {
  int64_t c = begin;
  for (; c + M::kLanes <= end; c += M::kLanes) Store<M>(dx + c, row(Load<M>(x + c), c));
  if (c < end) StoreUpTo<M>(dx + c, row(LoadUpTo<M>(x + c, end - c), c), end - c);
}

template <typename Io>
void Run(const CrossEntropyGradient& call, int64_t begin, int64_t end) {
  using M = typename MathFor<Io>::Type;
  const int64_t columns = call.rows.columns;
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  int64_t row = begin / per_row, slice = begin % per_row;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = slice * cpu::kSliceElements;
    const int64_t last = std::min(first + cpu::kSliceElements, columns);
    const Io* x = static_cast<const Io*>(call.x) + row * columns;
    Io* dx = static_cast<Io*>(call.dx) + row * columns;
    if (call.labels[row] == kNoGradient) {
      std::fill(dx + first, dx + last, Io{});
    } else {
      RunSlice<M>(RowValues<M>(call, row), x, dx, first, last);
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
