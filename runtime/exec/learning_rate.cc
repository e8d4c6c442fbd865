// Learning-rate schedules.
#include "exec/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace shardrun {

ScheduleKind parse_schedule(std::string_view name) {
  const std::optional<ScheduleKind> kind = kind_named(kSchedules, name);
  SR_REQUIRE(kind, invalid_input, "schedule '", name, "': wanted ", names_of(kSchedules, " or "));
  return *kind;
}

void check_learning_rate(double rate) {
  SR_REQUIRE(rate >= 0 && rate <= kMostRate, invalid_input, "learning rate is ", rate,
             ", wanted 0 to ", kMostRate);
}

void Schedule::check() const {
  check_learning_rate(lr);
  SR_REQUIRE(warmup >= 0, invalid_input, "warm-up: got ", warmup, " steps, wanted at least 0");
  if (kind == ScheduleKind::constant) {
    SR_REQUIRE(min_lr == 0, invalid_input, "least learning rate: got ", min_lr,
               ", which the schedules linear and cosine end at, and constant does not");
    return;
  }
  SR_REQUIRE(min_lr >= 0 && min_lr <= lr, invalid_input, "least learning rate: got ", min_lr,
             ", wanted 0 to the learning rate, ", lr);
  SR_REQUIRE(warmup < total, invalid_input, "warm-up: got ", warmup,
             " steps, wanted fewer than the run's ", total);
}

double Schedule::lr_at(int64_t step) const {
  if (step <= warmup) {
    return lr * static_cast<double>(std::max<int64_t>(step, 1)) / static_cast<double>(warmup + 1);
  }
  if (kind == ScheduleKind::constant) return lr;
  // 0 at the first step after the warm-up, 1 just after the last.
  const double done = std::clamp(static_cast<double>(step - 1 - warmup) /
                                     static_cast<double>(std::max<int64_t>(1, total - warmup)),
                                 0.0, 1.0);
  const double left =
      kind == ScheduleKind::linear ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return min_lr + (lr - min_lr) * left;
}

}  // namespace shardrun
