// What a plan comes to, in numbers.
#include <algorithm>

#include "arithmetic.h"
#include "backend.h"
#include "exec/collective_step.h"
#include "graph/op_def.h"
#include "plan.h"
#include "ranks/world.h"
#include "shardrun/bench.h"

namespace shardrun {
namespace {

/// What a step of this Program gives to other ranks.
int64_t sent_bytes(const Program& program) {
  int64_t sum = 0;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::collective) continue;
    const DType dtype = program.buffers[static_cast<size_t>(step.in[0])].type.dtype;
    sum += program.runs(step) * CollectiveStep(step.collective, dtype, program.rank).bytes_sent();
  }
  return sum;
}

}  // namespace

std::map<std::string, double> arithmetic(const Model::Impl& model) {
  const Graph& graph = model.train;
  std::map<std::string, double> out;
  for (const Node& node : graph.nodes()) {
    const auto times = static_cast<double>(graph.runs(node.phase));
    out[node.op] += times * node_flops(node, graph.types(node.inputs), graph.types(node.outputs));
  }
  return out;
}

PlanFigures plan_figures(World& world, const Model& model, const TrainingPlan& plan) {
  return at_boundary([&] {
    const TrainingPlan::Impl& impl = plan.impl();
    require_made_for(model.impl(), impl);
    PlanFigures out;
    out.mesh = impl.train.mesh.to_string();
    out.planner = impl.train.planner;
    for (const auto& [op, part] : arithmetic(model.impl())) out.flops += part;
    share_cores(world.impl());
    out.threads = world.impl().kernel_threads;
    for (int64_t rank = 0; rank < impl.train.mesh.size(); ++rank) {
      const Program program =
          compile(step_of(model.impl(), impl), impl.train, impl.cluster, rank, backend_traits());
      out.sent_bytes.push_back(sent_bytes(program));
    }
    return out;
  });
}

}  // namespace shardrun
