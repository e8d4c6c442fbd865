// Loss, evaluation form, bf16 form, trainability.
#include "graph/passes/training.h"

#include <algorithm>
#include <set>

#include "graph/op_def.h"
#include "graph/passes/rebuild.h"

namespace shardrun {
namespace {

std::string name_of(DType dtype) { return std::string(to_string(dtype)); }

ValueId scalar(Graph& g, DType dtype, double value, const std::string& name) {
  return g.add("fill", {},
               {{"shape", std::vector<int64_t>{}}, {"dtype", name_of(dtype)}, {"value", value}},
               name);
}

ValueId named_cast(Graph& g, ValueId value, DType dtype) {
  if (g.type(value).dtype == dtype) return value;
  return g.add("cast", {value}, {{"to", name_of(dtype)}},
               g.value(value).name + "/" + name_of(dtype));
}

ValueId sum_all(Graph& g, ValueId value, const std::string& name) {
  std::vector<int64_t> axes(g.type(value).shape.size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return g.add("reduce_sum", {value}, {{"axes", axes}, {"keepdims", int64_t{0}}}, name);
}

/// The first output, or what it is the softmax of over the classes: models of Keras and
/// scikit-learn end in one, and their losses are given those.
ValueId logits_of(const Graph& g) {
  const ValueId output = g.outputs[0];
  const NodeId producer = g.value(output).producer;
  if (producer < 0 || g.node(producer).op != "softmax") return output;
  const int64_t last = static_cast<int64_t>(g.type(output).shape.size()) - 1;
  return g.node(producer).attrs.i("axis") == last ? g.node(producer).inputs[0] : output;
}

void attach_cross_entropy(Graph& g) {
  constexpr int64_t kIgnored = -100;
  const ValueId logits = logits_of(g);
  const Shape& shape = g.type(logits).shape;
  SR_REQUIRE(shape.size() >= 2 && is_float(g.type(logits).dtype), invalid_input,
             "loss cross-entropy: first output '", g.value(logits).name, "' is ", g.type(logits),
             ", wanted floating logits [..., classes]");
  SR_REQUIRE(shape.back() > 1, invalid_input, "loss cross-entropy: first output '",
             g.value(logits).name, "' is ", g.type(logits),
             ", logits of one class; make it two, or say --loss mse");
  const ValueId target =
      g.add_input(kTarget, {DType::i64, Shape(shape.begin(), shape.end() - 1)}, Role::batch);
  const ValueId losses =
      g.add_node("cross_entropy", {logits, target}, {{"ignore_index", kIgnored}}, "loss/each")[0];
  const DType dtype = g.type(losses).dtype;
  const ValueId ignored = g.add_constant("loss/ignored", Tensor::scalar_i64(kIgnored));
  const ValueId counted =
      g.add("logical_not", {g.add("equal", {target, ignored}, {}, "loss/is_ignored")}, {},
            "loss/is_counted");
  const ValueId count =
      sum_all(g, g.add("cast", {counted}, {{"to", name_of(dtype)}}, "loss/counted"), "loss/count");
  g.loss = g.add("div", {sum_all(g, losses, "loss/sum"), count}, {}, "loss");  // of none NaN
}

void attach_mse(Graph& g) {
  const ValueId output = g.outputs[0];
  SR_REQUIRE(is_float(g.type(output).dtype), invalid_input, "loss mse: first output '",
             g.value(output).name, "' is ", g.type(output), ", wanted a floating tensor");
  const ValueId target = g.add_input(kTarget, g.type(output), Role::batch);
  const ValueId difference = g.add("sub", {output, target}, {}, "loss/difference");
  const ValueId sum =
      sum_all(g, g.add("mul", {difference, difference}, {}, "loss/squares"), "loss/sum");
  const double share =
      1.0 / static_cast<double>(std::max<int64_t>(1, element_count(g.type(output).shape)));
  g.loss = g.add("mul", {sum, scalar(g, g.type(output).dtype, share, "loss/share")}, {}, "loss");
}

bool looks_like_language_model(const Graph& g) {
  const Shape& shape = g.type(g.outputs[0]).shape;
  if (shape.size() < 2) return false;
  const Shape tokens(shape.begin(), shape.end() - 1);
  const std::vector<ValueId> inputs = g.with_role(Role::batch);
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
    return !is_float(g.type(id).dtype) && g.type(id).shape == tokens;
  });
}

/// Logits [batch, 1, classes] of tokens [batch, context].
bool has_one_position(const Graph& g) {
  const Shape& shape = g.type(g.outputs[0]).shape;
  if (shape.size() != 3 || shape[1] != 1) return false;
  const std::vector<ValueId> inputs = g.with_role(Role::batch);
  return std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
    const TensorType& type = g.type(id);
    return !is_float(type.dtype) && type.shape.size() == 2 && type.shape[0] == shape[0] &&
           type.shape[1] > 1;
  });
}

}  // namespace

