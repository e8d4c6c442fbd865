// Grids and curves of kernels' times.
#include <algorithm>
#include <array>
#include <cmath>

#include "graph/op_def.h"
#include "measure/calibrate.h"
#include "planner/cost/kernel_cost.h"

namespace shardrun {
namespace {

constexpr double kLongestKernel = 80e-3;  // s of a call; larger ones are left out

/// Time that went by in waiting does not count.
bool late(const Watch& watch, double deadline) { return watch.now() - watch.waited() > deadline; }

struct Measuring {
  RankTeam& team;
  Watch& watch;
  const Tells& tells;

  /// Seconds of the call, kept by the watch; null if there is no kernel for it.
  const double* take_if_any(const CalibrationCall& call) const {
    if (tells) tells(str(call.node.op, " ", to_string(call.in[0].dtype)));
    try {
      return &watch.take([&team = team, call] { return measure_call(team, call); });
    } catch (const Error&) {
      return nullptr;
    }
  }
};

/// A grid whose figures a watch keeps. One that is null was too large or too late, and is put as
/// what one step back along the first dim that has one takes, as many times more to the given
/// power.
struct BegunGrid {
  std::array<std::vector<double>, 3> sizes;
  std::array<double, 3> powers;
  std::vector<const double*> seconds = {};  // none: there is no such kernel

  Grid finished() const {
    Grid grid{sizes, {}};
    const std::array<size_t, 3> step = {sizes[1].size() * sizes[2].size(), sizes[2].size(), 1};
    for (size_t i = 0; i < seconds.size(); ++i) {
      double value = seconds[i] ? *seconds[i] : 0;
      for (size_t d = 0; d < 3 && value == 0; ++d) {
        const size_t at = i / step[d] % sizes[d].size();
        if (at == 0) continue;
        value = grid.seconds[i - step[d]] * std::pow(sizes[d][at] / sizes[d][at - 1], powers[d]);
      }
      grid.seconds.push_back(rounded(value));
    }
    for (size_t i = grid.seconds.size(); i-- > 0;) {  // as in curve_of
      for (size_t d = 0; d < 3; ++d) {
        if (i / step[d] % sizes[d].size() + 1 < sizes[d].size())
          grid.seconds[i] = std::min(grid.seconds[i], grid.seconds[i + step[d]]);
      }
    }
    return grid;
  }
};

BegunGrid begin_grid(const Measuring& on, const std::array<std::vector<double>, 3>& sizes,
                     const std::array<double, 3>& powers, double deadline,
                     const std::function<CalibrationCall(const std::array<int64_t, 3>&)>& make) {
  BegunGrid grid{sizes, powers};
  for (const double a : sizes[0]) {
    for (const double b : sizes[1]) {
      for (const double c : sizes[2]) {
        const CalibrationCall call =
            make({static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c)});
        const double flops = work_of(call.node, call.in, infer_types(call.node, call.in)).flops;
        const double* seconds = nullptr;
        if (flops <= on.team.extent().flops(call.in[0].dtype) && !late(on.watch, deadline))
          seconds = on.take_if_any(call);
        if (grid.seconds.empty() && !seconds) return grid;
        grid.seconds.push_back(seconds);
      }
    }
  }
  return grid;
}

/// Of products, each four times the one before, to the first whose cube is beyond `flops`.
std::vector<double> edges(double flops) {
  std::vector<double> out = {8};
  while (2 * out.back() * out.back() * out.back() < flops) out.push_back(4 * out.back());
  constexpr size_t kMost = 6;
  if (out.size() > kMost) out.erase(out.begin(), out.end() - kMost);
  return out;
}

}  // namespace

double CalibrationOp::times(const Extent& extent, DType dtype) const {
  return by_flops ? extent.flops(dtype) / Extent().flops(dtype) : extent.times;
}

double rounded(double seconds) {
  const double unit = std::pow(10.0, std::floor(std::log10(seconds)) - 2);
  return std::round(seconds / unit) * unit;
}

