// Baselines: known parallelisms, written as demands on how values may lie along a mesh axis.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/mesh.h"
#include "planner/names/search_names.h"
#include "planner/space/dim_groups.h"

namespace shardrun {

/// Which planner has this name; nullopt: none.
std::optional<PlannerKind> planner_named(const std::string& name);

/// "fsdp+megatron": one name for each axis of the mesh, in order. A single name holds for all axes.
/// nullopt: `planner` is no baseline's name. Throws invalid_input if the mesh has another number of
/// axes than there are names.
std::optional<std::vector<Baseline>> parse_baselines(const std::string& planner, const Mesh& mesh);
/// How many names: the axes that a mesh needs; 1 fits any mesh, 0 is no baseline.
int baseline_names(const std::string& planner);

/// What there is to try on a mesh: each name for all axes, and on two axes each that cuts the batch
/// beside each that cuts the model, in both orders.
std::vector<std::string> baselines_of(const Mesh& mesh);

/// How a value may lie along one mesh axis, as a set.
using Placements = uint64_t;
inline constexpr Placements kReplicated = 1, kPartial = 2, kAnyPlacement = ~Placements{0};
inline constexpr Placements cut_along(size_t dim) { return dim < 62 ? Placements{4} << dim : 0; }

/// [operand or result][mesh axis].
struct NodeDemand {
  std::vector<std::vector<Placements>> in, out;
  friend auto operator<=>(const NodeDemand&, const NodeDemand&) = default;
};

/// The demands of baselines on a training Graph. Roles come from the graph's structure (what
/// depends on the batch, what updates what, which dims are cut together), never from names.
class BaselineDemands {
 public:
  /// `rule_of(n)`: the rule of node n.
  BaselineDemands(const Graph& graph, const Mesh& mesh, std::vector<Baseline> kinds,
                  const std::function<const SpmdRule&(NodeId)>& rule_of);

  NodeDemand node(NodeId id) const;
  std::vector<Placements> held(ValueId id) const;  // of what no node makes; per mesh axis
  /// In which a value is redistributed to several readers; per mesh axis.
  std::vector<Placements> redistributed(ValueId id) const;

 private:
  void find_roles();
  void find_batch_groups();
  void find_stream(const std::function<const SpmdRule&(NodeId)>& rule_of);
  void find_weights(const std::function<const SpmdRule&(NodeId)>& rule_of);
  void find_weight(const Node& node, const SpmdRule& rule, size_t operand);
  void find_sequence();
  bool passes_product(ValueId from, ValueId to, const std::vector<bool>& product) const;

  Placements cuts(ValueId id, const std::set<int>& groups) const;
  Placements all_cuts(ValueId id) const;
  Placements data(ValueId id) const;
  Placements weight(ValueId id) const;
  Placements inner(ValueId id) const;
  void demand_data(NodeId id, size_t axis, NodeDemand& demand) const;
  void demand_model(NodeId id, size_t axis, NodeDemand& demand) const;
  bool of_stream(ValueId id) const;
  bool is_held(ValueId id) const;

  const Graph& graph_;
  std::vector<Baseline> kinds_;   // per mesh axis
  std::vector<bool> cuts_batch_;  // per mesh axis: are there rows left to cut?
  DimGroups groups_;
  std::vector<bool> of_batch_, of_weights_;  // values: depends on the batch; on parameters alone
  std::vector<bool> forward_;                // nodes that the loss depends on
  std::vector<bool> gradients_;              // values made in the micro phase for the update
  std::vector<bool> updates_, accumulates_;  // nodes that make what replaces a held value
  // Groups of dims: the batch's first ones, its others, of those the sequence; what passes between
  // blocks, what lies inside.
  std::set<int> batch_, sample_, sequence_, stream_, inner_;
};

}  // namespace shardrun
