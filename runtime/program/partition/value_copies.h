// ValueCopies: the Shardings in which each value lies while the steps of a Graph are made.
#pragma once

#include <vector>

#include "planner/cost/cluster.h"
#include "program/partition/skeleton.h"

namespace shardrun {

/// A value is there as it was produced, and in the Shardings that it was brought into since: once
/// for all that want it so.
class ValueCopies {
 public:
  /// Gives what the host fills, and somebody reads, its buffer and binding. Throws invalid_input if
  /// the plan has it in a Sharding that the host cannot fill.
  ValueCopies(Skeleton& skeleton, const Cluster& cluster);

  /// The phase of all steps from now on.
  void begin(Phase phase) { phase_ = phase; }
  const Sharding* produced(ValueId value) { return state(value).produced; }
  /// The buffer of a node's result, as the node produces it.
  BufferId make(ValueId value);
  /// The buffer that holds `value` in `sharding`, made now if there is none, from the copy that is
  /// the cheapest to start from.
  BufferId in(ValueId value, const Sharding* sharding);
  /// Forgets what earlier readers had of a value that each gets anew.
  void drop(ValueId value);
  /// A value that nobody wants as it was made, and whose wanted forms together are no larger, is
  /// resharded at once: a partial gradient of 4 MB becomes a 1 MB shard and its memory is free
  /// again. So is what replaces a held value, into that one's memory. Everything else is resharded
  /// just before its first use: in the phase of who wants it first, so that what only the update
  /// wants is resharded once a step and not in every micro-batch.
  void reshard_early(ValueId value);

 private:
  struct Copy {
    const Sharding* sharding = nullptr;
    BufferId buffer = -1;
  };
  struct Want {
    const Sharding* sharding = nullptr;
    Phase phase = Phase::micro;  // of who wants it first
  };
  struct State {
    const Sharding* produced = nullptr;
    const Sharding* redistributed = nullptr;    // nullptr: in no particular one
    bool regathered = false, updating = false;  // updating: replaces a held value
    std::vector<Copy> copies;                   // the first is as produced
    std::vector<Want> wanted;                   // distinct Shardings
  };

  static BufferId find(const State& state, const Sharding* sharding);
  static bool wants_produced(const State& state);
  State& state(ValueId id) { return states_[static_cast<size_t>(id)]; }
  int64_t bytes_of(ValueId id, const Sharding& sharding) const;
  void want(ValueId id, const Sharding* sharding, Phase phase);
  void collect_wants();
  void bind();
  const std::vector<ReshardStep>& reshard(const TensorType& type, const Sharding& from,
                                          const Sharding& to);
  BufferId add_reshard(ValueId value, const Sharding* before, const ReshardStep& move,
                       BufferId from);

  Skeleton& skeleton_;
  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  std::vector<State> states_;  // by value
  Phase phase_ = Phase::micro;
};

}  // namespace shardrun
