// Reference convolution and its gradients: three ways to run one walk over all products.
#include "graph/ops/window.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// Sizes of a call; no groups is one group.
struct Geometry {
  int64_t batch = 1, groups = 1, out_channels = 1, in_channels = 1;
  Shape in, out, kernel;
  std::vector<Window> windows;
  bool channels_last = false;
};

Geometry geometry(const Node& node, const Shape& x, const Shape& w, const Shape& y) {
  Geometry g;
  const size_t spatial = node.attrs.ints("strides").size();
  const ImageDims d{spatial, x.size() == spatial + 3, channels_last(node)};
  g.batch = x[0];
  if (d.groups) g.groups = x[d.group()];
  g.in_channels = x[d.channel()];
  g.out_channels = y[d.channel()];
  g.in = d.sizes(x);
  g.out = d.sizes(y);
  g.kernel = d.kernel_sizes(w);
  g.windows = windows_of(node, g.kernel);
  g.channels_last = d.channels_last;
  return g;
}

/// n neighbouring results from y that the weight at `offset` of one kernel meets from x, all within
/// the planes of one channel.
struct Row {
  int64_t offset, x, y, n;
};

/// The same for every pair of channels, so they are found once.
std::vector<Row> rows_of(const Geometry& g) {
  std::vector<Row> rows;
  const size_t dims = g.kernel.size(), last = dims - 1;
  if (element_count(g.in) == 0 || element_count(g.out) == 0) return rows;
  const Shape in_strides = row_major_strides(g.in), out_strides = row_major_strides(g.out);
  Shape k(dims), row(dims);
  std::vector<Range> inside(dims);
  for (int64_t offset = 0; offset < element_count(g.kernel); ++offset) {
    bool any = true;
    for (size_t d = dims, rest = static_cast<size_t>(offset); d-- > 0;) {
      k[d] = static_cast<int64_t>(rest) % g.kernel[d];
      rest /= static_cast<size_t>(g.kernel[d]);
      inside[d] = g.windows[d].inside(k[d], g.in[d], g.out[d]);
      row[d] = inside[d].begin;
      any = any && inside[d].size > 0;
    }
    while (any) {
      int64_t x = 0, y = 0;
      for (size_t d = 0; d < dims; ++d) {
        const Window& w = g.windows[d];
        x += (row[d] * w.stride + k[d] * w.dilation - w.low) * in_strides[d];
        y += row[d] * out_strides[d];
      }
      rows.push_back({offset, x, y, inside[last].size});
      size_t d = last;
      while (d > 0 && ++row[d - 1] == inside[d - 1].end()) {
        row[d - 1] = inside[d - 1].begin;
        --d;
      }
      any = d > 0;
    }
  }
  return rows;
}

/// n neighbouring results that one weight makes: y + j * y_stride from x + j * x_stride.
struct Products {
  int64_t w, x, y, n, x_stride, y_stride;
};

/// Every product of the convolution: calls f(Products) with positions in dense tensors. For each
/// result the weights come in row-major order.
template <class F>
void each_row(const Geometry& g, F&& f) {
  const std::vector<Row> rows = rows_of(g);
  const int64_t in_count = element_count(g.in), out_count = element_count(g.out);
  const int64_t offsets = element_count(g.kernel), stride = g.windows.back().stride;
  const int64_t in_all = g.groups * g.in_channels, out_all = g.groups * g.out_channels;
  // Steps from position to position, and from channel to channel.
  const int64_t x_step = g.channels_last ? in_all : 1, y_step = g.channels_last ? out_all : 1;
  const int64_t x_channel = g.channels_last ? 1 : in_count;
  const int64_t y_channel = g.channels_last ? 1 : out_count;
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t group = 0; group < g.groups; ++group) {
      for (int64_t o = 0; o < g.out_channels; ++o) {
        const int64_t y0 = n * out_all * out_count + (group * g.out_channels + o) * y_channel;
        for (int64_t c = 0; c < g.in_channels; ++c) {
          const int64_t x0 = n * in_all * in_count + (group * g.in_channels + c) * x_channel;
          const int64_t w0 = ((group * g.out_channels + o) * g.in_channels + c) * offsets;
          for (const Row& row : rows) {
            f(Products{w0 + row.offset, x0 + row.x * x_step, y0 + row.y * y_step, row.n,
                       stride * x_step, y_step});
          }
        }
      }
    }
  }
}

void conv(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), w = load(args.in[1]);
  Doubles y(static_cast<size_t>(args.out[0].count()));
  each_row(geometry(node, args.in[0].type.shape, args.in[1].type.shape, args.out[0].type.shape),
           [&](const Products& p) {
             const double weight = w[static_cast<size_t>(p.w)];
             const double* from = x.data() + p.x;
             double* to = y.data() + p.y;
             for (int64_t j = 0; j < p.n; ++j) to[j * p.y_stride] += weight * from[j * p.x_stride];
           });
  store(y, args.out[0]);
}

void data_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]), w = load(args.in[1]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  each_row(geometry(node, args.out[0].type.shape, args.in[1].type.shape, args.in[0].type.shape),
           [&](const Products& p) {
             const double weight = w[static_cast<size_t>(p.w)];
             const double* from = dy.data() + p.y;
             double* to = dx.data() + p.x;
             for (int64_t j = 0; j < p.n; ++j) to[j * p.x_stride] += weight * from[j * p.y_stride];
           });
  store(dx, args.out[0]);
}

void weight_grad(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), dy = load(args.in[1]);
  Doubles dw(static_cast<size_t>(args.out[0].count()));
  each_row(geometry(node, args.in[0].type.shape, args.out[0].type.shape, args.in[1].type.shape),
           [&](const Products& p) {
             const double *a = x.data() + p.x, *b = dy.data() + p.y;
             double sum = 0;
             for (int64_t j = 0; j < p.n; ++j) sum += a[j * p.x_stride] * b[j * p.y_stride];
             dw[static_cast<size_t>(p.w)] += sum;
           });
  store(dw, args.out[0]);
}

void pack_weights(const Node& node, const KernelArgs& args) {
  const std::vector<int64_t>&order = node.attrs.ints("order"), &blocks = node.attrs.ints("blocks"),
        &of = node.attrs.ints("of");
  const Shape& shape = args.in[0].type.shape;
  const Doubles from = load(args.in[0]);
  Doubles to(static_cast<size_t>(args.out[0].count()));
  for (size_t i = 0; i < from.size(); ++i) {
    Shape at(shape.size());
    for (size_t d = shape.size(), rest = i; d-- > 0;) {
      at[d] = static_cast<int64_t>(rest) % shape[d];
      rest /= static_cast<size_t>(shape[d]);
    }
    int64_t place = 0, step = 1;
    Shape left = shape;
    for (size_t b = of.size(); b-- > 0; step *= blocks[b]) {
      const auto d = static_cast<size_t>(of[b]);
      place += at[d] % blocks[b] * step;
      at[d] /= blocks[b];
      left[d] = (left[d] + blocks[b] - 1) / blocks[b];
    }
    for (size_t o = order.size(); o-- > 0;) {
      const auto d = static_cast<size_t>(order[o]);
      place += at[d] * step;
      step *= left[d];
    }
    to[static_cast<size_t>(place)] = from[i];
  }
  store(to, args.out[0]);
}

}  // namespace

KernelList conv_kernels() {
  return {plain("conv", conv), plain("conv_data_grad", data_grad),
          plain("conv_weight_grad", weight_grad), plain("pack_weights", pack_weights)};
}

}  // namespace shardrun::reference
