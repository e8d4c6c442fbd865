// Measuring this machine: kernels as ranks run them, collectives between them.
#pragma once

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "graph/graph.h"
#include "planner/measured.h"

namespace shardrun {

/// What `work` takes undisturbed, in seconds, when `ranks` threads run it at the same time,
/// each with `threads` threads of its own for kernels. Every rank makes its work on its thread;
/// run i of a rank calls work(i). Runs for about `budget` seconds, longer where it is disturbed.
class Team {
 public:
  using Work = std::function<void(int64_t run)>;
  /// Memory of one rank, kept from one measurement to the next with its pages touched.
  class Scratch {
   public:
    char* bytes(int64_t count);  // uninitialised, and no longer what was given before

   private:
    struct Free {
      void operator()(char* data) const { std::free(data); }
    };
    std::unique_ptr<char, Free> data_;
    int64_t count_ = 0;
  };

  Team(int ranks, int threads);
  int ranks() const { return ranks_; }
  int threads() const { return threads_; }
  double measure(const std::function<Work(Scratch&)>& make, double budget);

 private:
  int ranks_, threads_;
  std::vector<Scratch> scratch_;
};

/// One op called with these types; the curve that its time belongs to.
struct CalibrationCall {
  Node node;
  std::vector<TensorType> in;
};

/// A call of the op that reads and writes about so many bytes (an op that is measured by FLOPs:
/// that does so many), or none if the op cannot be scaled. `variant` as in MeasuredKernels.
struct CalibrationOp {
  std::string op, variant;
  bool by_flops = false;
  std::function<CalibrationCall(DType dtype, double size)> call;
  std::vector<double> sizes;
};
/// Every op of the registry that can be called at any size, in the order of their importance; not
/// those that have grids.
std::vector<CalibrationOp> calibration_ops();

/// What has grids: matmul of m, n and k, where `layout` says which operands lie transposed (nn, nt,
/// tn, tt); attention or attention_grad, causal, of heads, length and width.
CalibrationCall matmul_call(DType dtype, const std::string& layout,
                            const std::array<int64_t, 3>& size);
CalibrationCall attention_call(DType dtype, const std::string& op,
                               const std::array<int64_t, 3>& size);

/// Seconds of the call, alone, on every rank of the team at once. Throws Error if there is no
/// kernel for it.
double measure_call(Team& team, const CalibrationCall& call);

/// Measures until `deadline` (of steady_clock, in seconds since its epoch). Larger sizes are left
/// out where smaller ones take long already.
MeasuredKernels measure_kernels(Team& team, double deadline);

/// Every kind of collective in groups of every size that divides the ranks. Collective over
/// `world`; every rank returns the same.
std::vector<MeasuredCollective> measure_collectives(Communicator& world, const std::string& backend,
                                                    double deadline);

/// Less work never takes more time: what was disturbed is put right by what was not.
void make_monotone(Curve& curve);
double now_seconds();
/// Three significant digits: what a measurement is good for.
double rounded(double seconds);

}  // namespace shardrun
