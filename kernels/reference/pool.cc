// Reference pools and their gradients: one walk over the offsets of all windows.
#include <cmath>
#include <limits>

#include "graph/ops/window.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// Calls f(offset, x, y) for every offset of every window that lies inside the image: positions in
/// dense tensors x and y. For each y the offsets come in row-major order.
template <class F>
void each_offset(const Node& node, const Shape& x_shape, const Shape& y_shape, F&& f) {
  const Shape& kernel = node.attrs.ints("kernel");
  const std::vector<Window> windows = windows_of(node, kernel);
  const size_t dims = kernel.size();
  const int64_t channels = channels_last(node) ? x_shape.back() : 1;  // behind the pooled dims
  const auto pooled = static_cast<std::ptrdiff_t>(dims);
  const auto lead = static_cast<std::ptrdiff_t>(x_shape.size()) - pooled - channels_last(node);
  const auto in_at = x_shape.begin() + lead, out_at = y_shape.begin() + lead;
  const Shape in(in_at, in_at + pooled), out(out_at, out_at + pooled);
  const int64_t planes = element_count(Shape(x_shape.begin(), in_at));
  const int64_t in_count = element_count(in), out_count = element_count(out);
  const int64_t offsets = element_count(kernel);
  const Shape in_strides = row_major_strides(in), out_strides = row_major_strides(out);
  const Shape kernel_strides = row_major_strides(kernel);
  struct Place {
    int64_t offset, x, y;
  };
  std::vector<Place> places;  // of one plane: the same in all of them
  for (int64_t y = 0; y < out_count; ++y) {
    for (int64_t offset = 0; offset < offsets; ++offset) {
      int64_t x = 0;
      bool inside = true;
      for (size_t d = 0; d < dims; ++d) {
        const int64_t at = y / out_strides[d] % out[d], k = offset / kernel_strides[d] % kernel[d];
        const int64_t i = at * windows[d].stride + k * windows[d].dilation - windows[d].low;
        inside = inside && i >= 0 && i < in[d];
        x += i * in_strides[d];
      }
      if (inside) places.push_back({offset, x, y});
    }
  }
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (const Place& p : places) {
      const int64_t x = (plane * in_count + p.x) * channels,
                    y = (plane * out_count + p.y) * channels;
      for (int64_t c = 0; c < channels; ++c) f(p.offset, x + c, y + c);
    }
  }
}

void max_pool(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]);
  const auto count = static_cast<size_t>(args.out[0].count());
  Doubles y(count, -std::numeric_limits<double>::infinity());
  std::vector<int64_t> which(count, -1);
  each_offset(node, args.in[0].type.shape, args.out[0].type.shape,
              [&](int64_t offset, int64_t xi, int64_t yi) {
                const double value = x[static_cast<size_t>(xi)];
                const auto at = static_cast<size_t>(yi);
                if (which[at] >= 0 && !(value > y[at]) && !std::isnan(value)) return;
                y[at] = value;
                which[at] = offset;
              });
  for (int64_t& offset : which) offset = std::max<int64_t>(offset, 0);
  store(y, args.out[0]);
  store_all(args.out[1], which);
}

void max_pool_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]);
  const std::vector<int64_t> which = load_ints(args.in[1]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  each_offset(node, args.out[0].type.shape, args.in[0].type.shape,
              [&](int64_t offset, int64_t xi, int64_t yi) {
                if (which[static_cast<size_t>(yi)] == offset)
                  dx[static_cast<size_t>(xi)] += dy[static_cast<size_t>(yi)];
              });
  store(dx, args.out[0]);
}

void sum_pool(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]);
  Doubles y(static_cast<size_t>(args.out[0].count()));
  each_offset(node, args.in[0].type.shape, args.out[0].type.shape,
              [&](int64_t, int64_t xi, int64_t yi) {
                y[static_cast<size_t>(yi)] += x[static_cast<size_t>(xi)];
              });
  store(y, args.out[0]);
}

void sum_pool_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  each_offset(node, args.out[0].type.shape, args.in[0].type.shape,
              [&](int64_t, int64_t xi, int64_t yi) {
                dx[static_cast<size_t>(xi)] += dy[static_cast<size_t>(yi)];
              });
  store(dx, args.out[0]);
}

}  // namespace

KernelList pool_kernels() {
  return {plain("max_pool", max_pool), plain("max_pool_grad", max_pool_grad),
          plain("sum_pool", sum_pool), plain("sum_pool_grad", sum_pool_grad)};
}

}  // namespace shardrun::reference
