// Positive constants of a model that is slow to evaluate, fitted to measured figures.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shardrun::cli {

struct FitConstant {
  std::string name;
  double neutral = 1;          // what it is where it cannot be told
  std::vector<double> starts;  // from which the search begins
};

struct FittedConstant {
  std::string name;
  double value = 1;
  double low = 0, high = 0;  // of 95 %, where the others are as fitted along with it
  bool identifiable = false;
};

/// What the model says of every measured figure, at these values of the constants.
using FitModel = std::function<std::vector<double>(const std::vector<double>& values)>;

/// The values whose logarithmic errors are least, by Gauss-Newton; errors beyond 20 % count by
/// their size and not by its square, so that a few odd figures decide nothing. A constant is not
/// identifiable where a change of it changes no figure by much, or where its interval goes further
/// than twice or half its value: it is then neutral, and the others are fitted again. `measured`:
/// positive, more of them than constants.
std::vector<FittedConstant> fit(const std::vector<FitConstant>& constants,
                                const std::vector<double>& measured, const FitModel& model);

}  // namespace shardrun::cli
