// What is known of a plan's nodes, for programs that read plan files.
#include <nlohmann/json.hpp>

#include "explain/explain.h"
#include "explain/names.h"
#include "explain/plan_costs.h"

namespace shardrun {

nlohmann::json nodes_json(const Graph& graph, const Plan& plan, const Cluster& cluster) {
  const PlanCosts costs = plan_costs(graph, plan, cluster);
  const std::vector<std::string> modules = modules_of(graph);
  const std::vector<StepPart> parts = parts_of(graph);
  const auto types = [&](const std::vector<ValueId>& ids) {
    nlohmann::json list = nlohmann::json::array();
    for (ValueId id : ids) list.push_back(to_string(graph.type(id)));
    return list;
  };
  nlohmann::json out = nlohmann::json::object();
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const PlanCosts::Node& cost = costs.nodes[n];
    out[node.name] = {{"op", node.op},
                      {"phase", to_string(parts[n])},
                      {"module", modules[n]},
                      {"operands", types(node.inputs)},
                      {"results", types(node.outputs)},
                      {"compute_seconds", cost.compute},
                      {"exchange_seconds", cost.exchange},
                      {"resharding_seconds", cost.resharding}};
  }
  return out;
}

}  // namespace shardrun
