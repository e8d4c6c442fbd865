// PlanAnalysis: a plan's predicted time and bytes, part by part.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// A plan of a training step, and what follows from it.
struct Explained {
  const Graph& graph;  // the step that the plan is for
  const Plan& plan;
  const Cluster& cluster;
  const std::vector<int64_t>& bytes;  // arena of each rank
  std::function<Program(int64_t rank)> program;
};

/// One resharding step or exchange of the first rank's Program, and why it is there.
struct PlannedCollective {
  std::string kind, value;
  std::string from, to;  // Shardings; of an exchange, one is what the node takes or makes
  std::string producer,
      consumer;  // "matmul 'h.0.MatMul'", "parameter 'wte'", "the update of 'wte'"
  ValueId of = kNoValue;
  NodeId reader = -1;     // the Graph node that it is for; -1: none
  NodeId before = -1;     // the Graph node in front of which it runs; at a phase's end, the first
                          // of the next phase, or the number of nodes
  bool exchange = false;  // before or after a node that works in windows, blocks or named rows
  bool follows = false;   // such an exchange after its node, of what that made
  int64_t runs = 1;       // in a step
  double seconds = 0;     // of all runs
};

/// One step of the first rank's Program.
struct PlannedRun {
  std::string name, what;  // "h.0.MatMul", "matmul"; of a collective the value, and its kind
  bool communication = false;
  double start = 0, seconds = 0;  // of its first run
  int64_t runs = 1;               // in a step
};

/// A buffer of the arena that holds something at the peak, or always.
struct AliveBuffer {
  std::string name, kind, type;
  int64_t bytes = 0;
};

/// Times and calls are those of a step: of what is done in every micro-batch, all of them.
struct PlanAnalysis {
  std::vector<double> node_seconds;       // per Graph node: the first rank's kernel, as predicted
  std::map<std::string, double> compute;  // by op
  std::map<std::string, int64_t> calls;   // kernels by op, collectives by kind
  std::map<std::string, double> communication;  // by kind
  int64_t sent_bytes = 0;                       // by the first rank to others
  std::vector<PlannedCollective> collectives;   // in the order in which they run
  /// Arena bytes of the fullest rank at the step where most is alive, by what they hold:
  /// parameters, optimizer state, constants, batches, activations, gradients, workspace, staging,
  /// tables that kernels keep, and the gaps that placing leaves. They add up to the training arena.
  std::map<std::string, int64_t> bytes;
  int64_t arena_bytes = 0, rank = 0;
  std::string peak_step;
  std::vector<PlannedRun> timeline;  // of the first rank
  /// Bytes that hold something in each step of the fullest rank's Program, what persists among
  /// them; and the buffers that do so at the peak, the largest first.
  std::vector<int64_t> alive_bytes;
  std::vector<AliveBuffer> at_peak;
};

/// The same with the steps that bring one value to one reader, one after the other, as one:
/// "reduce_scatter, all_gather". Exchanges stay alone.
std::vector<PlannedCollective> chained(const std::vector<PlannedCollective>& collectives);

/// ", hidden 1.2 ms": of compute and communication, what runs at once. "": nothing.
std::string hidden_text(const Plan& plan);

/// A plan's mesh, planner, time and bytes in one line.
std::string plan_line(const Plan& plan);

PlanAnalysis analyse(const Explained& of);

}  // namespace shardrun
