// The planner's prices of a plan that is there: kernels, exchanges, and the copies that readers
// want.
#include "explain/plan_costs.h"

#include <algorithm>

#include "graph/node_exchanges.h"
#include "planner/cost/exchange_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/reshard/reshard_table.h"
#include "planner/rules/numbered_rows.h"

namespace shardrun {
namespace {

const std::string kCompute = "compute";

class Prices {
 public:
  Prices(const Graph& graph, const Plan& plan, const Cluster& cluster)
      : graph_(graph),
        plan_(plan),
        cluster_(cluster),
        times_(plan.mesh, cluster),
        numbered_(graph, nobody_knows_),
        wanted_(graph.values().size()),
        wanted_by_(graph.values().size()) {
    out_.nodes.resize(graph.nodes().size());
  }

  PlanCosts run() {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) add_node(static_cast<NodeId>(n));
    each_end(graph_, plan_, [this](ValueId id, const Sharding& sharding, Phase by) {
      want(id, sharding, by, -1);
    });
    for (size_t v = 0; v < wanted_.size(); ++v) add_copies(static_cast<ValueId>(v));
    double communication = 0;
    for (const auto& [name, seconds] : out_.parts) communication += name == kCompute ? 0 : seconds;
    if (cluster_.collectives == Collectives::together)
      out_.parts["sums in one call"] = plan_.comm_seconds - communication;
    if (plan_.hidden_seconds > 0) out_.parts["hidden behind kernels"] = -plan_.hidden_seconds;
    return std::move(out_);
  }

 private:
  void want(ValueId value, const Sharding& sharding, Phase phase, NodeId by) {
    const auto v = static_cast<size_t>(value);
    wanted_[v].push_back({times_.number_of(sharding), static_cast<int>(graph_.runs(phase))});
    wanted_by_[v].push_back(by);
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    const NodePlan& np = plan_.nodes.at(node.name);
    const auto runs = static_cast<double>(graph_.runs(node.phase));
    const std::vector<TensorType> in = graph_.types(node.inputs), out = graph_.types(node.outputs);
    const NodeTypes local = largest_types(np, in, out, plan_.mesh);
    PlanCosts::Node& cost = out_.nodes[static_cast<size_t>(id)];
    cost.compute = runs * kernel_seconds(node, local.in, local.out, cluster_);
    out_.parts[kCompute] += cost.compute;
    for (size_t k = 0; k < node.inputs.size(); ++k) want(node.inputs[k], np.in[k], node.phase, id);
    if (np.exchanges()) cost.exchange = runs * add_exchanges(node, np, in, out, runs);
  }

  /// Seconds of one run; all runs go to the parts.
  double add_exchanges(const Node& node, const NodePlan& np, const std::vector<TensorType>& in,
                       const std::vector<TensorType>& out, double runs) {
    double sum = 0;
    const auto add = [&](std::string_view kind, double seconds) {
      if (seconds > 0) out_.parts[std::string(kind)] += runs * seconds;
      sum += seconds;
    };
    for (const bool result : {false, true}) {
      for (size_t i = 0; i < (result ? out : in).size(); ++i) {
        const auto at = static_cast<int>(i);
        add(kind_of(np, result, at),
            exchange_seconds(np, in, out, result, at, plan_.mesh, cluster_));
      }
    }
    if (!np.rows.empty()) {
      add(to_string(Collective::Kind::row_route), route_seconds(np, in, out, plan_.mesh, cluster_) /
                                                      static_cast<double>(numbered_.sharers(node)));
    }
    return sum;
  }

  static std::string_view kind_of(const NodePlan& np, bool result, int index) {
    using Kind = Collective::Kind;
    if (rows_of(np, result, index) != nullptr)
      return to_string(result ? Kind::row_add : Kind::row_fetch);
    if (!result) return to_string(Kind::halo_exchange);
    const bool blocks = std::any_of(np.blocks.begin(), np.blocks.end(),
                                    [&](const Blocks& b) { return b.result.index == index; });
    return to_string(blocks ? Kind::block_exchange : Kind::halo_add);
  }

  void add_copies(ValueId id) {
    const auto v = static_cast<size_t>(id);
    if (wanted_[v].empty()) return;
    const std::string& name = graph_.value(id).name;
    const auto through = plan_.redistributed.find(name);
    const int redistributed =
        through == plan_.redistributed.end() ? -1 : times_.number_of(through->second);
    for (const auto& [step, wanted, times] : times_.redistribution(
             times_.number_of(graph_.type(id)), times_.number_of(plan_.values.at(name)),
             redistributed, plan_.regathered.count(name) > 0, wanted_[v])) {
      const double seconds = times * step->seconds;
      out_.parts[std::string(to_string(step->kind))] += seconds;
      const NodeId by = wanted_by_[v][wanted];
      const NodeId with = by >= 0 ? by : graph_.value(id).producer;
      if (with >= 0) out_.nodes[static_cast<size_t>(with)].resharding += seconds;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  ReshardTimes times_;
  const InputContents nobody_knows_;
  NumberedRows numbered_;
  std::vector<std::vector<Wanted>> wanted_;     // by value, in the order of use
  std::vector<std::vector<NodeId>> wanted_by_;  // likewise; -1: at the end
  PlanCosts out_;
};

}  // namespace

PlanCosts plan_costs(const Graph& graph, const Plan& plan, const Cluster& cluster) {
  return Prices(graph, plan, cluster).run();
}

}  // namespace shardrun
