// Prices of steps, their parts and layers, and what assumptions change in them.
#include "simulate/step_work.h"

#include <algorithm>
#include <map>

#include "explain/planned_steps.h"
#include "planner/cost/collective_cost.h"
#include "planner/cost/kernel_cost.h"
#include "program/memory.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

/// For a step that comes from a node, or that moves a value, what is known of that node.
class NodesOf {
 public:
  explicit NodesOf(const Graph& graph)
      : graph_(graph), layers_(layers_of(graph)), parts_(parts_of(graph)) {
    for (size_t n = 0; n < graph.nodes().size(); ++n)
      nodes_.emplace(graph.nodes()[n].name, static_cast<NodeId>(n));
    for (size_t v = 0; v < graph.values().size(); ++v)
      values_.emplace(graph.values()[v].name, static_cast<ValueId>(v));
  }

  /// `before`: the step in front of it, whose part a move of a parameter has.
  void place(const Step& step, const StepWork* before, StepWork& work) const {
    const NodeId node = node_of(step);
    if (node >= 0) {
      work.layer = layers_[static_cast<size_t>(node)];
      work.part = parts_[static_cast<size_t>(node)];
    } else {
      work.layer = layer_in(step.source);
      if (before != nullptr) work.part = before->part;
    }
    // What updates a parameter within a micro-batch stands between kernels of the backward pass.
    if (step.phase == Phase::update) work.part = StepPart::update;
    if (step.phase == Phase::micro && work.part == StepPart::update) work.part = StepPart::backward;
  }

 private:
  NodeId node_of(const Step& step) const {
    if (step.kind == Step::Kind::kernel) {
      const auto own = nodes_.find(step.node.name);
      const auto node = own != nodes_.end() ? own : nodes_.find(step.source);
      return node == nodes_.end() ? -1 : node->second;
    }
    const auto value = values_.find(step.source);
    return value == values_.end() ? -1 : graph_.value(value->second).producer;
  }

  const Graph& graph_;
  std::vector<std::string> layers_;
  std::vector<StepPart> parts_;
  std::map<std::string, NodeId> nodes_;
  std::map<std::string, ValueId> values_;
};

/// What the host asks for where nothing is fused with a product but what is assumed otherwise.
int launches_of(const Step& step, bool eager) {
  if (!eager || step.kind != Step::Kind::kernel || !has_post_ops(step.node.op)) return 1;
  return 1 + static_cast<int>(post_ops(step.node).size()) +
         (summed_operand(step.node).has_value() ? 1 : 0);
}

/// What a kernel's arithmetic takes, at most all of its time.
double arithmetic_of(const Step& step, const Program& program, const Cluster& cluster,
                     double seconds) {
  return std::min(seconds, arithmetic_seconds(step.node, types_of(program, step.in),
                                              types_of(program, step.out), cluster));
}

/// By buffer: how many ranks hold the same part of the value; 1 of what is no value of the graph.
std::vector<int64_t> holders_of(const Graph& graph, const Program& program) {
  std::map<std::string, int64_t> elements;
  for (const Value& value : graph.values()) elements[value.name] = element_count(value.type.shape);
  std::vector<int64_t> out;
  for (const Buffer& buffer : program.buffers) {
    const auto whole = elements.find(buffer.name);
    const int64_t held = element_count(buffer.type.shape) * program.mesh.size();
    out.push_back(whole == elements.end() || whole->second == 0
                      ? 1
                      : std::max<int64_t>(1, held / whole->second));
  }
  return out;
}

}  // namespace

ProgramWork work_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                    const Program& program, CommStreams streams, const Assumptions& assumed) {
  ProgramWork out;
  out.program = &program;
  out.order = order_of(program, streams);
  const PlannedSteps planned(graph, plan, cluster, program);
  const NodesOf nodes(graph);
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const Step& step = program.steps[s];
    StepWork work;
    nodes.place(step, out.steps.empty() ? nullptr : &out.steps.back(), work);
    work.seconds = planned.of(s).seconds;
    work.launches = stays_in_place(program, step) ? 0 : launches_of(step, assumed.eager);
    if (communicates(step)) {
      work.kind = TaskKind::communication;
      const GroupSpan span = cluster.span_of(program.mesh, step.collective->axes);
      work.link = span.nodes > 1 ? TaskLink::between_nodes : TaskLink::within_node;
      work.sent = bytes_sent(*step.collective, type_of(program, step.in[0]).dtype, program.rank);
    } else if (step.kind == Step::Kind::kernel) {
      work.products = arithmetic_of(step, program, cluster, work.seconds);
    }
    out.steps.push_back(std::move(work));
  }
  assume(assumed, program, cluster, out.steps);
  if (assumed.scattered_activations) out.holders = holders_of(graph, program);
  for (const Binding& b : program.bindings) {
    const auto bytes = static_cast<double>(byte_size(type_of(program, b.buffer)));
    if (b.role == Role::batch) out.read_bytes += byte_size(type_of(program, b.buffer));
    if (b.zeroed_each_step)
      out.zeroed.push_back({b.buffer, bytes / cluster.memory_bandwidth.value()});
  }
  return out;
}

}  // namespace shardrun
