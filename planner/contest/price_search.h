// PriceSearch: prices of memory over time that make a Problem's lower bound large.
#pragma once

#include <functional>
#include <vector>

#include "planner/solver/bound.h"
#include "planner/solver/flat_problem.h"

namespace shardrun {

struct PriceSearchLimits {
  int sweeps = 600;  // of message passing at most
  /// Fraction of the time that is used up, 0 to 1; may be null. At 1 the search for prices ends.
  std::function<double()> progress;
};

/// Maximises over prices >= 0 of a byte at each kept time: the bound of the costs with memory
/// priced, minus prices x limit (the Lagrangian of the memory rows). Prices are multiplied by
/// exp(step x (use / limit - 1)), as in exponentiated gradient (Kivinen and Warmuth 1997), because
/// of thousands of times only few matter in the end. The use is not that of one solution, which
/// would jump, but what is expected if every node draws its strategies with probabilities
/// exp(-slack / temperature); the temperature falls so that the entropy of the draws falls evenly,
/// whatever the scale of the costs. If the bound falls or stays, the best prices come back and
/// steps are halved.
class PriceSearch {
 public:
  /// Both must outlive this. `bound` must be of flat's Problem, with no cost added so far.
  PriceSearch(const FlatProblem& flat, Bound& bound);

  /// Once. Leaves `bound` with the best prices and up to date. Without memory rows it only sweeps
  /// until the bound stays.
  void run(const PriceSearchLimits& limits);

  /// What message passing decodes if all prices are multiplied by `emphasis`: a solution that needs
  /// less memory. The prices are as before afterwards. If it is `late` (may be null), after fewer
  /// sweeps.
  Solution decode(double emphasis, const std::function<bool()>& late = nullptr);

  double lower_bound() const { return lower_bound_; }
  const std::vector<double>& price() const { return price_; }
  /// Sum of price x limit, which bound's costs contain and no solution pays.
  double priced_limit() const { return priced_limit_; }

 private:
  void set(const std::vector<double>& next);
  void set_logs();
  void take_bound();
  void sweep_without_memory(const PriceSearchLimits& limits);
  double expect_use(double temperature);
  void start(const PriceSearchLimits& limits);

  const FlatProblem& flat_;
  Bound& bound_;
  std::vector<double> price_, next_;
  std::vector<double> log_price_, best_log_price_;
  std::vector<double> use_, mean_use_;  // fractions of the limit
  std::vector<double> draw_;
  double floor_ = 0, temperature_ = 0, least_temperature_ = 0, step_ = 0;
  double priced_limit_ = 0;
  double lower_bound_ = -kInfeasible;
};

}  // namespace shardrun
