// Copying a Graph node by node.
#include "graph/passes/rebuild.h"

namespace shardrun {

std::vector<ValueId> Rebuild::at(const std::vector<ValueId>& old) const {
  std::vector<ValueId> out;
  for (ValueId id : old) out.push_back(at(id));
  return out;
}

void Rebuild::copy(const Node& node) {
  to.phase = node.phase;
  const std::vector<ValueId> made = to.add_node(node.op, at(node.inputs), node.attrs, node.name);
  for (size_t i = 0; i < made.size(); ++i) copied[node.outputs[i]] = made[i];
  to.phase = Phase::micro;
}

Graph rebuild(const Graph& from, const std::function<void(Rebuild&, const Node&)>& visit) {
  Rebuild r{from, {}, {}};
  r.to.name = from.name;
  r.to.micro_batches = from.micro_batches;
  for (size_t i = 0; i < from.values().size(); ++i) {
    const auto id = static_cast<ValueId>(i);
    const Value& value = from.value(id);
    if (value.role == Role::computed) continue;
    const ValueId made = r.to.add_input(value.name, value.type, value.role);
    r.copied[id] = made;
    if (auto it = from.sources.find(id); it != from.sources.end()) r.to.sources[made] = it->second;
    if (auto it = from.trainable.find(id); it != from.trainable.end())
      r.to.trainable[made] = it->second;
    if (from.zeroed_each_step.count(id)) r.to.zeroed_each_step.insert(made);
    if (auto it = from.file_shapes.find(id); it != from.file_shapes.end())
      r.to.file_shapes[made] = it->second;
  }
  for (const Node& node : from.nodes()) visit(r, node);
  r.to.outputs = r.at(from.outputs);
  r.to.outputs_stay_cut = from.outputs_stay_cut;
  if (from.loss != kNoValue) r.to.loss = r.at(from.loss);
  for (const auto& [persistent, next] : from.updates) r.to.updates[r.at(persistent)] = r.at(next);
  for (const auto& [name, id] : from.metrics) r.to.metrics[name] = r.at(id);
  return std::move(r.to);
}

Replacer::Replacer(Graph& graph) : graph_(graph), uses_(graph.values().size(), 0) {
  auto use = [&](ValueId id) { ++uses_[static_cast<size_t>(id)]; };
  for (ValueId id : graph.outputs) use(id);
  if (graph.loss != kNoValue) use(graph.loss);
  for (const auto& [persistent, next] : graph.updates) use(next);
  for (const auto& [metric, id] : graph.metrics) use(id);
  count_new_nodes();
}

void Replacer::count_new_nodes() {
  uses_.resize(graph_.values().size(), 0);
  dead_.resize(graph_.nodes().size(), 0);
  for (; counted_ < graph_.nodes().size(); ++counted_) {
    for (ValueId id : graph_.nodes()[counted_].inputs) ++uses_[static_cast<size_t>(id)];
  }
}

void Replacer::release(ValueId id) {
  std::vector<ValueId> unused = {id};
  while (!unused.empty()) {
    const NodeId producer = graph_.value(unused.back()).producer;
    unused.pop_back();
    if (producer < 0 || dead_[static_cast<size_t>(producer)]) continue;
    const Node& node = graph_.node(producer);
    bool alive = false;
    for (ValueId out : node.outputs) alive = alive || used(out);
    if (alive) continue;
    dead_[static_cast<size_t>(producer)] = 1;
    for (ValueId in : node.inputs) {
      if (--uses_[static_cast<size_t>(in)] == 0) unused.push_back(in);
    }
  }
}

void Replacer::replace(ValueId from, ValueId to) {
  count_new_nodes();
  graph_.replace_uses(from, to);
  uses_[static_cast<size_t>(to)] += uses_[static_cast<size_t>(from)];
  uses_[static_cast<size_t>(from)] = 0;
  release(from);
}

void Replacer::finish() {
  sort_nodes(graph_);
  remove_dead_nodes(graph_);
}

void sort_nodes(Graph& graph) {
  std::vector<Node> sorted;
  std::vector<char> done(graph.nodes().size(), 0);
  std::vector<NodeId> stack, wanted;
  for (const Phase phase : {Phase::micro, Phase::update}) {
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      if (graph.nodes()[n].phase == phase) wanted.push_back(static_cast<NodeId>(n));
    }
  }
  for (const NodeId n : wanted) {
    stack.push_back(n);
    while (!stack.empty()) {
      const auto at = static_cast<size_t>(stack.back());
      if (done[at]) {
        stack.pop_back();
        continue;
      }
      bool ready = true;
      for (ValueId id : graph.nodes()[at].inputs) {
        const NodeId producer = graph.value(id).producer;
        if (producer >= 0 && !done[static_cast<size_t>(producer)]) {
          stack.push_back(producer);
          ready = false;
        }
      }
      if (!ready) continue;
      done[at] = 1;
      sorted.push_back(graph.nodes()[at]);
      stack.pop_back();
    }
  }
  graph.set_nodes(std::move(sorted));
}

}  // namespace shardrun
