// Softmax over segments: rows are sorted by their segment, or given so (group_rows), and each
// segment is done by one thread. Small segments come together in a buffer, a few at a time, so that
// exp has long runs.
#include <cstring>

#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/lane_functions.h"
#include "kernels/cpu/rows/sorted_rows.h"
#include "kernels/cpu/simd.h"

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

/// Columns [c, c + n), n <= kLanes, of a segment, whose rows stand in order[from, to). They begin
/// at element `at` of a table.
struct Part {
  int64_t c, n, at;
  int32_t from, to;
};

/// Calls f(part) for all of segments [begin, end).
template <class F>
void for_parts(const Segments& s, const SortedRows& rows, int64_t begin, int64_t end, F&& f) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < s.inner; c += kLanes) {
      f(Part{c, std::min(kLanes, s.inner - c), r * s.inner + c, rows.first[r], rows.first[r + 1]});
    }
  }
}

/// Calls f(at) for each of the part's rows, in order: its columns begin at element `at` of x.
template <class F>
void for_rows(const Segments& s, const SortedRows& rows, const Part& part, F&& f) {
  for (int32_t k = part.from; k < part.to; ++k) f(rows.order[k] * s.inner + part.c);
}

// ---- sums and maxima of a part. T is x's type in memory: float, or uint16_t for bf16.

template <class T>
Lanes find_top(const Segments& s, const SortedRows& rows, const T* x, const Part& part) {
  Lanes top = Lanes{} + kNever;
  for_rows(s, rows, part, [&](int64_t at) {
    const Lanes v = load_lanes(x + at, part.n);
    top = v > top ? v : top;
  });
  return top;
}

template <class T>
Lanes sum_exp(const Segments& s, const SortedRows& rows, const T* x, const Part& part,
              const Lanes& top) {
  Lanes total{};
  for_rows(s, rows, part, [&](int64_t at) { total += exp(load_lanes(x + at, part.n) - top); });
  return total;
}

template <class T>
Lanes sum_products(const Segments& s, const SortedRows& rows, const T* dy, const T* y,
                   const Part& part) {
  Lanes sum{};
  for_rows(s, rows, part,
           [&](int64_t at) { sum += load_lanes(dy + at, part.n) * load_lanes(y + at, part.n); });
  return sum;
}

/// f(T{}) with the type in memory of the call's first operand.
template <class F>
void in_type(const KernelArgs& args, F&& f) {
  if (args.in[0].type.dtype == DType::f32) return f(float{});
  f(uint16_t{});
}

/// make(segments, rows, args, part, T{}) is a part of the result, a table.
template <class F>
PreparedKernel table_kernel(const KernelCall& call, F make) {
  const RowSort sort(call);
  const Segments s(call, sort.wanted.size);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            const SortedRows rows = sort.of(args);
            auto* out = args.out[0].as<float>();
            in_type(args, [&](auto type) {
              parallel_ranges(s.extent, s.grain(), [&](int64_t begin, int64_t end) {
                for_parts(s, rows, begin, end, [&](const Part& part) {
                  store_lanes(out + part.at, make(s, rows, args, part, type), part.n);
                });
              });
            });
          },
          sort.workspace_bytes, "cpu:sort"};
}

PreparedKernel segment_max(const KernelCall& call) {
  return table_kernel(call, []<class T>(const Segments& s, const SortedRows& rows,
                                        const KernelArgs& args, const Part& part,
                                        T) { return find_top(s, rows, args.in[0].as<T>(), part); });
}

PreparedKernel segment_exp_sum(const KernelCall& call) {
  return table_kernel(call, []<class T>(const Segments& s, const SortedRows& rows,
                                        const KernelArgs& args, const Part& part, T) {
    const Lanes top = load_lanes(args.in[1].as<float>() + part.at, part.n);
    return sum_exp(s, rows, args.in[0].as<T>(), part, top);
  });
}

PreparedKernel reduce_grad(const KernelCall& call) {
  return table_kernel(call, []<class T>(const Segments& s, const SortedRows& rows,
                                        const KernelArgs& args, const Part& part, T) {
    return sum_products(s, rows, args.in[0].as<T>(), args.in[1].as<T>(), part);
  });
}

// ---- the softmax itself

/// Segments [begin, end), of at most kBlock elements together and at most kLanes columns, by way of
/// a buffer. Vectors stick out of rows; what is behind is written later.
template <class T>
void softmax_of_few(const Segments& s, const SortedRows& rows, const T* x, T* y, int64_t begin,
                    int64_t end) {
  alignas(64) float buffer[kBlock + kLanes], shift[kBlock + kLanes];
  const int64_t inner = s.inner;
  const auto each = [&](auto&& f) {  // f(a segment's rows, how many, where in the buffer)
    int64_t at = 0;
    for (int64_t r = begin; r < end; ++r) {
      const int32_t count = rows.first[r + 1] - rows.first[r];
      f(rows.order + rows.first[r], count, at);
      at += count * inner;
    }
    return at;
  };
  const int64_t elements = each([&](const int32_t* row, int32_t count, int64_t at) {
    Lanes top = Lanes{} + kNever;
    for (int32_t k = 0; k < count; ++k) {
      const Lanes v = load_lanes(x + row[k] * inner, inner);
      top = v > top ? v : top;
      store_lanes(buffer + at + k * inner, v);
    }
    for (int32_t k = 0; k < count; ++k) store_lanes(shift + at + k * inner, top);
  });
#pragma omp simd
  for (int64_t i = 0; i < elements; ++i) buffer[i] = exp(buffer[i] - shift[i]);
  each([&](const int32_t* row, int32_t count, int64_t at) {
    Lanes sum{};
    for (int32_t k = 0; k < count; ++k) sum += load_lanes(buffer + at + k * inner);
    const Lanes inverse = 1.0f / sum;
    for (int32_t k = 0; k < count; ++k)
      store_lanes(y + row[k] * inner, load_lanes(buffer + at + k * inner) * inverse, inner);
  });
}

