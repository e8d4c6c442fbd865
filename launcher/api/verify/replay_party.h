// One party of a replay: a rank, the one rank that they are compared with, or its shadow.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "ranks/rank_device.h"
#include "verify/replay.h"
#include "verify/replay_steps.h"

namespace shardrun {

/// What persists over the acts, by name, in the order in which every party shows it: what one
/// rank's training step holds, and so every rank's (a Graph may have constants that nobody reads).
/// Not what starts every step at zero: nobody reads what a step leaves there.
std::vector<std::string> persistent_names(const Program& whole);

/// Runs the acts' Programs in one arena, as a rank that trains and validates does, on a device of
/// its own.
class Party {
 public:
  /// `programs`: this party's, one per act. Collective over `comm`, which is for memory of the
  /// host.
  Party(const std::vector<ReplayAct>& acts, const std::vector<const Program*>& programs,
        std::span<const KernelList* const> lists, Communicator& comm, const ReplayOptions& options);

  Executor& executor(size_t act) { return *executors_[act]; }
  const Program& program(size_t act) { return executors_[act]->program(); }
  /// This party's shard of a persistent value, where the host sees it.
  HostViews persistent(const std::string& name);
  /// The same of buffers of an act's arena.
  HostViews shown(std::span<const TensorView> buffers) { return {on_->device(), buffers}; }

  /// Runs one act. `before_phase` is called when inputs are there and the phase's first step is
  /// next.
  void play(size_t act, const std::function<void(Phase)>& before_phase);

 private:
  const std::vector<ReplayAct>& acts_;
  const ReplayOptions& options_;
  std::unique_ptr<RankDevice> on_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

/// Of each act, the steps at which the ranks stop.
using Stops = std::vector<std::vector<SharedStep>>;
Stops stops_of(const std::vector<ReplayAct>& acts);

/// Called at each stop of an act with what the rank's step has left, which it may change; behind
/// them once for each persistent value, and `stop` counts on from the number of stops.
using Show = std::function<void(size_t act, size_t stop, std::span<const TensorView> left)>;

/// All acts of one rank, everything shown. Throws what `show` throws.
void play_rank(const std::vector<ReplayAct>& acts, const Stops& stops, int64_t rank,
               std::span<const KernelList* const> lists, Communicator& comm,
               const ReplayOptions& options, const Show& show);

}  // namespace shardrun
