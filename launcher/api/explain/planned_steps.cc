// A Program's steps, seen from the plan.
#include "explain/planned_steps.h"

#include <algorithm>

#include "explain/critical_path.h"
#include "graph/node_exchanges.h"
#include "planner/cost/collective_cost.h"
#include "planner/cost/exchange_cost.h"
#include "planner/cost/kernel_cost.h"

namespace shardrun {

PlannedSteps::PlannedSteps(const Graph& graph, const Plan& plan, const Cluster& cluster,
                           const Program& program)
    : graph_(graph), plan_(plan), cluster_(cluster), program_(program) {
  for (size_t v = 0; v < graph_.values().size(); ++v)
    values_.emplace(graph_.values()[v].name, static_cast<ValueId>(v));
  for (size_t n = 0; n < graph_.nodes().size(); ++n)
    nodes_.emplace(graph_.nodes()[n].name, static_cast<NodeId>(n));
  for (const Buffer& buffer : program_.buffers) {
    const std::string& name = buffer.name;
    Sharding sharding;
    if (values_.count(name) > 0) {
      sharding = plan_.values.at(name);
    } else if (const size_t at = name.rfind("@["); at != std::string::npos) {
      std::string_view text = std::string_view(name).substr(at + 1);
      if (text.ends_with("@halo")) text.remove_suffix(5);
      // What a step finds in a copy, as group_rows does, is named after it and has no Sharding.
      if (text.ends_with("]") || text.ends_with(")")) sharding = parse_sharding(text, plan_.mesh);
    }
    shardings_.push_back(std::move(sharding));
  }
}

PlannedStep PlannedSteps::of(size_t step) const {
  const Step& s = program_.steps[step];
  if (s.kind == Step::Kind::kernel) return of_kernel(s);
  return s.collective->traits().is_exchange() ? of_exchange(s) : of_collective(step);
}

double PlannedSteps::kernel_seconds_of(const Step& step) const {
  return kernel_seconds(step.node, types_of(program_, step.in), types_of(program_, step.out),
                        cluster_);
}

PlannedStep PlannedSteps::of_kernel(const Step& step) const {
  PlannedStep out;
  out.seconds = kernel_seconds_of(step);
  const auto np = plan_.nodes.find(step.node.name);
  const auto node = nodes_.find(step.node.name);
  // A copy has no node, and fused steps take what several nodes did.
  const bool planned = np != plan_.nodes.end() && node != nodes_.end() &&
                       graph_.node(node->second).op == step.node.op &&
                       np->second.in.size() == step.in.size() &&
                       np->second.out.size() == step.out.size();
  for (const bool result : {false, true}) {
    const std::vector<BufferId>& ids = result ? step.out : step.in;
    for (size_t i = 0; i < ids.size(); ++i) {
      (result ? out.out : out.in)
          .push_back(planned ? to_string(np->second, result, static_cast<int>(i), plan_.mesh)
                             : to_string(shardings_[static_cast<size_t>(ids[i])], plan_.mesh));
    }
  }
  return out;
}

PlannedStep PlannedSteps::of_collective(size_t step) const {
  const Step& s = program_.steps[step];
  return {collective_seconds_of(s, bytes_of_call(step)),
          {to_string(shardings_[static_cast<size_t>(s.in[0])], plan_.mesh)},
          {to_string(shardings_[static_cast<size_t>(s.out[0])], plan_.mesh)}};
}

double PlannedSteps::collective_seconds_of(const Step& step, double call) const {
  const Collective& c = *step.collective;
  return collective_seconds(c.kind, graph_.type(values_.at(step.source)),
                            shardings_[static_cast<size_t>(step.in[0])],
                            shardings_[static_cast<size_t>(step.out[0])], c.dim, c.to_dim, c.axes,
                            plan_.mesh, cluster_, call);
}

double PlannedSteps::bytes_of_call(size_t step) const {
  if (cluster_.collectives != Collectives::together) return 0;
  size_t first = step;
  while (joins_call(program_, first)) --first;
  const size_t size = call_size(program_, first);
  double bytes = 0;
  for (size_t s = first; s < first + size && size > 1; ++s) {
    const Step& one = program_.steps[s];
    bytes += static_cast<double>(max_local_bytes(graph_.type(values_.at(one.source)),
                                                 shardings_[static_cast<size_t>(one.in[0])],
                                                 plan_.mesh));
  }
  return bytes;
}

double PlannedSteps::seconds_of_kernels() const {
  double sum = 0;
  for (const Step& step : program_.steps) {
    if (step.kind == Step::Kind::kernel)
      sum += static_cast<double>(program_.runs(step)) * kernel_seconds_of(step);
  }
  return sum;
}

PlannedTimes PlannedSteps::times() const {
  std::vector<double> seconds;  // by step
  PlannedTimes out;
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const Step& step = program_.steps[s];
    const bool kernel = step.kind == Step::Kind::kernel;
    seconds.push_back(kernel ? kernel_seconds_of(step)
                      : step.collective->traits().is_exchange()
                          ? of_exchange(step).seconds
                          : collective_seconds_of(step, bytes_of_call(s)));
    (kernel ? out.compute : out.comm) += static_cast<double>(program_.runs(step)) * seconds.back();
  }
  if (cluster_.collectives == Collectives::apart)
    out.hidden = std::max(0.0, out.compute + out.comm - critical_path(program_, seconds));
  return out;
}

/// The exchange before or after a node: which operand or result it is for, and its time. By what it
/// moves: the kernels before and after it may be fused ones, or others of the plan's own.
PlannedStep PlannedSteps::of_exchange(const Step& step) const {
  const CollectiveTraits& kind = step.collective->traits();
  const bool result = kind.place == CollectiveTraits::Place::after_node;
  const ValueId moved = values_.at(step.source);
  const auto shapes = [](const std::vector<TensorType>& types) {
    std::vector<Shape> out;
    for (const TensorType& t : types) out.push_back(t.shape);
    return out;
  };
  for (const Node& node : graph_.nodes()) {
    const std::vector<ValueId>& ids = result ? node.outputs : node.inputs;
    const auto planned = plan_.nodes.find(node.name);
    for (size_t i = 0; planned != plan_.nodes.end() && i < ids.size(); ++i) {
      if (ids[i] != moved) continue;
      const NodePlan& np = planned->second;
      const auto at = static_cast<int>(i);
      const std::vector<TensorType> in = graph_.types(node.inputs),
                                    out = graph_.types(node.outputs);
      const std::string shards = to_string((result ? np.out : np.in)[i], plan_.mesh);
      std::string other = to_string(np, result, at, plan_.mesh);
      if (kind.price == CollectiveTraits::Price::route) {
        if (np.rows.empty() || np.rows[0].by.index != at) continue;
        return {
            route_seconds(np, in, out, plan_.mesh, cluster_), {shards}, {other + " renumbered"}};
      }
      const auto exchange =
          exchange_of(np, shapes(in), shapes(out), result, at, plan_.mesh, program_.rank);
      if (!exchange || exchange->kind != kind.kind) continue;
      const double seconds = exchange_seconds(np, in, out, result, at, plan_.mesh, cluster_);
      return result ? PlannedStep{seconds, {std::move(other)}, {shards}}
                    : PlannedStep{seconds, {shards}, {std::move(other)}};
    }
  }
  return {};
}

}  // namespace shardrun
