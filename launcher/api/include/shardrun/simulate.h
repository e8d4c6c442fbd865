// A plan on paper: the timeline of a training step on a cluster that need not be there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "shardrun/shardrun.h"

namespace shardrun {

/// What a simulation's times are made to meet measured steps by (`shardrun calibrate --rows`): the
/// host's time for a launch, and how many times as long the rest takes as its price.
struct SimulateConstants {
  std::optional<double> dispatch_us;  // of the host; not given: 10 on GPUs, 0 on CPUs
  /// Of dispatch_us, a kernel of the backward pass where each is asked for: autograd does so by
  /// itself, without Python.
  double backward = 0.1;
  double products = 1;             // of a kernel, what its arithmetic takes
  double outside = 1;              // and in addition, where the kernel is of no layer
  double memory = 1;               // the rest of a kernel
  double within = 1, between = 1;  // communication within a node, between nodes
  double mixed = 1;  // and in addition, where `assume` has sums between nodes through one card
};

struct SimulateRequest {
  // Pipeline stages, which can be simulated and not run. The plan is that of one stage's ranks for
  // the whole model; its layers are divided.
  int stages = 1;
  std::string schedule = "1f1b";  // or interleaved
  std::optional<int> chunks;      // of each stage; interleaved alone has them, by default 2

  std::string assume;  // "", megatron (docs/simulation.md)
  /// one, as runs have on GPUs; axes: one for each set of axes; none: between kernels, as on CPUs.
  /// "": one on GPUs, none on CPUs and with `assume`.
  std::string comm_streams;
  bool host = true;  // false: launches, batches and zeroing take no time
  SimulateConstants constants;
  double input_gb_s = 16;       // at which a batch comes to a GPU
  double overlap_slowdown = 1;  // kernels take so many times as long during communication

  std::map<int64_t, double> slow;  // by rank: takes so many times as long
  double jitter = 0;               // of a rank's micro-batch: relative standard deviation
  int draws = 50;                  // steps that are simulated with it
  uint64_t seed = 0;

  double mtbf_hours = 0;  // of one rank; 0: nothing fails
  double checkpoint_minutes = 30, restart_minutes = 10, checkpoint_stall_seconds = 0;
};

struct SimulateReport {
  double seconds = 0;          // of a step, without jitter
  double planned_seconds = 0;  // as the plan has it
  double steps_seconds = 0;    // prices of the first rank's steps one after the other
  int64_t peak_bytes = 0;      // of the fullest rank; with stages 0: not known
  std::string text;            // for people
  std::string json;
  std::string trace;  // trace events of one step, as those of a profile (https://ui.perfetto.dev)
};

/// Of a plan's request for the ranks of all stages: that for the ranks of one, with the limit of
/// memory of a rank that holds one stage, where none was given. Throws Failure(call): ranks that
/// the stages do not divide, and what `simulate` would refuse under any plan.
PlanRequest request_of_stage(World& world, const PlanRequest& request,
                             const SimulateRequest& simulated);

/// Throws Failure(call), with the names that there are, where it is none of a planner.
void check_planner(const std::string& planner);

/// Throws Failure(call) where the model's layers, or its micro-batches, do not go into the
/// request's stages, whatever the plan.
void check_stages(const Model& model, const SimulateRequest& request);

/// Throws Failure(call): a request that cannot be met, named.
SimulateReport simulate(World& world, const Model& model, const TrainingPlan& plan,
                        const SimulateRequest& request);

/// A plan that is simulated again and again. The model and the plan outlive it.
class Resimulation {
 public:
  /// Throws Failure(call) as simulate() does. Jitter and failures do not count.
  Resimulation(World& world, const Model& model, const TrainingPlan& plan,
               const SimulateRequest& request);
  Resimulation(Resimulation&&) noexcept;
  ~Resimulation();

  /// Seconds of a step with so many micro-batches; of long steps, those that are all alike are
  /// simulated once. Throws Failure(call): more than one, where the model was loaded for one.
  double seconds(const SimulateConstants& constants, int micro_batches);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A cluster as --cluster names it, of as many nodes as `devices` take: "h100:2,memory=2x" for
/// "h100,memory=2x" and 9 to 16 of them; itself where it has so many. Throws Failure(call), also
/// for a file of fewer.
std::string cluster_of_devices(const std::string& cluster, int64_t devices);

}  // namespace shardrun
