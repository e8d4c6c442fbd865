// Reference convolution and its gradients: three products of the same lines of values.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

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

using Eight = double __attribute__((vector_size(64)));
constexpr int64_t kEight = 8;

inline Eight load_eight(const double* from) {
  Eight v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

/// `count` rows of `n` values, one after the other.
struct Rows {
  double* values;
  int64_t count, n;
  double* row(int64_t i) const { return values + i * n; }
};

/// Element (row, column) at first + row * of_row + column * of_column.
struct Matrix {
  double* first;
  int64_t of_row, of_column;
  double& at(int64_t row, int64_t column) const { return first[row * of_row + column * of_column]; }
  Matrix transposed() const { return {first, of_column, of_row}; }
};

/// add_products of kRows rows from `row` on, kVectors vectors from value i on: their sums stay in
/// registers.
template <int kRows, int kVectors>
void add_block(const Matrix& by, const Rows& from, const Rows& to, int64_t row, int64_t i) {
  Eight sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load_eight(to.row(row + r) + i + v * kEight);
  }
  for (int64_t k = 0; k < from.count; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const auto values = load_eight(from.row(k) + i + v * kEight);
      for (int r = 0; r < kRows; ++r) sums[r][v] += by.at(row + r, k) * values;
    }
  }
  for (int r = 0; r < kRows; ++r) std::memcpy(to.row(row + r) + i, sums[r], sizeof sums[r]);
}

/// Adds to each row of `to` all rows of `from` in their order, each times by.at(row, its number).
void add_products(const Matrix& by, const Rows& from, const Rows& to) {
  constexpr int kRows = 4;
  int64_t i = 0;
  const auto vectors = [&](auto count) {
    constexpr int kVectors = decltype(count)::value;
    for (; i + kVectors * kEight <= to.n; i += kVectors * kEight) {
      int64_t row = 0;
      for (; row + kRows <= to.count; row += kRows)
        add_block<kRows, kVectors>(by, from, to, row, i);
      for (; row < to.count; ++row) add_block<1, kVectors>(by, from, to, row, i);
    }
  };
  vectors(std::integral_constant<int, 4>());
  vectors(std::integral_constant<int, 1>());
  for (int64_t row = 0; row < to.count; ++row) {
    for (int64_t k = 0; k < from.count; ++k) {
      for (int64_t j = i; j < to.n; ++j) to.row(row)[j] += by.at(row, k) * from.row(k)[j];
    }
  }
}

/// add_dots of kRows rows of `a` from `row` on with kColumns rows of `b` from `column` on.
template <int kRows, int kColumns>
void dot_block(const Rows& a, const Rows& b, const Matrix& to, int64_t row, int64_t column) {
  Eight sums[kRows][kColumns] = {};
  int64_t i = 0;
  for (; i + kEight <= a.n; i += kEight) {
    for (int c = 0; c < kColumns; ++c) {
      const auto values = load_eight(b.row(column + c) + i);
      for (int r = 0; r < kRows; ++r) sums[r][c] += load_eight(a.row(row + r) + i) * values;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      double all = 0;
      for (int v = 0; v < kEight; ++v) all += sums[r][c][v];
      for (int64_t j = i; j < a.n; ++j) all += a.row(row + r)[j] * b.row(column + c)[j];
      to.at(row + r, column + c) += all;
    }
  }
}

/// to.at(i, j) += the sum of row i of `a` times row j of `b`, in eight sums side by side.
void add_dots(const Rows& a, const Rows& b, const Matrix& to) {
  constexpr int kRows = 2, kColumns = 4;
  const auto columns = [&](auto rows, int64_t row) {
    constexpr int kSome = decltype(rows)::value;
    int64_t column = 0;
    for (; column + kColumns <= b.count; column += kColumns)
      dot_block<kSome, kColumns>(a, b, to, row, column);
    for (; column < b.count; ++column) dot_block<kSome, 1>(a, b, to, row, column);
  };
  int64_t row = 0;
  for (; row + kRows <= a.count; row += kRows) columns(std::integral_constant<int, kRows>(), row);
  for (; row < a.count; ++row) columns(std::integral_constant<int, 1>(), row);
}

/// Where the channels of one group lie in some images: position i of channel c of image m at
/// first + m * image + c * channel + i * position.
struct Planes {
  int64_t first, image, channel, position;
};

/// The convolution as products of planes. The values that one weight of a kernel meets, one for
/// each result and zero outside of the image, are a line; a channel makes a line for each offset of
/// the kernel. Lines and planes are those of some images at once, position by position.
class Lines {
 public:
  explicit Lines(const Geometry& g)
      : g_(g),
        rows_(rows_of(g)),
        in_(element_count(g.in)),
        out_(element_count(g.out)),
        offsets_(element_count(g.kernel)) {}

