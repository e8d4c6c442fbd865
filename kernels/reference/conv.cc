// Reference convolution and its gradients: three products of the same lines of values.
#include <algorithm>

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

/// Where an image's channels of one group lie: position i of channel c at first + c * channel +
/// i * position.
struct Planes {
  int64_t first, channel, position;
};

/// The convolution as products of planes. The values that one weight of a kernel meets, one for
/// each result and zero outside of the image, are a line; a channel of an image makes a line for
/// each offset of the kernel.
class Lines {
 public:
  explicit Lines(const Geometry& g)
      : g_(g),
        rows_(rows_of(g)),
        in_(element_count(g.in)),
        out_(element_count(g.out)),
        offsets_(element_count(g.kernel)),
        lines_(static_cast<size_t>(offsets_ * out_)) {}

  /// Calls f(planes of x, planes of y, the first weight) for each group of each image.
  template <class F>
  void each_group(const F& f) const {
    const auto planes = [&](int64_t image, int64_t group, int64_t channels, int64_t count) {
      const int64_t all = g_.groups * channels, channel = g_.channels_last ? 1 : count;
      return Planes{image * all * count + group * channels * channel, channel,
                    g_.channels_last ? all : 1};
    };
    const int64_t weights = g_.out_channels * g_.in_channels * offsets_;
    for (int64_t n = 0; n < g_.batch; ++n) {
      for (int64_t group = 0; group < g_.groups; ++group)
        f(planes(n, group, g_.in_channels, in_), planes(n, group, g_.out_channels, out_),
          group * weights);
    }
  }

  void clear() { std::fill(lines_.begin(), lines_.end(), 0.0); }
  /// The lines of an image's channel.
  void take(const Doubles& x, const Planes& planes, int64_t channel) {
    clear();
    each(planes, channel, [&](size_t line, size_t at) { lines_[line] = x[at]; });
  }
  /// The other way round: adds the lines to an image's channel.
  void add_to(Doubles& x, const Planes& planes, int64_t channel) const {
    each(planes, channel, [&](size_t line, size_t at) { x[at] += lines_[line]; });
  }

  /// y's planes as they would lie with channels first.
  Doubles results(const Doubles& y, const Planes& planes) const {
    Doubles to(static_cast<size_t>(g_.out_channels * out_));
    each_result(planes, [&](size_t i, size_t at) { to[i] = y[at]; });
    return to;
  }
  void store_results(const Doubles& from, const Planes& planes, Doubles& y) const {
    each_result(planes, [&](size_t i, size_t at) { y[at] = from[i]; });
  }

  /// Calls f(index of the weight, its line, the results' plane) for all weights of an input
  /// channel, n values each.
  template <class F>
  void each_weight(int64_t first, int64_t channel, Doubles& results, const F& f) {
    for (int64_t o = 0; o < g_.out_channels; ++o) {
      for (int64_t k = 0; k < offsets_; ++k)
        f(static_cast<size_t>(first + (o * g_.in_channels + channel) * offsets_ + k),
          lines_.data() + k * out_, results.data() + o * out_, out_);
    }
  }

 private:
  template <class F>
  void each(const Planes& planes, int64_t channel, const F& f) const {
    const int64_t stride = g_.windows.back().stride * planes.position;
    for (const Row& row : rows_) {
      const int64_t line = row.offset * out_ + row.y;
      const int64_t at = planes.first + channel * planes.channel + row.x * planes.position;
      for (int64_t j = 0; j < row.n; ++j)
        f(static_cast<size_t>(line + j), static_cast<size_t>(at + j * stride));
    }
  }
  template <class F>
  void each_result(const Planes& planes, const F& f) const {
    for (int64_t o = 0; o < g_.out_channels; ++o) {
      for (int64_t i = 0; i < out_; ++i)
        f(static_cast<size_t>(o * out_ + i),
          static_cast<size_t>(planes.first + o * planes.channel + i * planes.position));
    }
  }

  const Geometry& g_;
  const std::vector<Row> rows_;
  const int64_t in_, out_, offsets_;
  Doubles lines_;
};

void add_scaled(double scale, const double* from, double* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += scale * from[i];
}

/// In eight sums, which a compiler may keep side by side.
double dot(const double* a, const double* b, int64_t n) {
  constexpr int64_t kSums = 8;
  double sums[kSums] = {}, all = 0;
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t s = 0; s < kSums; ++s) sums[s] += a[i + s] * b[i + s];
  }
  for (double sum : sums) all += sum;
  for (; i < n; ++i) all += a[i] * b[i];
  return all;
}

void conv(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), w = load(args.in[1]);
  Doubles y(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.in[0].type.shape, args.in[1].type.shape, args.out[0].type.shape);
  Lines lines(g);
  lines.each_group([&](const Planes& from, const Planes& to, int64_t first) {
    Doubles results = lines.results(y, to);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      lines.take(x, from, c);
      lines.each_weight(first, c, results, [&](size_t i, double* line, double* plane, int64_t n) {
        add_scaled(w[i], line, plane, n);
      });
    }
    lines.store_results(results, to, y);
  });
  store(y, args.out[0]);
}

void data_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]), w = load(args.in[1]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.out[0].type.shape, args.in[1].type.shape, args.in[0].type.shape);
  Lines lines(g);
  lines.each_group([&](const Planes& to, const Planes& from, int64_t first) {
    Doubles gradients = lines.results(dy, from);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      lines.clear();
      lines.each_weight(first, c, gradients, [&](size_t i, double* line, double* plane, int64_t n) {
        add_scaled(w[i], plane, line, n);
      });
      lines.add_to(dx, to, c);
    }
  });
  store(dx, args.out[0]);
}

void weight_grad(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), dy = load(args.in[1]);
  Doubles dw(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.in[0].type.shape, args.out[0].type.shape, args.in[1].type.shape);
  Lines lines(g);
  lines.each_group([&](const Planes& from, const Planes& to, int64_t first) {
    Doubles gradients = lines.results(dy, to);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      lines.take(x, from, c);
      lines.each_weight(first, c, gradients, [&](size_t i, double* line, double* plane, int64_t n) {
        dw[i] += dot(line, plane, n);
      });
    }
  });
  store(dw, args.out[0]);
}

void pack_weights(const Node& node, const KernelArgs& args) {
  lay_out(args.in[0], WeightLayout::parse(node.attrs.s("layout")), args.out[0]);
}

}  // namespace

void lay_out(const TensorView& view, const WeightLayout& layout, const TensorView& to) {
  const Shape& dims = view.type.shape;
  const Doubles from = load(view);
  Doubles out(static_cast<size_t>(to.count()));
  for (size_t i = 0; i < from.size(); ++i) {
    Shape at(dims.size());
    for (size_t d = dims.size(), rest = i; d-- > 0;) {
      at[d] = static_cast<int64_t>(rest) % dims[d];
      rest /= static_cast<size_t>(dims[d]);
    }
    out[static_cast<size_t>(layout.place(dims, at))] = from[i];
  }
  store(out, to);
}

KernelList conv_kernels() {
  return {plain("conv", conv), plain("conv_data_grad", data_grad),
          plain("conv_weight_grad", weight_grad), plain("pack_weights", pack_weights)};
}

}  // namespace shardrun::reference
