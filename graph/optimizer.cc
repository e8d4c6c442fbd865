// Appends accumulation, clipping and the update to a Graph.
#include "graph/optimizer.h"

#include "graph/autodiff.h"

namespace shardrun {
namespace {

// What state is called, before its parameter's name.
constexpr const char *kMomentum = "momentum/", *kFirstMoment = "adam_m/",
                     *kSecondMoment = "adam_v/";

ValueId fill(Graph& graph, DType dtype, double value, const std::string& name) {
  return graph.add("fill", {},
                   {{"shape", std::vector<int64_t>{}},
                    {"dtype", std::string(to_string(dtype))},
                    {"value", value}},
                   name);
}

ValueId as(Graph& graph, ValueId value, DType dtype) {
  if (graph.type(value).dtype == dtype) return value;
  return graph.add("cast", {value}, {{"to", std::string(to_string(dtype))}});
}

ValueId scalar_input(Graph& graph, const char* name, DType dtype) {
  const ValueId found = graph.find(name);
  return found != kNoValue ? found : graph.add_input(name, {dtype, {}}, Role::scalar);
}

/// sqrt(sum of squares of all gradients).
ValueId global_norm(Graph& graph, const std::vector<ValueId>& grads) {
  ValueId total = kNoValue;
  for (ValueId grad : grads) {
    const ValueId squares =
        as(graph, graph.add("reduce_sum_squares", {grad}, {}, "update/grad_squares"), DType::f32);
    total = total == kNoValue ? squares
                              : graph.add("add", {total, squares}, {}, "update/grad_squares_sum");
  }
  return graph.add("sqrt", {total}, {}, "update/grad_norm");
}

/// `scale`, or NaN where one of these numbers is not finite: with that, nothing is updated
/// (graph/ops/optimizer.cc).
ValueId if_finite(Graph& graph, ValueId scale, const std::vector<ValueId>& numbers) {
  const ValueId zero = fill(graph, DType::f32, 0.0, "update/zero");
  for (ValueId number : numbers) {
    const ValueId nothing =
        graph.add("mul", {as(graph, number, DType::f32), zero}, {}, "update/if_finite");
    scale = graph.add("add", {scale, nothing}, {}, "update/scale");
  }
  return scale;
}

/// Holds a running sum over micro-batches: `sum += value` in every micro-batch, zero again at the
/// start of the next step. Returns the sum as the update phase sees it.
ValueId accumulate(Graph& graph, ValueId value, const std::string& name) {
  const ValueId sum = graph.add_persistent(name, graph.type(value), Role::state, Source{});
  const ValueId next = graph.add("add", {sum, value}, {}, name + "/add");
  graph.updates[sum] = next;
  graph.zeroed_each_step.insert(sum);
  return next;
}

}  // namespace

void attach_optimizer(Graph& graph, const OptimizerOptions& options) {
  SR_REQUIRE(options.kind == "adamw" || options.kind == "adam" || options.kind == "sgd",
             invalid_input, "optimizer '", options.kind, "' is not one of adamw, adam, sgd");
  SR_REQUIRE(!options.nesterov || (options.kind == "sgd" && options.momentum > 0), invalid_input,
             "nesterov wants the optimizer sgd with a momentum above 0, got ", options.kind,
             " and ", options.momentum);
  SR_REQUIRE(options.accumulate >= 1, invalid_input, "accumulate is ", options.accumulate,
             ", wanted 1 or more");
  SR_REQUIRE(graph.loss != kNoValue, invalid_input, "the graph has no loss");
  graph.micro_batches = options.accumulate;
  std::vector<ValueId> params;
  for (ValueId id : graph.with_role(Role::parameter)) {
    const auto it = graph.trainable.find(id);
    if (it != graph.trainable.end() && it->second) params.push_back(id);
  }
  SR_REQUIRE(!params.empty(), invalid_input, "no parameter is trainable");
  // What the loss reads of each: where forward() changes one, the update goes on from there. (Once:
  // after a second change PyTorch has lost what the gradient of the first use needs.)
  std::vector<ValueId> read;
  for (ValueId id : params) {
    const auto changed = graph.updates.find(id);
    read.push_back(changed == graph.updates.end() ? id : changed->second);
  }

  ValueId loss = graph.loss;
  ValueId scaled_loss = loss;
  if (options.accumulate > 1) {
    const DType dtype = graph.type(loss).dtype;
    scaled_loss =
        graph.add("mul", {loss, fill(graph, dtype, 1.0 / options.accumulate, "accumulate/share")},
                  {}, "loss/share");
  }
  std::vector<ValueId> grads = differentiate(graph, scaled_loss, read);
  for (size_t i = 0; i < params.size(); ++i) {
    SR_REQUIRE(grads[i] != kNoValue, invalid_input, "parameter '", graph.value(params[i]).name,
               "' is trainable but the loss does not depend on it; freeze it");
    grads[i] = as(graph, grads[i], graph.type(params[i]).dtype);
  }
  if (options.accumulate > 1) {
    for (size_t i = 0; i < params.size(); ++i) {
      grads[i] = accumulate(graph, grads[i], "accumulated/" + graph.value(params[i]).name);
    }
    loss = accumulate(graph, scaled_loss, "accumulated/loss");
  }

  graph.phase = Phase::update;
  const ValueId lr = scalar_input(graph, kLearningRate, DType::f32);
  const ValueId step = scalar_input(graph, kStep, DType::i64);
  const ValueId norm = global_norm(graph, grads);
  ValueId clip_scale;
  if (options.clip_norm > 0) {
    // min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_
    const ValueId safe = graph.add("add", {norm, fill(graph, DType::f32, 1e-6, "update/clip_eps")},
                                   {}, "update/clip_safe");
    const ValueId ratio =
        graph.add("div", {fill(graph, DType::f32, options.clip_norm, "update/clip_norm"), safe}, {},
                  "update/clip_ratio");
    clip_scale = graph.add("clip", {ratio}, {{"max", 1.0}}, "update/clip_scale");
  } else {
    clip_scale = fill(graph, DType::f32, 1.0, "update/clip_scale");
  }
  clip_scale = if_finite(graph, clip_scale, {loss, norm});
  for (size_t i = 0; i < params.size(); ++i) {
    const ValueId p = params[i];
    const std::string name = graph.value(p).name;
    const TensorType type = graph.type(p);
    const Shape file_shape = graph.file_shape(p);
    const double decay = options.decay_all || file_shape.size() >= 2 ? options.weight_decay : 0.0;
    const auto add_state = [&](const char* what) {
      const ValueId id = graph.add_persistent(what + name, type, Role::state, Source{});
      if (file_shape != type.shape) graph.file_shapes[id] = file_shape;
      return id;
    };
    if (options.kind == "sgd") {
      const ValueId buffer = add_state(kMomentum);
      const auto next = graph.add_node("sgd", {read[i], grads[i], buffer, lr, step, clip_scale},
                                       {{"momentum", options.momentum},
                                        {"weight_decay", decay},
                                        {"nesterov", int64_t{options.nesterov}}},
                                       "update/" + name);
      graph.updates[p] = next[0];
      graph.updates[buffer] = next[1];
    } else {
      const ValueId m = add_state(kFirstMoment);
      const ValueId v = add_state(kSecondMoment);
      const auto next = graph.add_node("adamw", {read[i], grads[i], m, v, lr, step, clip_scale},
                                       {{"beta1", options.beta1},
                                        {"beta2", options.beta2},
                                        {"eps", options.eps},
                                        {"weight_decay", decay},
                                        {"decoupled", int64_t{options.kind == "adamw"}}},
                                       "update/" + name);
      graph.updates[p] = next[0];
      graph.updates[m] = next[1];
      graph.updates[v] = next[2];
    }
  }
  graph.metrics["loss"] = loss;
  graph.metrics["grad_norm"] = norm;
  graph.phase = Phase::micro;
}

std::string parameter_of_state(const std::string& name) {
  for (const std::string before : {kMomentum, kFirstMoment, kSecondMoment})
    if (name.starts_with(before)) return name.substr(before.size());
  return "";
}

}  // namespace shardrun
