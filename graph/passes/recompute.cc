// Where the forward pass ends, and second runs in front of their readers.
#include "graph/passes/recompute.h"

#include <map>

#include "base/at.h"
#include "graph/op_def.h"

namespace shardrun {
namespace {

/// By node: does the loss depend on it?
std::vector<bool> needed_by_loss(const Graph& graph) {
  std::vector<bool> out(graph.nodes().size(), false), values(graph.values().size(), false);
  if (graph.loss != kNoValue) values[at(graph.loss)] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    for (ValueId id : node.outputs) out[n] = out[n] || values[at(id)];
    if (!out[n]) continue;
    for (ValueId id : node.inputs) values[at(id)] = true;
  }
  return out;
}

}  // namespace

Recomputation::Recomputation(const Graph& graph) : graph_(graph) {
  const std::vector<bool> forward = needed_by_loss(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (forward[n]) continue;
    for (ValueId in : graph.nodes()[n].inputs) {
      const NodeId maker = graph.value(in).producer;
      if (maker >= 0 && forward[at(maker)] && !graph.type(in).shape.empty())
        end_ = std::max(end_, maker);
    }
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    late_.push_back(static_cast<NodeId>(n) > end_ && !forward[n]);
    first_maker_.push_back(makers_.size());
    for (ValueId in : graph.nodes()[n].inputs) makers_.push_back(graph.value(in).producer);
  }
  first_maker_.push_back(makers_.size());
}

bool Recomputation::may_run_again(NodeId node) const {
  return node >= 0 && node <= end_ && !op_def(graph_.node(node).op).foreign;
}

void Recomputation::run_again(NodeId node, const std::vector<bool>& again, std::vector<bool>& done,
                              std::vector<Run>& runs) const {
  if (node < 0 || !again[at(node)] || done[at(node)]) return;
  done[at(node)] = true;
  for (size_t i = first_maker_[at(node)]; i < first_maker_[at(node) + 1]; ++i)
    run_again(makers_[i], again, done, runs);
  runs.push_back({node, true});
}

std::vector<Recomputation::Run> Recomputation::order(const std::vector<bool>& again) const {
  std::vector<Run> runs;
  runs.reserve(2 * again.size());
  std::vector<bool> done(again.size(), false);
  for (size_t n = 0; n < again.size(); ++n) {
    if (late_[n]) {
      for (size_t i = first_maker_[n]; i < first_maker_[n + 1]; ++i)
        run_again(makers_[i], again, done, runs);
    }
    runs.push_back({static_cast<NodeId>(n), false});
  }
  return runs;
}

Graph with_recomputed(const Graph& graph, const std::set<std::string>& nodes) {
  if (nodes.empty()) return graph;
  const Recomputation recomputation(graph);
  std::map<std::string, NodeId> named;
  for (size_t n = 0; n < graph.nodes().size(); ++n)
    named[graph.nodes()[n].name] = static_cast<NodeId>(n);
  std::vector<bool> again(graph.nodes().size(), false);
  for (const std::string& name : nodes) {
    const auto it = named.find(name);
    SR_REQUIRE(it != named.end(), invalid_input, "the model has no node '", name,
               "' to compute again");
    SR_REQUIRE(
        recomputation.may_run_again(it->second), invalid_input, "node '", name,
        "' cannot be computed again: it is ",
        op_def(graph.node(it->second).op).foreign ? "a user's op" : "not of the forward pass");
    again[at(it->second)] = true;
  }
  Graph out = graph;
  std::map<ValueId, ValueId> second;
  std::vector<Node> ordered;
  for (const auto& [n, copy] : recomputation.order(again)) {
    Node node = graph.node(n);
    if (copy || recomputation.is_late(n)) {
      for (ValueId& in : node.inputs) {
        if (const auto it = second.find(in); it != second.end()) in = it->second;
      }
    }
    if (copy) {
      const std::vector<ValueId> made =
          out.add_node(node.op, node.inputs, node.attrs, kAgain + node.name);
      for (size_t r = 0; r < made.size(); ++r) second[node.outputs[r]] = made[r];
      node = out.nodes().back();
    }
    ordered.push_back(std::move(node));
  }
  out.set_nodes(std::move(ordered));
  return out;
}

}  // namespace shardrun
