// Measuring this machine: kernels as ranks run them, collectives between them.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "device/device.h"
#include "graph/graph.h"
#include "planner/measured.h"
#include "watch.h"

namespace shardrun {

/// What is worth measuring: as much as some milliseconds are enough for.
struct Extent {
  double rotation = 16 << 20;  // bytes that operands are taken from in turn: beyond a core's caches
  double times = 1;            // sizes of calls, in those for a core
  double flops_f32 = 1.2e9, flops_bf16 = 1.2e9;  // of a call at most
  double flops(DType dtype) const { return dtype == DType::bf16 ? flops_bf16 : flops_f32; }
};

/// What `work` takes undisturbed, in seconds, when `ranks` threads run it at the same time,
/// each with `threads` threads of its own for kernels. Every rank makes its work on its thread;
/// run i of a rank calls work.run(i). Runs for about `budget` seconds, longer where it is
/// disturbed.
///
/// A device that works behind the host is asked for many runs and waited for once, as in a step of
/// training: noted by Device::record where that can be.
class Team {
 public:
  struct Work {
    std::function<void(int64_t run)> run;
    bool recordable = false;
  };
  /// Memory of one rank, kept from one measurement to the next with its pages touched.
  class Scratch {
   public:
    explicit Scratch(Device& device) : device_(&device) {}
    Device& device() const { return *device_; }
    char* bytes(int64_t count);  // with anything in it, and no longer what was given before
    int64_t taken() const { return taken_; }  // bytes of the device, as it counts them

   private:
    Device* device_;
    std::shared_ptr<char> data_;
    int64_t count_ = 0, taken_ = 0;
  };

  Team(int ranks, int threads);  // on the host
  /// One rank with the device for itself.
  Team(std::shared_ptr<Device> device, int threads);
  int ranks() const { return ranks_; }
  int threads() const { return threads_; }
  Device& device() const { return *device_; }
  /// Of a device found out by measuring, once.
  const Extent& extent();
  double measure(const std::function<Work(Scratch&)>& make, double budget);

  /// Notes and does so many runs: as a step of that many launches is.
  void note(const std::function<Work(Scratch&)>& make, int64_t runs);
  /// Bytes of the device that were taken, at most, since the team was made, beside its scratch
  /// memory: by libraries when kernels first ran, and by noted work. 0 on the host.
  int64_t taken() const { return taken_; }

 private:
  double measure_behind(const std::function<Work(Scratch&)>& make, double budget);
  void look_what_is_taken();

  std::shared_ptr<Device> device_;
  int ranks_, threads_;
  std::vector<Scratch> scratch_;
  std::optional<Extent> extent_;
  int64_t free_ = 0, taken_ = 0;  // free_: bytes of the device, when the team was made
};

/// One op called with these types; the curve that its time belongs to.
struct CalibrationCall {
  Node node;
  std::vector<TensorType> in;
  /// Of each result the operand in whose place it lies, or -1: memory of its own. Empty: all have
  /// their own.
  std::vector<int> places = {};
  bool from_memory = false;  // called once in a step, of what no cache holds by then
};

/// A call of the op that reads and writes about so many bytes (an op that is measured by FLOPs:
/// that does so many), or none if the op cannot be scaled. `variant` as in MeasuredKernels.
struct CalibrationOp {
  std::string op, variant;
  bool by_flops = false;
  std::function<CalibrationCall(DType dtype, double size)> call;
  std::vector<double> sizes;  // for a core
  /// What to multiply them by.
  double times(const Extent& extent, DType dtype) const;
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

/// Measures until `deadline` of the watch, and for as long again as the watch has waited. Larger
/// sizes are left out where smaller ones take long already. What is returned makes curves of the
/// figures as the watch has them by then.
std::function<MeasuredKernels()> measure_kernels(Team& team, Watch& watch, double deadline);

/// For a Watch: what a product takes the team; on the host one of each rank at once, on one thread,
/// over and over for some milliseconds, the slowest rank's. Of the cores that may be used, those
/// from `first_core` on.
std::function<Reference()> reference_of(const std::shared_ptr<Team>& team, int first_core);

/// What libraries take of a team's device beside an arena: as much as they took for what was
/// measured, and for a noted step of many launches.
int64_t measure_libraries(Team& team);

/// Bytes of their devices that ranks' communicators take, of the rank that has most: one of all and
/// those of the groups of every size that divides them, at once, after each kind of collective
/// between few numbers and between many. Collective over `world`; every rank returns the same.
int64_t measure_communicators(Communicator& world, Device& device);

/// Of so many bytes that were taken, what is put aside: models run other kernels, and groups, than
/// were measured.
inline int64_t with_margin(int64_t taken) {
  return taken + std::max(taken / 2, int64_t{128} << 20);
}
inline constexpr const char* kMarginInWords = "and half as much again, at least 128 MiB";

/// A watch whose every rank sees the same: the slowest of as many ranks as can have a device of
/// their own, and rank 0's clock. Collective over `world`, as are its calls.
Watch watch_ranks(Communicator& world, Device& device, double patience,
                  double least = Watch::kUnknown);
/// Every kind of collective in groups of every size that divides the ranks, until `deadline`; half
/// of the time that is left then goes to disturbed ones. Collective over `world`, whose buffers lie
/// on `device`, and whose work is its side's, where it has one, as in a step; every rank returns
/// the same.
std::vector<MeasuredCollective> measure_collectives(Communicator& world, Device& device,
                                                    const std::string& backend, Watch& watch,
                                                    double deadline);

/// Of sizes, ascending, and seconds, rounded. Less work never takes more time: what was disturbed
/// is put right by what was not.
Curve curve_of(const std::vector<std::pair<double, const double*>>& points);
double now_seconds();
/// Three significant digits: what a measurement is good for.
double rounded(double seconds);

}  // namespace shardrun
