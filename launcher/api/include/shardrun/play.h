// Planning as a game: a tactic more at a time, each with its price.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun {

/// A plan under tactics, all that they say nothing of being whole.
struct TacticReport {
  double seconds = 0;                          // predicted, of a step
  int64_t bytes = 0;                           // of the fullest rank, exactly
  std::map<std::string, int64_t> collectives;  // of a step, by kind
  size_t unresolved = 0;                       // nodes at which propagation stopped
};

/// The last row of explain_tactics. The collectives are known on rank 0 alone.
TacticReport report_tactics(World& world, const Model& model, const PlanRequest& request);

/// Planning as a game, for agents of one's own: each action is a tactic more, cutting a group of
/// colours along a mesh axis, with a digit for each of its sets of conflicts.
///
///     PlanSession session(world, model, request);
///     session.apply(session.actions()[0]);
///     session.price().seconds ... session.undo() ... session.report().seconds
///
/// It begins with the request's tactics. Its mesh, cluster, memory_bytes, shard, annotations,
/// configuration, tactics and whole_sums say what they say for make_plan, but hints count in
/// reports alone; ranks of 0 are those of the mesh. With the planner "mcts-arguments" actions cut
/// one dim of arguments that look alike. All ranks of a World make the same calls, which `world`
/// and `model` outlive.
class PlanSession {
 public:
  /// Throws Failure(call): no mesh, or one of more than three axes; another planner than auto, mcts
  /// and mcts-arguments; a plan file; strict; or what make_plan says.
  PlanSession(World& world, const Model& model, const PlanRequest& request);
  PlanSession(PlanSession&&) noexcept;
  PlanSession& operator=(PlanSession&&) noexcept;
  ~PlanSession();

  /// Those that change the state, as PlanRequest::tactics takes them.
  std::vector<std::string> actions();
  /// The request's, then those that were applied.
  std::vector<std::string> tactics() const;
  /// The same number for what is cut alike, whatever the order of the cuts.
  uint64_t state() const;
  /// What the state costs at once, without a search: seconds of a step, bytes that values hold at
  /// their peak, and seconds as a part of those where nothing is cut, with a penalty for bytes
  /// above the limit.
  struct Price {
    double seconds = 0, relative = 0;
    int64_t bytes = 0;
  };
  Price price();
  /// Throws Failure(call) if it is none of actions(), and the state stays.
  void apply(const std::string& action);
  /// Throws Failure(call) if nothing was applied.
  void undo();
  /// report_tactics of tactics(): the state as a plan, partitioned and laid out.
  TacticReport report();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardrun
