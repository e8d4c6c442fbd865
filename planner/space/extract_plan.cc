// Reads a solution: how every value lies, and by which way it gets to its readers.
#include "planner/space/extract_plan.h"

#include <algorithm>
#include <map>

#include "base/at.h"

namespace shardrun {
namespace {

class Extraction {
 public:
  Extraction(const PlanContext& problem, const Solution& solution, bool share)
      : graph_(problem.graph),
        problem_(problem),
        solution_(solution),
        share_(share),
        wanted_(graph_.values().size()) {}

  Plan run() {
    plan_.mesh = problem_.mesh;
    plan_.model_hash = structural_hash(graph_);
    take_nodes();
    take_held_values();
    each_end(graph_, plan_, [this](ValueId id, const Sharding& sharding, Phase by) {
      want(id, problem_.times.number_of(sharding), by);
    });
    redistribute();
    plan_.seconds = plan_.compute_seconds + plan_.comm_seconds;
    return std::move(plan_);
  }

 private:
  void want(ValueId id, int sharding, Phase by) {
    wanted_[at(id)].push_back({sharding, static_cast<int>(graph_.runs(by))});
  }

  void take_nodes() {
    const Folding& folding = problem_.folding;
    std::vector<std::vector<int>> wants(folding.classes.size());  // of the operands
    for (size_t c = 0; c < wants.size(); ++c) {
      for (const Sharding& in : problem_.chosen(static_cast<int>(c), solution_).in)
        wants[c].push_back(problem_.times.number_of(in));
    }
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const Node& node = graph_.nodes()[n];
      const int c = folding.class_of_node[n];
      const Strategy& s = problem_.chosen(c, solution_);
      plan_.nodes[node.name] = s.node_plan();
      const auto runs = static_cast<double>(graph_.runs(node.phase));
      plan_.compute_seconds += runs * (s.seconds - s.exchange_seconds);
      plan_.comm_seconds += runs * s.exchange_seconds;
      for (size_t r = 0; r < node.outputs.size(); ++r)
        plan_.values[graph_.value(node.outputs[r]).name] = s.out[r];
      for (size_t k = 0; k < node.inputs.size(); ++k)
        want(node.inputs[k], wants[at(c)][k], node.phase);
    }
  }

  void take_held_values() {
    for (size_t v = 0; v < graph_.values().size(); ++v) {
      const int c = problem_.folding.class_of_value[v];
      if (c < 0) continue;
      const auto [maker, result] = problem_.joint.lies_as[at(c)];
      plan_.values[graph_.values()[v].name] =
          problem_.chosen(maker < 0 ? c : maker, solution_).out[at(result)];
    }
  }

  void redistribute() {
    std::map<std::pair<int, int>, const Hub*> hub_of;  // by class and result
    for (const Hub& hub : problem_.joint.hubs)
      hub_of[problem_.folding.origin(graph_, hub.value)] = &hub;
    for (size_t v = 0; v < wanted_.size(); ++v) {
      if (wanted_[v].empty()) continue;
      const int produced = problem_.times.number_of(plan_.values.at(graph_.values()[v].name));
      if (std::all_of(wanted_[v].begin(), wanted_[v].end(),
                      [&](const Wanted& wanted) { return wanted.sharding == produced; }))
        continue;
      const auto id = static_cast<ValueId>(v);
      const auto hub = hub_of.find(problem_.folding.origin(graph_, id));
      redistribute(id, produced, hub == hub_of.end() ? nullptr : hub->second);
    }
  }

  /// By the copy that a hub chooses, unless it is as cheap to do without.
  void redistribute(ValueId id, int produced, const Hub* hub) {
    const std::string& name = graph_.value(id).name;
    const SearchSpace& space = problem_.space;
    int redistributed = -1;
    bool regathered = !space.regathered.empty() && space.regathered[at(id)];
    const bool nearest = !space.from_nearest.empty() && space.from_nearest[at(id)];
    if (hub != nullptr) {
      const int choice = hub->shardings[at(solution_[at(hub->node)])];
      if (choice != produced && !nearest) redistributed = choice;
      regathered = !share_;
    }
    double seconds = price(id, produced, redistributed, regathered);
    if (redistributed >= 0 && !regathered && space.copied_from.count(id) == 0) {
      const double without = price(id, produced, -1, regathered);
      if (without <= seconds) {
        seconds = without;
        redistributed = -1;
      }
    }
    if (redistributed >= 0) plan_.redistributed[name] = problem_.times.sharding(redistributed);
    if (regathered) plan_.regathered.insert(name);
    plan_.comm_seconds += seconds;
  }

  double price(ValueId id, int produced, int redistributed, bool regathered) {
    const int type = problem_.times.number_of(graph_.type(id), problem_.space.sum_prices[at(id)]);
    std::vector<int> key{type, produced, redistributed, regathered ? 1 : 0};
    for (const Wanted& wanted : wanted_[at(id)]) {
      key.push_back(wanted.sharding);
      key.push_back(wanted.times);
    }
    const auto [it, fresh] = prices_.emplace(std::move(key), 0.0);
    if (fresh)
      it->second = problem_.times.redistribution_seconds(type, produced, redistributed, regathered,
                                                         wanted_[at(id)]);
    return it->second;
  }

  const Graph& graph_;
  const PlanContext& problem_;
  const Solution& solution_;
  const bool share_;
  Plan plan_;
  std::vector<std::vector<Wanted>> wanted_;    // by value, in the order of use
  std::map<std::vector<int>, double> prices_;  // by type and all Shardings
};

}  // namespace

Plan extract_plan(const PlanContext& problem, const Solution& solution, bool share) {
  return Extraction(problem, solution, share).run();
}

std::vector<double> node_seconds(const PlanContext& problem, const Solution& solution) {
  std::vector<double> seconds;
  for (size_t n = 0; n < problem.graph.nodes().size(); ++n) {
    seconds.push_back(static_cast<double>(problem.graph.runs(problem.graph.nodes()[n].phase)) *
                      problem.chosen(problem.folding.class_of_node[n], solution).seconds);
  }
  return seconds;
}

}  // namespace shardrun
