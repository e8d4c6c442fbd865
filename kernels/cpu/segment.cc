// Softmax over segments: rows are sorted by their segment, or given so (group_rows), and each
// segment is done by one thread. Small segments come together in a buffer, a few at a time, so that
// exp has long runs.
#include <cstring>

#include "kernels/cpu/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sorted_rows.h"

namespace shardrun::cpu {
namespace {

/// x [count, inner] of `extent` segments.
struct Segments {
  int64_t count = 0, extent = 0, inner = 1;

  Segments(const KernelCall& call, int64_t extent) : extent(extent) {
    const Shape& x = call.in[0].shape;
    count = x[0];
    for (size_t d = 1; d < x.size(); ++d) inner *= x[d];
  }
  /// Segments for one thread to be worth waking.
  int64_t grain() const { return row_grain(count * inner / std::max<int64_t>(1, extent)); }
};

/// Columns [c, c + n), at most kBlock, of a segment, whose rows stand in order[from, to). They
/// begin at element `at` of a table.
struct Part {
  int64_t c, n, at;
  int32_t from, to;
};

/// Calls f(part) for all of segments [begin, end).
template <class F>
void for_parts(const Segments& s, const SortedRows& rows, int64_t begin, int64_t end, F&& f) {
  for (int64_t r = begin; r < end; ++r) {
    for_blocks(s.inner, [&](int64_t c, int64_t n) {
      f(Part{c, n, r * s.inner + c, rows.first[r], rows.first[r + 1]});
    });
  }
}

/// Calls f(at) for each of the part's rows, in order: its columns begin at element `at` of x.
template <class F>
void for_rows(const Segments& s, const SortedRows& rows, const Part& part, F&& f) {
  for (int32_t k = part.from; k < part.to; ++k) f(rows.order[k] * s.inner + part.c);
}

// ---- sums and maxima of a part: n numbers

void find_top(const Segments& s, const SortedRows& rows, const TensorView& x, const Part& part,
              float* top) {
  alignas(64) float buffer[kBlock];
  const int64_t n = part.n;
  std::fill_n(top, n, kNever);
  for_rows(s, rows, part, [&](int64_t at) {
    const float* v = floats(x, at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) top[i] = v[i] > top[i] ? v[i] : top[i];
  });
}

void sum_exp(const Segments& s, const SortedRows& rows, const TensorView& x, const Part& part,
             const float* top, float* total) {
  alignas(64) float buffer[kBlock];
  const int64_t n = part.n;
  std::fill_n(total, n, 0.0f);
  for_rows(s, rows, part, [&](int64_t at) {
    const float* v = floats(x, at, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) total[i] += exp(v[i] - top[i]);
  });
}

void sum_products(const Segments& s, const SortedRows& rows, const KernelArgs& args,
                  const Part& part, float* sum) {
  alignas(64) float db[kBlock], yb[kBlock];
  const int64_t n = part.n;
  std::fill_n(sum, n, 0.0f);
  for_rows(s, rows, part, [&](int64_t at) {
    const float *dy = floats(args.in[0], at, n, db), *y = floats(args.in[1], at, n, yb);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] += dy[i] * y[i];
  });
}

/// make(segments, rows, args, part) writes a part of the result, a table.
template <class F>
PreparedKernel table_kernel(const KernelCall& call, F make) {
  const RowSort sort(call);
  const Segments s(call, sort.wanted.size);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            const SortedRows rows = sort.of(args);
            parallel_ranges(s.extent, s.grain(), [&](int64_t begin, int64_t end) {
              for_parts(s, rows, begin, end, [&](const Part& part) { make(s, rows, args, part); });
            });
          },
          sort.workspace_bytes, "cpu:sort"};
}

PreparedKernel segment_max(const KernelCall& call) {
  return table_kernel(
      call, [](const Segments& s, const SortedRows& rows, const KernelArgs& args, const Part& p) {
        find_top(s, rows, args.in[0], p, args.out[0].as<float>() + p.at);
      });
}

