// gather copies rows; gather_grad sorts the rows by where they go, so that each destination row is
// summed once, in f32, in the order of the indices, by one thread. gather_elements and
// scatter_elements walk the indices in order.
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

struct Geometry {
  int64_t outer = 1, extent = 0, inner = 1;  // data as [outer, extent, inner]

  Geometry(const Shape& data, int64_t axis) {
    for (int64_t d = 0; d < static_cast<int64_t>(data.size()); ++d) {
      const int64_t size = data[static_cast<size_t>(d)];
      if (d < axis) outer *= size;
      if (d == axis) extent = size;
      if (d > axis) inner *= size;
    }
  }
};

int64_t index_at(const TensorView& indices, int64_t i) {
  return indices.type.dtype == DType::i64 ? indices.as<int64_t>()[i] : indices.as<int32_t>()[i];
}

PreparedKernel gather(const KernelCall& call) {
  const Geometry g(call.in[0].shape, call.node.attrs.i("axis"));
  const int64_t offset = call.node.attrs.i("offset", 0),
                bytes = g.inner * size_of(call.in[0].dtype);
  return {[=](const KernelArgs& args) {
            const int64_t count = args.in[1].count();
            const char* data = args.in[0].as<char>();
            char* out = args.out[0].as<char>();
            if (bytes == 0) return;
            parallel_ranges(g.outer * count, row_grain(bytes), [&](int64_t begin, int64_t end) {
              for (int64_t item = begin; item < end; ++item) {
                const int64_t row = index_at(args.in[1], item % count) - offset;
                char* to = out + item * bytes;
                if (row >= 0 && row < g.extent) {
                  std::memcpy(to, data + (item / count * g.extent + row) * bytes,
                              static_cast<size_t>(bytes));
                } else {
                  std::memset(to, 0, static_cast<size_t>(bytes));
                }
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

PreparedKernel gather_grad(const KernelCall& call) {
  const Geometry g(call.out[0].shape, call.node.attrs.i("axis"));
  const int64_t offset = call.node.attrs.i("offset", 0), count = element_count(call.in[1].shape);
  return {
      [=](const KernelArgs& args) {
        const TensorView &dy = args.in[0], &indices = args.in[1], &out = args.out[0];
        if (out.count() == 0) return;
        // Counting sort: the indices of row r stand in order[first[r], first[r + 1]).
        auto* first = static_cast<int32_t*>(args.workspace);
        int32_t* order = first + g.extent + 2;
        std::fill_n(first, g.extent + 2, 0);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = index_at(indices, i) - offset;
          if (row >= 0 && row < g.extent) ++first[row + 2];
        }
        for (int64_t r = 2; r <= g.extent + 1; ++r) first[r] += first[r - 1];
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = index_at(indices, i) - offset;
          if (row >= 0 && row < g.extent) order[first[row + 1]++] = static_cast<int32_t>(i);
        }
        parallel_ranges(g.outer * g.extent, row_grain(g.inner), [&](int64_t begin, int64_t end) {
          alignas(64) float sum[kBlock], buffer[kBlock];
          for (int64_t item = begin; item < end; ++item) {
            const int64_t o = item / g.extent, row = item % g.extent;
            for (int64_t c = 0; c < g.inner; c += kBlock) {
              const int64_t n = std::min(kBlock, g.inner - c);
              std::fill_n(sum, n, 0.0f);
              for (int32_t k = first[row]; k < first[row + 1]; ++k) {
                const float* v = floats(dy, (o * count + order[k]) * g.inner + c, n, buffer);
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) sum[i] += v[i];
              }
              const int64_t at = item * g.inner + c;
              if (out.type.dtype == DType::f32)
                std::memcpy(out.as<float>() + at, sum, static_cast<size_t>(n) * 4);
              put(out, at, n, sum);
            }
          }
        });
      },
      (g.extent + 2 + count) * 4, "cpu:sort"};
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
  if (call.in[0].dtype != DType::f32) return "only f32";
  return std::nullopt;
}

/// Calls f(position in the indices, position in the data or -1) for each index.
template <class F>
void for_elements(const Geometry& g, const TensorView& indices, int64_t count, int64_t offset,
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
  const Geometry g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  return {[=](const KernelArgs& args) {
            const float* data = args.in[0].as<float>();
            float* out = args.out[0].as<float>();
            for_elements(g, args.in[1], count, offset,
                         [&](int64_t i, int64_t from) { out[i] = from >= 0 ? data[from] : 0.0F; });
          },
          0, "cpu:walk"};
}

PreparedKernel scatter_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Geometry g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  const std::string reduction = call.node.attrs.s("reduction", "none");
  return {[=](const KernelArgs& args) {
            const float* updates = args.in[2].as<float>();
            float* out = args.out[0].as<float>();
            if (args.in[0].data != args.out[0].data)
              std::memcpy(out, args.in[0].data, static_cast<size_t>(args.out[0].count()) * 4);
            const auto walk = [&](auto&& reduce) {
              for_elements(g, args.in[1], count, offset, [&](int64_t i, int64_t to) {
                if (to >= 0) out[to] = reduce(out[to], updates[i]);
              });
            };
            if (reduction == "add") return walk([](float a, float b) { return a + b; });
            if (reduction == "mul") return walk([](float a, float b) { return a * b; });
            if (reduction == "max") return walk([](float a, float b) { return std::max(a, b); });
            if (reduction == "min") return walk([](float a, float b) { return std::min(a, b); });
            walk([](float, float b) { return b; });
          },
          0, "cpu:walk"};
}

}  // namespace

KernelList indexing_kernels() {
  return {{"gather", "cpu:copy", [](const KernelCall&) { return std::nullopt; }, gather},
          {"gather_grad", "cpu:sort", grad_refuses, gather_grad},
          {"gather_elements", "cpu:walk", elements_refuse, gather_elements},
          {"scatter_elements", "cpu:walk", elements_refuse, scatter_elements}};
}

}  // namespace shardrun::cpu