std::string why_no_loss(const Graph& graph) {
  if (graph.loss != kNoValue || graph.outputs.empty()) return "";
  const Value& first = graph.value(graph.outputs[0]);
  const bool scalar = is_float(first.type.dtype) && element_count(first.type.shape) == 1;
  if (scalar || looks_like_language_model(graph)) return "";
  return str(
      "first output '", first.name, "' is ", first.type, ", no loss; ",
      has_one_position(graph)
          ? "it has the logits of one position alone, as nanoGPT's class gives them where it "
            "gets no targets: export it with targets, and it returns its loss, too"
          : "say --loss cross-entropy or --loss mse");
}

std::string attach_loss(Graph& graph, std::optional<LossKind> kind, const std::string& name) {
  SR_REQUIRE(!graph.outputs.empty(), invalid_input, "the model has no output");
  if (!kind && graph.loss != kNoValue) return "";
  const ValueId first = graph.outputs[0];
  const TensorType& type = graph.type(first);
  if (is_float(type.dtype) && element_count(type.shape) == 1) {
    SR_REQUIRE(!kind, invalid_input, "first output '", graph.value(first).name,
               "' is a scalar and so the loss already; leave --loss ", name_of(kLosses, *kind),
               " out");
    graph.loss = type.shape.empty()
                     ? first
                     : graph.add("reshape", {first}, {{"shape", std::vector<int64_t>{}}}, "loss");
    return "";
  }
  const std::string called = name.empty() ? graph.value(first).name : name;
  if (kind == LossKind::mse) {
    attach_mse(graph);
    return "loss: mean squared error of '" + called + "' against the target";
  }
  const std::string lacking = kind ? "" : why_no_loss(graph);
  SR_REQUIRE(lacking.empty(), invalid_input, lacking);
  // Of images PyTorch has the classes in dim 1.
  const std::string classes =
      type.shape.size() > 2 && !looks_like_language_model(graph)
          ? str(", over the last dim of ", type,
                "; where classes are another dim, have forward() return the loss")
          : "";
  attach_cross_entropy(graph);
  const ValueId logits = logits_of(graph);
  return "loss: cross-entropy of '" + called + "' against the target" +
         (logits != first ? " (the logits of the softmax that the model ends in)" : "") +
         (kind ? "" : " (assumed: the inputs are tokens)") + classes;
}

namespace {

/// What persists where a node makes what it becomes, and that is read; else kNoValue.
ValueId held_by(const Graph& graph, const Node& node) {
  const std::string name = node.op == "identity" ? node.attrs.s("reads", "") : "";
  return name.empty() ? kNoValue : graph.find(name);
}

size_t slot(int index) { return static_cast<size_t>(index); }

/// Batch statistic -> the running one that it moves.
std::map<ValueId, ValueId> running_statistics(const Graph& graph) {
  std::map<ValueId, ValueId> running;
  for (const Node& node : graph.nodes()) {
    for (const auto& [now, average] : op_def(node.op).evaluation.averages)
      running[node.inputs[slot(now)]] = node.inputs[slot(average)];
  }
  return running;
}

}  // namespace

