// Lowering of BatchNormalization: by the batch's own statistics or by stored ones.
#include <algorithm>
#include <numeric>

#include "graph/onnx/exporter/written_batch_norm.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// Opset 14 has an attribute for it, and three outputs; before, five (or any but the first) meant
/// training. PyTorch's older exporter writes an instance normalisation so in any opset.
bool exported_for_training(const ::onnx::NodeProto& node, int64_t opset) {
  if (opset < 14 || node.output_size() > 3) return node.output_size() > 1;
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == "training_mode") return attribute.i() != 0;
  }
  return false;
}

/// PyTorch's newer exporter writes every batch normalisation in inference form, but keeps the call:
/// aten._native_batch_norm_legit_functional(x, weight, bias, mean, var, True, 0.1, 1e-05).
bool traced_in_training(const ::onnx::NodeProto& node) {
  const std::optional<FxCall> call = fx_call_of(node);
  return call && batch_norm_trains(*call).value_or(false);
}

}  // namespace

BatchNormForm batch_norm_form(const ::onnx::NodeProto& node, int64_t opset,
                              const ImportOptions& options) {
  if (exported_for_training(node, opset)) return BatchNormForm::training;
  if (!options.training) return BatchNormForm::inference;
  if (options.mode == ImportOptions::Mode::train) return BatchNormForm::promoted;
  return traced_in_training(node) ? BatchNormForm::promoted : BatchNormForm::inference;
}

namespace {

/// The state whose numbers a running statistic has, once or, where it is for each sample of an
/// instance normalisation, several times. kNoValue: it is a constant and stays.
ValueId state_of(Builder& b, V running) {
  static const std::set<std::string> spreads = {"cast", "expand", "reshape", "tile"};
  if (b.known(running) != nullptr) return kNoValue;
  ValueId id = b.id(running);
  for (NodeId n = b.graph.value(id).producer; n >= 0 && spreads.count(b.graph.node(n).op) > 0;
       n = b.graph.value(id).producer)
    id = b.graph.node(n).inputs[0];
  return b.graph.value(id).role == Role::state ? id : kNoValue;
}

/// [C] as [repeats * C].
V repeated(Builder& b, V v, int64_t repeats) {
  const int64_t channels = b.shape(v)[0];
  return b.reshape(b.expand(b.reshape(v, {1, channels}), {repeats, channels}),
                   {repeats * channels});
}

int64_t repeats_of(Builder& b, V running, ValueId state) {
  return b.shape(running)[0] / std::max<int64_t>(1, b.graph.type(state).shape[0]);
}

/// What a running statistic is after the nodes so far: a module that is called twice moves it
/// twice.
V latest(NodeContext& c, V running) {
  const ValueId state = state_of(c.b, running);
  const auto moved = c.b.graph.updates.find(state);
  if (moved == c.b.graph.updates.end()) return running;
  return repeated(c.b, c.b.value(moved->second), repeats_of(c.b, running, state));
}

/// The same for what only reads it, and has no gradient.
V latest_read(NodeContext& c, V running) {
  if (c.b.graph.updates.count(state_of(c.b, running)) == 0) return running;
  return c.b.add("identity", {latest(c, running)}, {{"detach", int64_t{1}}});
}

void update(NodeContext& c, V running, V next) {
  Builder& b = c.b;
  const ValueId state = state_of(b, running);
  if (state == kNoValue) return;
  const int64_t repeats = repeats_of(b, running, state);
  if (repeats > 1)
    next = b.mean(b.reshape(next, {repeats, b.shape(next)[0] / repeats}), {0}, false);
  b.graph.updates[state] = b.id(next);
}

/// What normalises by the batch: its statistics, and the running ones after it.
struct Statistics {
  V mean, variance, next_mean, next_variance;
};

/// Of x [N, C, …]; moves what is behind `running`. `momentum`: the new statistics' weight.
Statistics batch_statistics(NodeContext& c, V x, V running_mean, V running_variance,
                            double momentum) {
  Builder& b = c.b;
  const int64_t count = element_count(b.shape(x)) / std::max<int64_t>(1, b.shape(x)[1]);
  SR_REQUIRE(!b.options.training || count > 1, invalid_input, "a batch of ", b.type(x),
             " has one value per channel, and so no variance; use a larger batch");
  const std::vector<V> now = b.add_n("batch_statistics", {b.add("batch_moments", {x})},
                                     {{"count", std::max<int64_t>(1, count)},
                                      {"dtype", std::string(to_string(b.dtype(running_mean)))}});
  // PyTorch's running variance is the unbiased one, ONNX's the population's.
  const bool unbiased =
      b.options.training && b.options.statistics == ImportOptions::Statistics::pytorch;
  const double unbias =
      unbiased ? static_cast<double>(count) / static_cast<double>(count - 1) : 1.0;
  const std::vector<V> next = b.add_n(
      "running_statistics", {latest(c, running_mean), latest(c, running_variance), now[0], now[1]},
      {{"momentum", momentum}, {"unbias", unbias}});
  update(c, running_mean, next[0]);
  update(c, running_variance, next[1]);
  return {now[0], now[1], next[0], next[1]};
}

/// Which dim of x the channels are. What was written out says it by the shape that scales x.
int64_t channel_axis(NodeContext& c, V x) {
  if (c.proto.domain() != kWrittenOut) return 1;
  const Shape& factor = c.b.shape(c.in(5));
  const auto channels = std::find_if(factor.begin(), factor.end(), [](int64_t d) { return d > 1; });
  const int64_t axis = c.b.rank(x) - (factor.end() - channels);
  SR_REQUIRE(axis >= 0, invalid_input, "channels ", c.b.type(c.in(5)), " of ", c.b.type(x));
  return axis;
}

void batch_norm(NodeContext& c) {
  Builder& b = c.b;
  V x = c.in(0);
  SR_REQUIRE(b.rank(x) >= 2 && is_float(b.dtype(x)), invalid_input,
             "wants a floating [N, C, …], got ", b.type(x));
  if (c.attr_i("spatial", 1) != 1) c.refuse_attr("spatial", "statistics are per channel");
  const DType wide = b.dtype(x) == DType::f64 ? DType::f64 : DType::f32;
  std::vector<int64_t> perm(b.shape(x).size());  // its own inverse
  std::iota(perm.begin(), perm.end(), int64_t{0});
  std::swap(perm[1], perm[static_cast<size_t>(channel_axis(c, x))]);
  x = b.transpose(x, perm);
  auto channels = [&](size_t i) { return b.cast(c.in(i), wide); };
  auto optional = [&](size_t i, double otherwise) {
    const bool absent = c.proto.domain() == kWrittenOut && !c.has(i);
    return absent ? b.fill(otherwise, wide, b.shape(c.in(3))) : channels(i);
  };
  const V scale = optional(1, 1), bias = optional(2, 0);
  V mean = channels(3), variance = channels(4);
  const double momentum = c.attr_f("momentum", 0.9), eps = c.attr_f("epsilon", 1e-5);
  c.attr_i("training_mode", 0);
  const BatchNormForm form = batch_norm_form(c.proto, c.opset, b.options);
  if (form == BatchNormForm::inference) {
    c.report.stored_statistics += b.options.training;
    mean = latest_read(c, mean), variance = latest_read(c, variance);
  } else {
    const Statistics s = batch_statistics(c, x, mean, variance, 1 - momentum);
    mean = s.mean, variance = s.variance;
    if (momentum == 0 && b.options.training) {
      c.note(
          str("batch normalisation '", b.node_name,
              "' was exported with momentum 0: validation normalises by the last batch's "
              "statistics; PyTorch's exporter writes momentum=None so, and its averages over all "
              "batches are lost"));
    }
    // Behind the running ones, before opset 14: what was saved for the gradient.
    const V results[] = {s.next_mean, s.next_variance, s.mean, s.variance};
    for (size_t i = 1; i < 5; ++i) {
      if (c.wants(i)) c.out(i, results[i - 1]);
    }
    c.report.batch_statistics += 1;
    c.report.promoted += form == BatchNormForm::promoted;
  }
  c.out(0,
        b.transpose(b.add("batch_norm", {x, mean, variance, scale, bias}, {{"eps", eps}}), perm));
}

constexpr Lowering kBatchNormLowerings[] = {{"BatchNormalization", 9, batch_norm}};

}  // namespace

