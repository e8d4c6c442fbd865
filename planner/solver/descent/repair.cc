// Single choices, by bytes above the limit for the seconds that they cost.
#include "planner/solver/descent/repair.h"

#include <algorithm>

#include "base/at.h"
#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

struct RepairSettings {
  size_t changes = 200;  // at most: what needs more is far from the limit
  int rounds = 20;       // over all nodes, of choices that are cheaper
  double free = 1e-9;    // relative to all that the solution costs: a change that costs less
  double exact = 1e-12;  // relative: a gain that is no more is rounding
};
constexpr RepairSettings kRepair;

}  // namespace

Repair::Repair(const FactoredProblem& problem, MemoryUse& memory)
    : problem_(problem), memory_(memory), edge_costs_(problem) {}

void Repair::price(int node, const Solution& solution, const std::vector<int>& allowed) {
  const std::vector<double>& own = problem_.nodes[at(node)].cost;
  cost_.resize(allowed.size());
  for (size_t k = 0; k < allowed.size(); ++k) cost_[k] = own[at(allowed[k])];
  count_work(kSearchWork.named * static_cast<double>(allowed.size()));
  edge_costs_.add(
      at(node), solution, [&](size_t k) { return at(allowed[k]); }, cost_);
}

void Repair::change(Solution& solution, int node, int to) {
  memory_.change(node, solution[at(node)], to);
  solution[at(node)] = to;
}

bool Repair::take_one(Solution& solution, const Kept& allowed) {
  // Bytes count where the limit is exceeded.
  std::vector<double> weight(memory_.times());
  for (size_t t = 0; t < weight.size(); ++t) weight[t] = memory_.use()[t] > memory_.limit() ? 1 : 0;
  const double overflow = memory_.overflow(), free = kRepair.free * raw_cost(problem_, solution);
  struct Change {
    int node = -1, to = 0;
    double ratio = 0;
  };
  Change best;
  for (size_t i = 0; i < problem_.nodes.size(); ++i) {
    const std::vector<int>& choices = allowed[i];
    if (choices.size() < 2 || problem_.nodes[i].claims.empty()) continue;
    const auto node = static_cast<int>(i);
    const std::vector<double> bytes = memory_.priced(node, weight);
    count_work(static_cast<double>(bytes.size() * (1 + problem_.nodes[i].claims.size())));
    const double now = bytes[at(solution[i])];
    if (now == 0) continue;
    price(node, solution, choices);
    const double own = cost_[at(static_cast<int>(
        std::lower_bound(choices.begin(), choices.end(), solution[i]) - choices.begin()))];
    for (size_t k = 0; k < choices.size(); ++k) {
      const double less = std::min(overflow, now - bytes[at(choices[k])]);
      if (less <= 0) continue;
      const double ratio = less / std::max(cost_[k] - own, free);
      if (ratio <= best.ratio) continue;
      const double taken =
          overflow - memory_.overflow_after(overflow, node, solution[i], choices[k]);
      if (taken / std::max(cost_[k] - own, free) > best.ratio)
        best = {node, choices[k], taken / std::max(cost_[k] - own, free)};
    }
  }
  if (best.node < 0) return false;
  change(solution, best.node, best.to);
  return true;
}

void Repair::descend(Solution& solution, const Kept& allowed) {
  bool changed = true;
  for (int round = 0; changed && round < kRepair.rounds; ++round) {
    changed = false;
    for (size_t i = 0; i < problem_.nodes.size(); ++i) {
      const std::vector<int>& choices = allowed[i];
      const auto node = static_cast<int>(i);
      price(node, solution, choices);
      double least = cost_[at(static_cast<int>(
          std::lower_bound(choices.begin(), choices.end(), solution[i]) - choices.begin()))];
      int best = -1;
      least *= 1 - kRepair.exact;
      for (size_t k = 0; k < choices.size(); ++k) {
        if (!(cost_[k] < least) || !memory_.fits_after(node, solution[i], choices[k])) continue;
        least = cost_[k];
        best = choices[k];
      }
      if (best < 0) continue;
      change(solution, node, best);
      changed = true;
    }
  }
}

bool Repair::fit(Solution& solution, const Kept& allowed) {
  memory_.reset(solution);
  for (size_t changes = 0; memory_.overflow() > 0; ++changes) {
    if (changes == kRepair.changes || !take_one(solution, allowed)) return false;
  }
  descend(solution, allowed);
  return true;
}

}  // namespace shardrun
