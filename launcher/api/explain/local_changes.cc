// Pricing a single change of a plan.
#include "explain/local_changes.h"

#include <algorithm>
#include <set>

#include "graph/node_exchanges.h"
#include "planner/cost/exchange_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/reshard/sum_price.h"

namespace shardrun {

LocalChanges::LocalChanges(const Graph& graph, const Plan& plan, const Cluster& cluster)
    : graph_(graph),
      plan_(plan),
      cluster_(cluster),
      times_(plan.mesh, cluster),
      sum_prices_(sum_prices(graph, cluster, 1)),
      reported_(graph.values().size(), false) {
  for (const auto& [held, next] : graph.updates) replaces_[next] = held;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    for (size_t k = 0; k < node.inputs.size(); ++k)
      readers_[node.inputs[k]].emplace_back(static_cast<NodeId>(n), k);
  }
  for (ValueId id : graph.outputs) reported_[static_cast<size_t>(id)] = true;
  for (const auto& [name, id] : graph.metrics) reported_[static_cast<size_t>(id)] = true;
}

NodeId LocalChanges::maker(ValueId value) const {
  const auto update = graph_.updates.find(value);
  if (update != graph_.updates.end() && !moves_along(value)) return -1;
  return graph_.value(update == graph_.updates.end() ? value : update->second).producer;
}

size_t LocalChanges::result_of(ValueId value, NodeId maker) const {
  const auto update = graph_.updates.find(value);
  const ValueId made = update == graph_.updates.end() ? value : update->second;
  const std::vector<ValueId>& outputs = graph_.node(maker).outputs;
  return static_cast<size_t>(std::find(outputs.begin(), outputs.end(), made) - outputs.begin());
}

const std::vector<Strategy>& LocalChanges::strategies(NodeId id) {
  const auto [it, fresh] = strategies_.try_emplace(id);
  if (fresh) {
    const Node& node = graph_.node(id);
    const std::vector<TensorType> in = graph_.types(node.inputs), out = graph_.types(node.outputs);
    it->second = enumerate_strategies(node, in, out, rules_.rule(node, in), plan_.mesh, cluster_);
    std::erase_if(it->second, [&](const Strategy& s) {  // nothing is held in summands
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        const auto held = replaces_.find(node.outputs[r]);
        if (held != replaces_.end() && moves_along(held->second) && !s.out[r].partial.empty())
          return true;
      }
      return false;
    });
  }
  return it->second;
}

/// Seconds of all reshardings of a value that is made as `made`, if node `changed` runs by `plan`,
/// and what it replaces after the step is held as `held_as` (null: as planned).
double LocalChanges::redistribute(ValueId value, const Sharding& made, NodeId changed,
                                  const NodePlan& plan, const Sharding* held_as) {
  const TensorType& type = graph_.type(value);
  std::vector<Wanted> wanted;
  const auto want = [&](const Sharding& sharding, Phase by) {
    wanted.push_back({times_.number_of(sharding), static_cast<int>(graph_.runs(by))});
  };
  if (const auto it = readers_.find(value); it != readers_.end()) {
    for (const auto& [node, operand] : it->second) {
      const NodePlan& np = node == changed ? plan : plan_.nodes.at(graph_.node(node).name);
      want(np.in[operand], graph_.node(node).phase);
    }
  }
  // What an update makes is brought to what it replaces, if that lies otherwise (ZeRO).
  if (const auto held = replaces_.find(value);
      held != replaces_.end() && !moves_along(held->second)) {
    const Sharding& as_planned = plan_.values.at(graph_.value(held->second).name);
    want(held_as == nullptr ? as_planned : *held_as, graph_.phase_of(value));
  }
  if (reported_[static_cast<size_t>(value)])
    want(Sharding::replicated(type.shape.size()), graph_.last_phase());
  const int number = times_.number_of(type, sum_prices_[static_cast<size_t>(value)]),
            from = times_.number_of(made);
  const std::string& name = graph_.value(value).name;
  const bool regathered = plan_.regathered.count(name) > 0;
  const double straight = times_.redistribution_seconds(number, from, -1, regathered, wanted);
  const auto redistributed = plan_.redistributed.find(name);
  if (redistributed == plan_.redistributed.end()) return straight;
  const double through = times_.redistribution_seconds(
      number, from, times_.number_of(redistributed->second), regathered, wanted);
  return regathered ? through : std::min(straight, through);
}

