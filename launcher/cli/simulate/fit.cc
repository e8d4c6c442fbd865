// Gauss-Newton on logarithms, with damping; intervals by the curvature.
#include "simulate/fit.h"

#include <algorithm>
#include <cmath>

namespace shardrun::cli {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr double kOutlier = 0.2;     // a logarithmic error from which it counts less
constexpr double kWidest = 0.6931;   // of half an interval: log 2
constexpr double kLeast = 0.01;      // of a figure's change by the constant's, both logarithmic
constexpr double kPrecision = 2e-3;  // of measured figures, at best
constexpr double kStep = 0.03;       // of a constant's logarithm, to see what it changes
constexpr double kFarthest = 0.7;    // that one goes at a time
constexpr int kMostSteps = 15;

/// Of a symmetric positive definite matrix; one of no size where it is not.
Matrix inverse(Matrix a) {
  const size_t n = a.size();
  Matrix out(n, Vector(n, 0));
  for (size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    if (a[pivot][i] == 0) return {};
    std::swap(a[i], a[pivot]);
    std::swap(out[i], out[pivot]);
    const double by = a[i][i];
    for (size_t c = 0; c < n; ++c) a[i][c] /= by, out[i][c] /= by;
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double times = a[r][i];
      for (size_t c = 0; c < n; ++c) a[r][c] -= times * a[i][c], out[r][c] -= times * out[i][c];
    }
  }
  return out;
}

/// Student's t at 97.5 % (Cornish and Fisher's expansion).
double student(double freedom) { return 1.96 + 2.372 / freedom + 2.823 / (freedom * freedom); }

class Fit {
 public:
  Fit(const std::vector<FitConstant>& constants, const Vector& measured, const FitModel& model)
      : constants_(constants), measured_(measured), model_(model) {
    for (size_t c = 0; c < constants.size(); ++c) {
      at_.push_back(
          std::log(constants[c].starts.empty() ? constants[c].neutral : constants[c].starts[0]));
      free_.push_back(c);
    }
    seek_start();
  }

