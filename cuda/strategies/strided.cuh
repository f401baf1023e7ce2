// Strategy "strided": rows along any axis, no transpose, read twice, or once where a thread's
// registers hold them. Neighbouring threads take neighbouring rows, or vectors of them where these
// are whole, so that accesses coalesce over the inner dimension; a few threads share each long row.
#pragma once

#include "../in_registers.cuh"

namespace jax_softmax::JS_ISA {

// Elements that a thread loads before it uses any.
inline constexpr int kStridedFold = 4;
// Elements of a part.
inline constexpr int kStridedPart = 64;

template <typename Op, typename Load, typename Store>
__global__ void __launch_bounds__(kStridedThreads, 1)
    StridedKernel(Op op, Load load, Store store, Rows rows, int log2_slices) {
  using E = Element<typename Op::T, Op::kInputs>;
  static_assert(sizeof(Partial<Op>) <= 4 * sizeof(typename Op::T), "see StridedPlan");
  extern __shared__ __align__(16) unsigned char shared[];
  auto* parts = reinterpret_cast<Partial<Op>*>(shared);  // [slice][row of the block]
  const int slices = 1 << log2_slices;
  const int rows_per_block = kStridedThreads >> log2_slices;
  const int lane = threadIdx.x & (rows_per_block - 1);
  const int slice = threadIdx.x / rows_per_block;
  const int64_t count = rows.outer * rows.inner;

  for (int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_per_block; first_row < count;
       first_row += static_cast<int64_t>(gridDim.x) * rows_per_block) {
    const int64_t row = first_row + lane;
    const int64_t columns = row < count ? rows.columns : 0;
    const int64_t base = row / rows.inner * rows.columns * rows.inner + row % rows.inner;

    const auto of_row = load.ForRow(row, rows);
    Partial<Op> total;
    // A thread may add a whole long row: in parts, whose sums are then merged exactly.
    for (int64_t begin = slice; begin < columns; begin += slices * kStridedPart) {
      const int64_t end = min(begin + slices * kStridedPart, columns);
      Partial<Op> part;
      for (int64_t c = begin; c < end; c += slices * kStridedFold) {
        E e[1][kStridedFold];
#pragma unroll
        for (int i = 0; i < kStridedFold; ++i) {
          const int64_t column = c + i * slices;
          e[0][i] = Load::Absent();
          if (column < end) load.At(of_row, column, base + column * rows.inner, e[0][i]);
        }
        AddOnline(op, part, e);
      }
      Merge(op, total, part);
    }
    if (slices > 1) {
      parts[threadIdx.x] = total;
      __syncthreads();
      total = parts[lane];
      for (int s = 1; s < slices; ++s) Merge(op, total, parts[s * rows_per_block + lane]);
      // Before the next rows' parts are written, everyone has read these.
      __syncthreads();
    }

    const auto result = CloseRow(op, of_row, total.first, total.second);
    if constexpr (kPerRow<Op>) {
      if (slice == 0 && row < count) StoreOfRow(op, store, row, result);
    } else {
      for (int64_t c = slice; c < columns; c += slices * kStridedFold) {
        E e[kStridedFold];
        decltype(load.At(of_row, c, base, e[0])) kept[kStridedFold];
#pragma unroll
        for (int i = 0; i < kStridedFold; ++i) {
          const int64_t column = c + i * slices;
          if (column < columns) kept[i] = load.At(of_row, column, base + column * rows.inner, e[i]);
        }
#pragma unroll
        for (int i = 0; i < kStridedFold; ++i) {
          const int64_t column = c + i * slices;
          if (column >= columns) break;
          store.At(base + column * rows.inner, op.Finish(e[i], result), kept[i], result);
        }
      }
    }
  }
}

// The same of rows whose neighbours are whole vectors, each of which a few threads share.
template <typename Op, typename Load, typename Store, int kVector>
__global__ void __launch_bounds__(kStridedThreads, kStridedResident)
    StridedVectorsKernel(Op op, Load load, Store store, Rows rows, int log2_slices) {
  using E = Element<typename Op::T, Op::kInputs>;
  using Raw = typename Load::template Raw<kVector>;
  // Eight rows in the arithmetic of float32 results leave registers for fewer columns.
  constexpr bool kWidens = sizeof(typename Store::Io) > sizeof(typename Load::Io);
  constexpr int kFold = kWidens ? kStridedFold / 2 : kStridedFold;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* parts = reinterpret_cast<Partial<Op>*>(shared);  // [slice][row of the thread][lane]
  const int slices = 1 << log2_slices;
  const int lanes = kStridedThreads >> log2_slices;
  const int lane = threadIdx.x & (lanes - 1);
  const int slice = threadIdx.x / lanes;
  const int width = kVector * lanes;
  // This thread's, of its row r: what registers have no room for while it adds to another.
  const auto own_part = [&](int r) -> Partial<Op>& {
    return parts[slice * width + r * lanes + lane];
  };
  const int64_t across = rows.inner / kVector;
  const int64_t count = rows.outer * across;

  for (int64_t first = static_cast<int64_t>(blockIdx.x) * lanes; first < count;
       first += static_cast<int64_t>(gridDim.x) * lanes) {
    const int64_t own = first + lane;
    const int64_t columns = own < count ? rows.columns : 0;
    const int64_t base = (own / across * rows.columns * across + own % across) * kVector;
    // kFold columns from c on, of those before `end`.
    const auto fetch = [&](int64_t c, int64_t end, auto& e) {
      Raw raw[kFold][Op::kInputs];
#pragma unroll
      for (int i = 0; i < kFold; ++i) {
        const int64_t column = c + i * slices;
#pragma unroll
        for (int input = 0; input < Op::kInputs; ++input) {
          raw[i][input] = Load::template AbsentRaw<kVector>(input);
          if (column < end) {
            raw[i][input] = Raw::Load(load.source[input] + base + column * rows.inner);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kFold; ++i) {
        E of_rows[kVector];
        Load::Decode(raw[i], of_rows);
#pragma unroll
        for (int r = 0; r < kVector; ++r) e[r][i] = of_rows[r];
      }
    };

#pragma unroll
    for (int r = 0; r < kVector; ++r) own_part(r) = {};
    for (int64_t begin = slice; begin < columns; begin += slices * kStridedPart) {
      const int64_t end = min(begin + slices * kStridedPart, columns);
      Partial<Op> part[kVector];
      for (int64_t c = begin; c < end; c += slices * kFold) {
        E e[kVector][kFold];
        fetch(c, end, e);
#pragma unroll
        for (int r = 0; r < kVector; ++r) AddOnline(op, part[r], e[r]);
      }
#pragma unroll
      for (int r = 0; r < kVector; ++r) Merge(op, own_part(r), part[r]);
    }
    if (slices > 1) {
      __syncthreads();
      for (int t = threadIdx.x; t < width; t += kStridedThreads) {
        Partial<Op> all = parts[t];
        for (int s = 1; s < slices; ++s) Merge(op, all, parts[s * width + t]);
        parts[t] = all;
      }
      __syncthreads();
    }
    typename Op::Row result[kVector];
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      const Partial<Op> total = parts[r * lanes + lane];
      result[r] = op.Close(total.first, total.second);
    }
    // Before the next rows' parts are written, everyone has read these.
    if (slices > 1) __syncthreads();
    if constexpr (kPerRow<Op>) {
      if (slice > 0 || columns == 0) continue;
      const int64_t row = own * kVector;
#pragma unroll
      for (int r = 0; r < kVector; ++r) StoreOfRow(op, store, row + r, result[r]);
    } else {
      for (int64_t c = slice; c < columns; c += slices * kFold) {
        E e[kVector][kFold];
        fetch(c, columns, e);
#pragma unroll
        for (int i = 0; i < kFold; ++i) {
          const int64_t column = c + i * slices;
          if (column >= columns) break;
          typename Op::T y[kVector];
#pragma unroll
          for (int r = 0; r < kVector; ++r) y[r] = op.Finish(e[r][i], result[r]);
          store.Put(base + column * rows.inner, y);
        }
      }
    }
  }
}

// The same of so few columns that a thread holds its rows.
template <typename Op, typename Load, typename Store, int kVector, int kColumns>
__global__ void __launch_bounds__(kStridedThreads, kStridedResident)
    StridedHeldKernel(Op op, Load load, Store store, Rows rows) {
  const int64_t across = rows.inner / kVector;
  const int64_t count = rows.outer * across;
  for (int64_t own = static_cast<int64_t>(blockIdx.x) * kStridedThreads + threadIdx.x; own < count;
       own += static_cast<int64_t>(gridDim.x) * kStridedThreads) {
    // A division of 64 bits is many instructions.
    const int64_t outer = count <= UINT32_MAX
                              ? static_cast<unsigned>(own) / static_cast<unsigned>(across)
                              : own / across;
    const int64_t base = (outer * (kColumns - 1) * across + own) * kVector;
    using Raw = typename Load::template Raw<kVector>;
    Raw raw[kColumns][Op::kInputs];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int input = 0; input < Op::kInputs; ++input) {
        raw[c][input] = Raw::Load(load.source[input] + base + c * rows.inner);
      }
    }
    typename Op::T y[kColumns][kVector];
#pragma unroll
    for (int r = 0; r < kVector; ++r) {
      RowInRegisters<1, kColumns>(
          op, typename Load::Row{}, [](int) { return true; },
          [&](int, auto& e) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
#pragma unroll
              for (int input = 0; input < Op::kInputs; ++input) {
                e[c].value[input] = Widen(raw[c][input].Unpack().element[r]);
              }
            }
          },
          [&](int, const auto& of_row, const auto&) {
#pragma unroll
            for (int c = 0; c < kColumns; ++c) y[c][r] = of_row[c];
          },
          NoEdge{}, OneThread{});
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) store.Put(base + c * rows.inner, y[c]);
  }
}

}  // namespace jax_softmax::JS_ISA
