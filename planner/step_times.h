// StepTimes: what a step takes by a solution, where collectives run while kernels do.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/space/extract_plan.h"

namespace shardrun {

/// What the longest chain of a step's kernels and collectives has of their time, from 0 to 1. By
/// node of the problem: of the kernels of its members, and of the resharding of what they make. A
/// step of another solution is no shorter than what the same chain takes there.
struct ChainFractions {
  std::vector<double> kernels, reshardings;
};

/// Nodes run in their order on one stream, and what communicates in the order in which it is asked
/// for on another: a sum where its operand is made, anything else ahead of up to two kernels. A
/// kernel waits for what it reads, and the end of a phase for everything. No memory is placed and
/// no steps are fused, so a time takes microseconds and not the milliseconds of a layout. It is
/// within some percent of what a plan's Programs take, and ranks solutions that are alike.
class StepTimes {
 public:
  /// `posed` must outlive this.
  explicit StepTimes(const PlanContext& posed);
  /// Seconds of a solution that forbids nothing.
  double seconds(const Solution& solution);
  /// The same, with what its longest chain consists of. Of what is not resharded in the solution
  /// the fraction is 0.
  std::pair<double, ChainFractions> chain(const Solution& solution);

 private:
  friend class StepRun;

  struct Use {
    int value = 0;
    size_t operand = 0;
  };
  struct Node {
    int item_class = 0;
    double runs = 1;
    bool updates = false;  // in a phase of its own, behind all micro-batches
    std::vector<Use> in;
    std::vector<int> out;
  };
  struct Source {
    int node = -1, result = 0;  // of the problem: what makes or holds the value; -1: nobody
    int hub = -1;               // number of its hub
    int type = 0;               // ReshardTimes'
    int reader = -1;            // class of the first node that reads it
    size_t operand = 0;
    bool shared = true;  // false: each reader has a copy of its own made
    int holder = -1;  // of what an update makes: node of what holds it in the next step, which may
                      // lie otherwise; -1: it lies the same
  };
  struct Seconds {
    double links = 0, local = 0;  // what communicates, and slices and the like
  };
  struct Numbers {
    std::vector<int> in, out;
  };
  const Seconds& of(int type, int from, int to);

  const PlanContext& posed_;
  std::vector<Node> nodes_;
  std::vector<Source> sources_;                // by value
  std::vector<std::vector<Numbers>> numbers_;  // by class and strategy, of Shardings
  std::unordered_map<uint64_t, Seconds> seconds_;
};

}  // namespace shardrun
