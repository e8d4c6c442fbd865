// gather copies rows; gather_grad and add_rows sort the rows by where they go, or are given them so
// (group_rows): each destination row is summed once, in f32, in the order of the indices, by one
// thread.
// gather_elements and scatter_elements walk the indices in order.
#include <limits>

#include "base/around.h"
#include "base/lanes.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sorted_rows.h"

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
                  char* to = out + item * bytes;
                  if (row >= 0 && row < g.extent) {
                    std::memcpy(to, data + (o * g.extent + row) * bytes, size);
                  } else {
                    std::memset(to, 0, size);
                  }
                }
              }
            };
            parallel_ranges(g.outer * count, row_grain(bytes), [&](int64_t begin, int64_t end) {
              switch (bytes) {  // short rows, of a size that the compiler knows
                case 4: return copy(begin, end, std::integral_constant<size_t, 4>{});
                case 16: return copy(begin, end, std::integral_constant<size_t, 16>{});
                case 32: return copy(begin, end, std::integral_constant<size_t, 32>{});
                default: return copy(begin, end, static_cast<size_t>(bytes));
              }
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

// ---- gather_elements, scatter_elements: indices [outer, count, inner], data [outer, extent,
// inner]

std::optional<std::string> elements_refuse(const KernelCall& call) {
  const Shape &data = call.in[0].shape, &indices = call.in[1].shape;
  const auto axis = static_cast<size_t>(call.node.attrs.i("axis"));
  for (size_t d = 0; d < data.size(); ++d) {
    if (d != axis && data[d] != indices[d])
      return "indices as large as data along all dims but the axis";
  }
  if (!is_f32_or_bf16(call.in[0].dtype)) return "only f32 and bf16";
  return std::nullopt;
}

/// Calls f(position in the indices, position in the data or -1) for each index.
template <class F>
void for_elements(const Around& g, const TensorView& indices, int64_t count, int64_t offset,
                  F&& f) {
  int64_t i = 0;
  for (int64_t o = 0; o < g.outer; ++o) {
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t k = 0; k < g.inner; ++k, ++i) {
        const int64_t row = index_at(indices, i) - offset;
        f(i, row >= 0 && row < g.extent ? (o * g.extent + row) * g.inner + k : -1);
      }
    }
  }
}

PreparedKernel gather_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  return {[=](const KernelArgs& args) {
            const auto run_as = [&]<class T>(const T* data, T* out) {
              for_elements(g, args.in[1], count, offset,
                           [&](int64_t i, int64_t from) { out[i] = from >= 0 ? data[from] : T{}; });
            };
            if (args.in[0].type.dtype == DType::f32)
              return run_as(args.in[0].as<float>(), args.out[0].as<float>());
            run_as(args.in[0].as<uint16_t>(), args.out[0].as<uint16_t>());
          },
          0, "cpu:walk"};
}

PreparedKernel scatter_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  const std::string reduction = call.node.attrs.s("reduction", "none");
  const int64_t elements = element_count(call.out[0].shape);
  // bf16 is reduced in f32 and rounded once.
  const int64_t bytes = call.out[0].dtype == DType::f32 ? 0 : elements * 4;
  return {[=](const KernelArgs& args) {
            float* out = place(args.out[0], 0, static_cast<float*>(args.workspace));
            const float* data = floats(args.in[0], 0, elements, out);
            if (data != out) std::memcpy(out, data, static_cast<size_t>(elements) * 4);
            const auto walk = [&](auto&& reduce) {
              for_elements(g, args.in[1], count, offset, [&](int64_t i, int64_t to) {
                if (to >= 0) out[to] = reduce(out[to], get(args.in[2], i));
              });
              put(args.out[0], 0, elements, out);
            };
            if (reduction == "add") return walk([](float a, float b) { return a + b; });
            if (reduction == "mul") return walk([](float a, float b) { return a * b; });
            if (reduction == "max") return walk([](float a, float b) { return std::max(a, b); });
            if (reduction == "min") return walk([](float a, float b) { return std::min(a, b); });
            walk([](float, float b) { return b; });
          },
          bytes, "cpu:walk"};
}

}  // namespace

KernelList indexing_kernels() {
  return {{"gather", "cpu:copy", [](const KernelCall&) { return std::nullopt; }, gather},
          {"gather_grad", "cpu:sort", grad_refuses, gather_grad},
          {"add_rows", "cpu:sort", add_rows_refuses, add_rows},
          {"group_rows", "cpu:sort", group_rows_refuses, group_rows},
          {"gather_elements", "cpu:walk", elements_refuse, gather_elements},
          {"scatter_elements", "cpu:walk", elements_refuse, scatter_elements}};
}

}  // namespace shardrun::cpu
