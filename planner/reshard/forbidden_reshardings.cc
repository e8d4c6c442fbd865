// Finds what is resharded where an arena is too full, and forbids it on the Problem's edges.
#include "planner/reshard/forbidden_reshardings.h"

#include <algorithm>
#include <functional>

#include "base/at.h"

namespace shardrun {
namespace {

/// A resharding between two nodes of the problem: by the choice at each, the Shardings.
struct Passage {
  ValueId value = kNoValue;
  int from = 0, to = 0;
  std::function<const Sharding&(size_t choice)> have, want;
};

bool is_first_reader(const Graph& graph, NodeId node, ValueId value) {
  for (NodeId n = graph.value(value).producer + 1; n < node; ++n) {
    const std::vector<ValueId>& inputs = graph.node(n).inputs;
    if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return false;
  }
  return true;
}

/// Those that may run in front of a node, by operand: from what it is redistributed as to what
/// this one wants; from what it was made as to what it is redistributed as, if this is the first.
std::vector<Passage> passages(const PlanContext& problem, NodeId node) {
  std::vector<Passage> out;
  const Graph& graph = problem.graph;
  const SearchSpace& space = problem.space;
  const ReshardTimes& times = problem.times;
  const int reader = problem.folding.class_of_node[at(node)];
  const std::vector<ValueId>& inputs = graph.node(node).inputs;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const std::pair<int, int> from = problem.folding.origin(graph, inputs[k]);
    for (const Hub& hub : problem.joint.hubs) {
      if (problem.folding.origin(graph, hub.value) != from) continue;
      const auto redistributed = [&times, &hub](size_t choice) -> const Sharding& {
        return times.sharding(hub.shardings[choice]);
      };
      const auto wanted = [&space, reader, k](size_t choice) -> const Sharding& {
        return space.strategies[at(reader)][choice].in[k];
      };
      out.push_back({inputs[k], hub.node, reader, redistributed, wanted});
      if (graph.value(inputs[k]).role != Role::computed || !is_first_reader(graph, node, inputs[k]))
        continue;
      const auto made = [&space, from](size_t choice) -> const Sharding& {
        return space.strategies[at(from.first)][choice].out[at(from.second)];
      };
      out.push_back({inputs[k], from.first, hub.node, made, redistributed});
    }
  }
  return out;
}

/// Forbids to bring a passage's value from `before` bytes or more to `after` or more in another
/// Sharding. False if that was so already.
bool forbid(const PlanContext& problem, const Passage& passage, int64_t before, int64_t after) {
  const TensorType& type = problem.graph.type(passage.value);
  bool any = false;
  for (FactoredProblem::Edge& edge : problem.joint.problem.edges) {
    if (edge.from != passage.from || edge.to != passage.to) continue;
    std::vector<size_t> large;  // choices that want so many bytes
    for (size_t b = 0; b < edge.column.size(); ++b) {
      if (max_local_bytes(type, passage.want(b), problem.mesh) >= after) large.push_back(b);
    }
    auto matrix = std::make_shared<FactoredProblem::Matrix>(*edge.matrix);
    for (size_t a = 0; a < edge.row.size(); ++a) {
      const Sharding& have = passage.have(a);
      if (max_local_bytes(type, have, problem.mesh) < before) continue;
      for (size_t b : large) {
        if (have == passage.want(b)) continue;
        any = any || edge.cost(a, b) < kInfeasible;
        matrix->set(edge.row[a], edge.column[b], kInfeasible);
      }
    }
    matrix->forbids = true;
    edge.matrix = std::move(matrix);
  }
  return any;
}

}  // namespace

bool forbid_reshardings(const PlanContext& problem, const Solution& solution, const ArenaUse& use,
                        int64_t limit) {
  const Graph& graph = problem.graph;
  const int64_t gaps = use.bytes - *std::max_element(use.alive.begin(), use.alive.end());
  const std::vector<int64_t> claims = bytes_over_time(problem.joint.problem, solution);
  const size_t times = std::min(use.alive.size(), claims.size());
  bool any = false;
  for (size_t t = 0; t < times; ++t) {
    const int64_t excess = use.alive[t] + gaps - limit, rest = use.alive[t] + gaps - claims[t];
    if (excess <= 0) continue;
    for (const Passage& passage : passages(problem, static_cast<NodeId>(t))) {
      const TensorType& type = graph.type(passage.value);
      const Sharding &have = passage.have(at(solution[at(passage.from)])),
                     &want = passage.want(at(solution[at(passage.to)]));
      const int64_t before = max_local_bytes(type, have, problem.mesh),
                    after = max_local_bytes(type, want, problem.mesh);
      if (have == want || 2 * (before + after) < excess) continue;
      for (size_t other = 0; other < times; ++other) {
        const std::vector<ValueId>& inputs = graph.nodes()[other].inputs;
        const auto is_alike = [&](ValueId id) { return graph.type(id) == type; };
        if (claims[other] + rest <= limit || std::none_of(inputs.begin(), inputs.end(), is_alike))
          continue;
        for (const Passage& alike : passages(problem, static_cast<NodeId>(other)))
          any = (is_alike(alike.value) && forbid(problem, alike, before, after)) || any;
      }
    }
  }
  return any;
}

}  // namespace shardrun