  /// Calls f(planes of x, planes of y, the first weight) for each group of some images.
  template <class F>
  void each_group(const F& f) {
    constexpr int64_t kMostValues = 1 << 16;  // of lines, which stay in the processor's cache
    const int64_t most = std::max<int64_t>(1, kMostValues / std::max<int64_t>(1, offsets_ * out_));
    const auto planes = [&](int64_t group, int64_t channels, int64_t count) {
      const int64_t all = g_.groups * channels, channel = g_.channels_last ? 1 : count;
      return Planes{first_image_ * all * count + group * channels * channel, all * count, channel,
                    g_.channels_last ? all : 1};
    };
    for (first_image_ = 0; first_image_ < g_.batch; first_image_ += images_) {
      const int64_t images = std::min(most, g_.batch - first_image_);
      if (std::exchange(images_, images) != images) {
        plane_.assign(static_cast<size_t>(in_ * images_), 0.0);
        lines_.assign(static_cast<size_t>(offsets_ * out_ * images_), 0.0);
      }
      for (int64_t group = 0; group < g_.groups; ++group)
        f(planes(group, g_.in_channels, in_), planes(group, g_.out_channels, out_),
          group * g_.out_channels * g_.in_channels * offsets_);
    }
  }

  /// The lines of a channel. What lies outside of images does so in all channels: it stays zero.
  void take(const Doubles& x, const Planes& planes, int64_t channel) {
    each_value(planes, channel, in_, [&](size_t i, size_t at) { plane_[i] = x[at]; });
    each_run([&](double* line, double* plane, int64_t n, int64_t step) {
      for (int64_t i = 0; i < n; ++i) line[i] = plane[i * step];
    });
  }
  void clear() { std::fill(lines_.begin(), lines_.end(), 0.0); }
  /// The other way round: what the lines add up to in a channel.
  void add_up(Doubles& x, const Planes& planes, int64_t channel) {
    std::fill(plane_.begin(), plane_.end(), 0.0);
    each_run([&](double* line, double* plane, int64_t n, int64_t step) {
      for (int64_t i = 0; i < n; ++i) plane[i * step] += line[i];
    });
    each_value(planes, channel, in_, [&](size_t i, size_t at) { x[at] = plane_[i]; });
  }

  /// y's planes, one channel after the other.
  Doubles results(const Doubles& y, const Planes& planes) const {
    Doubles to(static_cast<size_t>(g_.out_channels * out_ * images_));
    each_result(planes, [&](size_t i, size_t at) { to[i] = y[at]; });
    return to;
  }
  void store_results(const Doubles& from, const Planes& planes, Doubles& y) const {
    each_result(planes, [&](size_t i, size_t at) { y[at] = from[i]; });
  }

  Rows lines() { return {lines_.data(), offsets_, out_ * images_}; }
  Rows planes(Doubles& results) const { return {results.data(), g_.out_channels, out_ * images_}; }
  /// The weights of an input channel: one for each result (row) and offset of the kernel (column).
  Matrix weights(Doubles& all, int64_t first, int64_t channel) const {
    return {all.data() + first + channel * offsets_, g_.in_channels * offsets_, 1};
  }

 private:
  /// Calls f(place among a channel's values, place in the tensor).
  template <class F>
  void each_value(const Planes& planes, int64_t channel, int64_t count, const F& f) const {
    const int64_t first = planes.first + channel * planes.channel;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t m = 0; m < images_; ++m)
        f(static_cast<size_t>(i * images_ + m),
          static_cast<size_t>(first + m * planes.image + i * planes.position));
    }
  }
  template <class F>
  void each_result(const Planes& planes, const F& f) const {
    for (int64_t o = 0; o < g_.out_channels; ++o) {
      const auto first = static_cast<size_t>(o * out_ * images_);
      each_value(planes, o, out_, [&](size_t i, size_t at) { f(first + i, at); });
    }
  }
  /// Calls f(values of a line, the channel's that they are, how many, the step between the latter).
  template <class F>
  void each_run(const F& f) {
    const int64_t stride = g_.windows.back().stride;
    for (const Row& row : rows_) {
      double* line = lines_.data() + (row.offset * out_ + row.y) * images_;
      double* plane = plane_.data() + row.x * images_;
      if (images_ == 1) {
        f(line, plane, row.n, stride);
      } else if (stride == 1) {
        f(line, plane, row.n * images_, int64_t{1});
      } else {
        for (int64_t j = 0; j < row.n; ++j)
          f(line + j * images_, plane + j * stride * images_, images_, int64_t{1});
      }
    }
  }

  const Geometry& g_;
  const std::vector<Row> rows_;
  const int64_t in_, out_, offsets_;
  int64_t first_image_ = 0, images_ = 0;
  Doubles plane_, lines_;
};

void conv(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]);
  Doubles w = load(args.in[1]);
  Doubles y(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.in[0].type.shape, args.in[1].type.shape, args.out[0].type.shape);
  Lines lines(g);
  lines.each_group([&](const Planes& from, const Planes& to, int64_t first) {
    Doubles results = lines.results(y, to);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      lines.take(x, from, c);
      add_products(lines.weights(w, first, c), lines.lines(), lines.planes(results));
    }
    lines.store_results(results, to, y);
  });
  store(y, args.out[0]);
}

void data_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]);
  Doubles w = load(args.in[1]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.out[0].type.shape, args.in[1].type.shape, args.in[0].type.shape);
  Lines lines(g);
  lines.each_group([&](const Planes& to, const Planes& from, int64_t first) {
    Doubles gradients = lines.results(dy, from);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      lines.clear();
      add_products(lines.weights(w, first, c).transposed(), lines.planes(gradients), lines.lines());
      lines.add_up(dx, to, c);
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
      add_dots(lines.planes(gradients), lines.lines(), lines.weights(dw, first, c));
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
