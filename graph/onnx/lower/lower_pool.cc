// Lowering of pools and of Resize.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "graph/onnx/lower/spatial.h"

namespace shardrun::importer {
namespace {

using Ints = std::vector<int64_t>;

/// Results per dim. ceil_mode adds a last window that hangs over the end, unless it would begin in
/// the padding behind the image (as PyTorch and ONNX have it).
Shape pooled_sizes(NodeContext& c, const std::vector<Window>& windows, const Shape& spatial) {
  const bool ceil = c.attr_i("ceil_mode", 0) != 0;
  Shape out;
  for (size_t d = 0; d < windows.size(); ++d) {
    Window w = windows[d];
    int64_t count = w.count(spatial[d]);
    if (ceil) {
      w.high += w.stride - 1;
      count = w.count(spatial[d]);
      if ((count - 1) * w.stride >= spatial[d] + w.low) --count;
    }
    SR_REQUIRE(count > 0, invalid_input, "a window of ", w.span(), " does not fit spatial dim ", d,
               " of ", c.b.type(c.in(0)), " padded by ", windows[d].low, " and ", windows[d].high);
    out.push_back(count);
  }
  return out;
}

/// The internal op's attributes: exactly `out` results.
Attrs pool_attrs(std::vector<Window> windows, const Shape& spatial, const Shape& out) {
  for (size_t d = 0; d < windows.size(); ++d)
    windows[d].high = windows[d].high_for(spatial[d], out[d]);
  Attrs attrs = window_attrs(windows, true);
  attrs.set("kernel", kernel_of(windows));
  return attrs;
}

/// Positions in the whole tensor of what was taken: that of the plane, plus the sum over dims of
/// (result * stride + offset * dilation - pad) * the dim's stride.
V indices_of(NodeContext& c, V which, const std::vector<Window>& windows, bool column_major) {
  Builder& b = c.b;
  const Shape x = b.shape(c.in(0)), y = b.shape(which);  // copies: the builder grows
  const Shape spatial = spatial_of(x);
  const size_t dims = windows.size();
  const Shape offsets = row_major_strides(kernel_of(windows));
  Shape strides = row_major_strides(spatial);
  if (column_major) {
    int64_t stride = 1;
    for (size_t d = 0; d < dims; ++d) strides[d] = stride, stride *= spatial[d];
  }
  const V offset = b.cast(which, DType::i64);
  Shape shape(y.size(), 1);
  shape[0] = y[0], shape[1] = y[1];
  V index = b.reshape(b.iota(y[0] * y[1], 0, element_count(spatial)), shape);
  for (size_t d = 0; d < dims; ++d) {
    const Window& w = windows[d];
    Shape along(y.size(), 1);
    along[2 + d] = y[2 + d];
    const V first = b.iota(y[2 + d], -w.low * strides[d], w.stride * strides[d]);
    index = b.add("add", {index, b.reshape(first, along)});
    const V k = b.with("mod", b.with("div", offset, static_cast<double>(offsets[d])),
                       static_cast<double>(w.kernel));
    index = b.add("add", {index, b.with("mul", k, static_cast<double>(w.dilation * strides[d]))});
  }
  return index;
}

void max_pool(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  require_image(c, x);
  const bool column_major = c.attr_i("storage_order", 0) != 0;
  const Shape spatial = spatial_of(b.shape(x));
  const std::vector<Window> windows = read_windows(c, spatial, {});
  const std::vector<V> made =
      b.add_n("max_pool", {x}, pool_attrs(windows, spatial, pooled_sizes(c, windows, spatial)));
  c.out(0, made[0]);
  if (c.wants(1)) c.out(1, indices_of(c, made[1], windows, column_major));
}

/// In how many positions of one dim each of its windows counts. With include_pad the padding
/// counts, but not what hangs over behind it. One number where all windows are alike.
std::vector<double> counts_along(NodeContext& c, const Window& w, int64_t size, int64_t results,
                                 bool include_pad) {
  const int64_t first = include_pad ? -w.low : 0, last = include_pad ? size + w.high : size;
  const auto count = [&](int64_t result) {  // offsets k with first <= at + k dilation < last
    const int64_t at = result * w.stride - w.low;
    const int64_t low = std::max<int64_t>(0, (first - at + w.dilation - 1) / w.dilation);
    const int64_t high = std::min(w.kernel, (last - at + w.dilation - 1) / w.dilation);
    return static_cast<double>(std::max<int64_t>(high - low, 1));
  };
  // Windows at the border count less than those between, all of which are whole.
  if (count(0) == static_cast<double>(w.kernel) && count(results - 1) == count(0))
    return {count(0)};
  c.b.budget.check(results * static_cast<int64_t>(sizeof(double)), "the counts of its windows");
  std::vector<double> out;
  for (int64_t o = 0; o < results; ++o) out.push_back(count(o));
  if (std::equal(out.begin() + 1, out.end(), out.begin())) out.resize(1);
  return out;
}

/// The number that PyTorch's call divides the sums by, whatever a window's size: AveragePool has no
/// place for it.
std::optional<double> called_divisor(NodeContext& c) {
  for (const char* target : {"aten.avg_pool2d", "aten.avg_pool3d"}) {
    if (const FxCall* call = c.call_of(target)) {
      const double divisor = call->number(6, "divisor_override", 0);
      if (divisor != 0) return divisor;
    }
  }
  return std::nullopt;
}

void average_pool(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  require_image(c, x);
  const Shape spatial = spatial_of(b.shape(x));
  const std::vector<Window> windows = read_windows(c, spatial, {});
  const Shape out = pooled_sizes(c, windows, spatial);
  const bool include_pad = c.attr_i("count_include_pad", 0) != 0;
  const V sum = b.add("sum_pool", {x}, pool_attrs(windows, spatial, out));
  if (const std::optional<double> divisor = called_divisor(c)) {
    c.restored(str("divisor_override=", *divisor));
    return c.out(b.with("div", sum, *divisor));
  }
  // The inverse counts of all dims together, each dim of size 1 where its windows are alike.
  Shape shape;
  std::vector<double> inverse = {1};
  for (size_t d = 0; d < windows.size(); ++d) {
    const std::vector<double> counts = counts_along(c, windows[d], spatial[d], out[d], include_pad);
    shape.push_back(static_cast<int64_t>(counts.size()));
    b.budget.check(element_count(shape) * static_cast<int64_t>(sizeof(double)),
                   "the counts of its windows");
    std::vector<double> next;
    for (double before : inverse) {
      for (double count : counts) next.push_back(before / count);
    }
    inverse = std::move(next);
  }
  const bool uniform = inverse.size() == 1;
  c.out(uniform ? b.with("mul", sum, inverse[0])
                : b.add("mul",
                        {sum, b.constant(convert(Tensor::from<double>(shape, inverse, DType::f64),
                                                 b.dtype(x)))}));
}

Ints spatial_axes(NodeContext& c) {
  Ints axes(static_cast<size_t>(c.b.rank(c.in(0)) - 2));
  std::iota(axes.begin(), axes.end(), 2);
  return axes;
}

void global_average_pool(NodeContext& c) {
  require_image(c, c.in(0));
  c.out(c.b.mean(c.in(0), spatial_axes(c), true));
}

/// A window over the whole image, so that the gradient goes to the first maximum, as PyTorch's.
void global_max_pool(NodeContext& c) {
  const V x = c.in(0);
  require_image(c, x);
  const Shape spatial = spatial_of(c.b.shape(x));
  std::vector<Window> windows;
  for (int64_t size : spatial) windows.push_back({size, 1, 1, 0, 0});
  c.out(c.b.add_n("max_pool", {x}, pool_attrs(windows, spatial, Shape(spatial.size(), 1)))[0]);
}

/// |x|^p, whose sum's p-th root a norm is.
V powers(Builder& b, V x, double p) {
  if (p == 2) return b.add("mul", {x, x});
  const V size = b.add("abs", {x});
  return p == 1 ? size : b.with("pow", size, p);
}
/// Of a sum of 0 it is 0, and so is its gradient, as in PyTorch.
V root(Builder& b, V sum, double p) {
  if (p == 1) return sum;
  const V nothing = b.scalar(0, b.dtype(sum)), zero = b.add("equal", {sum, nothing});
  const V some = b.add("where", {zero, b.scalar(1, b.dtype(sum)), sum});
  return b.add("where",
               {zero, nothing, p == 2 ? b.add("sqrt", {some}) : b.with("pow", some, 1 / p)});
}
double norm_of(NodeContext& c) {
  const int64_t p = c.attr_i("p", 2);
  if (p < 1) c.refuse_attr("p", "a norm has at least 1");
  return static_cast<double>(p);
}

void lp_pool(NodeContext& c) {
  const V x = c.in(0);
  require_image(c, x);
  const double p = norm_of(c);
  const Shape spatial = spatial_of(c.b.shape(x));
  const std::vector<Window> windows = read_windows(c, spatial, {});
  const Attrs attrs = pool_attrs(windows, spatial, pooled_sizes(c, windows, spatial));
  c.out(root(c.b, c.b.add("sum_pool", {powers(c.b, x, p)}, attrs), p));
}

void global_lp_pool(NodeContext& c) {
  require_image(c, c.in(0));
  const double p = norm_of(c);
  c.out(root(c.b, c.b.sum(powers(c.b, c.in(0), p), spatial_axes(c), true), p));
}

// ---- Resize ----

/// How a position of the result maps to one of the operand, which may lie between two.
double source_position(const std::string& mode, double i, double scale, int64_t from, int64_t to) {
  // In f32, as PyTorch and ONNX Runtime: in f64 the 3rd at a scale of 0.6f would come before 5.
  if (mode == "asymmetric") return static_cast<float>(i) * static_cast<float>(1 / scale);
  if (mode == "align_corners")
    return to == 1 ? 0 : i * static_cast<double>(from - 1) / static_cast<double>(to - 1);
  if (mode == "pytorch_half_pixel" && to == 1) return 0;
  if (mode == "tf_half_pixel_for_nn") return (i + 0.5) / scale;
  if (mode == "half_pixel_symmetric") {
    const double adjustment = static_cast<double>(to) / (scale * static_cast<double>(from));
    const double centre = static_cast<double>(from) / 2;
    return centre * (1 - adjustment) + (i + 0.5) / scale - 0.5;
  }
  return (i + 0.5) / scale - 0.5;
}

double rounded(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  const double whole = std::floor(x);
  if (x - whole == 0.5) return mode == "round_prefer_ceil" ? whole + 1 : whole;
  return std::round(x);
}

struct Resized {
  int64_t to;
  double scale;
};
/// Each is looked up, by numbers that stand in the graph.
constexpr int64_t kMostResized = int64_t{1} << 24;

/// The scales of spatial dims that PyTorch's call has, in their order; none where it has none. The
/// newer exporter writes sizes alone for some, of which another scale follows where a size was
/// rounded. Forms: (x, size, [align_corners,] scales) with a list or a number for each dim.
std::vector<double> called_scales(NodeContext& c) {
  std::vector<double> out;
  const FxCall* call = c.call();
  if (call == nullptr || call->target.find("upsample_") == std::string::npos) return out;
  std::vector<FxArgument> given;
  for (size_t i = 2; i < call->positional.size(); ++i) given.push_back(call->positional[i]);
  for (const char* name : {"scale_factors", "scales", "scales_d", "scales_h", "scales_w"})
    if (const auto named = call->named.find(name); named != call->named.end())
      given.push_back(named->second);
  for (const FxArgument& argument : given) {
    for (const FxArgument& item : argument.items.empty() ? std::vector{argument} : argument.items)
      if (const std::optional<double> scale = item.number(); scale && *scale > 0)
        out.push_back(*scale);
  }
  return out;
}

/// Gives sizes that PyTorch computed from scales these scales, where they are not those of the
/// sizes.
void restore_scales(NodeContext& c, const Ints& axes, std::vector<Resized>& resized) {
  const std::vector<double> scales = called_scales(c);
  const Shape& x = c.b.shape(c.in(0));
  if (scales.size() + 2 != x.size() ||
      c.attr_s("coordinate_transformation_mode", "half_pixel") == "align_corners")
    return;
  std::vector<Resized> out = resized;
  bool other = false;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 2) continue;
    const double scale = scales[static_cast<size_t>(axes[i]) - 2];
    const auto from = static_cast<double>(x[static_cast<size_t>(axes[i])]);
    if (std::floor(from * scale) != static_cast<double>(out[i].to)) return;
    other = other || out[i].scale != scale;
    out[i].scale = scale;
  }
  if (!other) return;
  std::string text;
  for (double scale : scales) text += str(text.empty() ? "" : ", ", scale);
  c.restored(str("scale_factor=", text));
  resized = std::move(out);
}

