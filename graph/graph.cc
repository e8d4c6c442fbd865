// Graph: building, invariants and printing.
#include "graph/graph.h"

#include <algorithm>
#include <set>

#include "graph/op_def.h"

namespace shardrun {

std::string Graph::unique_name(std::string base) {
  const int seen = used_names_[base]++;
  if (seen == 0) return base;
  while (true) {
    std::string name = base + "_" + std::to_string(used_names_[base]++);
    if (used_names_.emplace(name, 1).second) return name;
  }
}

ValueId Graph::add_input(std::string value_name, TensorType type, Role role) {
  values_.push_back({unique_name(std::move(value_name)), std::move(type), role, -1});
  return static_cast<ValueId>(values_.size()) - 1;
}

ValueId Graph::add_persistent(std::string value_name, TensorType type, Role role, Source source) {
  const ValueId id = add_input(std::move(value_name), std::move(type), role);
  sources[id] = std::move(source);
  return id;
}

const Shape& Graph::file_shape(ValueId id) const {
  const auto divided = file_shapes.find(id);
  return divided == file_shapes.end() ? type(id).shape : divided->second;
}

ValueId Graph::add_constant(std::string value_name, Tensor data) {
  Source source;
  source.kind = Source::Kind::data;
  source.data = data;
  return add_persistent(std::move(value_name), data.type(), Role::constant, std::move(source));
}

std::vector<ValueId> Graph::add_node(const std::string& op, std::vector<ValueId> inputs,
                                     Attrs attrs, std::string node_name) {
  Node node{op,
            unique_name(node_name.empty() ? op : std::move(node_name)),
            std::move(attrs),
            std::move(inputs),
            {},
            phase};
  std::vector<TensorType> out;
  try {
    out = infer_types(node, types(node.inputs));
  } catch (const Error& e) {
    throw e.with_context(str(node.op, " '", node.name, "'"));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    std::string value_name = out.size() == 1 ? node.name : str(node.name, ":", i);
    values_.push_back({unique_name("%" + value_name), std::move(out[i]), Role::computed,
                       static_cast<NodeId>(nodes_.size())});
    node.outputs.push_back(static_cast<ValueId>(values_.size()) - 1);
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
}

ValueId Graph::add(const std::string& op, std::vector<ValueId> inputs, Attrs attrs,
                   std::string node_name) {
  const std::vector<ValueId> out =
      add_node(op, std::move(inputs), std::move(attrs), std::move(node_name));
  SR_REQUIRE(out.size() == 1, internal, "op ", op, " has ", out.size(), " results, wanted 1");
  return out[0];
}

std::vector<TensorType> Graph::types(std::span<const ValueId> ids) const {
  std::vector<TensorType> out;
  for (ValueId id : ids) out.push_back(type(id));
  return out;
}

ValueId Graph::find(std::string_view value_name) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].name == value_name) return static_cast<ValueId>(i);
  }
  return kNoValue;
}

std::vector<ValueId> Graph::with_role(Role role) const {
  std::vector<ValueId> out;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].role == role) out.push_back(static_cast<ValueId>(i));
  }
  return out;
}

void Graph::set_nodes(std::vector<Node> nodes) {
  nodes_ = std::move(nodes);
  for (Value& value : values_) value.producer = -1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (ValueId id : nodes_[i].outputs) value(id).producer = static_cast<NodeId>(i);
  }
}

void Graph::replace_uses(ValueId from, ValueId to) {
  auto swap = [&](ValueId& id) {
    if (id == from) id = to;
  };
  for (Node& node : nodes_) std::for_each(node.inputs.begin(), node.inputs.end(), swap);
  std::for_each(outputs.begin(), outputs.end(), swap);
  swap(loss);
  for (auto& [persistent, next] : updates) swap(next);
  for (auto& [metric, id] : metrics) swap(id);
}

namespace {

std::vector<ValueId> results_of(const Graph& graph) {
  std::vector<ValueId> out = graph.outputs;
  if (graph.loss != kNoValue) out.push_back(graph.loss);
  for (const auto& [persistent, next] : graph.updates) out.push_back(next);
  for (const auto& [name, id] : graph.metrics) out.push_back(id);
  return out;
}

}  // namespace

void check_graph(const Graph& graph) {
  std::set<ValueId> made;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role != Role::computed) made.insert(static_cast<ValueId>(i));
  }
  std::set<std::string> names;
  bool updating = false;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    SR_REQUIRE(names.insert(node.name).second, internal, "two nodes are named '", node.name, "'");
    SR_REQUIRE(!updating || node.phase == Phase::update || graph.micro_batches == 1, internal,
               "micro node '", node.name, "' stands after an update node");
    updating = node.phase == Phase::update;
    for (ValueId id : node.inputs) {
      SR_REQUIRE(made.count(id) > 0, internal, "node '", node.name, "' uses '",
                 id >= 0 && static_cast<size_t>(id) < graph.values().size() ? graph.value(id).name
                                                                            : str(id),
                 "' before it is made");
    }
    const std::vector<TensorType> want = infer_types(node, graph.types(node.inputs));
    SR_REQUIRE(want.size() == node.outputs.size(), internal, "node '", node.name, "' has ",
               node.outputs.size(), " results, its shape rule gives ", want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const Value& value = graph.value(node.outputs[i]);
      SR_REQUIRE(value.type == want[i], internal, "value '", value.name, "' is ", value.type,
                 ", its shape rule gives ", want[i]);
      SR_REQUIRE(value.producer == static_cast<NodeId>(n), internal, "value '", value.name,
                 "' has a wrong producer");
      made.insert(node.outputs[i]);
    }
  }
  for (ValueId id : results_of(graph)) {
    SR_REQUIRE(made.count(id) > 0, internal, "result '", graph.value(id).name, "' is never made");
  }
  for (const auto& [persistent, next] : graph.updates) {
    SR_REQUIRE(graph.type(persistent) == graph.type(next), internal, "update of '",
               graph.value(persistent).name, "' is ", graph.type(next), ", wanted ",
               graph.type(persistent));
  }
}

void remove_dead_nodes(Graph& graph) {
  std::set<ValueId> needed;
  for (ValueId id : results_of(graph)) needed.insert(id);
  std::vector<Node> kept;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(),
                     [&](ValueId id) { return needed.count(id) > 0; })) {
      continue;
    }
    needed.insert(node.inputs.begin(), node.inputs.end());
    kept.push_back(node);
  }
  std::reverse(kept.begin(), kept.end());
  graph.set_nodes(std::move(kept));
  std::erase_if(graph.sources, [&](const auto& entry) {
    const bool dead =
        needed.count(entry.first) == 0 && graph.value(entry.first).role == Role::constant;
    return dead;
  });
}

std::string to_string(const Graph& graph) {
  std::string out;
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value& value = graph.value(node.outputs[i]);
      out += str(i ? ", " : "", value.name, ": ", value.type);
    }
    out += " = " + node.op + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i)
      out += (i ? ", " : "") + graph.value(node.inputs[i]).name;
    out += ")";
    if (!node.attrs.all().empty()) out += " {" + to_string(node.attrs) + "}";
    if (node.phase == Phase::update) out += " [update]";
    out += "\n";
  }
  return out;
}

}  // namespace shardrun
