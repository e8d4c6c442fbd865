// Narrowing: from all strategies of a search space to the few that a best plan can use.
#pragma once

#include <optional>

#include "planner/solver/factored_problem.h"

namespace shardrun {

/// A search goes on for no longer than a better plan could save in so many steps of training; costs
/// are seconds a step. Without a limit of memory good plans are found early, and most of what is
/// left is the bound's.
inline double steps_to_gain(int64_t memory_limit) { return memory_limit > 0 ? 1e4 : 3e3; }

struct NarrowOptions {
  double gap = 5e-3;                  // relative: a solution this close to the bound is good enough
  double seconds = 10;                // of work (planner/solver/deadline.h)
  int64_t memory_limit = 0;           // of the claims; 0: none
  std::vector<Solution> starts = {};  // known solutions
  bool descends = true;               // by trees, where the messages end with a larger gap
  int patience = 0;  // with a limit: ends after so many solutions behind the best one that fits; 0:
                     // goes on
  double spare = 0;  // relative: what solutions so much more expensive can use is kept, too
};

struct Narrowed : Incumbent {  // in the problem's own choices
  /// Strategies that can be in a solution better than the best one known.
  Kept kept;
  /// Per node and kept strategy: how much more than the bound a solution with it costs at least.
  std::vector<std::vector<double>> slack;
  double lower_bound = -kInfeasible;  // of all solutions (that fit), not of the kept ones alone
  /// Close enough to the bound, or what is left to gain would not pay for more of the search.
  bool enough = false;
  bool closed() const { return solution.has_value() && cost <= lower_bound; }
  double gap() const { return solution ? (cost - lower_bound) / cost : kInfeasible; }
};

/// Message passing over all strategies (planner/solver/factored_bound.h) and descents from what it
/// decodes, in turns with the removal of every strategy whose slack exceeds what there is between
/// the bound and the best solution. Memory is priced at each time that matters, prices moved by
/// subgradient steps; what claims a little too much is repaired (planner/solver/descent/repair.h).
/// Without memory, where sweeps end with a larger gap, whole trees choose anew
/// (planner/solver/descent/tree_descent.h) from the cheapest solutions, and these are joined.
/// nullopt if some node has no strategy that its neighbours allow.
std::optional<Narrowed> narrow(const FactoredProblem& problem, const NarrowOptions& options);

}  // namespace shardrun