template <class T>
void softmax_of(const Segments& s, const SortedRows& rows, const KernelArgs& args, int64_t begin,
                int64_t end) {
  const T* x = args.in[0].as<T>();
  T* y = args.out[0].as<T>();
  for (int64_t r = begin, next; r < end; r = next) {
    next = r;
    while (s.inner <= kLanes && next < end &&
           (rows.first[next + 1] - rows.first[r]) * s.inner <= kBlock)
      ++next;
    if (next > r) {
      softmax_of_few(s, rows, x, y, r, next);
      continue;
    }
    for_parts(s, rows, r, ++next, [&](const Part& part) {
      const Lanes top = find_top(s, rows, x, part), total = sum_exp(s, rows, x, part, top);
      for_rows(s, rows, part, [&](int64_t at) {
        store_lanes(y + at, exp(load_lanes(x + at, part.n) - top) / total, part.n);
      });
    });
  }
}

template <class T>
void grad_of(const Segments& s, const SortedRows& rows, const KernelArgs& args, int64_t begin,
             int64_t end) {
  const T *dy = args.in[0].as<T>(), *y = args.in[1].as<T>();
  T* dx = args.out[0].as<T>();
  for_parts(s, rows, begin, end, [&](const Part& part) {
    const Lanes sums = sum_products(s, rows, dy, y, part);
    for_rows(s, rows, part, [&](int64_t at) {
      const Lanes d = load_lanes(dy + at, part.n) - sums;
      store_lanes(dx + at, load_lanes(y + at, part.n) * d, part.n);
    });
  });
}

void zero_row(const Segments& s, const TensorView& out, int64_t row) {
  const int64_t bytes = s.inner * size_of(out.type.dtype);
  std::memset(out.as<char>() + row * bytes, 0, static_cast<size_t>(bytes));
}

/// of(segments, rows, args, begin, end, T{}) does segments [begin, end); rows whose number is
/// outside are zeros.
template <class F>
PreparedKernel whole(const KernelCall& call, F of) {
  const RowSort sort(call);
  const Segments s(call, sort.wanted.size);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            const SortedRows rows = sort.of(args);
            for (int32_t k = rows.first[s.extent]; k < rows.first[s.extent + 1]; ++k)
              zero_row(s, args.out[0], rows.order[k]);
            in_type(args, [&](auto type) {
              parallel_ranges(s.extent, s.grain(), [&](int64_t begin, int64_t end) {
                of(s, rows, args, begin, end, type);
              });
            });
          },
          sort.workspace_bytes, "cpu:sort"};
}

/// By tables that are given, from operand `table` on, each row for itself: of(args, at, n, i, T{})
/// does n elements from `at` on, whose numbers in the tables begin at i.
template <class F>
PreparedKernel given(const KernelCall& call, size_t table, F of) {
  const Segments s(call, call.in[table].shape[0]);
  return {[=](const KernelArgs& args) {
            if (args.out[0].count() == 0) return;
            in_type(args, [&](auto type) {
              parallel_ranges(s.count, row_grain(s.inner), [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t number = index_at(args.in.back(), i),
                                row = number < s.extent ? number : -1;
                  if (row < 0) {
                    zero_row(s, args.out[0], i);
                    continue;
                  }
                  for (int64_t c = 0; c < s.inner; c += kLanes) {
                    of(args, i * s.inner + c, std::min(kLanes, s.inner - c), row * s.inner + c,
                       type);
                  }
                }
              });
            });
          },
          0, "cpu:rows"};
}

/// exp(x - top) / total
PreparedKernel divide_rows(const KernelCall& call) {
  return given(call, 1, []<class T>(const KernelArgs& args, int64_t at, int64_t n, int64_t i, T) {
    const Lanes top = load_lanes(args.in[1].as<float>() + i, n),
                total = load_lanes(args.in[2].as<float>() + i, n);
    const Lanes x = load_lanes(args.in[0].as<T>() + at, n);
    store_lanes(args.out[0].as<T>() + at, exp(x - top) / total, n);
  });
}

/// y (dy - sums)
PreparedKernel subtract_rows(const KernelCall& call) {
  return given(call, 2, []<class T>(const KernelArgs& args, int64_t at, int64_t n, int64_t i, T) {
    const Lanes sums = load_lanes(args.in[2].as<float>() + i, n);
    const Lanes dy = load_lanes(args.in[0].as<T>() + at, n),
                y = load_lanes(args.in[1].as<T>() + at, n);
    store_lanes(args.out[0].as<T>() + at, y * (dy - sums), n);
  });
}

PreparedKernel softmax(const KernelCall& call) {
  return whole(call, []<class T>(const Segments& s, const SortedRows& rows, const KernelArgs& args,
                                 int64_t begin, int64_t end,
                                 T) { softmax_of<T>(s, rows, args, begin, end); });
}

PreparedKernel softmax_grad(const KernelCall& call) {
  return whole(
      call, []<class T>(const Segments& s, const SortedRows& rows, const KernelArgs& args,
                        int64_t begin, int64_t end, T) { grad_of<T>(s, rows, args, begin, end); });
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
          {"segment_softmax", "cpu:sort", refuses, softmax},
          {"segment_softmax_reduce_grad", "cpu:sort", refuses, reduce_grad},
          {"segment_softmax_grad", "cpu:rows", given_refuses, subtract_rows},
          {"segment_softmax_grad", "cpu:sort", refuses, softmax_grad}};
}

}  // namespace shardrun::cpu