/// Does a persistent value lie as its update is made, so that it follows when that changes?
bool LocalChanges::moves_along(ValueId held) const {
  return plan_.values.at(graph_.value(held).name) ==
         plan_.values.at(graph_.value(graph_.updates.at(held)).name);
}

int64_t LocalChanges::held_bytes(ValueId value, const Sharding& sharding) const {
  return max_local_bytes(graph_.type(value), sharding, plan_.mesh);
}

LocalChanges::Change LocalChanges::price(NodeId id, const Strategy& strategy) {
  const Node& node = graph_.node(id);
  const NodePlan& now = plan_.nodes.at(node.name);
  Change change;
  change.node = strategy.node_plan();
  const std::vector<TensorType> in = graph_.types(node.inputs), out = graph_.types(node.outputs);
  const NodeTypes local = largest_types(now, in, out, plan_.mesh);
  change.seconds = static_cast<double>(graph_.runs(node.phase)) *
                   (strategy.seconds - kernel_seconds(node, local.in, local.out, cluster_) -
                    exchange_seconds(now, in, out, plan_.mesh, cluster_));

  std::map<ValueId, std::pair<Sharding, Sharding>> made;  // now, then
  for (ValueId in : node.inputs) {
    const Sharding& lies = plan_.values.at(graph_.value(in).name);
    made[in] = {lies, lies};
  }
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    made[node.outputs[r]] = {now.out[r], strategy.out[r]};
    const auto held = replaces_.find(node.outputs[r]);
    if (held == replaces_.end() || !moves_along(held->second)) continue;
    made[held->second] = {now.out[r], strategy.out[r]};
    change.bytes +=
        held_bytes(held->second, strategy.out[r]) - held_bytes(held->second, now.out[r]);
  }
  for (const auto& [value, shardings] : made) {
    change.seconds += redistribute(value, shardings.second, id, change.node) -
                      redistribute(value, shardings.first, id, now);
  }
  return change;
}

std::optional<LocalChanges::Change> LocalChanges::cheapest(
    NodeId node, const std::function<bool(const NodePlan&)>& wanted) {
  std::optional<Change> best;
  for (const Strategy& strategy : strategies(node)) {
    if (!wanted(strategy.node_plan())) continue;
    Change change = price(node, strategy);
    if (!best || change.seconds < best->seconds) best = std::move(change);
  }
  return best;
}

std::optional<LocalChanges::Change> LocalChanges::lies_as(ValueId value, const Sharding& sharding) {
  const NodeId node = maker(value);
  if (node >= 0) {
    const size_t result = result_of(value, node);
    return cheapest(node, [&](const NodePlan& np) { return np.out[result] == sharding; });
  }
  const Sharding& now = plan_.values.at(graph_.value(value).name);
  const NodePlan none;
  Change change;
  change.bytes = held_bytes(value, sharding) - held_bytes(value, now);
  change.seconds = redistribute(value, sharding, -1, none) - redistribute(value, now, -1, none);
  if (const auto update = graph_.updates.find(value); update != graph_.updates.end()) {
    const Sharding& made = plan_.values.at(graph_.value(update->second).name);
    change.seconds += redistribute(update->second, made, -1, none, &sharding) -
                      redistribute(update->second, made, -1, none);
  }
  return change;
}

std::vector<std::pair<Sharding, LocalChanges::Change>> LocalChanges::others(ValueId value) {
  std::vector<std::pair<Sharding, Change>> out;
  const NodeId node = maker(value);
  if (node < 0) return out;
  const size_t result = result_of(value, node);
  const Sharding& now = plan_.nodes.at(graph_.node(node).name).out[result];
  std::set<Sharding> shardings;
  for (const Strategy& s : strategies(node)) shardings.insert(s.out[result]);
  shardings.erase(now);
  for (const Sharding& sharding : shardings) {
    const auto change =
        cheapest(node, [&](const NodePlan& np) { return np.out[result] == sharding; });
    if (change) out.emplace_back(sharding, *change);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second.seconds < b.second.seconds;
  });
  return out;
}

}  // namespace shardrun
