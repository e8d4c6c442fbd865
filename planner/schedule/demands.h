// Demands: how a Schedule lets values lie along each mesh axis, node by node.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/mesh.h"
#include "graph/sharding.h"
#include "planner/schedule/named_dims.h"
#include "planner/schedule/propagate.h"
#include "planner/schedule/schedule.h"

namespace shardrun {

/// How a value may lie along one mesh axis, as a set.
using Placements = uint64_t;
inline constexpr Placements kReplicated = 1, kSummands = 2, kAnyPlacement = ~Placements{0};
inline constexpr Placements cut_along(size_t dim) { return dim < 62 ? Placements{4} << dim : 0; }

/// How a Sharding lies along one axis: the dim that it cuts, Way::kPartial, or Way::kWhole.
int side_along(const Sharding& sharding, int axis);
/// The same as a set.
Placements as_mask(int side);

/// [operand or result][mesh axis].
struct NodeDemand {
  std::vector<std::vector<Placements>> in, out;
  friend auto operator<=>(const NodeDemand&, const NodeDemand&) = default;
};

/// What must hold under every schedule, and what cuts are propagated from.
struct Required {
  struct Operand {
    NodeId node = -1;
    size_t operand = 0;
    Sharding sharding;
  };
  std::vector<std::pair<ValueId, Sharding>> values;  // lie so
  /// Lie so between steps: the optimizer's state, and what nodes are said to read in a way of their
  /// own. Updates are made so, and no more follows until all else is propagated: the products that
  /// make gradients are cut as the batch is, not as the weights are held.
  std::vector<std::pair<ValueId, Sharding>> held;
  std::vector<Operand> operands;                           // are read so
  std::vector<std::pair<NodeId, std::vector<int>>> nodes;  // by axis: its way, or kWhole
  bool empty() const { return values.empty() && held.empty() && operands.empty() && nodes.empty(); }
};

/// Along one axis a node does what the first cut of the schedule says that says anything of it:
/// batch, state, gradients and weights are one such voice, inner (with sequence, or without) is
/// one, and what is propagated from dims and nodes is one. Parts of a sum may be left or reduced
/// wherever nothing is cut: the search decides that.
class Demands {
 public:
  /// Cuts are propagated from what is `required` along all axes, before those of the schedule.
  /// Throws invalid_input naming the tactic: no value, node or group is called so, no such dim or
  /// option, another number of digits, or what earlier tactics forbid.
  Demands(const Graph& graph, const Mesh& mesh, const Schedule& schedule, const RuleOf& rule_of,
          const Required& required = {});

  NodeDemand node(NodeId id) const;
  std::vector<Placements> held(ValueId id) const;  // of what no node makes; per mesh axis
  /// In which a value is redistributed to several readers; per mesh axis.
  std::vector<Placements> redistributed(ValueId id) const;
  const std::vector<Unresolved>& unresolved() const { return unresolved_; }

 private:
  enum class Voice { data, model, dims };
  struct Axis {
    AxisCuts cuts;
    bool trivial = false;     // of one rank: nothing is demanded
    bool cuts_batch = false;  // are there rows left to cut?
    std::vector<Voice> voices;
    std::optional<Propagation> propagation;
    /// Then there are no parts of a sum, either.
    bool cuts_nothing() const { return voices.empty() && !cuts.free; }
  };
  struct Placed {
    std::vector<Placements> in, out;
  };
  void count_rows(const Mesh& mesh);
  void propagate(const Schedule& schedule, const Mesh& mesh, const Required& required);
  void start(const Required& required, int axis, Propagation& propagation) const;
  void start(const Cut& cut, Propagation& propagation) const;
  void take_updates(const Required& required, int axis, Propagation& propagation) const;
  void place_held(const Required& required, int axis, Propagation& propagation) const;
  void check_digits(const Cut& cut, int colour) const;
  Placements cuts(ValueId id, const std::set<int>& colours) const;
  Placements all_cuts(ValueId id) const;
  Placements data(ValueId id) const;
  Placements weight(ValueId id) const;
  Placements inner(ValueId id) const;
  bool of_stream(ValueId id) const;
  bool is_held(ValueId id) const;
  Placed placed(Voice voice, NodeId id, const Axis& axis) const;
  Placed by_data(NodeId id, const Axis& axis) const;
  Placed by_model(NodeId id, const Axis& axis) const;
  Placed by_dims(NodeId id, const Axis& axis) const;
  Placements held(Voice voice, ValueId id, const Axis& axis) const;

  const Graph& graph_;
  StepRoles roles_;
  Colours colours_;
  NamedDims dims_;
  std::set<ValueId> required_held_;
  std::vector<Axis> axes_;
  std::vector<Unresolved> unresolved_;
};

}  // namespace shardrun
