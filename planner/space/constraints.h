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
#include "planner/space/copy_requests.h"
#include "planner/space/folding.h"
#include "planner/space/requests.h"
#include "planner/space/search_space.h"

namespace shardrun {

class Constraints {
 public:
  /// `requests`: as --shard takes them (planner/space/requests.h), all of them met. `pinned`:
  /// Shardings of values by name; names that the graph has not are ignored. Throws as find_request
  /// does, and naming both, where two requests ask different things of one value, operand or node.
  /// `tactics`: of a Schedule (planner/schedule/schedule.h), whose axes they then speak for.
  Constraints(const Graph& graph, const Mesh& mesh, const PlannerChoice& planner,
              const std::vector<std::string>& tactics, const std::vector<std::string>& requests,
              const std::map<std::string, Sharding>& pinned);

  /// Values whose whole Sharding is fixed.
  const std::map<std::string, Sharding>& pinned() const { return pinned_; }
  /// Nodes of whose operands or ways something is asked, or of the copies of what they make or
  /// read, with a text that says what.
  std::map<NodeId, std::string> marked_nodes() const;
  /// Is something asked of a node, its operands or its results?
  bool asks(const Node& node, NodeId id) const;
  /// May a strategy leave a rank with an empty shard of a dim? Where a request or the batch needs
  /// it.
  bool leaves_empty() const { return leaves_empty_; }
  /// May an update be made in another Sharding than its parameter is held in?
  bool reshards_updates() const;
  /// May a value be redistributed to several readers in that Sharding?
  bool may_redistribute(ValueId id, const Sharding& sharding) const;
  /// How copies are made: SearchSpace::regathered, as fsdp does with weights, and what requests
  /// say.
  void say_copies(SearchSpace& space) const;
  /// Are there tactics or requests that are propagated? After split().
  bool propagates() const { return demands_.has_value(); }
  /// Where that stopped: after apply().
  std::span<const Unresolved> unresolved() const;

  /// First of all: splits classes whose members must do different things, with a copy of `rules`.
  /// Throws invalid_input where a request names a way that a node does not have.
  void split(Folding& folding, std::vector<SpmdRule>& rules);
  /// May an option (nullptr: none) of a node's rule be taken along a mesh axis?
  using MayTake = std::function<bool(int axis, const SpmdRule::Option*)>;
  /// What `list` makes of a class of nodes, asked for no more than what is allowed. What a schedule
  /// asks of a node that no strategy can do (a dim that the mesh does not divide) is relaxed for
  /// that node, to whole operands and results.
  std::vector<Strategy> strategies(
      size_t item_class, const Folding& folding,
      const std::function<std::vector<Strategy>(const MayTake&)>& list);
  /// Does any of these do all that a schedule asks of the class?
  bool are_met(size_t item_class, const std::vector<Strategy>& strategies) const;
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
  /// Along which mesh axes a node is cut by each of its ways.
  struct Cut {
    std::vector<Axes> axes;
    std::string by;
    std::vector<int> way_of_axis = {};  // Propagation::kWhole: none. After split()
    NodeDemand demand = {};             // after split()
  };
  /// What is asked of one node, as a condition on its strategies.
  struct Ask {
    std::string by;
    std::string verb, what;  // "leave", "'v' [-, {model}]"
    std::string let;         // of what a planner does not let: "'v' lie [-, {model}]"
    std::function<bool(const Strategy&)> fits;
    std::function<std::string(const Strategy&)> instead;  // how a strategy does it; null: not said
  };
  void allow_empty();
  void request(const Request& request);
  void pin(ValueId value, const Pin& pin);
  void pin_operand(NodeId node, size_t operand, const Pin& pin);
  bool regathers_weights() const;
  bool asks_for_state_apart() const;
  bool asks_to_gather() const;
  void pin_updates();
  void note_asked_nodes();
  void find_ways(const RuleOf& rule_of);
  Required required() const;
  std::vector<Ask> asks_of(const Node& node, NodeId id) const;
  std::vector<NodeDemand> looser(const NodeDemand& demand) const;
  void relax(const std::vector<Strategy>& strategies, NodeDemand& demand) const;
  void check_asks(const std::vector<Ask>& asks, const Node& node, const NodeDemand& demand,
                  const std::vector<Strategy>& strategies) const;
  bool is_made(ValueId held) const;
  bool may_be_made(ValueId held, const Sharding& sharding, const Folding& folding,
                   const SearchSpace& space) const;
  void check_held(ValueId id, const NodeDemand& demand) const;
  void restrict_node(NodeId id, std::vector<Strategy>& strategies, NodeDemand& demand) const;
  Sharding cut_as(ValueId id, const std::vector<Placements>& masks) const;
  [[noreturn]] void contradict_planner(const std::string& by, const std::string& value,
                                       const std::string& where) const;

  const Graph& graph_;
  const Mesh& mesh_;
  PlannerChoice planner_;
  std::string by_tactics_;            // "--tactic batch@data"; "": there is none
  std::optional<Schedule> schedule_;  // nullopt: all is left to the search
  std::vector<AxisCuts> axes_;        // its; empty without one
  std::optional<Demands> demands_;
  std::map<std::string, Sharding> pinned_;
  std::map<ValueId, Pin> pins_;
  std::map<std::pair<NodeId, size_t>, Pin> operands_;
  std::map<NodeId, Cut> cuts_;
  CopyRequests copies_;
  std::map<NodeId, std::string> asked_nodes_;
  bool leaves_empty_ = false, state_apart_ = false;
  std::vector<NodeDemand> class_demand_;  // after split(); empty where nothing is demanded
};

}  // namespace shardrun
