// Reference convolution and its gradients: products of the same rows of values.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/round_up.h"
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

/// Every sum of one number of each dim, the last dim's changing fastest.
std::vector<int64_t> sums(const std::vector<std::vector<int64_t>>& by_dim) {
  std::vector<int64_t> out{0};
  for (const std::vector<int64_t>& numbers : by_dim) {
    std::vector<int64_t> more;
    more.reserve(out.size() * numbers.size());
    for (int64_t sum : out) {
      for (int64_t number : numbers) more.push_back(sum + number);
    }
    out = std::move(more);
  }
  return out;
}

/// Where the values of a channel's image lie with their padding. Along the last dim those a stride
/// apart, which neighbouring results meet, lie next to each other: result `column` of a row meets
/// at an offset of the kernel what is at rows[row] + offsets[offset] + column.
struct Layout {
  explicit Layout(const Geometry& g) {
    const size_t dims = g.kernel.size(), last = dims - 1;
    Shape read, padded;  // sizes: up to the last value that a result reads, and whole strides
    for (size_t d = 0; d < dims; ++d) {
      const Window& w = g.windows[d];
      read.push_back(g.out[d] == 0 ? 0 : (g.out[d] - 1) * w.stride + w.span());
      padded.push_back(d == last ? round_up(read[d], w.stride) : read[d]);
    }
    size = element_count(padded);
    const Shape strides = row_major_strides(padded);
    std::vector<std::vector<int64_t>> of_inputs(dims), of_offsets(dims), of_rows(last);
    for (size_t d = 0; d < dims; ++d) {
      const Window& w = g.windows[d];
      const auto place = [&](int64_t at) {
        return d < last ? at * strides[d] : at % w.stride * (padded[d] / w.stride) + at / w.stride;
      };
      for (int64_t i = 0; i < g.in[d]; ++i) {
        const int64_t at = i + w.low;
        of_inputs[d].push_back(at >= 0 && at < read[d] ? place(at) : kNotRead);
      }
      for (int64_t k = 0; k < w.kernel; ++k) of_offsets[d].push_back(place(k * w.dilation));
      for (int64_t o = 0; d < last && o < g.out[d]; ++o) of_rows[d].push_back(place(o * w.stride));
    }
    inputs = sums(of_inputs);
    offsets = sums(of_offsets);
    rows = sums(of_rows);
  }

  std::vector<int64_t> inputs;         // by position of the image; negative: no result reads it
  std::vector<int64_t> offsets, rows;  // by offset of the kernel, by row of results
  int64_t size = 0;                    // places

 private:
  static constexpr int64_t kNotRead = std::numeric_limits<int64_t>::min() / 16;
};

constexpr int64_t kEight = 8;
using Eight = double __attribute__((vector_size(64)));

