// ReplicaCheck: finds numbers that were corrupted in a step, by hashes of what memory holds.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "exec/executor.h"
#include "graph/plan.h"

namespace shardrun {

/// Follows one step of one rank's executor, and compares CRC-32Cs of two kinds:
///   - Memory: of each buffer when it was made, and behind the step that reads it last, or before
///     it where that step overwrites it. Each bit that changes in between is found, on the rank
///     where it does, whether or not the value has replicas.
///   - Replicas: of each value that several ranks hold the same of (all mesh axes but those that
///     cut it or over which it is partial), at the beginning of the step and as it was made:
///     parameters, state, results of all_reduce and all_gather, what all compute alike.
///
///   ReplicaCheck check(executor, plan);            // the plan that the Program is of
///   executor.begin_step(), check.begin();
///   for each micro-batch: fill(batch), check.before_micro(), executor.run_micro();
///   check.before_update(), executor.run_update();
///   throw Failure(… + check.end(comm));            // unless that is ""
///
/// The step then runs node by node, with the same numbers. Each rank does the same.
class ReplicaCheck {
 public:
  /// Throws unsupported where the arena is not the host's.
  ReplicaCheck(Executor& executor, const Plan& plan);
  ~ReplicaCheck();
  ReplicaCheck(const ReplicaCheck&) = delete;
  ReplicaCheck& operator=(const ReplicaCheck&) = delete;

  void begin();
  void before_micro();
  void before_update();
  /// What the executor calls behind each of its steps (Executor::StepHook).
  void after(size_t step);
  /// "", or the first difference, as a sentence with the value and the ranks in it: the same on
  /// every rank. Collective over all ranks of the program's mesh.
  std::string end(Communicator& host);

 private:
  using AxisSet = uint64_t;  // of the mesh, a bit each
  /// What is known of memory that begins somewhere in the arena.
  struct Held {
    int64_t bytes = 0;
    uint32_t hash = 0;
    int64_t maker = -1;  // step; -1: it was there before
  };
  /// A replica, as it was made.
  struct Made {
    AxisSet axes = 0;  // over which its replicas lie
    BufferId buffer = -1;
    int64_t micro = 0;        // from 1
    int64_t collectives = 0;  // that this rank had made
    int64_t maker = -1;       // as Held has it
    uint32_t hash = 0;
  };
  /// Where a replica differs: ranks that hold it, and their hashes.
  struct Difference {
    std::vector<int64_t> ranks;
    std::vector<int64_t> hashes;
    int64_t collectives = 0;
    size_t made = 0;  // of ranks[0]: in made_
  };
  AxisSet replicated(const Sharding& sharding) const;
  AxisSet after_collective(const Collective& collective, AxisSet in) const;
  void find_axes(const Plan& plan);
  void find_last_reads();
  TensorView view(BufferId buffer) const;
  void hold(BufferId buffer, int64_t maker);
  void look_at(const std::vector<BufferId>& read, size_t reader);
  std::string describe(BufferId buffer) const;
  std::string describe(const Made& made) const;
  std::vector<std::vector<int64_t>> tables(Communicator& host) const;
  std::string compare(Communicator& host) const;

  Executor& executor_;
  const Program& program_;
  std::vector<AxisSet> axes_;                     // by buffer
  std::map<int64_t, const Binding*> persistent_;  // by offset
  /// By step: what it reads last and is there when it has run, and what it reads and overwrites.
  std::vector<std::vector<BufferId>> last_reads_, overwrites_;
  std::vector<BufferId> set_up_;  // what Program::setup made
  std::map<int64_t, Held> held_;  // by offset
  std::vector<Made> made_;
  std::map<AxisSet, uint32_t> digests_;  // of made_'s hashes, in their order
  int64_t micro_ = 0, collectives_ = 0;
  std::string changed_;  // the first memory that changed on this rank
};

}  // namespace shardrun
