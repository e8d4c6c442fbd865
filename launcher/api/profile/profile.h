// The profile of a training run: when every step of every rank's Programs ran, and what the plan
// predicted of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/timeline.h"
#include "plan/plan.h"

namespace shardrun {

/// What is known of a Program's step whenever it runs.
struct StepFacts {
  bool collective = false;
  std::string name, source;  // source: the Graph node, or the value that a collective moves
  std::string op, kernel;    // of a collective: its kind, ""
  double bytes = 0;          // read and written by a kernel, or sent by a collective to other ranks
  double flops = 0;
  double predicted = 0;              // s
  std::vector<std::string> in, out;  // "f32[2, 64] [{data}, -]": local types, Shardings
};
std::vector<StepFacts> facts_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                                const Executor& executor);

/// Events of one rank with its facts.
struct RankProfile {
  int64_t rank = 0;
  std::string place;  // "data=0, model=1"; "" on one rank
  std::vector<StepFacts> training, validation;
  std::vector<Timeline::Run> steps, passes;
};

/// What an event is called that is no step of the Program: "reading a batch"; "" if it is one.
std::string host_work(size_t step);
/// What a step of training takes besides its events.
inline constexpr char kOutside[] = "outside of all these";

/// The fraction of step `s` in an event's time: by bytes, where several ran interleaved.
double share_of(size_t s, const Timeline::Event& event, const std::vector<StepFacts>& facts);

/// Trace events (JSON, joined by commas) of a rank: `rank` is their pid. Seconds `zero` of this
/// rank's clock become time 0. https://ui.perfetto.dev opens a file of them.
std::string trace_events(const RankProfile& profile, double zero);

/// Where the time of a step goes: by op, then the most expensive calls. All but the run's first
/// step count, if there are others.
std::string profile_table(const RankProfile& profile);

/// Records one rank's run, and tells what was recorded.
class Profiler {
 public:
  Profiler(const Model::Impl& model, const TrainingPlan::Impl& plan, const TrainOptions& options,
           Executor& training, Executor* validation);

  Timeline training, validation;

  /// What was recorded; as long as this lives.
  RankProfile of_rank(int64_t rank) const;
  /// Collective: rank 0 writes everybody's events to options.profile, and returns the table if
  /// options.profile_summary asks for it. `unwritten`: there, why the file could not be written.
  std::string tell(Communicator& world, const RankProfile& own, std::string& unwritten) const;

 private:
  void write_trace(Communicator& world, const RankProfile& own) const;

  const Model::Impl& model_;
  const TrainingPlan::Impl& plan_;
  const TrainOptions& options_;
  const Executor& training_executor_;
  const Executor* validation_executor_;
};

}  // namespace shardrun
