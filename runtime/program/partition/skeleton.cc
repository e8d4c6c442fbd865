// Buffers and steps with what they come from.
#include "program/partition/skeleton.h"

#include "graph/node_exchanges.h"
#include "program/step_uses.h"

namespace shardrun {

Skeleton::Skeleton(const Graph& g, const Plan& p) : graph(g), plan(p) {
  program.mesh = plan.mesh;
  program.micro_batches = graph.micro_batches;
  for (const Node& node : graph.nodes()) {
    const auto it = plan.nodes.find(node.name);
    SR_REQUIRE(it != plan.nodes.end(), invalid_input, "plan: nodes: '", node.name, "' is missing");
    const NodePlan& np = it->second;
    SR_REQUIRE(np.in.size() == node.inputs.size() && np.out.size() == node.outputs.size(),
               invalid_input, "plan: nodes: '", node.name, "' has ", np.in.size(), " operands and ",
               np.out.size(), " results, the graph has ", node.inputs.size(), " and ",
               node.outputs.size());
    node_plans.push_back(&np);
  }
}

BufferId Skeleton::add_buffer(std::string name, const BufferForm& form) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.type.dtype = graph.type(form.value).dtype;
  program.buffers.push_back(std::move(buffer));
  buffers.push_back(form);
  return static_cast<BufferId>(buffers.size() - 1);
}

BufferId Skeleton::add_buffer(ValueId value, const Sharding* sharding, bool copy) {
  const std::string& name = graph.value(value).name;
  return add_buffer(copy ? name + "@" + to_string(*sharding, plan.mesh) : name,
                    {value, sharding, std::nullopt});
}

void Skeleton::add_step(Step step, const StepForm& form) {
  program.steps.push_back(std::move(step));
  steps.push_back(form);
}

void Skeleton::add_collective(ValueId value, Collective::Kind kind, Phase phase,
                              std::vector<BufferId> in, BufferId out, const StepForm& form) {
  Step step;
  step.kind = Step::Kind::collective;
  step.phase = phase;
  step.source = graph.value(value).name;
  step.node.name = step.source + "@" + std::string(to_string(kind));
  step.in = std::move(in);
  step.out = {out};
  add_step(std::move(step), form);
}

void Skeleton::add_copy(BufferId from, BufferId to, Phase phase, const std::string& name) {
  Step step;
  step.phase = phase;
  step.source = name;
  step.node.op = "identity";
  step.node.name = name + "@copy";
  step.node.phase = phase;
  step.in = {from};
  step.out = {to};
  add_step(std::move(step), {});
}

void Skeleton::reorder(const std::vector<size_t>& order) {
  std::vector<Step> program_steps;
  std::vector<StepForm> forms;
  for (size_t s : order) {
    program_steps.push_back(std::move(program.steps[s]));
    forms.push_back(steps[s]);
  }
  program.steps = std::move(program_steps);
  steps = std::move(forms);
}

void Skeleton::drop_unused_buffers() {
  const std::vector<BufferId> renamed = shardrun::drop_unused_buffers(program);
  for (size_t b = 0; b < renamed.size(); ++b) {
    if (renamed[b] >= 0) buffers[static_cast<size_t>(renamed[b])] = buffers[b];
  }
  buffers.resize(program.buffers.size());
}

const Sharding* Skeleton::whole(ValueId id) {
  const size_t dims = graph.type(id).shape.size();
  return &wholes.try_emplace(dims, Sharding::replicated(dims)).first->second;
}

const Sharding* Skeleton::end(ValueId id) {
  const auto held = plan.values.find(graph.value(id).name);
  const bool stays =
      graph.outputs_stay_cut && held != plan.values.end() && held->second.partial.empty();
  return stays ? &held->second : whole(id);
}

NodeShapes Skeleton::shapes_of(NodeId id) const {
  const Node& node = graph.node(id);
  NodeShapes out;
  for (ValueId in : node.inputs) out.in.push_back(graph.type(in).shape);
  for (ValueId result : node.outputs) out.out.push_back(graph.type(result).shape);
  return out;
}

std::optional<Collective> Skeleton::exchange_of(const NodeSide& side, int64_t rank) const {
  const NodePlan& np = *node_plans[static_cast<size_t>(side.node)];
  if (!np.exchanges()) return std::nullopt;
  const NodeShapes shapes = shapes_of(side.node);
  if (!side.result && !np.rows.empty() && np.rows[0].by.index == side.index)
    return route_of(np, shapes.in, shapes.out, plan.mesh, rank);
  return shardrun::exchange_of(np, shapes.in, shapes.out, side.result, side.index, plan.mesh, rank);
}

}  // namespace shardrun
