// Daly's formula.
#include "simulate/goodput.h"

#include <cmath>

#include "base/error.h"

namespace shardrun {
namespace {

/// With longer and shorter times the figures would be no numbers.
constexpr double kLeastSeconds = 3.6e-3, kMostSeconds = 3.6e12;

}  // namespace

Goodput goodput(const Failures& f, int64_t ranks) {
  const auto wanted = [](double seconds, double least, const char* flag, double unit) {
    SR_REQUIRE(seconds >= least && seconds <= kMostSeconds, invalid_input, flag, " is ",
               seconds / unit, ", wanted ", least / unit, " to ", kMostSeconds / unit);
  };
  wanted(f.mtbf, kLeastSeconds, "--mtbf", 3600);
  wanted(f.checkpoint, kLeastSeconds, "--checkpoint-minutes", 60);
  wanted(f.stall, 0, "--checkpoint-stall", 1);
  wanted(f.restart, 0, "--restart-minutes", 60);
  const double rate = static_cast<double>(ranks) / f.mtbf;
  Goodput out;
  out.seconds_to_failure = 1 / rate;
  out.best_checkpoint = std::sqrt(2 * f.stall / rate);
  const double stretch =
      std::expm1(rate * (f.checkpoint + f.stall)) * std::exp(rate * f.restart) / rate;
  out.fraction = f.checkpoint / stretch;
  return out;
}

}  // namespace shardrun
