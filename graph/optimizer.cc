// Appends accumulation, clipping and the update to a Graph.
#include "graph/optimizer.h"

#include "graph/autodiff.h"

namespace shardrun {
namespace {

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

void check_options(const OptimizerOptions& options) {
  SR_REQUIRE(!options.nesterov || (options.kind == OptimizerKind::sgd && options.momentum > 0),
             invalid_input, "nesterov wants the optimizer sgd with a momentum above 0, got ",
             name_of(kOptimizers, options.kind), " and ", options.momentum);
  const OptimizerOptions usual;
  const bool sgd = options.kind == OptimizerKind::sgd;
  SR_REQUIRE(sgd || options.momentum == usual.momentum, invalid_input, "momentum is ",
             options.momentum, ", which the optimizer sgd has, and ",
             name_of(kOptimizers, options.kind), " has not");
  SR_REQUIRE(!sgd || (options.beta1 == usual.beta1 && options.beta2 == usual.beta2 &&
                      options.eps == usual.eps),
             invalid_input, "beta1, beta2 and eps are ", options.beta1, ", ", options.beta2,
             " and ", options.eps, ", which the optimizers adamw and adam have, and sgd has not");
  SR_REQUIRE(!options.decay_all || options.weight_decay > 0, invalid_input,
             "decay-all is of weight decay, and that is ", options.weight_decay);
  SR_REQUIRE(options.accumulate >= 1, invalid_input, "accumulate is ", options.accumulate,
             ", wanted 1 or more");
}

std::vector<ValueId> trained_parameters(const Graph& graph) {
  std::vector<ValueId> params;
  for (ValueId id : graph.with_role(Role::parameter)) {
    const auto it = graph.trainable.find(id);
    if (it != graph.trainable.end() && it->second) params.push_back(id);
  }
  SR_REQUIRE(!params.empty(), invalid_input, "no parameter is trainable");
  return params;
}

/// What the loss reads of each: where forward() changes one, the update goes on from there. (Once:
/// after a second change PyTorch has lost what the gradient of the first use needs.)
std::vector<ValueId> as_read(const Graph& graph, const std::vector<ValueId>& params) {
  std::vector<ValueId> read;
  for (ValueId id : params) {
    const auto changed = graph.updates.find(id);
    read.push_back(changed == graph.updates.end() ? id : changed->second);
  }
  return read;
}

/// The gradients of `params` over all micro-batches; `loss` becomes the mean over them.
std::vector<ValueId> accumulated_gradients(Graph& graph, const std::vector<ValueId>& params,
                                           const std::vector<ValueId>& read, int64_t micro_batches,
                                           ValueId& loss) {
  ValueId scaled_loss = loss;
  if (micro_batches > 1) {
    const DType dtype = graph.type(loss).dtype;
    scaled_loss =
        graph.add("mul", {loss, fill(graph, dtype, 1.0 / micro_batches, "accumulate/share")}, {},
                  "loss/share");
  }
  std::vector<ValueId> grads = differentiate(graph, scaled_loss, read);
  for (size_t i = 0; i < params.size(); ++i) {
    SR_REQUIRE(grads[i] != kNoValue, invalid_input, "parameter '", graph.value(params[i]).name,
               "' is trainable but the loss does not depend on it; freeze it");
    grads[i] = as(graph, grads[i], graph.type(params[i]).dtype);
  }
  if (micro_batches > 1) {
    for (size_t i = 0; i < params.size(); ++i) {
      grads[i] = accumulate(graph, grads[i], kAccumulatedPrefix + graph.value(params[i]).name);
    }
    loss = accumulate(graph, scaled_loss, std::string(kAccumulatedPrefix) + "loss");
  }
  return grads;
}

/// min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 where nothing is clipped.
ValueId clip_scale(Graph& graph, ValueId norm, double clip_norm) {
  if (!(clip_norm > 0)) return fill(graph, DType::f32, 1.0, "update/clip_scale");
  const ValueId safe = graph.add("add", {norm, fill(graph, DType::f32, 1e-6, "update/clip_eps")},
                                 {}, "update/clip_safe");
  const ValueId ratio =
      graph.add("div", {fill(graph, DType::f32, clip_norm, "update/clip_norm"), safe}, {},
                "update/clip_ratio");
  return graph.add("clip", {ratio}, {{"max", 1.0}}, "update/clip_scale");
}

/// The scalars that every update reads.
struct UpdateScalars {
  ValueId lr, step, clip_scale;
};

/// Parameter `p`, which the loss reads as `read`, becomes the optimizer's next; so does its state.
void add_update(Graph& graph, const OptimizerOptions& options, ValueId p, ValueId read,
                ValueId grad, const UpdateScalars& scalars) {
  const std::string name = graph.value(p).name;
  const TensorType type = graph.type(p);
  const Shape file_shape = graph.file_shape(p);
  const double decay = options.decay_all || file_shape.size() >= 2 ? options.weight_decay : 0.0;
  const auto [lr, step, scale] = scalars;
  const auto add_state = [&](const char* what) {
    const ValueId id = graph.add_persistent(what + name, type, Role::state, Source{});
    if (file_shape != type.shape) graph.file_shapes[id] = file_shape;
    return id;
  };
  if (options.kind == OptimizerKind::sgd) {
    const ValueId buffer = add_state(kMomentumPrefix);
    const auto next = graph.add_node("sgd", {read, grad, buffer, lr, step, scale},
                                     {{"momentum", options.momentum},
                                      {"weight_decay", decay},
                                      {"nesterov", int64_t{options.nesterov}}},
                                     "update/" + name);
    graph.updates[p] = next[0];
    graph.updates[buffer] = next[1];
  } else {
    const ValueId m = add_state(kFirstMomentPrefix);
    const ValueId v = add_state(kSecondMomentPrefix);
    const auto next = graph.add_node("adamw", {read, grad, m, v, lr, step, scale},
                                     {{"beta1", options.beta1},
                                      {"beta2", options.beta2},
                                      {"eps", options.eps},
                                      {"weight_decay", decay},
                                      {"decoupled", int64_t{options.kind == OptimizerKind::adamw}}},
                                     "update/" + name);
    graph.updates[p] = next[0];
    graph.updates[m] = next[1];
    graph.updates[v] = next[2];
  }
}

}  // namespace

void attach_optimizer(Graph& graph, const OptimizerOptions& options) {
  check_options(options);
  SR_REQUIRE(graph.loss != kNoValue, invalid_input, "the graph has no loss");
  graph.micro_batches = options.accumulate;
  const std::vector<ValueId> params = trained_parameters(graph);
  const std::vector<ValueId> read = as_read(graph, params);
  ValueId loss = graph.loss;
  const std::vector<ValueId> grads =
      accumulated_gradients(graph, params, read, options.accumulate, loss);

  graph.phase = Phase::update;
  const ValueId lr = scalar_input(graph, kLearningRate, DType::f32);
  const ValueId step = scalar_input(graph, kStep, DType::i64);
  const ValueId norm = global_norm(graph, grads);
  const ValueId scale = if_finite(graph, clip_scale(graph, norm, options.clip_norm), {loss, norm});
  for (size_t i = 0; i < params.size(); ++i)
    add_update(graph, options, params[i], read[i], grads[i], {lr, step, scale});
  graph.metrics["loss"] = loss;
  graph.metrics["grad_norm"] = norm;
  graph.phase = Phase::micro;
}

std::string parameter_of_state(const std::string& name) {
  for (const std::string before : {kMomentumPrefix, kFirstMomentPrefix, kSecondMomentPrefix})
    if (name.starts_with(before)) return name.substr(before.size());
  return "";
}

}  // namespace shardrun
