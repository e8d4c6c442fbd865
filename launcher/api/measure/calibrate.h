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
#include "measure/calls.h"
#include "measure/team.h"
#include "measure/watch.h"
#include "planner/cost/measured.h"

namespace shardrun {

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

/// Hears what is measured, before each figure; may be null.
using Tells = std::function<void(const std::string& what)>;

/// Measures until `deadline` of the watch, and for as long again as the watch has waited. Larger
/// sizes are left out where smaller ones take long already. What is returned makes curves of the
/// figures as the watch has them by then.
std::function<MeasuredKernels()> measure_kernels(RankTeam& team, Watch& watch, double deadline,
                                                 const Tells& tells = nullptr);

/// For a Watch: what a product takes the team; on the host one of each rank at once, on one thread,
/// over and over for some milliseconds, the slowest rank's. Of the cores that may be used, those
/// from `first_core` on.
std::function<Reference()> reference_of(const std::shared_ptr<RankTeam>& team, int first_core);

/// What libraries take of a team's device besides an arena: as much as they took for what was
/// measured, and for a noted step of many launches.
int64_t measure_libraries(RankTeam& team);

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
/// their own, and rank 0's clock. Collective over `world`, as are its calls; `patience` and `least`
/// are the same on every rank.
Watch watch_ranks(Communicator& world, Device& device, double patience,
                  double least = Watch::kUnknown);
/// Every kind of collective in groups of every size that divides the ranks, until rank 0's
/// `deadline`; half of the time that is left then goes to disturbed ones. Collective over `world`,
/// whose buffers lie on `device`, and whose work is its side's, where it has one, as in a step;
/// every rank returns the same. `tells` is each rank's own.
std::vector<MeasuredCollective> measure_collectives(Communicator& world, Device& device,
                                                    const std::string& backend, Watch& watch,
                                                    double deadline, const Tells& tells = nullptr);

/// Of sizes, ascending, and seconds, rounded. Less work never takes more time: what was disturbed
/// is put right by what was not.
Curve curve_of(const std::vector<std::pair<double, const double*>>& points);
/// Three significant digits: what a measurement is good for.
double rounded(double seconds);

}  // namespace shardrun