PreparedKernel segment_exp_sum(const KernelCall& call) {
  return table_kernel(call, [](const Segments& s, const SortedRows& rows, const KernelArgs& args,
                               const Part& p) {
    sum_exp(s, rows, args.in[0], p, args.in[1].as<float>() + p.at, args.out[0].as<float>() + p.at);
  });
}

PreparedKernel reduce_grad(const KernelCall& call) {
  return table_kernel(
      call, [](const Segments& s, const SortedRows& rows, const KernelArgs& args, const Part& p) {
        sum_products(s, rows, args, p, args.out[0].as<float>() + p.at);
      });
}

// ---- the softmax itself

/// Segments [begin, end), of at most kBlock elements together, by way of a buffer.
void softmax_of_few(const Segments& s, const SortedRows& rows, const KernelArgs& args,
                    int64_t begin, int64_t end) {
  alignas(64) float buffer[kBlock];
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t inner = s.inner;
  const int32_t first = rows.first[begin], last = rows.first[end];
  for (int32_t k = first; k < last; ++k) {
    float* to = buffer + (k - first) * inner;
    const float* v = floats(x, rows.order[k] * inner, inner, to);
    if (v != to) std::copy_n(v, inner, to);
  }
  const auto columns = [&](auto&& f) {  // of each segment, n elements `inner` apart
    for (int64_t r = begin; r < end; ++r) {
      float* at = buffer + (rows.first[r] - first) * inner;
      for (int64_t c = 0; c < inner; ++c) f(at + c, rows.first[r + 1] - rows.first[r]);
    }
  };
  columns([inner](float* at, int64_t n) {
    float top = kNever;
    for (int64_t i = 0; i < n; ++i) top = at[i * inner] > top ? at[i * inner] : top;
    for (int64_t i = 0; i < n; ++i) at[i * inner] -= top;
  });
  const int64_t elements = (last - first) * inner;
#pragma omp simd
  for (int64_t i = 0; i < elements; ++i) buffer[i] = exp(buffer[i]);
  columns([inner](float* at, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += at[i * inner];
    const float inverse = 1 / sum;
    for (int64_t i = 0; i < n; ++i) at[i * inner] *= inverse;
  });
  for (int32_t k = first; k < last; ++k) {
    const float* from = buffer + (k - first) * inner;
    const int64_t at = rows.order[k] * inner;
    if (y.type.dtype == DType::f32) std::copy_n(from, inner, y.as<float>() + at);
    put(y, at, inner, from);
  }
}

/// exp(x - top) / total of n elements from `at` on.
void divide(const KernelArgs& args, int64_t at, int64_t n, const float* top, const float* total) {
  alignas(64) float xb[kBlock], yb[kBlock];
  const float* x = floats(args.in[0], at, n, xb);
  float* y = place(args.out[0], at, yb);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = exp(x[i] - top[i]) / total[i];
  put(args.out[0], at, n, y);
}

/// y (dy - sums) of n elements from `at` on.
void subtract(const KernelArgs& args, int64_t at, int64_t n, const float* sums) {
  alignas(64) float db[kBlock], yb[kBlock], ob[kBlock];
  const float *dy = floats(args.in[0], at, n, db), *y = floats(args.in[1], at, n, yb);
  float* dx = place(args.out[0], at, ob);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sums[i]);
  put(args.out[0], at, n, dx);
}

void softmax_of(const Segments& s, const SortedRows& rows, const KernelArgs& args, int64_t begin,
                int64_t end) {
  for (int64_t r = begin, next; r < end; r = next) {
    next = r;
    while (next < end && (rows.first[next + 1] - rows.first[r]) * s.inner <= kBlock) ++next;
    if (next > r) {
      softmax_of_few(s, rows, args, r, next);
      continue;
    }
    for_parts(s, rows, r, ++next, [&](const Part& part) {
      alignas(64) float top[kBlock], total[kBlock];
      find_top(s, rows, args.in[0], part, top);
      sum_exp(s, rows, args.in[0], part, top, total);
      for_rows(s, rows, part, [&](int64_t at) { divide(args, at, part.n, top, total); });
    });
  }
}

