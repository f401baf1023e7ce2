// The handlers of ops that are no strategy's, on the CPU: decode, check, run over the thread pool.
#include "../cuda/standalone.h"

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pages.h"
#include "parallel.h"

namespace jax_softmax {

namespace {

// Calls part(begin, end) for stretches of `units` of work, of that many elements each.
template <typename Part>
void Spread(ffi::ThreadPool& pool, int64_t units, int64_t elements, const Part& part) {
  const int64_t per_chunk = CeilDiv(cpu::kChunkElements, std::max<int64_t>(elements, 1));
  cpu::ParallelFor(pool, CeilDiv(units, per_chunk), [&](int64_t chunk) {
    part(chunk * per_chunk, std::min((chunk + 1) * per_chunk, units));
  });
}

// Calls part(slice, row, begin, end) for every slice of every row.
template <typename Part>
void SpreadSlices(ffi::ThreadPool& pool, const Rows& rows, const Part& part) {
  const int64_t per_row = cpu::SlicesPerRow(rows);
  Spread(pool, rows.Count() * per_row, cpu::kSliceElements, [&](int64_t first, int64_t last) {
    for (int64_t slice = first; slice < last; ++slice) {
      const int64_t begin = slice % per_row * cpu::kSliceElements;
      part(slice, slice / per_row, begin, std::min(begin + cpu::kSliceElements, rows.columns));
    }
  });
}

void RunSlices(ffi::ThreadPool& pool, const cpu::AbsmaxKernel& kernel, const Absmax& call) {
  const int64_t per_row = cpu::SlicesPerRow(call.rows);
  std::vector<int32_t> largest(call.rows.Count() * per_row);
  SpreadSlices(pool, call.rows, [&](int64_t slice, int64_t row, int64_t begin, int64_t end) {
    largest[slice] = kernel.largest(call, row, begin, end);
  });
  SpreadSlices(pool, call.rows, [&](int64_t, int64_t row, int64_t begin, int64_t end) {
    const auto of_row = largest.begin() + row * per_row;
    kernel.finish(call, row, begin, end, *std::max_element(of_row, of_row + per_row));
  });
}

struct Cpu {
  using Context = ffi::ThreadPool;
  static constexpr std::initializer_list<ffi::Traits> kTraits = {};

  template <typename Op>
  static ffi::Error Run(ffi::ThreadPool pool, const CrossEntropyGradient& call) {
    const Rows& rows = call.rows;
    const cpu::GradientKernel kernel = cpu::Kernels().find_gradient(call.dtype);
    cpu::AdviseHugePages(call.dx, rows.Elements() * SizeOf(call.dtype));
    Spread(pool, rows.Count() * cpu::SlicesPerRow(rows),
           std::min(rows.columns, cpu::kSliceElements),
           [&](int64_t begin, int64_t end) { kernel(call, begin, end); });
    return ffi::Error::Success();
  }

  template <typename Op>
  static ffi::Error Run(ffi::ThreadPool pool, const Absmax& call) {
    const Rows& rows = call.rows;
    const cpu::AbsmaxKernel kernel = cpu::Kernels().find_absmax(call.dtype, call.result);
    const int bytes = call.result == AbsmaxResult::kScaled ? SizeOf(call.dtype) : 1;
    cpu::AdviseHugePages(call.y, rows.Elements() * bytes);
    if (rows.Count() < cpu::kFewRows && rows.columns >= 2 * cpu::kSliceElements) {
      RunSlices(pool, kernel, call);
    } else {
      Spread(pool, rows.Count(), rows.columns,
             [&](int64_t begin, int64_t end) { kernel.rows(call, begin, end); });
    }
    return ffi::Error::Success();
  }
};

}  // namespace

std::span<const NamedHandler> StandaloneHandlers() { return Standalone<Cpu>::kHandlers; }

}  // namespace jax_softmax
