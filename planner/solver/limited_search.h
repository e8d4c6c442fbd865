// LimitedSearch: the cheapest choices whose claims fit the capacity that there is at each time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/solver/factored_problem.h"
#include "planner/solver/narrowing.h"

namespace shardrun {

struct LimitedOptions {
  enum class Method {
    narrowing,  // message passing, then the solvers on what is left
    beam,       // the beam instead of the solvers
    plain,      // the whole integer program to HiGHS, nothing removed: to compare with
  };
  double gap = 1e-3;  // relative: a solution this close to the bound is good enough
  Method method = Method::narrowing;
  uint64_t seed = 0;
  bool polishes = true;  // false: without a limit, what narrowing finds will do
  int patience = 0;      // NarrowOptions'
};

struct LimitedResult : Incumbent {
  double lower_bound = -kInfeasible;
  std::string solver;  // which part finished
};

/// Looks at memory only at the times that turn out to matter. Of the thousands of nodes of a
/// training step few are a peak of some plan; so it solves without the others, looks where the
/// solution does not fit, and solves again with those times too. Dropping times relaxes the
/// problem, so bounds hold in between.
///
/// Each solution: message passing over all strategies (planner/solver/narrowing.h); where the gap
/// that it leaves is too large, the solvers get the strategies with the least slack. The bound
/// holds for all strategies.
class LimitedSearch {
 public:
  /// `problem` must outlive this.
  LimitedSearch(const FactoredProblem& problem, const LimitedOptions& options)
      : problem_(problem), options_(options) {}

  /// `capacity`: bytes that claims may hold, per time; empty: not limited. `starts`: known
  /// solutions. `seconds`: of work (planner/solver/deadline.h), of the wall's clock for
  /// `plain`. Times found by earlier calls are kept. `smallest` is, of all that were seen, the one
  /// whose fullest time is least.
  LimitedResult run(const std::vector<int64_t>& capacity, const std::vector<Solution>& starts,
                    double seconds);

  /// From now on looks at the worst time of each part of the step in which the solution does not
  /// fit, so that the best one without a limit need not be found again. False if there is none that
  /// was not known.
  bool add_rows(const std::vector<int64_t>& capacity, const Solution& solution);

 private:
  LimitedResult plain(const FactoredProblem& problem, int64_t limit, double seconds) const;
  FactoredProblem at_rows(const std::vector<int64_t>& capacity, int64_t& limit) const;
  LimitedResult polished(const FactoredProblem& problem, int64_t limit, const Narrowed& narrowed,
                         double seconds) const;
  double gap_at(int64_t limit) const;

  const FactoredProblem& problem_;
  LimitedOptions options_;
  std::vector<int> rows_;  // times, ascending
};

}  // namespace shardrun
