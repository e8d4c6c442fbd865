// Lowering of normalisations.
#include "graph/onnx/lower/spatial.h"

namespace shardrun::importer {
namespace {

/// `v` as a tensor of exactly `shape`, which it may broadcast to.
V fitted(NodeContext& c, V v, const Shape& shape) {
  Shape own = c.b.shape(v);
  while (own.size() > shape.size() && own.front() == 1) own.erase(own.begin());
  SR_REQUIRE(own.size() <= shape.size() && broadcast(own, shape) == shape, invalid_input,
             "scale or bias ", c.b.type(v), " does not fit the normalised dims ", to_string(shape));
  return c.b.expand(c.b.reshape(v, own), shape);
}

void layer_norm(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("stash_type");  // statistics are kept in at least f32
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), b.rank(x));
  const Shape inner(b.shape(x).begin() + axis, b.shape(x).end());
  std::vector<V> inputs = {x, fitted(c, c.in(1), inner)};
  if (c.has(2)) inputs.push_back(fitted(c, c.in(2), inner));
  const std::vector<V> results =
      b.add_n("layer_norm", inputs, {{"axis", axis}, {"eps", c.attr_f("epsilon", 1e-5)}});
  c.out(0, results[0]);
  Shape kept = b.shape(x);
  std::fill(kept.begin() + axis, kept.end(), 1);
  for (size_t i = 1; i < 3; ++i) {
    if (c.wants(i)) c.out(i, b.reshape(results[i], kept));
  }
}

void rms_norm(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("stash_type");
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), b.rank(x));
  const Shape inner(b.shape(x).begin() + axis, b.shape(x).end());
  c.out(b.add_n("rms_norm", {x, fitted(c, c.in(1), inner)},
                {{"axis", axis}, {"eps", c.attr_f("epsilon", 1e-5)}})[0]);
}

/// x [N, C, …] less its mean over each of `groups` equal runs of a sample's channels, over their
/// deviation; then scaled and shifted by one number a channel, [C].
V group_norm(NodeContext& c, V x, int64_t groups, V scale, V bias) {
  Builder& b = c.b;
  const Shape shape = b.shape(x);
  const int64_t channels = shape[1];
  const int64_t size = element_count(Shape(shape.begin() + 2, shape.end())) * (channels / groups);
  const V rows = b.reshape(x, {shape[0], groups, size});
  const V ones = b.fill(1, b.dtype(x), {size});
  const V y = b.reshape(b.add_n("layer_norm", {rows, ones},
                                {{"axis", int64_t{2}}, {"eps", c.attr_f("epsilon", 1e-5)}})[0],
                        shape);
  Shape along(shape.size() - 1, 1);
  along[0] = channels;
  return b.add("add", {b.add("mul", {y, b.reshape(scale, along)}), b.reshape(bias, along)});
}

void check_channels(NodeContext& c, const Shape& wanted) {
  Builder& b = c.b;
  for (size_t i = 1; i < 3; ++i) {
    SR_REQUIRE(b.shape(c.in(i)) == wanted, invalid_input, i == 1 ? "scale is " : "bias is ",
               b.type(c.in(i)), ", wanted ", to_string(wanted), " for x of ", b.type(c.in(0)));
  }
}

void require_channels(NodeContext& c) {
  const TensorType& x = c.b.type(c.in(0));
  SR_REQUIRE(x.shape.size() >= 3 && is_float(x.dtype) && element_count(x.shape) > 0, invalid_input,
             "wants a floating [N, C, d…] with elements, got ", x);
}

void instance_normalization(NodeContext& c) {
  require_channels(c);
  const int64_t channels = c.b.shape(c.in(0))[1];
  check_channels(c, {channels});
  if (lower_tracked_instance_norm(c, c.in(0), c.in(1), c.in(2))) return;
  c.out(group_norm(c, c.in(0), channels, c.in(1), c.in(2)));
}

