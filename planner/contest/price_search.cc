// Exponentiated gradient on the prices of memory.
#include "planner/contest/price_search.h"

#include <algorithm>
#include <cmath>

namespace shardrun {
namespace {

/// How prices move, and when they have converged.
struct PriceSearchSettings {
  int free_sweeps = 20;  // before memory has a price, and after prices were multiplied
  // Prices, all of them by their logarithms.
  double first_price = 0.05;  // fraction of the cost: what the whole limit costs at first
  double floor = 1e-4;        // of the first price: below it a price is zero
  double step = 0.7;          // first
  double least_step = 1e-3;   // then they have converged
  double most_change = 0.2;   // of a logarithm in one step
  double past = 0.3;          // weight of the past in the mean use
  // Temperature of the draws. Entropies are fractions of the largest possible.
  double first_entropy = 0.85;
  double last_entropy = 0.25;
  double cooling = 0.04;            // its logarithm changes by this at most in a sweep
  double least_temperature = 1e-5;  // of the first
  int doublings = 60;               // of the first guess at most, to meet first_entropy
  double decrease = 1.3;            // then by this factor, as often at most
  // Bounds, relative to themselves, and sweeps.
  double gain = 1e-5;   // a bound that is higher by this has gained
  int patience = 25;    // sweeps without a gain, then the best prices come back
  double fall = 0.003;  // a fall of the bound that is not waited out
  int rest = 15;        // sweeps for the messages to settle after a fall
  int settling = 3;     // sweeps with the best prices, at the end
};
constexpr PriceSearchSettings kPriceSearch;

}  // namespace

PriceSearch::PriceSearch(const FlatProblem& flat, Bound& bound)
    : flat_(flat), bound_(bound), price_(static_cast<size_t>(flat.times()), 0.0), next_(price_) {}

void PriceSearch::set(const std::vector<double>& next) {
  std::vector<double> prefix(next.size() + 1, 0.0), change;
  priced_limit_ = 0;
  for (size_t t = 0; t < next.size(); ++t) {
    prefix[t + 1] = prefix[t] + (next[t] - price_[t]);
    priced_limit_ += next[t] * static_cast<double>(flat_.limit());
  }
  for (int i = 0; i < flat_.size(); ++i) {
    if (flat_.ranges(i).empty()) continue;
    change.assign(static_cast<size_t>(flat_.strategies(i)), 0.0);
    for (const FlatProblem::Range& range : flat_.ranges(i)) {
      const double weight =
          prefix[static_cast<size_t>(range.end)] - prefix[static_cast<size_t>(range.first)];
      for (size_t a = 0; a < change.size(); ++a)
        change[a] += weight * static_cast<double>(range.bytes[a]);
    }
    bound_.add_cost(i, change);
  }
  price_ = next;
}

void PriceSearch::set_logs() {
  for (size_t t = 0; t < next_.size(); ++t)
    next_[t] = log_price_[t] <= floor_ ? 0.0 : std::exp(log_price_[t]);
  set(next_);
}

void PriceSearch::take_bound() {
  lower_bound_ = std::max(lower_bound_, bound_.sweep() - priced_limit_);
}

void PriceSearch::sweep_without_memory(const PriceSearchLimits& limits) {
  double last = -kInfeasible;
  int idle = 0;
  for (int sweep = 0; sweep < limits.sweeps && idle < kPriceSearch.patience; ++sweep) {
    if (limits.progress && limits.progress() >= 1) return;
    take_bound();
    idle = lower_bound_ > last + kPriceSearch.gain * std::abs(last) ? 0 : idle + 1;
    if (idle == 0) last = lower_bound_;
  }
}

/// Fills use_. Returns the entropy of the draws over its largest possible value, for the nodes that
/// hold memory.
double PriceSearch::expect_use(double temperature) {
  std::fill(use_.begin(), use_.end(), 0.0);
  double sum = 0, most = 0;
  for (int i = 0; i < flat_.size(); ++i) {
    if (flat_.ranges(i).empty()) continue;
    const std::span<const double> slack = bound_.slack(i);
    draw_.resize(slack.size());
    double weight = 0, mean = 0;
    for (size_t a = 0; a < slack.size(); ++a) {
      const double exponent = slack[a] / temperature;
      draw_[a] = std::exp(-exponent);
      weight += draw_[a];
      mean += draw_[a] * exponent;
    }
    if (slack.size() > 1) {
      sum += std::log(weight) + mean / weight;
      most += std::log(static_cast<double>(slack.size()));
    }
    for (const FlatProblem::Range& range : flat_.ranges(i)) {
      double bytes = 0;
      for (size_t a = 0; a < draw_.size(); ++a)
        bytes += draw_[a] * static_cast<double>(range.bytes[a]);
      bytes /= weight;
      use_[static_cast<size_t>(range.first)] += bytes;
      use_[static_cast<size_t>(range.end)] -= bytes;
    }
  }
  const double limit = std::max(1.0, static_cast<double>(flat_.limit()));
  double now = 0;
  for (size_t t = 0; t < price_.size(); ++t) {
    now += use_[t];
    use_[t] = now / limit;
  }
  return most > 0 ? sum / most : 0.0;
}

void PriceSearch::start(const PriceSearchLimits& limits) {
  for (int sweep = 0; sweep < kPriceSearch.free_sweeps; ++sweep) {
    if (sweep > 0 && limits.progress && limits.progress() >= 1) break;
    take_bound();
  }
  double scale = std::abs(lower_bound_);
  if (!(scale > 0)) scale = std::abs(raw_cost(flat_.problem(), bound_.decoded()));
  if (!(scale > 0) || !std::isfinite(scale)) scale = 1;
  const double limit = std::max(1.0, static_cast<double>(flat_.limit()));
  const double first =
      std::log(kPriceSearch.first_price * scale / limit / static_cast<double>(price_.size()));
  floor_ = first + std::log(kPriceSearch.floor);
  log_price_.assign(price_.size(), first);
  best_log_price_ = log_price_;
  use_.assign(price_.size() + 1, 0.0);
  mean_use_.assign(price_.size(), 1.0);
  step_ = kPriceSearch.step;
  temperature_ = scale / static_cast<double>(flat_.size());
  for (int k = 0;
       k < kPriceSearch.doublings && expect_use(temperature_) < kPriceSearch.first_entropy; ++k)
    temperature_ *= 2;
  for (int k = 0;
       k < kPriceSearch.doublings && expect_use(temperature_) > kPriceSearch.first_entropy; ++k)
    temperature_ /= kPriceSearch.decrease;
  least_temperature_ = kPriceSearch.least_temperature * temperature_;
}

void PriceSearch::run(const PriceSearchLimits& limits) {
  if (price_.empty()) return sweep_without_memory(limits);
  start(limits);
  double best = -kInfeasible;  // what prices are worth, not what none are
  double reached = kPriceSearch.first_entropy;
  int last_gain = 0, rest = 0;
  for (int sweep = 0; sweep < limits.sweeps && step_ >= kPriceSearch.least_step; ++sweep) {
    double progress = static_cast<double>(sweep) / limits.sweeps;
    if (limits.progress) progress = std::max(progress, limits.progress());
    if (progress >= 1) break;
    set_logs();
    const double value = bound_.sweep() - priced_limit_;
    lower_bound_ = std::max(lower_bound_, value);
    const bool first = best == -kInfeasible;
    if (first || value > best + kPriceSearch.gain * std::abs(best)) last_gain = sweep;
    if (value > best) {
      best = value;
      best_log_price_ = log_price_;
    } else if (rest > 0) {
      --rest;
      last_gain = sweep;
      continue;
    } else if (sweep - last_gain > kPriceSearch.patience ||
               value < best - kPriceSearch.fall * std::abs(best)) {
      step_ /= 2;
      rest = kPriceSearch.rest;
      log_price_ = best_log_price_;
      std::fill(mean_use_.begin(), mean_use_.end(), 1.0);
      continue;
    }
    const double wanted = kPriceSearch.first_entropy +
                          (kPriceSearch.last_entropy - kPriceSearch.first_entropy) * progress;
    temperature_ =
        std::max(least_temperature_,
                 temperature_ * std::exp(std::clamp(2 * (wanted - reached), -kPriceSearch.cooling,
                                                    kPriceSearch.cooling)));
    reached = expect_use(temperature_);
    for (size_t t = 0; t < price_.size(); ++t) {
      mean_use_[t] =
          first ? use_[t] : kPriceSearch.past * mean_use_[t] + (1 - kPriceSearch.past) * use_[t];
      const double change = std::clamp(step_ * (mean_use_[t] - 1), -kPriceSearch.most_change,
                                       kPriceSearch.most_change);
      log_price_[t] = std::max(log_price_[t] + change, floor_);
    }
  }
  log_price_ = best_log_price_;
  set_logs();
  for (int sweep = 0; sweep < kPriceSearch.settling; ++sweep) {
    take_bound();
    if (limits.progress && limits.progress() >= 1) break;
  }
}

Solution PriceSearch::decode(double emphasis, const std::function<bool()>& late) {
  const std::vector<double> before = price_;
  next_ = before;
  for (double& price : next_) price *= emphasis;
  set(next_);
  const auto sweeps = [&](auto&& sweep) {
    for (int s = 0; s < kPriceSearch.free_sweeps; ++s) {
      if (s > 0 && late && late()) return;
      sweep();
    }
  };
  sweeps([&] { bound_.sweep(); });
  Solution decoded = bound_.decoded();
  set(before);
  sweeps([&] { take_bound(); });
  return decoded;
}

}  // namespace shardrun
