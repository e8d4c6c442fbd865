// Messages over all choices; for each that is tried, first their bound, then a search of its own.
#include "planner/near_solutions.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/at.h"
#include "planner/solver/deadline.h"
#include "planner/solver/descent/coordinate_descent.h"
#include "planner/solver/factored_bound.h"
#include "planner/solver/narrowing.h"
#include "planner/solver/presolve/contraction.h"

namespace shardrun {
namespace {

/// Sweeps of messages over all choices at most, and with one of them made.
constexpr int kSweeps = 40, kOwnSweeps = 6;
/// Relative: a sweep that gains less is the last.
constexpr double kGained = 1e-5;
/// Times the cost of the cheapest: what the other choices of a node are made to cost.
constexpr double kForbidding = 10;

class Neighbours {
 public:
  Neighbours(const FactoredProblem& problem, Solution cheapest, const NearOptions& options)
      : problem_(problem),
        cheapest_(std::move(cheapest)),
        options_(options),
        most_(raw_cost(problem, cheapest_) * (1 + options.spare)),
        end_(options.seconds, Deadline::Clock::work),
        bound_(problem),
        own_(bound_),
        edge_costs_(problem) {
    for (const FactoredProblem::Node& node : problem.nodes) {
      seen_.emplace_back(node.cost.size(), false);
      prices_.emplace_back(node.cost.size(), 0.0);
    }
  }

  std::vector<Solution> run() {
    settle(bound_, kSweeps);
    bound_.find_bound();
    bound_.sweep();  // for the slacks
    see(cheapest_);
    std::vector<Solution> out;
    int tried = 0;
    for (const auto& [node, choice] : choices()) {
      if (tried == options_.tries || end_.passed()) break;
      if (seen_[node][choice]) continue;
      seen_[node][choice] = true;
      const double bound = bound_with(node, choice);
      if (bound > most_) continue;
      ++tried;
      std::optional<Solution> found = decoded_with(node, choice, bound);
      if (!found) found = cheapest_with(node, choice);
      if (!found) continue;
      see(*found);
      if (raw_cost(problem_, *found) <= most_) out.push_back(std::move(*found));
    }
    return out;
  }

 private:
  /// Sweeps until the bound, which is returned, stalls or exceeds `most`.
  static double settle(FactoredBound& bound, int sweeps, double most = kInfeasible) {
    double least = bound.sweep(false);
    for (int k = 1; k < sweeps && least <= most; ++k) {
      const double value = bound.sweep(false);
      if (value <= least + kGained * std::abs(least)) break;
      least = value;
    }
    return least;
  }

  void see(const Solution& solution) {
    for (size_t i = 0; i < solution.size(); ++i) seen_[i][at(solution[i])] = true;
  }

  /// Nodes and choices that may be near: of the nodes that cost most first, and of a node the
  /// likeliest.
  std::vector<std::pair<size_t, size_t>> choices() const {
    struct Choice {
      double weight, slack;
      size_t node, choice;
    };
    std::vector<Choice> all;
    for (size_t i = 0; i < problem_.nodes.size(); ++i) {
      const std::span<const double> slack = bound_.slack(static_cast<int>(i));
      const double weight = problem_.nodes[i].cost[at(cheapest_[i])];
      for (size_t a = 0; a < slack.size(); ++a) {
        if (bound_.bound_before_sweep() + slack[a] <= most_)
          all.push_back({weight, slack[a], i, a});
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) {
      return std::pair(-a.weight, a.slack) < std::pair(-b.weight, b.slack);
    });
    std::vector<std::pair<size_t, size_t>> out;
    for (const Choice& one : all) out.emplace_back(one.node, one.choice);
    return out;
  }

  /// What makes a search take the choice.
  std::vector<double> price_of(size_t node, size_t choice) const {
    std::vector<double> price(problem_.nodes[node].cost.size(), kForbidding * most_);
    price[choice] = 0;
    return price;
  }

  double bound_with(size_t node, size_t choice) {
    own_ = bound_;
    own_.add_cost(static_cast<int>(node), price_of(node, choice));
    return settle(own_, kOwnSweeps, most_);
  }

  /// What the messages behind that bound come to, if it is as cheap as a search would end with.
  std::optional<Solution> decoded_with(size_t node, size_t choice, double bound) {
    own_.sweep();
    Solution out = own_.decoded();
    prices_[node] = price_of(node, choice);
    descend(problem_, edge_costs_, out, &prices_);
    std::fill(prices_[node].begin(), prices_[node].end(), 0.0);
    const double cost = raw_cost(problem_, out);
    if (cost - bound > options_.gap * cost) return std::nullopt;
    return out;
  }

  std::optional<Solution> cheapest_with(size_t node, size_t choice) const {
    Kept kept = all_kept(problem_);
    kept[node] = {static_cast<int>(choice)};
    NarrowOptions options;
    options.gap = options_.gap;
    options.seconds = end_.left();
    options.descends = false;
    const std::optional<Narrowed> found = narrow(restricted(problem_, kept), options);
    if (!found || !found->solution) return std::nullopt;
    return expanded(*found->solution, kept);
  }

  const FactoredProblem& problem_;
  const Solution cheapest_;
  const NearOptions& options_;
  const double most_;  // a near solution's cost
  const Deadline end_;
  FactoredBound bound_, own_;  // of all choices, and with one made
  const EdgeCosts edge_costs_;
  std::vector<std::vector<double>> prices_;  // by node and choice: 0 but of the one that is tried
  std::vector<std::vector<bool>> seen_;      // by node and choice: in a solution, or tried
};

}  // namespace

std::vector<Solution> near_solutions(const FactoredProblem& problem, const Solution& cheapest,
                                     const NearOptions& options) {
  NarrowOptions all;
  all.gap = options.gap;
  all.seconds = options.seconds;
  all.starts = {cheapest};
  all.descends = false;
  all.spare = options.spare;
  const std::optional<Narrowed> narrowed = narrow(problem, all);
  if (!narrowed || narrowed->gap() > options.most_gap) return {};
  const std::optional<Solution> start = choices_in(cheapest, narrowed->kept);
  if (!start) return {};
  const Contraction less(restricted(problem, narrowed->kept));
  std::optional<Solution> contracted = less.contracted(*start);
  if (!contracted) return {};
  std::vector<Solution> out;
  for (const Solution& found : Neighbours(less.problem(), std::move(*contracted), options).run())
    out.push_back(expanded(less.expanded(found), narrowed->kept));
  return out;
}

}  // namespace shardrun
