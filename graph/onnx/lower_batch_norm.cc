// Lowering of BatchNormalization: by the batch's own statistics or by stored ones.
#include <algorithm>
#include <numeric>

#include "graph/onnx/lowering.h"
#include "graph/onnx/written_batch_norm.h"

namespace shardrun::importer {
namespace {

/// Opset 14 has an attribute for it; before, five outputs (or any but the first) meant training.
bool exported_for_training(const ::onnx::NodeProto& node, int64_t opset) {
  if (opset < 14) return node.output_size() > 1;
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

/// What a running statistic is after the nodes so far: a module that is called twice moves it
/// twice.
V latest(NodeContext& c, V v) {
  Builder& b = c.b;
  if (b.known(v) != nullptr) return v;
  const auto moved = b.graph.updates.find(b.id(v));
  return moved == b.graph.updates.end() ? v : b.value(moved->second);
}

void update(NodeContext& c, V running, V next) {
  Builder& b = c.b;
  if (b.known(running) != nullptr) return;
  const ValueId id = b.id(running);
  if (b.graph.value(id).role == Role::state) b.graph.updates[id] = b.id(next);
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
  } else {
    const int64_t count = element_count(b.shape(x)) / std::max<int64_t>(1, b.shape(x)[1]);
    SR_REQUIRE(!b.options.training || count > 1, invalid_input, "a batch of ", b.type(x),
               " has one value per channel, and so no variance; use a larger batch");
    const V old_mean = mean, old_variance = variance;
    const std::vector<V> now =
        b.add_n("batch_statistics", {b.add("batch_moments", {x})},
                {{"count", std::max<int64_t>(1, count)}, {"dtype", std::string(to_string(wide))}});
    mean = now[0], variance = now[1];
    // PyTorch's running variance is the unbiased one, ONNX's the population's.
    const bool unbiased =
        b.options.training && b.options.statistics == ImportOptions::Statistics::pytorch;
    const double unbias =
        unbiased ? static_cast<double>(count) / static_cast<double>(count - 1) : 1.0;
    const std::vector<V> next = b.add_n(
        "running_statistics", {latest(c, old_mean), latest(c, old_variance), mean, variance},
        {{"momentum", 1 - momentum}, {"unbias", unbias}});
    update(c, old_mean, next[0]);
    update(c, old_variance, next[1]);
    for (size_t i = 1; i < 3; ++i) {
      if (c.wants(i)) c.out(i, next[i - 1]);
    }
    for (size_t i = 3; i < 5; ++i) {  // before opset 14: what was saved for the gradient
      if (c.wants(i)) c.out(i, now[i - 3]);
    }
    c.report.batch_statistics += 1;
    c.report.promoted += form == BatchNormForm::promoted;
  }
  c.out(0,
        b.transpose(b.add("batch_norm", {x, mean, variance, scale, bias}, {{"eps", eps}}), perm));
}

constexpr Lowering kTable[] = {{"BatchNormalization", 9, batch_norm}};

}  // namespace

std::span<const Lowering> batch_norm_lowerings() { return kTable; }

}  // namespace shardrun::importer
