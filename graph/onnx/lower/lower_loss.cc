// Lowering of losses over classes: SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss, with what
// PyTorch's call has in addition and the operators have no place for.
#include <cmath>
#include <numeric>

#include "graph/onnx/lower/lowering.h"
#include "graph/passes/training.h"

namespace shardrun::importer {
namespace {

/// What a loss is given besides its operands: by the call that it came from, else by the node.
struct LossCall {
  std::string reduction;
  std::optional<int64_t> ignored;  // a label
  double smoothing = 0;            // of labels over all classes, in [0, 1]
};

/// aten.cross_entropy_loss(scores, labels, weight, reduction, ignore_index, label_smoothing); a
/// loss on log-probabilities has the same first five.
LossCall read_loss(NodeContext& c) {
  LossCall out;
  out.reduction = c.attr_s("reduction", "mean");
  if (c.has_attr("ignore_index")) out.ignored = c.attr_i("ignore_index", 0);
  if (out.reduction != "none" && out.reduction != "sum" && out.reduction != "mean")
    c.refuse_attr("reduction", "supported are none, sum and mean");
  const FxCall* call = c.call_of("aten.cross_entropy_loss");
  const bool smooths = call != nullptr;
  for (const char* target : {"aten.nll_loss", "aten.nll_loss_nd", "aten.nll_loss2d"})
    if (call == nullptr) call = c.call_of(target);
  if (call == nullptr) return out;
  const FxArgument* weight = call->find(2, "weight");
  SR_REQUIRE(weight == nullptr || weight->is_none() || c.has(2), unsupported,
             "was called with class weights ", weight->text,
             ", which the exporter left out; multiply the losses by them yourself");
  const double reduction = call->number(3, "reduction", 1);
  out.reduction = reduction == 0 ? "none" : reduction == 2 ? "sum" : "mean";
  const double ignored = call->number(4, "ignore_index", -100);
  if (std::abs(ignored) < 1e15) out.ignored = static_cast<int64_t>(ignored);
  if (smooths) out.smoothing = call->number(5, "label_smoothing", 0);
  SR_REQUIRE(out.smoothing >= 0 && out.smoothing <= 1, invalid_input, "label_smoothing is ",
             out.smoothing, ", wanted 0 to 1");
  return out;
}

/// Reduces per-position losses. `weight` per position is kNone for 1, in which case mean divides by
/// the number of positions.
void reduce_loss(NodeContext& c, const std::string& reduction, V loss, V weight) {
  Builder& b = c.b;
  std::vector<int64_t> axes(b.shape(loss).size());
  std::iota(axes.begin(), axes.end(), 0);
  if (reduction == "none") return c.out(0, loss);
  if (reduction == "sum") return c.out(0, b.sum(loss, axes, false));
  if (weight == kNone) return c.out(0, b.mean(loss, axes, false));
  c.out(0, b.add("div", {b.sum(loss, axes, false), b.sum(weight, axes, false)}));
}

/// 1 for labels that count and 0 for the ignored one; kNone if none is ignored.
V counted_labels(NodeContext& c, V labels, std::optional<int64_t> ignored, DType dtype) {
  if (!ignored) return kNone;
  const V hit = c.b.with("equal", labels, static_cast<double>(*ignored));
  return c.b.cast(c.b.add("logical_not", {hit}), dtype);
}

/// `labels` with 0 in place of the ignored one, so that each is a class.
V safe_labels(NodeContext& c, V labels, std::optional<int64_t> ignored) {
  if (!ignored) return labels;
  const V hit = c.b.with("equal", labels, static_cast<double>(*ignored));
  return c.b.add("where", {hit, c.b.scalar(0, c.b.dtype(labels)), labels});
}

/// Labels, of samples that do not count (NodeContext::counts) the ignored one.
V labels_that_count(NodeContext& c, LossCall& loss) {
  const V labels = c.in(1);
  if (c.counts == kNone) return labels;
  constexpr int64_t kPyTorchsDefault = -100;
  if (!loss.ignored) loss.ignored = kPyTorchsDefault;
  Shape shape(static_cast<size_t>(c.b.rank(labels)), 1);
  shape[0] = c.b.shape(labels)[0];
  const V ignored = c.b.scalar(static_cast<double>(*loss.ignored), c.b.dtype(labels));
  return c.b.add("where", {c.b.reshape(c.counts, shape), labels, ignored});
}

/// The factor kNone is 1.
V times(NodeContext& c, V a, V b) {
  if (a == kNone || b == kNone) return a == kNone ? b : a;
  return c.b.add("mul", {a, b});
}

/// Weight of each position from class weights and `counted`; kNone if all are 1.
V position_weight(NodeContext& c, V labels, const LossCall& loss, V counted) {
  if (!c.has(2)) return counted;
  const V safe = safe_labels(c, labels, loss.ignored);
  return times(c, c.b.add("gather", {c.in(2), safe}, {{"axis", int64_t{0}}}), counted);
}

void check_class_weights(NodeContext& c) {
  SR_REQUIRE(!c.has(2) || c.b.shape(c.in(2)) == Shape{c.b.shape(c.in(0))[1]}, invalid_input,
             "class weights ", c.b.type(c.in(2)), " do not fit ", c.b.shape(c.in(0))[1],
             " classes");
}

void check_labels(NodeContext& c) {
  const Shape &x = c.b.shape(c.in(0)), &y = c.b.shape(c.in(1));
  Shape wanted = x;
  if (wanted.size() >= 2) wanted.erase(wanted.begin() + 1);
  SR_REQUIRE(x.size() >= 2 && y == wanted, invalid_input, "labels ", c.b.type(c.in(1)),
             " do not fit scores ", c.b.type(c.in(0)), "; wanted [N, C, d…] and [N, d…]");
  check_class_weights(c);
}

/// [N, C, d1, d2] to [N, d1, d2, C], and back.
struct ClassesLast {
  std::vector<int64_t> to_last, to_first;