Curve curve_of(const std::vector<std::pair<double, const double*>>& points) {
  Curve curve;
  for (const auto& [size, seconds] : points) curve.points.emplace_back(size, rounded(*seconds));
  for (size_t i = curve.points.size(); i-- > 1;)
    curve.points[i - 1].second = std::min(curve.points[i - 1].second, curve.points[i].second);
  return curve;
}

int64_t measure_libraries(RankTeam& team) {
  constexpr int64_t kLaunches = 4096;  // of a large model's step
  CalibrationCall add;
  add.node.op = add.node.name = "add";
  add.in.assign(2, {DType::f32, {256}});
  team.note([&](RankTeam::Scratch& scratch) { return work_of_call(add, 0, scratch); }, kLaunches);
  return team.taken();
}

std::function<MeasuredKernels()> measure_kernels(RankTeam& team, Watch& watch, double deadline,
                                                 const Tells& tells) {
  const Measuring on{team, watch, tells};
  struct Op {
    bool by_flops = false;
    std::vector<std::pair<double, const double*>> points = {};
  };
  std::map<MeasuredKernels::Key, BegunGrid> grids;
  std::map<MeasuredKernels::Key, Op> ops;
  const double begin = watch.now() - watch.waited();
  const double part = begin + 0.7 * (deadline - begin);
  const auto add = [&](const std::string& op, const std::string& variant, DType dtype,
                       BegunGrid grid) {
    if (!grid.seconds.empty()) grids[{op, variant, dtype}] = std::move(grid);
  };
  std::vector<double> heads = {1, 16};
  const bool gpu = team.extent().times > 1;
  if (gpu) heads.push_back(16 * team.extent().times);
  std::vector<DType> dtypes = {DType::f32, DType::bf16};
  if (gpu) std::swap(dtypes[0], dtypes[1]);  // what they train in, should time run out
  for (const DType dtype : dtypes) {
    const std::vector<double> matmul = edges(team.extent().flops(dtype));
    for (const std::string layout : {"nn", "nt", "tn"}) {
      add("matmul", layout, dtype,
          begin_grid(on, {matmul, matmul, matmul}, {1, 1, 1}, part,
                     [&](const auto& size) { return matmul_call(dtype, layout, size); }));
    }
    for (const std::string op : {"attention", "attention_grad"}) {
      add(op, "", dtype,
          begin_grid(on, {heads, {32, 64, 128, 256, 512, 1024, 2048}, {16, 32, 64, 128}}, {1, 2, 1},
                     part, [&](const auto& size) { return attention_call(dtype, op, size); }));
    }
  }
  for (const CalibrationOp& op : calibration_ops()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Op measured{op.by_flops};
      for (const double of_a_core : op.sizes) {
        const double wanted = of_a_core * op.times(team.extent(), dtype);
        const auto& points = measured.points;
        if (late(watch, deadline) ||
            (!points.empty() &&
             *points.back().second * wanted / points.back().first > kLongestKernel))
          break;
        CalibrationCall call;
        try {
          call = op.call(dtype, wanted);
        } catch (const Error&) {
          break;
        }
        const KernelWork work = work_of(call.node, call.in, infer_types(call.node, call.in));
        const double size = std::round(op.by_flops ? work.flops : work.bytes);
        if (!points.empty() && size <= points.back().first) continue;
        const double* seconds = on.take_if_any(call);
        if (!seconds) break;
        measured.points.emplace_back(size, seconds);
      }
      if (!measured.points.empty()) ops[{op.op, op.variant, dtype}] = std::move(measured);
    }
  }
  return [ranks = team.ranks(), threads = team.threads(), grids = std::move(grids),
          ops = std::move(ops)] {
    MeasuredKernels out;
    out.ranks = ranks;
    out.threads = threads;
    for (const auto& [key, grid] : grids) out.grids[key] = grid.finished();
    for (const auto& [key, op] : ops) out.ops[key] = {op.by_flops, curve_of(op.points)};
    return out;
  };
}

}  // namespace shardrun
