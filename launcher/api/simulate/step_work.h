// ProgramWork: what each step of a rank's Program takes, as a Simulation takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "explain/names.h"
#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"
#include "simulate/assumptions.h"
#include "simulate/engine.h"
#include "simulate/step_order.h"

namespace shardrun {

/// What times are multiplied by, to meet measured steps: of kernels the part that is arithmetic
/// (`outside` layers by that, too) and the rest; of communication all, by the kind of link, and
/// `mixed` in addition (StepWork::mixed).
struct TimeFactors {
  double products = 1, outside = 1, memory = 1, within = 1, between = 1, mixed = 1;
  double of(TaskLink link) const {
    return link == TaskLink::within_node ? within : link == TaskLink::between_nodes ? between : 1;
  }
};

struct StepWork {
  TaskKind kind = TaskKind::kernel;
  TaskLink link = TaskLink::none;
  double seconds = 0;   // of one run
  double products = 0;  // of these, what a kernel's arithmetic takes
  bool mixed = false;   // Assumptions::one_card
  int64_t sent = 0;     // bytes that one run gives to other ranks
  int launches = 0;     // that the host has to ask for
  StepPart part = StepPart::forward;
  std::string layer;  // "h.3"; "": of none
  double seconds_by(const TimeFactors& f) const {
    if (kind == TaskKind::communication) return seconds * f.of(link) * (mixed ? f.mixed : 1);
    return products * f.products * (layer.empty() ? f.outside : 1) +
           (seconds - products) * f.memory;
  }
};

/// Accumulated gradients that are set to zero before the first micro-batch.
struct Zeroed {
  BufferId buffer = -1;
  double seconds = 0;
};

/// `program` is of `rank`, and outlives this.
struct ProgramWork {
  const Program* program = nullptr;
  ProgramOrder order;
  std::vector<StepWork> steps;
  std::vector<Zeroed> zeroed;
  int64_t read_bytes = 0;  // of a micro-batch
  /// By buffer: how many ranks hold the same of an activation, and send a part of it each to the
  /// next stage. Empty: each sends all that it holds.
  std::vector<int64_t> holders;
};

/// Seconds are the plan's own prices (explain/planned_steps.h) but for what is assumed otherwise.
ProgramWork work_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                    const Program& program, CommStreams streams, const Assumptions& assumed);

}  // namespace shardrun