  explicit ClassesLast(int64_t rank) {
    for (int64_t d = 0; d < rank; ++d) {
      if (d != 1) to_last.push_back(d);
    }
    to_last.push_back(1);
    to_first = {0, rank - 1};
    for (int64_t d = 1; d + 1 < rank; ++d) to_first.push_back(d);
  }
};

/// - sum over classes of class weight times log-probability times `probabilities`; kNone is 1.
V weighted_sum(NodeContext& c, V log_p, V probabilities) {
  Builder& b = c.b;
  const V terms = times(c, times(c, log_p, c.has(2) ? c.in(2) : kNone), probabilities);
  return b.add("neg", {b.sum(terms, {b.rank(terms) - 1}, false)});
}

/// Labels that are probabilities of the classes, as F.cross_entropy takes them: a floating tensor
/// like the scores. Their mean divides by the number of positions, whatever the class weights.
void loss_by_shares(NodeContext& c, const LossCall& loss, const ClassesLast& order, V log_p) {
  Builder& b = c.b;
  check_class_weights(c);
  V probabilities = b.cast(b.transpose(c.in(1), order.to_last), b.dtype(log_p));
  if (loss.smoothing > 0) {
    const auto classes = static_cast<double>(b.shape(log_p).back());
    probabilities =
        b.with("add", b.with("mul", probabilities, 1 - loss.smoothing), loss.smoothing / classes);
  }
  V each = weighted_sum(c, log_p, probabilities), counted = kNone;
  if (c.counts != kNone) {
    Shape shape(static_cast<size_t>(b.rank(each)), 1);
    shape[0] = b.shape(each)[0];
    counted = b.expand(b.cast(b.reshape(c.counts, shape), b.dtype(each)), b.shape(each));
  }
  reduce_loss(c, loss.reduction, times(c, each, counted), counted);
}

void loss_by_labels(NodeContext& c, LossCall loss, V last, V log_p) {
  Builder& b = c.b;
  check_labels(c);
  const V labels = labels_that_count(c, loss);
  V each = b.add_n("cross_entropy", {last, labels},
                   {{"ignore_index", loss.ignored.value_or(kNoIgnoredLabel)}})[0];
  const V counted = counted_labels(c, labels, loss.ignored, b.dtype(each));
  const V weight = position_weight(c, labels, loss, counted);
  if (c.has(2)) each = b.add("mul", {each, weight});
  if (loss.smoothing > 0) {
    const double per_class = loss.smoothing / static_cast<double>(b.shape(last).back());
    const V spread = times(c, weighted_sum(c, log_p, kNone), counted);
    each =
        b.add("add", {b.with("mul", each, 1 - loss.smoothing), b.with("mul", spread, per_class)});
  }
  reduce_loss(c, loss.reduction, each, weight);
}

void softmax_cross_entropy(NodeContext& c) {
  Builder& b = c.b;
  const LossCall loss = read_loss(c);
  const V scores = c.in(0);
  SR_REQUIRE(b.rank(scores) >= 2, invalid_input, "scores are ", b.type(scores),
             ", wanted [N, C, d…]");
  const ClassesLast order(b.rank(scores));
  const V last = b.transpose(scores, order.to_last);
  const bool by_shares = is_float(b.dtype(c.in(1))) && b.shape(c.in(1)) == b.shape(scores);
  V log_p = kNone;
  if (by_shares || loss.smoothing > 0 || c.wants(1))
    log_p = b.add("log_softmax", {last}, {{"axis", b.rank(last) - 1}});
  if (c.wants(1)) c.out(1, b.transpose(log_p, order.to_first));
  if (loss.smoothing > 0) c.restored(str("label_smoothing=", loss.smoothing));
  if (by_shares) return loss_by_shares(c, loss, order, log_p);
  loss_by_labels(c, loss, last, log_p);
}

void negative_log_likelihood(NodeContext& c) {
  Builder& b = c.b;
  LossCall loss = read_loss(c);
  check_labels(c);
  const V x = c.in(0), labels = labels_that_count(c, loss);
  const V safe = safe_labels(c, labels, loss.ignored);
  const V picked = b.add("gather_elements", {x, b.unsqueeze(safe, 1)}, {{"axis", int64_t{1}}});
  const V each = b.add("neg", {b.reshape(picked, b.shape(labels))});
  const V counted = counted_labels(c, labels, loss.ignored, b.dtype(each));
  const V weight = position_weight(c, labels, loss, counted);
  reduce_loss(c, loss.reduction, times(c, each, weight), weight);
}

constexpr Lowering kLossLowerings[] = {{"SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy},
                                       {"NegativeLogLikelihoodLoss", 12, negative_log_likelihood}};

}  // namespace

std::span<const Lowering> loss_lowerings() { return kLossLowerings; }

}  // namespace shardrun::importer
