// Lowering of normalisations and losses.
#include <numeric>

#include "graph/onnx/lowering.h"
#include "graph/passes/training.h"

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

/// Active only where the export says training_mode=true and the import is for training.
struct LossShape {
  std::vector<int64_t> to_last;  // permutes [N, C, d1, d2] to [N, d1, d2, C]
  std::vector<int64_t> to_first;
};

LossShape loss_shape(int64_t rank) {
  LossShape out;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != 1) out.to_last.push_back(d);
  }
  out.to_last.push_back(1);
  out.to_first = {0, rank - 1};
  for (int64_t d = 1; d + 1 < rank; ++d) out.to_first.push_back(d);
  return out;
}

/// Reduces per-position losses. `weight` per position is kNone for 1, in which case mean divides by
/// the number of positions.
void reduce_loss(NodeContext& c, V loss, V weight) {
  Builder& b = c.b;
  const std::string reduction = c.attr_s("reduction", "mean");
  std::vector<int64_t> axes(b.shape(loss).size());
  std::iota(axes.begin(), axes.end(), 0);
  if (reduction == "none") return c.out(0, loss);
  if (reduction == "sum") return c.out(0, b.sum(loss, axes, false));
  if (reduction != "mean") c.refuse_attr("reduction", "supported are none, sum and mean");
  if (weight == kNone) return c.out(0, b.mean(loss, axes, false));
  c.out(0, b.add("div", {b.sum(loss, axes, false), b.sum(weight, axes, false)}));
}

/// Weight of each position from class weights and the ignored label; kNone if all are 1.
V position_weight(NodeContext& c, V labels, std::optional<int64_t> ignore, DType dtype) {
  Builder& b = c.b;
  V weight = kNone;
  V keep = kNone;
  if (ignore) keep = b.add("logical_not", {b.with("equal", labels, static_cast<double>(*ignore))});
  if (c.has(2)) {
    V safe = labels;
    if (ignore) safe = b.add("where", {keep, labels, b.scalar(0, b.dtype(labels))});
    weight = b.add("gather", {c.in(2), safe}, {{"axis", int64_t{0}}});
  }
  if (ignore) {
    const V counted = b.cast(keep, dtype);
    weight = weight == kNone ? counted : b.add("mul", {weight, counted});
  }
  return weight;
}

std::optional<int64_t> ignored_label(NodeContext& c) {
  if (!c.has_attr("ignore_index")) return std::nullopt;
  return c.attr_i("ignore_index", 0);
}

void check_labels(NodeContext& c) {
  const Shape &x = c.b.shape(c.in(0)), &y = c.b.shape(c.in(1));
  Shape wanted = x;
  if (wanted.size() >= 2) wanted.erase(wanted.begin() + 1);
  SR_REQUIRE(x.size() >= 2 && y == wanted, invalid_input, "labels ", c.b.type(c.in(1)),
             " do not fit scores ", c.b.type(c.in(0)), "; wanted [N, C, d…] and [N, d…]");
  SR_REQUIRE(!c.has(2) || c.b.shape(c.in(2)) == Shape{x[1]}, invalid_input, "class weights ",
             c.b.type(c.in(2)), " do not fit ", x[1], " classes");
}

void softmax_cross_entropy(NodeContext& c) {
  Builder& b = c.b;
  check_labels(c);
  const V scores = c.in(0), labels = c.in(1);
  const std::optional<int64_t> ignore = ignored_label(c);
  const LossShape order = loss_shape(b.rank(scores));
  const V last = b.transpose(scores, order.to_last);
  V loss = b.add_n("cross_entropy", {last, labels},
                   {{"ignore_index", ignore.value_or(kNoIgnoredLabel)}})[0];
  const V weight = position_weight(c, labels, ignore, b.dtype(loss));
  if (c.has(2)) loss = b.add("mul", {loss, weight});
  reduce_loss(c, loss, weight);
  if (c.wants(1)) {
    c.out(1,
          b.transpose(b.add("log_softmax", {last}, {{"axis", b.rank(last) - 1}}), order.to_first));
  }
}

void negative_log_likelihood(NodeContext& c) {
  Builder& b = c.b;
  check_labels(c);
  const V x = c.in(0), labels = c.in(1);
  const std::optional<int64_t> ignore = ignored_label(c);
  V safe = labels;
  if (ignore) {
    const V hit = b.with("equal", labels, static_cast<double>(*ignore));
    safe = b.add("where", {hit, b.scalar(0, b.dtype(labels)), labels});
  }
  const V picked = b.add("gather_elements", {x, b.unsqueeze(safe, 1)}, {{"axis", int64_t{1}}});
  V loss = b.add("neg", {b.reshape(picked, b.shape(labels))});
  const V weight = position_weight(c, labels, ignore, b.dtype(loss));
  if (weight != kNone) loss = b.add("mul", {loss, weight});
  reduce_loss(c, loss, weight);
}

constexpr Lowering kTable[] = {{"LayerNormalization", 17, layer_norm},
                               {"RMSNormalization", 23, rms_norm},
                               {"InstanceNormalization", 6, instance_normalization},
                               {"GroupNormalization", 18, group_normalization},
                               {"SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy},
                               {"NegativeLogLikelihoodLoss", 12, negative_log_likelihood}};

}  // namespace

std::span<const Lowering> nn_lowerings() { return kTable; }

}  // namespace shardrun::importer
