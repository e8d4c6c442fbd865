// Interpreter: node by node in the Graph's order; every value stays until the step's end.
#include "kernels/reference/interpreter.h"

namespace shardrun {
namespace {

/// When a replacement is stored: an input, which no node makes, in each micro-batch.
Phase phase_of(const Graph& graph, ValueId id) {
  const NodeId producer = graph.value(id).producer;
  return producer < 0 ? Phase::micro : graph.node(producer).phase;
}

}  // namespace

Interpreter::Interpreter(const Graph& graph, uint64_t seed)
    : graph_(graph), values_(graph.values().size()) {
  for (ValueId id = 0; id < static_cast<ValueId>(values_.size()); ++id) {
    const Value& v = graph.value(id);
    if (!is_persistent(v.role)) continue;
    auto source = graph.sources.find(id);
    if (source == graph.sources.end()) continue;  // a dead constant
    Tensor tensor(v.type);
    read_source(source->second, v.type, full_box(v.type.shape), seed, tensor.data());
    values_[static_cast<size_t>(id)] = std::move(tensor);
  }
}

const Tensor& Interpreter::value(ValueId id) const {
  const Tensor& tensor = values_[static_cast<size_t>(id)];
  // A Tensor of no elements may own no memory; its type tells it from one never computed.
  SR_REQUIRE(tensor || element_count(graph_.type(id).shape) == 0, invalid_input, "value '",
             graph_.value(id).name, "' has no contents: feed it");
  return tensor;
}

void Interpreter::run_phase(Phase phase, const NamedTensors& feeds) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& v = graph_.value(static_cast<ValueId>(i));
    if (v.role != Role::batch && v.role != Role::scalar) continue;
    auto it = feeds.find(v.name);
    if (it == feeds.end()) continue;
    SR_REQUIRE(it->second.type() == v.type, invalid_input, "input '", v.name, "' wants ", v.type,
               ", got ", it->second.type());
    values_[i] = it->second;
  }
  for (const Node& node : graph_.nodes()) {
    if (node.phase != phase) continue;
    std::vector<Tensor> in;
    for (ValueId id : node.inputs) in.push_back(value(id));
    std::vector<Tensor> out;
    try {
      out = run_reference(node, in);
    } catch (const Error& e) {
      throw e.with_context(str(node.op, " '", node.name, "'"));
    }
    SR_REQUIRE(out.size() == node.outputs.size(), internal, node.op, " '", node.name, "' made ",
               out.size(), " results, wanted ", node.outputs.size());
    for (size_t i = 0; i < out.size(); ++i) {
      SR_REQUIRE(out[i].type() == graph_.type(node.outputs[i]), internal, node.op, " '", node.name,
                 "' result ", i, " is ", out[i].type(), ", wanted ", graph_.type(node.outputs[i]));
      values_[static_cast<size_t>(node.outputs[i])] = std::move(out[i]);
    }
  }
}

void Interpreter::store_updates(Phase phase) {
  // All replacements are taken before any is stored: one may be another's old value.
  std::vector<std::pair<ValueId, Tensor>> stored;
  for (const auto& [target, replacement] : graph_.updates) {
    if (phase_of(graph_, replacement) == phase) stored.emplace_back(target, value(replacement));
  }
  for (auto& [target, tensor] : stored) values_[static_cast<size_t>(target)] = std::move(tensor);
}

std::vector<Tensor> Interpreter::step(const std::vector<NamedTensors>& micro_feeds,
                                      std::span<const ValueId> wanted) {
  for (ValueId id : graph_.zeroed_each_step)
    values_[static_cast<size_t>(id)] = Tensor(graph_.type(id));
  SR_REQUIRE(!micro_feeds.empty(), invalid_input, "a step needs at least one micro-batch");
  for (const NamedTensors& feeds : micro_feeds) {
    run_phase(Phase::micro, feeds);
    store_updates(Phase::micro);
  }
  run_phase(Phase::update, micro_feeds.back());
  std::vector<Tensor> out;
  for (ValueId id : wanted) out.push_back(value(id));
  store_updates(Phase::update);
  return out;
}

const Tensor& Interpreter::persistent(const std::string& name) const {
  const ValueId id = graph_.find(name);
  SR_REQUIRE(id != kNoValue && is_persistent(graph_.value(id).role), invalid_input,
             "there is no persistent value '", name, "'");
  return values_[static_cast<size_t>(id)];
}

std::vector<Tensor> evaluate_graph(const Graph& graph, const NamedTensors& feeds,
                                   std::span<const ValueId> wanted, uint64_t seed) {
  return Interpreter(graph, seed).step({feeds}, wanted);
}

std::vector<Tensor> evaluate_graph(const Graph& graph, const NamedTensors& feeds, uint64_t seed) {
  return evaluate_graph(graph, feeds, graph.outputs, seed);
}

}  // namespace shardrun
