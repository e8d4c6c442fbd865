// step_descent: solutions of shorter steps, where collectives run while kernels do.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "planner/solver/factored_problem.h"
#include "planner/step_times.h"

namespace shardrun {

/// A solution whose step is no longer than that of `start`. A move gives one node another choice,
/// and lets the nodes around it choose anew, by the problem's costs. It is timed if it shortens the
/// longest chain of the step, and made if the step is shorter. Ends where no move is made,
/// or where `most` steps were timed.
/// Deterministic. Memory is no matter here. `chain`: StepTimes::chain, `seconds`: the same without
/// fractions.
struct StepModel {
  std::function<double(const Solution&)> seconds;
  std::function<std::pair<double, ChainFractions>(const Solution&)> chain;
};
Solution step_descent(const FactoredProblem& problem, const StepModel& step, Solution start,
                      int64_t most);

}  // namespace shardrun
