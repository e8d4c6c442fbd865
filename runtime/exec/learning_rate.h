// Learning-rate schedules: constant, linear and cosine decay, after a linear warm-up.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "base/named.h"

namespace shardrun {

enum class ScheduleKind { constant, linear, cosine };
inline constexpr Named<ScheduleKind> kSchedules[] = {{"constant", ScheduleKind::constant},
                                                     {"linear", ScheduleKind::linear},
                                                     {"cosine", ScheduleKind::cosine}};

ScheduleKind parse_schedule(std::string_view name);  // throws invalid_input

/// Steps take learning rates as f32, and leave out an update by an infinite one.
inline constexpr double kMostRate = std::numeric_limits<float>::max();
void check_learning_rate(double rate);  // throws invalid_input

/// Steps count from 1. With 100 warm-up steps of 2000, lr 1e-3 and min_lr 1e-4 (nanoGPT's recipe):
/// step 1 has 1e-3 / 101, step 101 has 1e-3, and the rate falls to 1e-4 just after step 2000.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double lr = 3e-4;
  double min_lr = 0;   // where linear and cosine end; not used by constant
  int64_t warmup = 0;  // steps; rises as lr * step / (warmup + 1)
  int64_t total = 0;   // steps until min_lr is reached

  /// Throws invalid_input: a rate out of range, min_lr > lr, a warm-up as long as the run of a
  /// decaying schedule.
  void check() const;
  double lr_at(int64_t step) const;
};

}  // namespace shardrun