bool lower_tracked_instance_norm(NodeContext& c, V x, V scale, V bias) {
  Builder& b = c.b;
  const FxCall* call = c.call_of("aten.instance_norm");
  if (call == nullptr || !b.options.training || !call->flag(5, "use_input_stats", false))
    return false;
  const FxArgument *mean = call->find(3, "running_mean"), *variance = call->find(4, "running_var");
  if (mean == nullptr || mean->value().empty() || variance == nullptr || variance->value().empty())
    return false;
  const Shape shape = b.shape(x);
  const int64_t samples = shape[0], channels = shape[1];
  Shape rows = shape;
  rows[0] = 1, rows[1] = samples * channels;
  const DType wide = b.dtype(x) == DType::f64 ? DType::f64 : DType::f32;
  const auto each = [&](V v) { return repeated(b, b.cast(v, wide), samples); };
  const V by_sample = b.reshape(x, rows);
  const TensorType kept{wide, {channels}};
  const V running_mean = each(c.add_state(mean->value(), kept, 0));
  const V running_variance = each(c.add_state(variance->value(), kept, 1));
  const Statistics s = batch_statistics(c, by_sample, running_mean, running_variance,
                                        call->number(6, "momentum", 0.1));
  c.out(b.reshape(b.add("batch_norm", {by_sample, s.mean, s.variance, each(scale), each(bias)},
                        {{"eps", c.attr_f("epsilon", 1e-5)}}),
                  shape));
  return true;
}

std::span<const Lowering> batch_norm_lowerings() { return kBatchNormLowerings; }

}  // namespace shardrun::importer
