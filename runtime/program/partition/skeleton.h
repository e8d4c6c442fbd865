// What of a Partition is the same on every rank: its steps and buffers, and what each comes from.
//
// All but boxes, and what follows from them, is found once for all ranks. That it comes out in one
// order on every rank, since nothing here looks at a rank, and that collectives are called in step
// order, is why no two ranks can wait for each other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/reshard/reshard.h"

namespace shardrun {

/// Operand or result `index` of a node, as the node takes or makes it.
struct NodeSide {
  NodeId node = -1;
  bool result = false;
  int index = 0;
};

/// What a rank's buffer holds: of `value` its shard under `sharding`, or what a node
/// takes or makes in its place.
struct BufferForm {
  ValueId value = kNoValue;
  const Sharding* sharding = nullptr;
  std::optional<NodeSide> exchanged = {};
};

/// What a step comes from: a node's kernel, a resharding, an exchange, or (none of them) a copy.
struct StepForm {
  NodeId kernel = -1;
  const ReshardStep* move = nullptr;  // of `value`, which lies in `before`
  ValueId value = kNoValue;
  const Sharding* before = nullptr;
  std::optional<NodeSide> exchange = {};
};

/// Global shapes of a node's operands and results.
struct NodeShapes {
  std::vector<Shape> in, out;
};

/// Shardings are pointed at: they are the plan's, the reshardings', or of `wholes`.
struct Skeleton {
  /// Nothing yet but each node's plan. Throws invalid_input if one is missing or is of another
  /// node. `graph` and `plan` must live as long as this.
  Skeleton(const Graph& graph, const Plan& plan);

  const Graph& graph;
  const Plan& plan;
  std::vector<const NodePlan*> node_plans;  // by node
  Program program = {};             // without local types, boxes, attributes and collectives
  std::vector<BufferForm> buffers;  // of program.buffers
  std::vector<StepForm> steps;      // of program.steps
  std::map<std::tuple<DType, Shape, Sharding, Sharding>, std::vector<ReshardStep>, std::less<>>
      reshards;
  std::map<size_t, Sharding> wholes;  // by number of dims

  BufferId add_buffer(std::string name, const BufferForm& form);
  /// Of a value's shards. A `copy` is not as its node makes it, and has its sharding in its name.
  BufferId add_buffer(ValueId value, const Sharding* sharding, bool copy);
  void add_step(Step step, const StepForm& form);
  /// A resharding or exchange of `value`.
  void add_collective(ValueId value, Collective::Kind kind, Phase phase, std::vector<BufferId> in,
                      BufferId out, const StepForm& form);
  /// `from` into `to`: a value called `name`.
  void add_copy(BufferId from, BufferId to, Phase phase, const std::string& name);
  /// The i-th step becomes what the order[i]-th was.
  void reorder(const std::vector<size_t>& order);
  void drop_unused_buffers();

  const Sharding* whole(ValueId id);
  /// How an output of the graph is left.
  const Sharding* end(ValueId id);
  NodeShapes shapes_of(NodeId id) const;
  /// Of the numbers that name rows, their routing. nullopt: shards are what the node takes or
  /// makes, on every rank.
  std::optional<Collective> exchange_of(const NodeSide& side, int64_t rank) const;
};

}  // namespace shardrun