/// Until opset 21 a scale and a bias per group, then per channel.
void group_normalization(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("stash_type");
  require_channels(c);
  const int64_t channels = b.shape(c.in(0))[1], groups = c.attr_i("num_groups", 0);
  SR_REQUIRE(groups > 0 && channels % groups == 0, invalid_input, "num_groups is ", groups,
             ", which does not divide the ", channels, " channels of x, ", b.type(c.in(0)));
  const bool by_group = c.opset < 21;
  check_channels(c, {by_group ? groups : channels});
  auto per_channel = [&](V v) {
    if (!by_group) return v;
    return b.reshape(b.expand(b.unsqueeze(v, 1), {groups, channels / groups}), {channels});
  };
  c.out(group_norm(c, c.in(0), groups, per_channel(c.in(1)), per_channel(c.in(2))));
}

/// x over its norm along a dim, and 0 where that is 0.
void lp_normalization(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), b.rank(x));
  const int64_t p = c.attr_i("p", 2);
  if (p != 1 && p != 2) c.refuse_attr("p", "supported are 1 and 2");
  const V sum = b.sum(p == 1 ? b.add("abs", {x}) : b.add("mul", {x, x}), {axis}, true);
  // In front of the root, whose gradient at 0 is none.
  const V zero = b.add("equal", {sum, b.scalar(0, b.dtype(x))});
  const V over = b.add("where", {zero, b.scalar(1, b.dtype(x)), sum});
  c.out(b.add("div", {x, p == 1 ? over : b.add("sqrt", {over})}));
}

/// (x - mean) / (deviation + 1e-9)
void mean_variance_normalization(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  std::vector<int64_t> axes = c.attr_ints("axes");
  if (axes.empty()) axes = {0, 2, 3};
  axes = NodeContext::axes(std::move(axes), b.rank(x));
  const V centred = b.add("sub", {x, b.mean(x, axes, true)});
  const V deviation = b.add("sqrt", {b.mean(b.add("mul", {centred, centred}), axes, true)});
  c.out(b.add("div", {centred, b.with("add", deviation, 1e-9)}));
}

/// Over a power of the squares of neighbouring channels: x / (bias + alpha / size * sum)^beta.
void local_response_normalization(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  require_image(c, x);
  const int64_t size = c.attr_i("size", 0);
  const Shape shape = b.shape(x);
  SR_REQUIRE(size > 0 && size <= 2 * shape[1], invalid_input, "size is ", size, ", x is ",
             b.type(x));
  // As an image whose rows are the channels.
  const int64_t elements = element_count(spatial_of(shape));
  const V squares = b.reshape(b.add("mul", {x, x}), {shape[0], 1, shape[1], elements});
  const std::vector<Window> windows = {{size, 1, 1, (size - 1) / 2, size / 2}, {1, 1, 1, 0, 0}};
  Attrs attrs = window_attrs(windows, true);
  attrs.set("kernel", kernel_of(windows));
  const V sum = b.reshape(b.add("sum_pool", {squares}, std::move(attrs)), shape);
  const double alpha = c.attr_f("alpha", 1e-4) / static_cast<double>(size);
  const V base = b.with("add", b.with("mul", sum, alpha), c.attr_f("bias", 1));
  c.out(b.add("div", {x, b.with("pow", base, c.attr_f("beta", 0.75))}));
}

constexpr Lowering kNnLowerings[] = {{"LpNormalization", 1, lp_normalization},
                                     {"MeanVarianceNormalization", 9, mean_variance_normalization},
                                     {"LRN", 1, local_response_normalization},
                                     {"LayerNormalization", 17, layer_norm},
                                     {"RMSNormalization", 23, rms_norm},
                                     {"InstanceNormalization", 6, instance_normalization},
                                     {"GroupNormalization", 18, group_normalization}};

}  // namespace

std::span<const Lowering> nn_lowerings() { return kNnLowerings; }

}  // namespace shardrun::importer
