// Positive constants of a model that is slow to evaluate, fitted to measured figures.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shardrun::cli {

/// What is thought of a constant beforehand: its logarithm is normal about that of `neutral`, with
/// deviation `spread`. Of those that share a scale, about that of `neutral` times the scale. That
/// is 1 within 3 %, or else anything (Cauchy's distribution).
struct FitConstant {
  std::string name;
  double neutral = 1;
  double spread = 1;
  bool shares_scale = true;
  std::vector<double> starts = {};  // from which the search begins; none: neutral
};

struct FittedConstant {
  std::string name;
  double value = 1;
  /// Of 95 %, by the figures alone, whatever the other constants are.
  double low = 0, high = 0;
  bool identifiable = false;
};

/// What the model says of every measured figure, at these values of the constants.
using FitModel = std::function<std::vector<double>(const std::vector<double>& values)>;

/// The likeliest values, by Gauss-Newton on logarithms of errors; errors beyond 1.345 of their
/// deviations, and beyond 20 % at any rate, count by their size and not by its square, so that a
/// few odd figures decide nothing. How much the figures count against what is thought beforehand
/// follows from how well they are met. A constant is not identifiable where the figures alone leave
/// twice or half its value, whatever the others are: by the slopes at the likeliest values, or with
/// the others fitted anew. It is then near what is thought of it, at the scale of the others. So
/// equal figures of one case identify none of several constants. Figures that are all twice as
/// large give predictions that are, nearly, if the constants share a scale. `measured`: positive.
/// `counts`: of each, as how many figures it counts; one of two copies as half of one; empty: each
/// as one.
std::vector<FittedConstant> fit(const std::vector<FitConstant>& constants,
                                const std::vector<double>& measured, const FitModel& model,
                                std::vector<double> counts = {});

}  // namespace shardrun::cli
