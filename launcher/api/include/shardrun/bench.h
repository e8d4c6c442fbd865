// Measurements of the library itself, as `shardrun bench` makes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shardrun/inference.h"

namespace shardrun {

/// This program and what it is built with and runs on, each with its version: "shardrun", "0.1.0".
std::vector<std::pair<std::string, std::string>> versions();

/// Threads that this process can keep busy: one for each core that it may run on, no more than a
/// quota of processors' time leaves.
int machine_cores();

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

/// What this machine reaches at best, one rank with all its threads: the rate of a large matmul by
/// type, and bytes a second of a large add, from memory and back to it, over an operand or not.
struct Ceilings {
  std::string device = "cpu";
  int threads = 1;
  std::map<std::string, double> flops;  // FLOP/s: f32, bf16
  double bandwidth = 0;                 // bytes/s
};

/// A call of a kernel, alone, compared with the ceilings.
struct KernelTime {
  std::string op, kernel, dtype;     // kernel: the implementation
  std::vector<std::string> in, out;  // types
  std::vector<int> places;           // of each result the operand in whose place it lies, or -1
  std::string node;                  // of a model: the first that makes this call
  int64_t calls = 1;                 // of a model: in a step
  double seconds = 0;                // of one call
  double bytes = 0, flops = 0;       // of one call, read and written
  double least = 0;  // s: the FLOPs at their ceiling or the bytes at theirs, whatever takes longer
  double lost() const { return static_cast<double>(calls) * (seconds - least); }
};
struct KernelBench {
  Ceilings ceilings;
  std::vector<KernelTime> kernels;  // worst first: by lost()
};
/// Every op of the registry that can be called at any size, in f32 and bf16, on 16 MiB.
KernelBench bench_kernels(World& world);
/// Every different call of a step of the model on one rank.
KernelBench bench_kernels(World& world, const Model& model, const TrainingPlan& plan);

/// A step compared with the sum of its matmuls, convolutions and attentions, each run alone, and of
/// the bytes that all else reads and writes at the memory's bandwidth.
struct StepBench {
  struct Part {
    std::string op;
    int64_t calls = 0;              // in a step
    double alone = 0, in_step = 0;  // s a step: medians of the rounds; mean
    double flops = 0, bytes = 0;    // a step
    double traffic_bytes = 0;  // of these, what the limit counts: of a product, what follows it
    bool product = false;
  };
  struct Round {
    double step = 0, products = 0;  // s, measured one after the other
  };
  Ceilings ceilings;
  std::vector<Part> parts;  // the most expensive of the step first
  std::vector<Round> rounds;
  double recorded = 0;       // s: the step that `in_step` sums up to
  double flops = 0;          // of the model's products, a step; computing some again adds nothing
  double traffic_bytes = 0;  // of all parts
  double limit(const Round& round) const {
    return round.products + traffic_bytes / ceilings.bandwidth;
  }
};
/// Trains `rounds` steps on one rank, after three to warm up, and measures the products alone
/// between them.
StepBench bench_step(World& world, const Model& model, const TrainingPlan& plan,
                     const TrainOptions& options, int rounds);

/// What a checkpoint's bytes take, and what they take without shardrun: all ranks at once, one
/// after the other, in seconds.
struct CheckpointRound {
  int64_t bytes = 0;        // of all ranks' files
  double write_direct = 0;  // plain files of as many bytes, past the page cache; with fsync
  double write_cached = 0;  // through it; with fsync
  double save = 0;          // a checkpoint for which training waits
  double copy = 0;          // memory to memory, by all threads
  double stalled = 0;       // a checkpoint that is written behind training: until training goes on
  double behind = 0;        // until it is whole
  double read = 0;          // plain files that the page cache does not hold
  double restore = 0;       // the checkpoint, likewise
};
/// Saves and reads the model's first state in `folder` so many times, after once to warm up, and
/// leaves nothing there.
std::vector<CheckpointRound> bench_checkpoint(World& world, const Model& model,
                                              const TrainingPlan& plan, const std::string& folder,
                                              int rounds);

/// A token drawn one at a time, compared with the bytes of the parameters over memory bandwidth: no
/// token takes less, but for tables of which it reads a row.
struct SampleRound {
  double token = 0;             // s
  double bandwidth = 0;         // bytes/s that a rank reads of memory, while all do
  int64_t parameter_bytes = 0;  // of the fullest rank
  bool keys_are_kept = true;
  double limit() const { return static_cast<double>(parameter_bytes) / bandwidth; }  // s
};
/// Draws request.tokens so many times, and measures the bandwidth before each. Collective.
std::vector<SampleRound> bench_sample(World& world, const SampleRequest& request, int rounds);

}  // namespace shardrun
