// Daly's formula.
#include "simulate/goodput.h"

#include <cmath>

#include "base/error.h"

namespace shardrun {

Goodput goodput(const Failures& f, int64_t ranks) {
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  const auto not_negative = [](double x) { return std::isfinite(x) && x >= 0; };
  SR_REQUIRE(positive(f.mtbf), invalid_input, "--mtbf is ", f.mtbf / 3600,
             " hours, wanted more than 0");
  SR_REQUIRE(positive(f.checkpoint), invalid_input, "--checkpoint-minutes is ", f.checkpoint / 60,
             ", wanted more than 0");
  SR_REQUIRE(not_negative(f.stall), invalid_input, "--checkpoint-stall is ", f.stall,
             " s, wanted 0 or more");
  SR_REQUIRE(not_negative(f.restart), invalid_input, "--restart-minutes is ", f.restart / 60,
             ", wanted 0 or more");
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