/// Sizes and scales of the resized axes, from `scales` or `sizes`.
std::vector<Resized> resized_axes(NodeContext& c, const Ints& axes) {
  const Shape& x = c.b.shape(c.in(0));
  auto from = [&](size_t i) { return x[static_cast<size_t>(axes[i])]; };
  std::vector<Resized> out;
  const Tensor* scales = c.has(2) ? &c.known(2, "scales") : nullptr;
  if (scales != nullptr && scales->count() > 0) {
    SR_REQUIRE(!c.has(3), invalid_input, "scales and sizes are both given; wanted one of the two");
    SR_REQUIRE(scales->count() == static_cast<int64_t>(axes.size()), invalid_input, "scales has ",
               scales->count(), " entries, wanted ", axes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      const double scale = scales->at(static_cast<int64_t>(i));
      const double size = std::floor(static_cast<double>(from(i)) * scale);
      SR_REQUIRE(scale > 0 && size <= kMostResized, invalid_input, "scale is ", scale);
      out.push_back({static_cast<int64_t>(size), scale});
    }
    return out;
  }
  const Ints sizes = c.ints(3, "sizes");
  SR_REQUIRE(sizes.size() == axes.size(), invalid_input, "sizes has ", sizes.size(),
             " entries, wanted ", axes.size());
  const std::string policy = c.attr_s("keep_aspect_ratio_policy", "stretch");
  double common = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    SR_REQUIRE(sizes[i] >= 1 && sizes[i] <= kMostResized, invalid_input, "size is ", sizes[i]);
    SR_REQUIRE(from(i) > 0, invalid_input, "dim ", axes[i], " of ", c.b.type(c.in(0)),
               " is empty, wanted is ", sizes[i]);
    const double scale = static_cast<double>(sizes[i]) / static_cast<double>(from(i));
    if (i == 0 || (policy == "not_larger" ? scale < common : scale > common)) common = scale;
    out.push_back({sizes[i], scale});
  }
  if (policy == "stretch") {
    restore_scales(c, axes, out);
    return out;
  }
  if (policy != "not_larger" && policy != "not_smaller")
    c.refuse_attr("keep_aspect_ratio_policy", "supported are stretch, not_larger and not_smaller");
  for (size_t i = 0; i < axes.size(); ++i) {
    const double size = std::floor(common * static_cast<double>(from(i)) + 0.5);
    SR_REQUIRE(size <= kMostResized, invalid_input, "scale is ", common);
    out[i] = {static_cast<int64_t>(size), common};
  }
  return out;
}

