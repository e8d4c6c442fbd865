// Second runs counted by op, priced, and weighed against keeping their results.
#include "plan/recomputed.h"

#include <algorithm>
#include <map>

#include "explain/text.h"
#include "planner/cost/kernel_cost.h"
#include "ranks/backend.h"

namespace shardrun {
namespace {

/// The same plan for the step that computes nothing again: what read a second result reads the
/// first one as it wanted the second.
Plan keeping_all(const Graph& graph, const Plan& plan) {
  Plan out = plan;
  out.recompute.clear();
  out.nodes.clear();
  out.values.clear();
  for (const Node& node : graph.nodes()) out.nodes[node.name] = plan.nodes.at(node.name);
  for (const Value& value : graph.values()) {
    if (const auto it = plan.values.find(value.name); it != plan.values.end())
      out.values.insert(*it);
  }
  return out;
}

}  // namespace

std::string recomputed_text(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  if (plan.train.recompute.empty()) return "";
  const Program program =
      compile(step_of(model, plan), plan.train, plan.cluster, 0, backend_traits());
  const std::map<std::string, NodePlan> kept = keeping_all(model.train, plan.train).nodes;
  std::map<std::string, int> ops;
  int count = 0;
  double seconds = 0;
  const auto types = [&](const std::vector<BufferId>& ids) {
    std::vector<TensorType> out;
    out.reserve(ids.size());
    for (BufferId id : ids) out.push_back(program.buffers[static_cast<size_t>(id)].type);
    return out;
  };
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::kernel || kept.count(step.node.name) > 0 ||
        plan.train.nodes.count(step.node.name) == 0)
      continue;
    ++ops[step.node.op];
    ++count;
    seconds += static_cast<double>(program.runs(step)) *
               kernel_seconds(step.node, types(step.in), types(step.out), plan.cluster);
  }
  std::string list;
  for (const auto& [op, times] : ops) list += str(list.empty() ? "" : ", ", times, " ", op);
  PlanPrograms keeping(model.train, keeping_all(model.train, plan.train), plan.cluster,
                       backend_traits());
  return str("computed again in the backward pass: ", count, " nodes (", list, "), +",
             format("%.2f", seconds * 1e3),
             " ms a step; if their results were kept, a rank would need ",
             mib(keeping.fullest().arena_bytes));
}

}  // namespace shardrun
