// Constraints: what a planner's name, tactics and the caller's requests demand of the search.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/sharding.h"
#include "planner/schedule/demands.h"
#include "planner/space/folding.h"
#include "planner/space/search_space.h"

namespace shardrun {

/// "REGEX=SHARDING", as --shard takes it: every value whose whole name matches, with or without the
/// % of computed ones, and how it then lies inside. `flag`: "--shard", for errors. Throws
/// invalid_input, naming the request: no regular expression, no such axis, no value matches (with
/// names that are near), another number of dims.
std::vector<std::pair<ValueId, Sharding>> requested_values(const Graph& graph, const Mesh& mesh,
                                                           const std::string& flag,
                                                           const std::string& text);

class Constraints {
 public:
  /// `requests`: of requested_values. `pinned`: Shardings by name; names that the graph has not are
  /// ignored. Throws invalid_input as requested_values does, and, naming both, of two requests that
  /// ask different things of one value. `tactics`: of a Schedule
  /// (planner/schedule/schedule.h), whose axes they then speak for.
  Constraints(const Graph& graph, const Mesh& mesh, const std::string& planner,
              const std::vector<std::string>& tactics, const std::vector<std::string>& requests,
              const std::map<std::string, Sharding>& pinned);

  /// Values whose whole Sharding is fixed.
  const std::map<std::string, Sharding>& pinned() const { return pinned_; }
  /// May a strategy leave a rank with an empty shard of a dim? Where a request or the batch needs
  /// it.
  bool leaves_empty() const { return leaves_empty_; }
  /// May an update be made in another Sharding than its parameter is held in?
  bool reshards_updates() const;
  /// May a value be redistributed to several readers in that Sharding?
  bool may_redistribute(ValueId id, const Sharding& sharding) const;
  /// Are gathered weights dropped after each use, as fsdp does?
  bool regathers_weights() const;
  /// Where propagation of tactics or requests stopped: after apply().
  std::span<const Unresolved> unresolved() const;

  /// First of all: splits classes whose members must do different things, with a copy of `rules`.
  void split(Folding& folding, std::vector<SpmdRule>& rules);
  /// May an option (nullptr: none) of a node's rule be taken along a mesh axis?
  using MayTake = std::function<bool(int axis, const SpmdRule::Option*)>;
  /// What `list` makes of a class of nodes, asked for no more than what is allowed. What a schedule
  /// asks of a node that no strategy can do (a dim that the mesh does not divide) is relaxed for
  /// that node, to whole operands and results.
  std::vector<Strategy> strategies(
      size_t item_class, const Folding& folding,
      const std::function<std::vector<Strategy>(const MayTake&)>& list);
  /// Then: removes the strategies of nodes that are not allowed. What a request asks is not
  /// relaxed: throws invalid_input naming the request, what stands against it (the planner, another
  /// request or the node itself), the node and the Shardings that it could have.
  void apply(const Folding& folding, SearchSpace& space);
  /// Removes the strategies of held values (add_value_strategies made them) that are not allowed.
  void restrict_held(SearchSpace& space, const Folding& folding) const;

 private:
  struct Pin {
    Sharding sharding;
    std::string by;          // "--shard 'w=[data,-]'"
    bool requested = false;  // by the caller, so that a planner that does otherwise contradicts it
  };
  void allow_empty();
  void pin(ValueId value, const Pin& pin);
  void pin_updates();
  std::vector<const Pin*> pins_of(const Node& node) const;  // per result; null: free
  std::vector<NodeDemand> looser(const NodeDemand& demand) const;
  void relax(const std::vector<Strategy>& strategies, NodeDemand& demand) const;
  void check_pins(const Node& node, const NodeDemand& demand,
                  const std::vector<Strategy>& strategies) const;
  void check_held(ValueId id, const NodeDemand& demand) const;
  void restrict_node(const Node& node, std::vector<Strategy>& strategies, NodeDemand& demand) const;
  Sharding cut_as(ValueId id, const std::vector<Placements>& masks) const;
  [[noreturn]] void contradict_planner(const Value& value, const Pin& pin,
                                       const std::string& where) const;

  const Graph& graph_;
  const Mesh& mesh_;
  std::string planner_;
  bool propagates_requests_ = false;
  std::optional<Schedule> schedule_;  // nullopt: all is left to the search
  std::vector<AxisCuts> axes_;        // its; empty without one
  std::optional<Demands> demands_;
  std::map<std::string, Sharding> pinned_;
  std::map<ValueId, Pin> pins_;
  bool leaves_empty_ = false;
  std::vector<NodeDemand> class_demand_;  // after split(); empty where nothing is demanded
};

}  // namespace shardrun
