// gather copies rows; gather_grad and add_rows sort the rows by where they go, or are given them so
// (group_rows): each destination row is summed once, in f32, in the order of the indices, by one
// thread.
#include <limits>

#include "base/around.h"
#include "base/lanes.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/rows/row_copy.h"
#include "kernels/cpu/rows/sorted_rows.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

PreparedKernel gather(const KernelCall& call) {
  const Around g(call.in[0].shape, call.node.attrs.i("axis"));
  const int64_t offset = call.node.attrs.i("offset", 0),
                bytes = g.inner * size_of(call.in[0].dtype);
  return {[=](const KernelArgs& args) {
            const int64_t count = args.in[1].count();
            const char* data = args.in[0].as<char>();
            char* out = args.out[0].as<char>();
            if (bytes == 0) return;
            const auto copy = [&](int64_t begin, int64_t end, auto size) {
              for (int64_t item = begin; item < end;) {
                const int64_t o = item / count, stop = std::min((o + 1) * count, end);
                for (; item < stop; ++item) {
                  const int64_t row = index_at(args.in[1], item - o * count) - offset;
                  const bool inside = row >= 0 && row < g.extent;
                  copy_or_zero(out + item * bytes,
                               inside ? data + (o * g.extent + row) * bytes : nullptr, size);
                }
              }
            };
            parallel_ranges(g.outer * count, row_grain(bytes), [&](int64_t begin, int64_t end) {
              with_row_size(bytes, [&](auto size) { copy(begin, end, size); });
            });
          },
          0, "cpu:copy"};
}

std::optional<std::string> grad_refuses(const KernelCall& call) {
  if (element_count(call.in[1].shape) > std::numeric_limits<int32_t>::max())
    return "sorts fewer than 2^31 indices";
  return refuse_other_floats(call);
}

/// n elements, at most kLanes; behind them zeros.
Lanes few_floats(const TensorView& view, int64_t offset, int64_t n) {
  if (view.type.dtype == DType::f32) return load_lanes(view.as<float>() + offset, n);
  return load_lanes(view.as<uint16_t>() + offset, n);
}

/// Calls f(sum, element, n) with the sums of what goes to elements [element, element + n) of row
/// `item` of [outer * extent].
template <class F>
void sum_row(const Around& g, const SortedRows& rows, const TensorView& dy, int64_t count,
             int64_t item, F&& f) {
  alignas(64) float sum[kBlock], buffer[kBlock];
  const int64_t o = item / g.extent, row = item % g.extent;
  if (g.inner <= kLanes) {
    Lanes total{};
    for (int32_t k = rows.first[row]; k < rows.first[row + 1]; ++k)
      total += few_floats(dy, (o * count + rows.order[k]) * g.inner, g.inner);
    store_lanes(sum, total);
    return f(sum, item * g.inner, g.inner);
  }
  for_blocks(g.inner, [&](int64_t c, int64_t n) {
    std::fill_n(sum, n, 0.0f);
    for (int32_t k = rows.first[row]; k < rows.first[row + 1]; ++k) {
      const float* v = floats(dy, (o * count + rows.order[k]) * g.inner + c, n, buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += v[i];
    }
    f(sum, item * g.inner + c, n);
  });
}

PreparedKernel gather_grad(const KernelCall& call) {
  const Around g(call.out[0].shape, call.node.attrs.i("axis"));
  const RowSort sort(call);
  const int64_t count = element_count(call.in[1].shape);
  return {
      [=](const KernelArgs& args) {
        const TensorView& out = args.out[0];
        if (out.count() == 0) return;
        const SortedRows rows = sort.of(args);
        parallel_ranges(g.outer * g.extent, row_grain(g.inner), [&](int64_t begin, int64_t end) {
          for (int64_t item = begin; item < end; ++item) {
            sum_row(g, rows, args.in[0], count, item, [&](const float* sum, int64_t at, int64_t n) {
              if (out.type.dtype == DType::f32)
                std::memcpy(out.as<float>() + at, sum, static_cast<size_t>(n) * 4);
              put(out, at, n, sum);
            });
          }
        });
      },
      sort.workspace_bytes, "cpu:sort"};
}

PreparedKernel group_rows(const KernelCall& call) {
  const int64_t size = call.node.attrs.i("size"), offset = call.node.attrs.i("offset", 0);
  return {[=](const KernelArgs& args) {
            SortedRows::sort(args.in[0], offset, size, args.out[0].as<int32_t>());
          },
          0, "cpu:sort"};
}

std::optional<std::string> group_rows_refuses(const KernelCall& call) {
  if (element_count(call.in[0].shape) > std::numeric_limits<int32_t>::max())
    return "sorts fewer than 2^31 indices";
  return std::nullopt;
}

std::optional<std::string> add_rows_refuses(const KernelCall& call) {
  if (element_count(call.in[2].shape) > std::numeric_limits<int32_t>::max())
    return "sorts fewer than 2^31 indices";
  return refuse_other_floats(call);
}

PreparedKernel add_rows(const KernelCall& call) {
  const Around g(call.out[0].shape, call.node.attrs.i("axis"));
  const RowSort sort(call);
  const int64_t count = element_count(call.in[2].shape), size = size_of(call.in[0].dtype);
  return {
      [=](const KernelArgs& args) {
        const TensorView &x = args.in[0], &out = args.out[0];
        if (out.count() == 0) return;
        const SortedRows rows = sort.of(args);
        parallel_ranges(g.outer * g.extent, row_grain(g.inner), [&](int64_t begin, int64_t end) {
          if (x.data != out.data) {
            std::memcpy(out.as<char>() + begin * g.inner * size,
                        x.as<char>() + begin * g.inner * size,
                        static_cast<size_t>((end - begin) * g.inner * size));
          }
          alignas(64) float buffer[kBlock], result[kBlock];
          for (int64_t item = begin; item < end; ++item) {
            const int64_t row = item % g.extent;
            if (rows.first[row] == rows.first[row + 1]) continue;
            sum_row(g, rows, args.in[1], count, item, [&](const float* sum, int64_t at, int64_t n) {
              const float* was = floats(out, at, n, buffer);
              float* is = place(out, at, result);
#pragma omp simd
              for (int64_t i = 0; i < n; ++i) is[i] = was[i] + sum[i];
              put(out, at, n, is);
            });
          }
        });
      },
      sort.workspace_bytes, "cpu:sort"};
}

}  // namespace

KernelList indexing_kernels() {
  return {{"gather", "cpu:copy", [](const KernelCall&) { return std::nullopt; }, gather},
          {"gather_grad", "cpu:sort", grad_refuses, gather_grad},
          {"add_rows", "cpu:sort", add_rows_refuses, add_rows},
          {"group_rows", "cpu:sort", group_rows_refuses, group_rows}};
}

}  // namespace shardrun::cpu
