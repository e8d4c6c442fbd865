// Three steps of a golden model on a mesh, cut so that much has to move.
#pragma once

#include "planner/planner.h"
#include "tests/support/golden_model.h"

namespace shardrun::test {

/// Batches are cut along the first axis and parameters along the last, each in its first dim of 3
/// or more (4 over 3 is 2, 2, 0). Expects the losses, each within `tolerance` of itself, and as
/// many bytes on each rank as its Program says.
inline ShardedRun expect_losses_when_cut(const Graph& training, const NamedTensors& feeds,
                                         const Mesh& mesh, double rate,
                                         const std::vector<double>& losses, double tolerance) {
  static RuleCache rules;
  PlanOptions options;
  options.planner = parse_planner("ilp");
  options.solve_seconds = 3;
  for (const Value& value : training.values()) {
    if (value.role != Role::batch && value.role != Role::parameter) continue;
    const Shape& shape = value.type.shape;
    const auto dim = std::find_if(shape.begin(), shape.end(), [](int64_t n) { return n >= 3; });
    if (dim == shape.end()) continue;
    Sharding sharding = Sharding::replicated(shape.size());
    sharding.dims[static_cast<size_t>(dim - shape.begin())] = {
        value.role == Role::batch ? 0 : mesh.axis_count() - 1};
    options.pinned[value.name] = sharding;
  }
  const Plan plan = plan_shardings(training, mesh, host_cluster(), options, rules);
  const ShardedRun run =
      run_sharded(training, plan, std::vector<NamedTensors>(losses.size(), feeds), rate);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(run.metrics[step].at("loss"), losses[step], tolerance * losses[step])
        << mesh.to_string() << ", step " << step + 1;
  }
  EXPECT_EQ(run.allocated_bytes, run.predicted_bytes) << mesh.to_string();
  return run;
}

}  // namespace shardrun::test