  std::vector<FittedConstant> run() {
    for (;;) {
      descend();
      const Vector half = half_widths();
      size_t worst = 0;
      for (size_t f = 0; f < free_.size(); ++f)
        if (half[f] > half[worst]) worst = f;
      if (free_.empty() || half[worst] <= kWidest) return outcome(half);
      at_[free_[worst]] = std::log(constants_[free_[worst]].neutral);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(worst));
      errors_ = errors(at_);
    }
  }

 private:
  Vector errors(const Vector& at) const {
    Vector values;
    for (double one : at) values.push_back(std::exp(one));
    Vector out = model_(values);
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::log(out[i] / measured_[i]);
    return out;
  }
  static double weight(double error) { return std::min(1.0, kOutlier / std::abs(error)); }
  static double cost(const Vector& errors) {
    double sum = 0;
    for (double e : errors) {
      const double size = std::abs(e);
      sum += size <= kOutlier ? size * size : kOutlier * (2 * size - kOutlier);
    }
    return sum;
  }

  /// The best of each constant's starts, one constant after the other.
  void seek_start() {
    errors_ = errors(at_);
    for (size_t c = 0; c < constants_.size(); ++c) {
      for (size_t s = 1; s < constants_[c].starts.size(); ++s) {
        Vector other = at_;
        other[c] = std::log(constants_[c].starts[s]);
        Vector theirs = errors(other);
        if (cost(theirs) >= cost(errors_)) continue;
        at_ = std::move(other);
        errors_ = std::move(theirs);
      }
    }
  }

  /// By constant that is free: how much each logarithm of a figure goes up with that of the
  /// constant.
  void differentiate() {
    slopes_.assign(free_.size(), {});
    for (size_t f = 0; f < free_.size(); ++f) {
      Vector up = at_, down = at_;
      up[free_[f]] += kStep, down[free_[f]] -= kStep;
      slopes_[f] = errors(up);
      const Vector lower = errors(down);
      for (size_t i = 0; i < lower.size(); ++i)
        slopes_[f][i] = (slopes_[f][i] - lower[i]) / (2 * kStep);
    }
  }

  Matrix normal() const {
    Matrix out(free_.size(), Vector(free_.size(), 0));
    for (size_t a = 0; a < free_.size(); ++a) {
      for (size_t b = 0; b < free_.size(); ++b) {
        for (size_t i = 0; i < errors_.size(); ++i)
          out[a][b] += weight(errors_[i]) * slopes_[a][i] * slopes_[b][i];
      }
      // What changes nothing has an interval as wide as can be, and stays where it is.
      out[a][a] += 1e-12 * static_cast<double>(errors_.size());
    }
    return out;
  }

  void descend() {
    double damping = 1e-4;
    for (int step = 0; step < kMostSteps; ++step) {
      differentiate();
      bool better = false, small = true;
      for (int tries = 0; tries < 5 && !better; ++tries, damping *= 10) {
        Vector next = at_;
        small = true;
        const Vector change = direction(damping);
        for (size_t f = 0; f < free_.size(); ++f) {
          next[free_[f]] += change[f];
          small = small && std::abs(change[f]) < 1e-4;
        }
        Vector theirs = errors(next);
        better = cost(theirs) < cost(errors_);
        if (!better) continue;
        small = small || cost(theirs) > cost(errors_) * (1 - 1e-5);
        at_ = std::move(next);
        errors_ = std::move(theirs);
        damping /= 100;
      }
      if (!better || small) break;
    }
    differentiate();
  }

  Vector direction(double damping) const {
    Matrix a = normal();
    for (size_t f = 0; f < a.size(); ++f) a[f][f] *= 1 + damping;
    const Matrix inverted = inverse(a);
    Vector out(free_.size(), 0);
    for (size_t f = 0; f < inverted.size(); ++f) {
      for (size_t g = 0; g < free_.size(); ++g) {
        for (size_t i = 0; i < errors_.size(); ++i)
          out[f] -= inverted[f][g] * weight(errors_[i]) * slopes_[g][i] * errors_[i];
      }
      out[f] = std::clamp(out[f], -kFarthest, kFarthest);
    }
    return out;
  }

  /// Of the logarithms' intervals, by constant that is free. Infinite: it cannot be told.
  Vector half_widths() const {
    const double freedom = static_cast<double>(errors_.size()) - static_cast<double>(free_.size());
    double squares = 0;
    for (double e : errors_) squares += weight(e) * e * e;
    const double width = student(freedom) * std::max(kPrecision, std::sqrt(squares / freedom));
    const Matrix covariance = inverse(normal());
    Vector out;
    for (size_t f = 0; f < free_.size(); ++f) {
      const bool told = !covariance.empty() && matters(f, width * width);
      out.push_back(told ? width * std::sqrt(covariance[f][f]) : INFINITY);
    }
    return out;
  }

  /// Does it change a figure, and are twice and half of it worse by so much? Where the constant is
  /// of something that just begins to take longest, the slope alone would not tell.
  bool matters(size_t f, double by) const {
    double most = 0;
    for (double slope : slopes_[f]) most = std::max(most, std::abs(slope));
    if (most < kLeast) return false;
    for (double change : {-kWidest, kWidest}) {
      Vector other = at_;
      other[free_[f]] += change;
      if (cost(errors(other)) - cost(errors_) < by) return false;
    }
    return true;
  }

  std::vector<FittedConstant> outcome(const Vector& half) const {
    std::vector<FittedConstant> out;
    for (const FitConstant& c : constants_) out.push_back({c.name, c.neutral, 0, 0, false});
    for (size_t f = 0; f < free_.size(); ++f) {
      const double at = at_[free_[f]];
      out[free_[f]] = {constants_[free_[f]].name, std::exp(at), std::exp(at - half[f]),
                       std::exp(at + half[f]), true};
    }
    return out;
  }

  const std::vector<FitConstant>& constants_;
  const Vector& measured_;
  const FitModel& model_;
  Vector at_;                 // logarithms
  std::vector<size_t> free_;  // constants that are fitted
  Vector errors_;             // at at_
  Matrix slopes_;
};

}  // namespace

std::vector<FittedConstant> fit(const std::vector<FitConstant>& constants,
                                const std::vector<double>& measured, const FitModel& model) {
  return Fit(constants, measured, model).run();
}

}  // namespace shardrun::cli
