// SimulatedStep: a training step of all ranks as tasks of a Simulation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/cost/cluster.h"
#include "simulate/engine.h"
#include "simulate/pipeline_order.h"
#include "simulate/rank_lanes.h"

namespace shardrun {

struct StepSettings {
  Pipeline pipeline;
  Assumptions assumed;
  TimeFactors factors;
  int micro_batches = 0;      // in place of the program's; 0: as many as it has
  double launch_seconds = 0;  // of the host, each time that it asks for something
  double backward = 1;        // of these, where each kernel is asked for, one of the backward pass
  double read_rate = 0;       // bytes/s at which a batch comes to the rank; 0: it takes no time
  double overlap_slowdown = 1;     // kernels take so many times as long during communication
  std::map<int64_t, double> slow;  // by rank: its kernels and host take so many times as long
  /// Of log-normal factors with mean 1, one for each rank and PartRun of a step: kernels and host.
  double jitter = 0;
  uint64_t seed = 0;
};

/// What a task is, for people.
struct TaskLabel {
  enum class What : uint8_t { step, launch, read, zero, send };
  What what = What::step;
  int step = -1;     // of the lane's Program
  int micro = -1;    // micro-batch; -1: the update
  int64_t sent = 0;  // of a send: bytes of each rank
};

/// Ranks of a class run one Program. With several stages rank r of stage s is s * (ranks of the
/// plan) + r.
class SimulatedStep {
 public:
  /// `works`: by class; `class_of`: by rank of the plan. All that is passed in outlives this.
  /// Throws invalid_input as schedule_of and divide do.
  SimulatedStep(const std::vector<ProgramWork>& works, const std::vector<int>& class_of,
                const Cluster& cluster, const StepSettings& settings);
  ~SimulatedStep();

  /// Runs it; the `draw`-th time with other jitter than before. Of the settings, factors, launches
  /// and micro-batches may have changed since the last time.
  void run(uint64_t draw = 0);
  /// Frees what run() made; simulation() and labels() are gone.
  void clear();

  const Simulation& simulation() const { return *simulation_; }
  const std::vector<TaskLabel>& labels() const { return labels_; }
  const RankLanes& lanes() const { return lanes_; }
  int stage_of(int lane) const { return lane_stage_[static_cast<size_t>(lane)]; }
  const ProgramWork& work_of(int lane) const;
  /// Bytes that the first rank of the lane gives to others in the step, activations too.
  int64_t sent(int lane) const { return sent_[static_cast<size_t>(lane)]; }
  /// 0: compute, then those of collectives, then the host's, then of activations and their
  /// gradients; by stream.
  const std::string& stream_name(int stream) const { return names_[static_cast<size_t>(stream)]; }
  int stream_count() const { return static_cast<int>(names_.size()); }

 private:
  struct Lane;
  void begin_lane(int lane);
  void add_update(int lane);
  bool add_next_run(int lane);
  void add_steps(int lane, const std::vector<int>& steps, int run, int micro);
  int add(Lane& lane, int stream, SimTask task, TaskLabel label, std::vector<int> after);
  int meeting_of(int lane, int run, const AxisSet& axes, int occurrence);
  void send(int lane, const PartRun& run);
  SimTask message(double bytes, int from_part, int to_part) const;
  SimTask over_link(bool far, double bytes, int64_t ranks) const;
  std::optional<std::vector<int>> arrivals(int lane, const PartRun& run) const;
  void check_meetings() const;

  const std::vector<ProgramWork>& works_;
  const Cluster& cluster_;
  const StepSettings& settings_;
  int micro_batches_ = 1;
  int64_t plan_ranks_ = 1;
  std::vector<int> lane_stage_, lane_class_;
  RankLanes lanes_;
  std::vector<DividedSteps> divided_;  // by class

  // Of the run:
  uint64_t draw_ = 0;
  std::unique_ptr<Simulation> simulation_;
  std::vector<TaskLabel> labels_;
  std::vector<Lane> at_;
  std::vector<std::string> names_;
  std::vector<int64_t> sent_;
  std::map<std::vector<int>, std::pair<int, int>> meetings_;  // and how many are still to come
  std::map<std::vector<int>, int> arrived_;  // by lane, pass, part, micro-batch: what is sent
};

}  // namespace shardrun