/// Results along one axis, each mixed of two neighbours: x[low] + weight * (x[high] - x[low]).
/// Nearest neighbours have one, low, and no weight.
struct Samples {
  Ints low, high;
  std::vector<double> weight;
};

V sampled(Builder& b, V x, int64_t axis, const Samples& samples) {
  const auto count = static_cast<int64_t>(samples.low.size());
  const int64_t from = b.shape(x)[static_cast<size_t>(axis)];
  auto taken = [&](const Ints& rows) {
    bool same = count == from;
    for (int64_t i = 0; i < count && same; ++i) same = rows[static_cast<size_t>(i)] == i;
    return same ? x : b.add("gather", {x, b.ints(rows)}, {{"axis", axis}});
  };
  const V low = taken(samples.low);
  if (std::all_of(samples.weight.begin(), samples.weight.end(), [](double w) { return w == 0; }))
    return low;
  Shape along(b.shape(x).size(), 1);
  along[static_cast<size_t>(axis)] = count;
  const V weight =
      b.constant(convert(Tensor::from<double>(along, samples.weight, DType::f64), b.dtype(x)));
  return b.add("add", {low, b.add("mul", {b.add("sub", {taken(samples.high), low}), weight})});
}

/// Weights of the four neighbours floor(x) - 1 … floor(x) + 2 of a position, `t` beyond floor(x):
/// Keys' cubic convolution with parameter `a`.
std::array<double, 4> cubic_weights(double t, double a) {
  const auto near = [&](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  const auto far = [&](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

/// The results at these positions of one axis, each the sum of four neighbours. Those outside are
/// the border's, or with `exclude_outside` left out.
V cubic_sampled(Builder& b, V x, int64_t axis, const std::vector<double>& positions, double a,
                bool exclude_outside) {
  const int64_t from = b.shape(x)[static_cast<size_t>(axis)];
  const auto count = static_cast<int64_t>(positions.size());
  std::array<Ints, 4> rows;
  std::array<std::vector<double>, 4> weights;
  bool same = count == from;
  for (size_t i = 0; i < positions.size(); ++i) {
    const double first = std::floor(positions[i]);
    same = same && positions[i] == static_cast<double>(i);
    std::array<double, 4> w = cubic_weights(positions[i] - first, a);
    double sum = 0;
    for (size_t k = 0; k < 4; ++k) {
      const double at = first + static_cast<double>(k) - 1;
      const double inside = std::clamp<double>(at, 0, static_cast<double>(from - 1));
      if (exclude_outside && inside != at) w[k] = 0;
      sum += w[k];
      rows[k].push_back(static_cast<int64_t>(inside));
    }
    for (size_t k = 0; k < 4; ++k) weights[k].push_back(exclude_outside ? w[k] / sum : w[k]);
  }
  if (same) return x;
  Shape along(b.shape(x).size(), 1);
  along[static_cast<size_t>(axis)] = count;
  V out = kNone;
  for (size_t k = 0; k < 4; ++k) {
    const V weight =
        b.constant(convert(Tensor::from<double>(along, weights[k], DType::f64), b.dtype(x)));
    const V part = b.add("mul", {b.add("gather", {x, b.ints(rows[k])}, {{"axis", axis}}), weight});
    out = out == kNone ? part : b.add("add", {out, part});
  }
  return out;
}

/// The results at these positions of an axis that gets smaller, each a mean of all operands that it
/// stands for: of those up to 1 / scale away, or 2 / scale with Keys' cubic of parameter `a` (0:
/// linear). Those outside are the border's, or left out. A product with a constant matrix.
V filtered(NodeContext& c, V x, int64_t axis, const std::vector<double>& positions, double scale,
           double a, bool exclude_outside) {
  Builder& b = c.b;
  const int64_t from = b.shape(x)[static_cast<size_t>(axis)];
  const auto to = static_cast<int64_t>(positions.size());
  SR_REQUIRE(from <= kMostResized, unsupported, "dim ", axis, " of ", b.type(x),
             " is too long for antialias");
  b.budget.check(from * to * 2 * static_cast<int64_t>(sizeof(double)), "the filter of a Resize");
  std::vector<double> matrix(static_cast<size_t>(from * to), 0.0);
  const double reach = (a == 0 ? 1 : 2) / scale;
  for (int64_t o = 0; o < to; ++o) {
    const double middle = positions[static_cast<size_t>(o)];
    double sum = 0;
    std::vector<std::pair<int64_t, double>> taps;
    for (auto at = static_cast<int64_t>(std::ceil(middle - reach));
         static_cast<double>(at) <= middle + reach; ++at) {
      const double distance = std::abs(static_cast<double>(at) - middle) * scale;
      const double beyond = distance - std::floor(distance);
      double weight = std::max(1 - distance, 0.0);
      if (a != 0) weight = distance < 2 ? cubic_weights(beyond, a)[distance < 1 ? 1 : 0] : 0;
      const int64_t inside = std::clamp<int64_t>(at, 0, from - 1);
      if (exclude_outside && inside != at) continue;
      taps.emplace_back(inside, weight);
      sum += weight;
    }
    for (const auto& [at, weight] : taps) matrix[static_cast<size_t>(at * to + o)] += weight / sum;
  }
  const V filter =
      b.constant(convert(Tensor::from<double>(Shape{from, to}, matrix, DType::f64), b.dtype(x)));
  std::vector<int64_t> perm(static_cast<size_t>(b.rank(x)));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[static_cast<size_t>(axis)], perm.back());
  return b.transpose(b.matmul(b.transpose(x, perm), filter), perm);
}

/// Nearest neighbours, or interpolation of two or four: look-ups along each axis that changes.
void resize(NodeContext& c) {
  Builder& b = c.b;
  const std::string mode = c.attr_s("mode", "nearest");
  const bool cubic = mode == "cubic";
  if (mode != "nearest" && mode != "linear" && !cubic)
    c.refuse_attr("mode", "supported are nearest, linear and cubic");
  const std::string coordinates = c.attr_s("coordinate_transformation_mode", "half_pixel");
  const bool known = coordinates == "half_pixel" || coordinates == "pytorch_half_pixel" ||
                     coordinates == "asymmetric" || coordinates == "align_corners" ||
                     coordinates == "half_pixel_symmetric" ||
                     // Of opset 11 and 12; tf2onnx writes it in later ones, too.
                     coordinates == "tf_half_pixel_for_nn";
  if (!known) {
    c.refuse_attr("coordinate_transformation_mode",
                  "supported are half_pixel, half_pixel_symmetric, pytorch_half_pixel, asymmetric, "
                  "align_corners and tf_half_pixel_for_nn");
  }
  const bool antialias = c.attr_i("antialias", 0) != 0 && mode != "nearest";
  // Of other modes, or with sizes only.
  for (const char* name : {"keep_aspect_ratio_policy", "extrapolation_value"}) c.ignore(name);
  const double cubic_a = c.attr_f("cubic_coeff_a", -0.75);
  const bool exclude_outside = c.attr_i("exclude_outside", 0) != 0;
  c.has(1);  // roi: for tf_crop_and_resize alone
  const std::string nearest = c.attr_s("nearest_mode", "round_prefer_floor");
  if (nearest != "round_prefer_floor" && nearest != "round_prefer_ceil" && nearest != "floor" &&
      nearest != "ceil") {
    c.refuse_attr("nearest_mode",
                  "supported are round_prefer_floor, round_prefer_ceil, floor and ceil");
  }
  V x = c.in(0);
  Ints axes = c.attr_ints("axes");
  if (axes.empty()) {
    axes.resize(static_cast<size_t>(b.rank(x)));
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (int64_t& axis : axes) axis = NodeContext::axis(axis, b.rank(x));
  SR_REQUIRE(mode == "nearest" || is_float(b.dtype(x)), unsupported, "mode ", mode, " of ",
             b.type(x), " is not supported; Cast it to a floating type");
  const std::vector<Resized> resized = resized_axes(c, axes);
  constexpr int64_t kPositionBytes = 120;  // with rows and weights of four neighbours
  for (size_t a = 0; a < axes.size(); ++a) {
    b.budget.check(kPositionBytes * resized[a].to, "the positions that it takes");
    const int64_t from = b.shape(x)[static_cast<size_t>(axes[a])];
    std::vector<double> positions;
    for (int64_t i = 0; i < resized[a].to; ++i) {
      positions.push_back(source_position(coordinates, static_cast<double>(i), resized[a].scale,
                                          from, resized[a].to));
    }
    if (antialias && resized[a].scale < 1) {
      x = filtered(c, x, axes[a], positions, resized[a].scale, cubic ? cubic_a : 0,
                   exclude_outside);
      continue;
    }
    if (cubic) {
      x = cubic_sampled(b, x, axes[a], positions, cubic_a, exclude_outside);
      continue;
    }
    Samples samples;
    for (double position : positions) {
      const double first = mode == "nearest" ? rounded(nearest, position) : std::floor(position);
      auto inside = [&](double at) {
        return static_cast<int64_t>(std::clamp<double>(at, 0, static_cast<double>(from - 1)));
      };
      samples.low.push_back(inside(first));
      samples.high.push_back(inside(first + 1));
      samples.weight.push_back(
          mode == "nearest" || samples.low.back() == samples.high.back() ? 0 : position - first);
    }
    x = sampled(b, x, axes[a], samples);
  }
  c.out(x);
}

constexpr Lowering kPoolLowerings[] = {{"MaxPool", 8, max_pool},
                                       {"AveragePool", 7, average_pool},
                                       {"GlobalAveragePool", 1, global_average_pool},
                                       {"GlobalMaxPool", 1, global_max_pool},
                                       {"LpPool", 2, lp_pool},
                                       {"GlobalLpPool", 2, global_lp_pool},
                                       {"Resize", 11, resize}};

}  // namespace

std::span<const Lowering> pool_lowerings() { return kPoolLowerings; }

}  // namespace shardrun::importer