Graph evaluation_form(const Graph& graph) {
  const std::map<ValueId, ValueId> running = running_statistics(graph);
  Graph out = rebuild(graph, [&](Rebuild& r, const Node& node) {
    if (const ValueId held = held_by(graph, node); held != kNoValue) {
      r.copied[node.outputs[0]] = r.at(held);
      return;
    }
    const OpDef::Evaluation& form = op_def(node.op).evaluation;
    for (const auto& [result, operand] : form.passes)
      r.copied[node.outputs[slot(result)]] = r.at(node.inputs[slot(operand)]);
    if (!form.passes.empty()) return;
    Node evaluated = node;
    for (const int i : form.statistics) {
      if (const auto it = running.find(node.inputs[slot(i)]); it != running.end())
        evaluated.inputs[slot(i)] = it->second;
    }
    if (!form.drops.empty() && node.attrs.f(form.drops, 0.0) > 0) {
      evaluated.attrs.set(form.drops, 0.0);
      evaluated.inputs.pop_back();
    }
    r.copy(evaluated);
  });
  out.updates.clear();
  return out;
}

namespace {

/// Nodes between the model's body (OpDef::model_body) and the loss: their element-wise arithmetic
/// is the loss's own. In mean((W x + b - y)^2) those are the subtraction, the square and the mean,
/// but not W x + b, and with cross_entropy none of what makes the logits.
std::vector<bool> loss_tail(const Graph& graph) {
  std::vector<bool> feeds_body(graph.values().size(), false), tail(graph.nodes().size(), false);
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const bool body = op_def(node.op).model_body ||
                      std::any_of(node.outputs.begin(), node.outputs.end(),
                                  [&](ValueId id) { return feeds_body[static_cast<size_t>(id)]; });
    tail[n] = !body;
    if (!body) continue;
    for (ValueId id : node.inputs) feeds_body[static_cast<size_t>(id)] = true;
  }
  return tail;
}

/// Nodes that compute what a tensor of the model becomes from what it was: its arithmetic is f32,
/// as small steps of an average need. What only gets a copy of an activation is f32 by a cast.
std::vector<bool> moves_state(const Graph& graph) {
  std::vector<bool> from(graph.values().size(), false), to = from, out(graph.nodes().size(), false);
  for (const auto& [held, next] : graph.updates) {
    from[static_cast<size_t>(held)] = true;
    const NodeId maker = graph.value(next).producer;
    if (maker < 0) continue;
    out[static_cast<size_t>(maker)] = true;
    to[static_cast<size_t>(next)] = !graph.node(maker).attrs.has("copies");
  }
  const auto any = [](const std::vector<ValueId>& ids, const std::vector<bool>& marks) {
    return std::any_of(ids.begin(), ids.end(),
                       [&](ValueId id) { return marks[static_cast<size_t>(id)]; });
  };
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.outputs) {
      if (any(node.inputs, from)) from[static_cast<size_t>(id)] = true;
    }
  }
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    if (!any(node.outputs, to)) continue;
    out[n] = out[n] || any(node.inputs, from);
    for (ValueId id : node.inputs) to[static_cast<size_t>(id)] = true;
  }
  return out;
}

