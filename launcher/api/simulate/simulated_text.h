// A simulated step as text, JSON and trace.
#pragma once

#include <optional>
#include <string>

#include "plan/plan.h"
#include "shardrun/simulate.h"
#include "simulate/goodput.h"
#include "simulate/step_tasks.h"

namespace shardrun {

struct Simulated {
  const Model::Impl& model;
  const TrainingPlan::Impl& plan;
  const SimulateRequest& request;
  CommStreams streams;
  const SimulatedStep& step;                          // that has run, without jitter
  double steps_seconds = 0;                           // SimulateReport
  int64_t peak_bytes = 0;                             // 0: not known
  std::optional<std::pair<double, double>> jitter{};  // p50 and p95, s
  std::optional<Goodput> goodput{};
};

std::string simulated_text(const Simulated& of);
std::string simulated_json(const Simulated& of);
/// Chrome's trace format: a process for each lane, named by its ranks, and a thread for each of its
/// streams. Events are called and described as those of `train --profile` (profile/trace.cc).
std::string simulated_trace(const Simulated& of);

}  // namespace shardrun