inline Eight load_eight(const double* from) {
  Eight v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
inline void store_eight(const Eight& v, double* to) { std::memcpy(to, &v, sizeof(v)); }

/// `v` up to lane n, `otherwise` from there on.
inline Eight first_lanes(const Eight& v, int64_t n, const Eight& otherwise) {
  using Lanes = int64_t __attribute__((vector_size(64)));
  constexpr Lanes kLane = {0, 1, 2, 3, 4, 5, 6, 7};
  return kLane < Lanes{} + n ? v : otherwise;
}

/// Calls f(how many, the first) for blocks of at most kMost that make up `count`.
template <int kMost, class F>
void in_blocks(int64_t count, const F& f, int64_t first = 0) {
  for (; first + kMost <= count; first += kMost) f(std::integral_constant<int, kMost>(), first);
  if constexpr (kMost > 1) in_blocks<kMost - 1>(count, f, first);
}

/// Where the channels of one group lie in some images: position i of channel c of image m at
/// first + m * image + c * channel + i * position.
struct Places {
  int64_t first, image, channel, position;
};

/// A convolution of some images at once, one channel of x after the other. Images lie position by
/// position (x's by Layout), so that a row of results and what it meets are vectors.
class Rows {
 public:
  explicit Rows(const Geometry& g)
      : g_(g),
        layout_(g),
        in_(element_count(g.in)),
        out_(element_count(g.out)),
        offsets_(element_count(g.kernel)) {}

  /// Calls f(places of x, places of y, the first weight) for each group of some images.
  template <class F>
  void each_group(const F& f) {
    constexpr int64_t kMostValues = 1 << 16;  // of a channel, which stay in the processor's cache
    const int64_t most = std::max<int64_t>(1, kMostValues / std::max<int64_t>(1, layout_.size));
    const auto places = [&](int64_t group, int64_t channels, int64_t count) {
      const int64_t all = g_.groups * channels, channel = g_.channels_last ? 1 : count;
      return Places{first_image_ * all * count + group * channels * channel, all * count, channel,
                    g_.channels_last ? all : 1};
    };
    if (in_ == 0 || out_ == 0) return;
    for (first_image_ = 0; first_image_ < g_.batch; first_image_ += images_) {
      images_ = std::min(most, g_.batch - first_image_);
      row_ = g_.out.back() * images_;
      vectors_ = divide_up(row_, kEight);
      plane_.assign(static_cast<size_t>(layout_.size * images_ + kEight), 0.0);
      results_.assign(static_cast<size_t>(g_.out_channels * out_rows() * vectors_ * kEight), 0.0);
      for (int64_t group = 0; group < g_.groups; ++group)
        f(places(group, g_.in_channels, in_), places(group, g_.out_channels, out_),
          group * g_.out_channels * g_.in_channels * offsets_);
    }
  }

  /// A channel of x. Its padding is the same for all: it stays zero.
  void take(const Doubles& x, const Places& places, int64_t channel) {
    each_value(places, channel, [&](double& value, size_t at) { value = x[at]; });
  }
  void give(Doubles& x, const Places& places, int64_t channel) {
    each_value(places, channel, [&](double& value, size_t at) { x[at] = value; });
  }
  void take_results(const Doubles& y, const Places& places) {
    each_result(places, [&](double& value, size_t at) { value = y[at]; });
  }
  void give_results(Doubles& y, const Places& places) {
    each_result(places, [&](double& value, size_t at) { y[at] = value; });
  }
  void clear() { std::fill(plane_.begin(), plane_.end(), 0.0); }
  void clear_results() { std::fill(results_.begin(), results_.end(), 0.0); }

  /// Adds to the results what the channel makes with its weights, from `first` on.
  void add_to_results(const Doubles& weights, int64_t first) {
    for (int64_t row = 0; row < out_rows(); ++row) {
      in_blocks<4>(g_.out_channels, [&](auto channels, int64_t o) {
        in_blocks<4>(vectors_, [&](auto vectors, int64_t v) {
          constexpr int kO = decltype(channels)::value, kV = decltype(vectors)::value;
          Eight sum[kO][kV];
          for (int i = 0; i < kO; ++i)
            for (int j = 0; j < kV; ++j) sum[i][j] = load_eight(result(o + i, row, v + j));
          const double* weight = weights.data() + first + o * of_result();
          for (int64_t k = 0; k < offsets_; ++k) {
            for (int j = 0; j < kV; ++j) {
              const Eight value = load_eight(met(row, k, v + j));
              for (int i = 0; i < kO; ++i) sum[i][j] += weight[i * of_result() + k] * value;
            }
          }
          for (int i = 0; i < kO; ++i)
            for (int j = 0; j < kV; ++j) store_eight(sum[i][j], result(o + i, row, v + j));
        });
      });
    }
  }

  /// Adds to the channel what the results make with its weights, the other way round.
  void add_to_channel(const Doubles& weights, int64_t first) {
    for (int64_t row = 0; row < out_rows(); ++row) {
      in_blocks<4>(vectors_, [&](auto vectors, int64_t v) {
        in_blocks<4>(offsets_, [&](auto offsets, int64_t k) {
          constexpr int kV = decltype(vectors)::value, kK = decltype(offsets)::value;
          Eight sum[kK][kV] = {};
          for (int64_t o = 0; o < g_.out_channels; ++o) {
            const double* weight = weights.data() + first + o * of_result() + k;
            for (int j = 0; j < kV; ++j) {
              const Eight value = load_eight(result(o, row, v + j));
              for (int i = 0; i < kK; ++i) sum[i][j] += weight[i] * value;
            }
          }
          for (int i = 0; i < kK; ++i) {
            for (int j = 0; j < kV; ++j) {
              double* to = met(row, k + i, v + j);
              const Eight before = load_eight(to);
              store_eight(first_lanes(before + sum[i][j], lanes(v + j), before), to);
            }
          }
        });
      });
    }
  }

  /// Adds to a channel's weights what it makes with the results: each weight a sum of products.
  void add_to_weights(Doubles& weights, int64_t first) {
    in_blocks<2>(g_.out_channels, [&](auto channels, int64_t o) {
      in_blocks<4>(offsets_, [&](auto offsets, int64_t k) {
        constexpr int kO = decltype(channels)::value, kK = decltype(offsets)::value;
        Eight sum[kO][kK] = {};
        for (int64_t row = 0; row < out_rows(); ++row) {
          for (int64_t v = 0; v < vectors_; ++v) {
            for (int j = 0; j < kK; ++j) {
              const Eight value = first_lanes(load_eight(met(row, k + j, v)), lanes(v), Eight{});
              for (int i = 0; i < kO; ++i) sum[i][j] += load_eight(result(o + i, row, v)) * value;
            }
          }
        }
        for (int i = 0; i < kO; ++i) {
          for (int j = 0; j < kK; ++j) {
            double& weight = weights[static_cast<size_t>(first + (o + i) * of_result() + k + j)];
            for (int lane = 0; lane < kEight; ++lane) weight += sum[i][j][lane];
          }
        }
      });
    });
  }

 private:
  int64_t out_rows() const { return static_cast<int64_t>(layout_.rows.size()); }
  int64_t of_result() const { return g_.in_channels * offsets_; }         // weights
  int64_t lanes(int64_t vector) const { return row_ - vector * kEight; }  // that count, or more
  double* result(int64_t channel, int64_t row, int64_t vector) {
    return results_.data() + ((channel * out_rows() + row) * vectors_ + vector) * kEight;
  }
  /// What a vector of results meets; behind the last result something else.
  double* met(int64_t row, int64_t offset, int64_t vector) {
    const int64_t place =
        layout_.rows[static_cast<size_t>(row)] + layout_.offsets[static_cast<size_t>(offset)];
    return plane_.data() + place * images_ + vector * kEight;
  }

  /// Calls f(value of the channel, its place in the tensor), with zero for what no result reads.
  template <class F>
  void each_value(const Places& places, int64_t channel, const F& f) {
    const int64_t first = places.first + channel * places.channel;
    for (int64_t i = 0; i < in_; ++i) {
      const int64_t place = layout_.inputs[static_cast<size_t>(i)];
      for (int64_t m = 0; m < images_; ++m) {
        double nothing = 0;
        f(place < 0 ? nothing : plane_[static_cast<size_t>(place * images_ + m)],
          static_cast<size_t>(first + m * places.image + i * places.position));
      }
    }
  }
  template <class F>
  void each_result(const Places& places, const F& f) {
    for (int64_t o = 0; o < g_.out_channels; ++o) {
      const int64_t first = places.first + o * places.channel;
      for (int64_t row = 0; row < out_rows(); ++row) {
        double* value = result(o, row, 0);
        for (int64_t i = row * g_.out.back(); i < (row + 1) * g_.out.back(); ++i) {
          for (int64_t m = 0; m < images_; ++m)
            f(*value++, static_cast<size_t>(first + m * places.image + i * places.position));
        }
      }
    }
  }

  const Geometry& g_;
  const Layout layout_;
  const int64_t in_, out_, offsets_;
  int64_t first_image_ = 0, images_ = 0, row_ = 0, vectors_ = 0;  // row_: values of a row
  Doubles plane_, results_;
};

void conv(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), w = load(args.in[1]);
  Doubles y(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.in[0].type.shape, args.in[1].type.shape, args.out[0].type.shape);
  Rows rows(g);
  rows.each_group([&](const Places& from, const Places& to, int64_t first) {
    rows.clear_results();
    for (int64_t c = 0; c < g.in_channels; ++c) {
      rows.take(x, from, c);
      rows.add_to_results(w, first + c * element_count(g.kernel));
    }
    rows.give_results(y, to);
  });
  store(y, args.out[0]);
}

void data_grad(const Node& node, const KernelArgs& args) {
  const Doubles dy = load(args.in[0]), w = load(args.in[1]);
  Doubles dx(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.out[0].type.shape, args.in[1].type.shape, args.in[0].type.shape);
  Rows rows(g);
  rows.each_group([&](const Places& to, const Places& from, int64_t first) {
    rows.take_results(dy, from);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      rows.clear();
      rows.add_to_channel(w, first + c * element_count(g.kernel));
      rows.give(dx, to, c);
    }
  });
  store(dx, args.out[0]);
}

void weight_grad(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), dy = load(args.in[1]);
  Doubles dw(static_cast<size_t>(args.out[0].count()));
  const Geometry g =
      geometry(node, args.in[0].type.shape, args.out[0].type.shape, args.in[1].type.shape);
  Rows rows(g);
  rows.each_group([&](const Places& from, const Places& to, int64_t first) {
    rows.take_results(dy, to);
    for (int64_t c = 0; c < g.in_channels; ++c) {
      rows.take(x, from, c);
      rows.add_to_weights(dw, first + c * element_count(g.kernel));
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