void grad_of(const Segments& s, const SortedRows& rows, const KernelArgs& args, int64_t begin,
             int64_t end) {
  for_parts(s, rows, begin, end, [&](const Part& part) {
    alignas(64) float sums[kBlock];
    sum_products(s, rows, args, part, sums);
    for_rows(s, rows, part, [&](int64_t at) { subtract(args, at, part.n, sums); });
  });
}

void zero_row(const Segments& s, const TensorView& out, int64_t row) {
  const int64_t bytes = s.inner * size_of(out.type.dtype);
  std::memset(out.as<char>() + row * bytes, 0, static_cast<size_t>(bytes));
}

/// `of` does segments [begin, end); rows whose number is outside are zeros.
template <class F>
PreparedKernel whole(const KernelCall& call, F of) {
  const RowSort sort(call);
  const Segments s(call, sort.wanted.size);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            const SortedRows rows = sort.of(args);
            for (int32_t k = rows.first[s.extent]; k < rows.first[s.extent + 1]; ++k)
              zero_row(s, args.out[0], rows.order[k]);
            parallel_ranges(s.extent, s.grain(),
                            [&](int64_t begin, int64_t end) { of(s, rows, args, begin, end); });
          },
          sort.workspace_bytes, "cpu:sort"};
}

/// By tables that are given, from operand `table` on, each row for itself: of(args, at, n, i) does
/// n elements from `at` on, whose numbers in the tables begin at i.
template <class F>
PreparedKernel given(const KernelCall& call, size_t table, F of) {
  const Segments s(call, call.in[table].shape[0]);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            parallel_ranges(s.count, row_grain(s.inner), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t number = index_at(args.in.back(), i),
                              row = number < s.extent ? number : -1;
                if (row < 0) {
                  zero_row(s, args.out[0], i);
                  continue;
                }
                for_blocks(s.inner, [&](int64_t c, int64_t n) {
                  of(args, i * s.inner + c, n, row * s.inner + c);
                });
              }
            });
          },
          0, "cpu:rows"};
}

PreparedKernel divide_rows(const KernelCall& call) {
  return given(call, 1, [](const KernelArgs& args, int64_t at, int64_t n, int64_t i) {
    divide(args, at, n, args.in[1].as<float>() + i, args.in[2].as<float>() + i);
  });
}

PreparedKernel subtract_rows(const KernelCall& call) {
  return given(call, 2, [](const KernelArgs& args, int64_t at, int64_t n, int64_t i) {
    subtract(args, at, n, args.in[2].as<float>() + i);
  });
}

/// With tables given there is no size.
std::optional<std::string> given_refuses(const KernelCall& call) {
  if (call.node.attrs.has("size")) return "divides by what is given alone";
  return refuse_other_floats(call);
}

std::optional<std::string> refuses(const KernelCall& call) {
  if (!RowGroups::wanted_by(call.node, call.in)) return "finds sums and maxima itself";
  if (call.in[0].shape[0] > std::numeric_limits<int32_t>::max())
    return "sorts fewer than 2^31 rows";
  return refuse_other_floats(call);
}

}  // namespace

KernelList segment_kernels() {
  return {{"segment_max", "cpu:sort", refuses, segment_max},
          {"segment_exp_sum", "cpu:sort", refuses, segment_exp_sum},
          {"segment_softmax", "cpu:rows", given_refuses, divide_rows},
          {"segment_softmax", "cpu:sort", refuses,
           [](const KernelCall& call) { return whole(call, softmax_of); }},
          {"segment_softmax_reduce_grad", "cpu:sort", refuses, reduce_grad},
          {"segment_softmax_grad", "cpu:rows", given_refuses, subtract_rows},
          {"segment_softmax_grad", "cpu:sort", refuses,
           [](const KernelCall& call) { return whole(call, grad_of); }}};
}

}  // namespace shardrun::cpu
