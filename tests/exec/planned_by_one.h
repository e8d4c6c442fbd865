// A training step and its plan on ranks that may be threads.
#pragma once

#include <mutex>
#include <string>

#include "planner/planner.h"
#include "tests/planner/gpt_step.h"

namespace shardrun::test {

struct PlannedStep {
  Graph graph;
  Plan plan;
};

/// By one rank of a process after the other: the model goes by way of a file, and discovery is not
/// for several threads at once.
inline PlannedStep planned_by_one(const GptOptions& model, const OptimizerOptions& optimizer,
                                  const Mesh& mesh, const std::string& planner) {
  static std::mutex mutex;
  static RuleCache rules;
  const std::lock_guard lock(mutex);
  PlannedStep out;
  out.graph = gpt_step(model, optimizer);
  PlanOptions options;
  options.planner = parse_planner(planner);
  out.plan = plan_shardings(out.graph, mesh, host_cluster(), options, rules);
  return out;
}

}  // namespace shardrun::test
