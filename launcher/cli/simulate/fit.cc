// Gauss-Newton on logarithms, with damping; intervals by the curvature without what is thought
// beforehand.
#include "simulate/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace shardrun::cli {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr double kOutlier = 0.2;  // a logarithmic error from which it always counts less
/// So many deviations from which it does, if that is less. Of normal errors a median size is 0.6745
/// deviations. Huber's choice (Robust Statistics, 1981, section 4.5).
constexpr double kHuber = 1.345, kMedianOfNormal = 0.6745;
constexpr double kWidest = 0.6931;  // of half an interval: log 2
constexpr double kScale = 0.03;     // of the logarithm of what constants share
constexpr std::array<double, 5> kScaleStarts = {0, 0.7, -0.7, 1.4, -1.4};  // logarithms
constexpr double kNoThought = 10;    // a constant's spread where nothing is thought of it
constexpr double kPrecision = 2e-3;  // of measured figures, at best
constexpr double kStep = 0.03;       // of a constant's logarithm, to see what it changes
constexpr double kFarthest = 0.7;    // that one goes at a time
constexpr int kMostSteps = 15, kStepsOfOthers = 5;
constexpr double kNoise = 0.06;  // of logarithmic errors, before any are known
constexpr double kMostNoise = 0.3;
constexpr double kSettled = 0.1;  // of the noise's logarithm: it changes no more
constexpr int kMostRounds = 20;

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
  Fit(const std::vector<FitConstant>& constants, const Vector& measured, const FitModel& model,
      Vector counts)
      : constants_(constants), measured_(measured), model_(model), counts_(std::move(counts)) {
    for (size_t c = 0; c < constants.size(); ++c) {
      at_.push_back(
          std::log(constants[c].starts.empty() ? constants[c].neutral : constants[c].starts[0]));
    }
    seek_start();
  }

  std::vector<FittedConstant> run() {
    for (int round = 0; round < kMostRounds; ++round) {
      descend(kMostSteps, 0);
      const double noise = std::clamp(deviation(), kPrecision, kMostNoise);
      const double outlier = outlier_of(errors_);
      const double spread = std::hypot(kScale, shared_scale());
      const bool settled = std::abs(std::log(noise / noise_)) < kSettled &&
                           std::abs(std::log(outlier / outlier_)) < kSettled &&
                           std::abs(std::log(spread / scale_spread_)) < kSettled;
      noise_ = noise;
      outlier_ = outlier;
      if (settled) break;
      think(spread);
    }
    differentiate();
    return outcome();
  }

 private:
  static double certainty(const FitConstant& c) { return 1 / (c.spread * c.spread); }
  /// Of the constants that share a scale.
  double all_certainty() const {
    double all = 0;
    for (const FitConstant& c : constants_) all += c.shares_scale ? certainty(c) : 0;
    return all;
  }
  /// The logarithm of the scale: a mean of those that share it.
  double shared_scale() const {
    double sum = 0;
    for (size_t c = 0; c < at_.size(); ++c)
      sum += constants_[c].shares_scale ? certainty(constants_[c]) * distance(at_, c) : 0;
    return sum == 0 ? 0 : sum / all_certainty();
  }
  /// thoughts_: what is thought beforehand, as a quadratic form of the logarithms' distances from
  /// neutral. The scale's logarithm is normal with deviation `spread`, and the likeliest is put in.
  /// A Cauchy distribution is met by one that is as wide as the scale is far.
  void think(double spread) {
    scale_spread_ = spread;
    const double all = all_certainty() + 1 / (spread * spread);
    thoughts_.assign(at_.size(), Vector(at_.size(), 0));
    for (size_t a = 0; a < at_.size(); ++a) {
      thoughts_[a][a] = certainty(constants_[a]);
      for (size_t b = 0; b < at_.size(); ++b) {
        if (constants_[a].shares_scale && constants_[b].shares_scale)
          thoughts_[a][b] -= certainty(constants_[a]) * certainty(constants_[b]) / all;
      }
    }
  }
  double distance(const Vector& at, size_t c) const {
    return at[c] - std::log(constants_[c].neutral);
  }
  /// Half the slope of what is thought, by constant; `sum`, if given, gets the form itself.
  Vector pull(const Vector& at, double* sum = nullptr) const {
    Vector out(at.size(), 0);
    for (size_t a = 0; a < at.size(); ++a) {
      for (size_t b = 0; b < at.size(); ++b) out[a] += thoughts_[a][b] * distance(at, b);
      if (sum != nullptr) *sum += out[a] * distance(at, a);
    }
    return out;
  }

  Vector errors(const Vector& at) const {
    Vector values;
    for (double one : at) values.push_back(std::exp(one));
    Vector out = model_(values);
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::log(out[i] / measured_[i]);
    return out;
  }
  static double outlier_of(const Vector& errors) {
    Vector sizes;
    for (double error : errors) sizes.push_back(std::abs(error));
    std::nth_element(sizes.begin(), sizes.begin() + std::ssize(sizes) / 2, sizes.end());
    const double deviation = sizes[sizes.size() / 2] / kMedianOfNormal;
    return std::clamp(kHuber * deviation, kHuber * kPrecision, kOutlier);
  }
  double weight(double error) const { return std::min(1.0, outlier_ / std::abs(error)); }
  double misfit(const Vector& errors) const {
    double sum = 0;
    for (size_t i = 0; i < errors.size(); ++i) {
      const double size = std::abs(errors[i]);
      sum += counts_[i] * (size <= outlier_ ? size * size : outlier_ * (2 * size - outlier_));
    }
    return sum;
  }
  /// Figures that are left when as many have made the constants.
  double freedom() const {
    return std::max(1.0, std::accumulate(counts_.begin(), counts_.end(), 0.0) -
                             static_cast<double>(at_.size()));
  }
  double cost(const Vector& at, const Vector& errors) const {
    double thought = 0;
    pull(at, &thought);
    return misfit(errors) + noise_ * noise_ * thought;
  }
  /// Of errors, where those beyond kOutlier count as that: Huber's estimate (Robust Statistics,
  /// 1981, section 7.6).
  double deviation() const {
    double squares = 0;
    for (size_t i = 0; i < errors_.size(); ++i)
      squares += counts_[i] * std::pow(std::min(std::abs(errors_[i]), kOutlier), 2);
    return std::sqrt(squares / freedom());
  }

  /// The best of each constant's starts, one constant after the other, at each of some scales.
  void seek_start() {
    const Vector neutral = at_;
    for (double scale : kScaleStarts) {
      if (scale != 0 && all_certainty() == 0) break;  // nothing shares it
      Vector at = neutral;
      for (size_t c = 0; c < at.size(); ++c) at[c] += constants_[c].shares_scale ? scale : 0;
      Vector theirs = errors(at);
      for (size_t c = 0; c < at.size(); ++c) {
        for (double start : constants_[c].starts) {
          Vector other = at;
          other[c] = std::log(start);
          Vector others = errors(other);
          if (misfit(others) >= misfit(theirs)) continue;
          at = std::move(other);
          theirs = std::move(others);
        }
      }
      if (!errors_.empty() && misfit(theirs) >= misfit(errors_)) continue;
      at_ = std::move(at);
      errors_ = std::move(theirs);
    }
    think(std::hypot(kScale, shared_scale()));
  }

  /// By constant: how much each logarithm of a figure goes up with that of the constant.
  void differentiate() {
    slopes_.assign(at_.size(), {});
    for (size_t c = 0; c < at_.size(); ++c) {
      Vector up = at_;
      up[c] += kStep;
      slopes_[c] = errors(up);
      for (size_t i = 0; i < errors_.size(); ++i)
        slopes_[c][i] = (slopes_[c][i] - errors_[i]) / kStep;
    }
  }

  /// Of the figures alone.
  Matrix normal() const {
    Matrix out(at_.size(), Vector(at_.size(), 0));
    for (size_t a = 0; a < at_.size(); ++a) {
      for (size_t b = 0; b < at_.size(); ++b) {
        for (size_t i = 0; i < errors_.size(); ++i)
          out[a][b] += counts_[i] * weight(errors_[i]) * slopes_[a][i] * slopes_[b][i];
      }
    }
    return out;
  }

  void descend(int most_steps, double good_enough) {
    double damping = 1e-4;
    for (int step = 0; step < most_steps && misfit(errors_) > good_enough; ++step) {
      differentiate();
      bool better = false, small = true;
      for (int tries = 0; tries < 5 && !better; ++tries, damping *= 10) {
        Vector next = at_;
        small = true;
        const Vector change = direction(damping);
        for (size_t c = 0; c < at_.size(); ++c) {
          next[c] += change[c];
          small = small && std::abs(change[c]) < 1e-4;
        }
        Vector theirs = errors(next);
        const double now = cost(at_, errors_), then = cost(next, theirs);
        better = then < now;
        if (!better) continue;
        small = small || then > now * (1 - 1e-4);
        at_ = std::move(next);
        errors_ = std::move(theirs);
        damping /= 100;
      }
      if (!better || small) break;
    }
  }

  Vector direction(double damping) const {
    Matrix a = normal();
    const Vector pulled = pull(at_);
    for (size_t c = 0; c < a.size(); ++c) {
      for (size_t d = 0; d < a.size(); ++d) a[c][d] += noise_ * noise_ * thoughts_[c][d];
      a[c][c] *= 1 + damping;
    }
    const Matrix inverted = inverse(a);
    Vector slope(at_.size(), 0), out(at_.size(), 0);
    for (size_t c = 0; c < at_.size(); ++c) {
      slope[c] = noise_ * noise_ * pulled[c];
      for (size_t i = 0; i < errors_.size(); ++i)
        slope[c] += counts_[i] * weight(errors_[i]) * slopes_[c][i] * errors_[i];
    }
    for (size_t c = 0; c < inverted.size(); ++c) {
      for (size_t d = 0; d < at_.size(); ++d) out[c] -= inverted[c][d] * slope[d];
      out[c] = std::clamp(out[c], -kFarthest, kFarthest);
    }
    return out;
  }

  /// Half of the logarithms' intervals, by constant, whatever the others are.
  Vector half_widths(double width) const {
    Matrix a = normal();
    for (size_t c = 0; c < at_.size(); ++c) a[c][c] += std::pow(width / kNoThought, 2);
    const Matrix covariance = inverse(a);
    Vector out;
    for (size_t c = 0; c < at_.size(); ++c)
      out.push_back(covariance.empty() ? INFINITY : width * std::sqrt(covariance[c][c]));
    return out;
  }

  /// Can the others make up for this change of a constant? What just begins to take longest, or no
  /// longer does, the slopes alone would not tell.
  bool made_up_for(size_t c, double change, double good_enough) const {
    std::vector<FitConstant> others;
    for (size_t o = 0; o < at_.size(); ++o) {
      if (o == c) continue;
      const double value = std::exp(at_[o]);
      others.push_back(
          {constants_[o].name, value, kNoThought, false, {value, 4 * value, value / 4}});
    }
    const double fixed = std::exp(at_[c] + change);
    const FitModel model = [&](const Vector& values) {
      Vector all = values;
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(c), fixed);
      return model_(all);
    };
    Fit rest(others, measured_, model, counts_);
    rest.noise_ = noise_;
    rest.outlier_ = outlier_;
    rest.descend(kStepsOfOthers, good_enough);
    return misfit(rest.errors_) <= good_enough;
  }

  std::vector<FittedConstant> outcome() const {
    const double width = student(freedom()) * std::max(kPrecision, deviation());
    const double good_enough = misfit(errors_) + width * width;
    const Vector half = half_widths(width);
    std::vector<FittedConstant> out;
    for (size_t c = 0; c < at_.size(); ++c) {
      FittedConstant one = {constants_[c].name, std::exp(at_[c]), 0, 0, false};
      one.identifiable = half[c] <= kWidest && !made_up_for(c, -kWidest, good_enough) &&
                         !made_up_for(c, kWidest, good_enough);
      if (one.identifiable)
        one.low = one.value * std::exp(-half[c]), one.high = one.value * std::exp(half[c]);
      out.push_back(std::move(one));
    }
    return out;
  }

  const std::vector<FitConstant>& constants_;
  const Vector& measured_;
  const FitModel& model_;
  Vector counts_;
  Vector at_;        // logarithms
  Matrix thoughts_;  // of what is thought beforehand
  double scale_spread_ = kScale;
  double noise_ = kNoise;  // of errors_: how much they count against what is thought
  double outlier_ = kOutlier;
  Vector errors_;  // at at_
  Matrix slopes_;
};

}  // namespace

std::vector<FittedConstant> fit(const std::vector<FitConstant>& constants,
                                const std::vector<double>& measured, const FitModel& model,
                                std::vector<double> counts) {
  if (counts.empty()) counts.assign(measured.size(), 1);
  return Fit(constants, measured, model, std::move(counts)).run();
}

}  // namespace shardrun::cli
