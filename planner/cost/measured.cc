// Interpolation, and the choice of what was measured most like a job.
#include "planner/cost/measured.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardrun {
namespace {

/// Between which two of the points `x` lies, and how far from the first to the second in
/// logarithms. Outside it is at an end, and `beyond` says how many times further.
struct Between {
  size_t low = 0, high = 0;
  double fraction = 0, beyond = 1;
};

Between find(const std::vector<double>& points, double x) {
  if (x <= points.front()) return {};
  const size_t last = points.size() - 1;
  if (x >= points.back()) return {last, last, 0, x / points.back()};
  const auto above =
      static_cast<size_t>(std::upper_bound(points.begin(), points.end(), x) - points.begin());
  return {above - 1, above,
          std::log(x / points[above - 1]) / std::log(points[above] / points[above - 1]), 1};
}

/// The number of ranks that was measured and is most like `ranks`: the least that is no less, else
/// the most.
int64_t nearest(const std::vector<int64_t>& measured, int64_t ranks) {
  int64_t best = measured.front();
  for (int64_t m : measured) {
    const bool fits = m >= ranks;
    if (best < ranks ? m > best : fits && m < best) best = m;
  }
  return best;
}

}  // namespace

double Curve::at(double size) const {
  SR_REQUIRE(!points.empty(), internal, "a curve has no points");
  if (size <= points.front().first) return points.front().second;
  if (size >= points.back().first) return points.back().second * size / points.back().first;
  const auto above = std::upper_bound(points.begin(), points.end(), std::pair(size, 1e300));
  const auto below = std::prev(above);
  const double fraction = std::log(size / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, fraction);
}

double Grid::at(const std::array<double, 3>& size, const std::array<double, 3>& powers) const {
  const Between in[] = {find(sizes[0], size[0]), find(sizes[1], size[1]), find(sizes[2], size[2])};
  double logarithm = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    size_t at = 0;
    for (size_t d = 0; d < 3; ++d) {
      const bool high = (corner >> d & 1) != 0;
      weight *= high ? in[d].fraction : 1 - in[d].fraction;
      at = at * sizes[d].size() + (high ? in[d].high : in[d].low);
    }
    if (weight > 0) logarithm += weight * std::log(seconds[at]);
  }
  double result = std::exp(logarithm);
  for (size_t d = 0; d < 3; ++d) result *= std::pow(in[d].beyond, powers[d]);
  return result;
}

const MeasuredKernels::Op* MeasuredKernels::streaming(DType dtype) const {
  const auto it = ops.find({std::string(kStreaming), "", dtype});
  return it == ops.end() ? nullptr : &it->second;
}

Measured Measured::for_ranks(int64_t ranks, int64_t devices, const std::string& backend,
                             int64_t threads) const {
  Measured out;
  if (!kernels.empty()) {
    int64_t most = 0;  // threads, of those that have no more than asked for; 0: there are none
    for (const MeasuredKernels& k : kernels) {
      if (k.threads <= threads) most = std::max(most, k.threads);
    }
    const auto fits = [&](const MeasuredKernels& k) { return most == 0 || k.threads == most; };
    std::vector<int64_t> known;
    for (const MeasuredKernels& k : kernels) {
      if (fits(k)) known.push_back(k.ranks);
    }
    const int64_t as = nearest(known, ranks);
    const MeasuredKernels* chosen = nullptr;  // of several the most threads, unless few are wanted
    for (const MeasuredKernels& k : kernels) {
      if (!fits(k) || k.ranks != as) continue;
      if (!chosen || (threads == 0 ? k.threads > chosen->threads : k.threads < chosen->threads))
        chosen = &k;
    }
    out.kernels.push_back(*chosen);
    MeasuredKernels& now = out.kernels[0];
    now.ranks = ranks;
    const double turns = static_cast<double>(ranks) / static_cast<double>(std::max(as, devices));
    if (turns > 1) {
      for (auto& [key, grid] : now.grids) {
        for (double& s : grid.seconds) s *= turns;
      }
      for (auto& [key, op] : now.ops) {
        for (auto& [size, s] : op.curve.points) s *= turns;
      }
    }
  }
  if (collectives.empty()) return out;
  const bool has = std::any_of(collectives.begin(), collectives.end(),
                               [&](const MeasuredCollective& c) { return c.backend == backend; });
  const std::string& chosen = has ? backend : collectives[0].backend;
  std::vector<int64_t> known;
  for (const MeasuredCollective& c : collectives) {
    if (c.backend == chosen) known.push_back(c.ranks);
  }
  const int64_t as = nearest(known, ranks);
  for (const MeasuredCollective& c : collectives) {
    if (c.backend == chosen && c.ranks == as) out.collectives.push_back(c);
  }
  return out;
}

}  // namespace shardrun