/// Does a user's op refuse bf16 operands by its shape rule?
bool insists_on_f32(const Graph& graph, const Node& node, const std::vector<ValueId>& inputs) {
  const OpDef& op = op_def(node.op);
  if (!op.foreign) return false;
  std::vector<TensorType> types = graph.types(inputs);
  for (TensorType& type : types) {
    if (type.dtype == DType::f32) type.dtype = DType::bf16;
  }
  try {
    op.infer(node, types);
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

Graph in_bf16(const Graph& graph) {
  const std::vector<bool> tail = loss_tail(graph), moves = moves_state(graph);
  // The bias of the last layer stands in the tail, but what it is added to is a product: it stays
  // bf16.
  auto adds_parameter = [&](const Node& node) {
    return op_def(node.op).adds &&
           std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return graph.value(id).role == Role::parameter; });
  };
  size_t index = 0;
  return rebuild(graph, [&](Rebuild& r, const Node& node) {
    Graph& g = r.to;
    const bool of_state = moves[index], of_loss = tail[index] && !adds_parameter(node);
    ++index;
    std::vector<ValueId> inputs = r.at(node.inputs);
    auto dtype = [&](ValueId id) { return g.type(id).dtype; };
    auto all_to = [&](DType from, DType to) {
      for (ValueId& id : inputs) {
        if (dtype(id) == from) id = named_cast(g, id, to);
      }
    };
    const bool any_bf16 = std::any_of(inputs.begin(), inputs.end(),
                                      [&](ValueId id) { return dtype(id) == DType::bf16; });
    const OpDef& op = op_def(node.op);
    const Precision precision = op.precision;
    const bool converts = precision == Precision::conversion;
    const bool of_drawn = std::any_of(inputs.begin(), inputs.end(), [&](ValueId id) {
      const NodeId maker = g.value(id).producer;
      return maker >= 0 && op_def(g.node(maker).op).draws;
    });
    if (insists_on_f32(g, node, inputs) || of_drawn || of_state) {
      all_to(DType::bf16, DType::f32);
    } else if (precision == Precision::bf16) {
      all_to(DType::f32, DType::bf16);
    } else if (precision == Precision::f32 || (of_loss && !converts)) {
      all_to(DType::bf16, DType::f32);
    } else if (any_bf16 && precision != Precision::mixed && !converts) {
      all_to(DType::f32, DType::bf16);
    }
    for (const auto& [operand, other] : op.typed_like) {
      if (slot(operand) < inputs.size())
        inputs[slot(operand)] = named_cast(g, inputs[slot(operand)], dtype(inputs[slot(other)]));
    }
    const std::vector<ValueId> made = g.add_node(node.op, inputs, node.attrs, node.name);
    for (size_t i = 0; i < made.size(); ++i) {
      r.copied[node.outputs[i]] = made[i];
      if (precision == Precision::lookup && dtype(made[i]) == DType::f32)
        r.copied[node.outputs[i]] = named_cast(g, made[i], DType::bf16);
    }
  });
}

void fold_casts(Graph& graph) {
  std::vector<int> uses(graph.values().size(), 0);
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) ++uses[static_cast<size_t>(id)];
  }
  for (ValueId id : graph.outputs) ++uses[static_cast<size_t>(id)];
  for (const auto& [persistent, next] : graph.updates) ++uses[static_cast<size_t>(next)];
  for (const auto& [name, id] : graph.metrics) ++uses[static_cast<size_t>(id)];
  std::vector<Node> kept;
  std::vector<Node> nodes = graph.nodes();
  std::set<NodeId> gone;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& cast = nodes[n];
    if (cast.op != "cast") continue;
    const ValueId from = cast.inputs[0];
    const NodeId producer = graph.value(from).producer;
    if (producer < 0 || uses[static_cast<size_t>(from)] != 1) continue;
    Node& sum = nodes[static_cast<size_t>(producer)];
    if (!op_def(sum.op).widens || graph.type(from).dtype != DType::bf16 ||
        cast.attrs.s("to") != "f32" || sum.phase != cast.phase) {
      continue;
    }
    sum.attrs.set("out_dtype", std::string("f32"));
    sum.outputs[0] = cast.outputs[0];
    gone.insert(static_cast<NodeId>(n));
  }
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!gone.count(static_cast<NodeId>(n))) kept.push_back(nodes[n]);
  }
  graph.set_nodes(std::move(kept));
}

std::vector<std::string> freeze_unreached(Graph& graph) {
  std::vector<bool> reached(graph.values().size(), false);
  reached[static_cast<size_t>(graph.loss)] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const bool matters = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return reached[static_cast<size_t>(id)] && is_float(graph.type(id).dtype);
    });
    if (!matters) continue;
    for (ValueId id : node.inputs) reached[static_cast<size_t>(id)] = true;
  }
  std::vector<std::string> frozen;
  for (auto& [id, trainable] : graph.trainable) {
    if (trainable && !reached[static_cast<size_t>(id)]) {
      trainable = false;
      frozen.push_back(graph.value(id).name);
    }
  }
  return frozen;
}

}  // namespace shardrun
