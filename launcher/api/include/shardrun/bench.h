// Measurements of the library itself, as `shardrun bench` makes them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun {

/// This program and what it is built with and runs on, each with its version: "shardrun", "0.1.0".
std::vector<std::pair<std::string, std::string>> versions();

/// What a plan comes to.
struct PlanFigures {
  std::string mesh, planner;        // data=2,model=4; where auto chose among several, whose it is
  double flops = 0;                 // floating-point operations of one step, on all ranks together
  std::vector<int64_t> sent_bytes;  // per rank: what one step gives to other ranks
  int threads = 1;                  // of each rank's kernels
};
/// Collective over the World, as all that takes one.
PlanFigures plan_figures(World& world, const Model& model, const TrainingPlan& plan);

struct CollectivesRequest {
  std::vector<int64_t> sizes;  // bytes of the largest tensor that a rank gives or gets
  int repeats = 7;             // samples of each; at least 1
};

/// One collective of f32 at one size. All times are seconds of a call, a sample a mean over a few
/// calls, as the slowest rank sees it.
struct CollectiveTimes {
  std::string name;  // "all_reduce", "all_gather uneven"
  int64_t bytes = 0;
  /// Bytes that a rank must send over those of the tensor: 2 (n - 1) / n of an all_reduce,
  /// (n - 1) / n of all_gather, reduce_scatter and all_to_all, 1 of the others (NCCL's bus
  /// bandwidth).
  double bus = 1;
  std::vector<double> ours;
  std::vector<double> copy;   // every rank copies as many bytes, by memcpy, at the same time
  std::vector<double> plain;  // MPI's own function; empty between threads
};

/// Every collective of a Communicator over all ranks of the World, each of ours, a copy and MPI's
/// in turns. Between ranks of MPI or threads, as the World is. Every rank gets the same.
std::vector<CollectiveTimes> measure_collective_calls(World& world,
                                                      const CollectivesRequest& request);

}  // namespace shardrun
