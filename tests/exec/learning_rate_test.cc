// Learning-rate schedules against values worked by hand.
#include "exec/learning_rate.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace shardrun {
namespace {

TEST(Schedule, CosineIsNanoGptsRecipe) {
  const Schedule s{ScheduleKind::cosine, 1e-3, 1e-4, 100, 2000};
  s.check();
  EXPECT_DOUBLE_EQ(s.lr_at(1), 1e-3 / 101);
  EXPECT_DOUBLE_EQ(s.lr_at(100), 1e-3 * 100 / 101);
  EXPECT_DOUBLE_EQ(s.lr_at(101), 1e-3);
  EXPECT_DOUBLE_EQ(s.lr_at(101 + 950), 1e-4 + 9e-4 * 0.5);  // half of 1900 done
  EXPECT_NEAR(s.lr_at(101 + 475), 1e-4 + 9e-4 * 0.8535533905932737, 1e-15);
  EXPECT_DOUBLE_EQ(s.lr_at(2001), 1e-4);
  EXPECT_DOUBLE_EQ(s.lr_at(9999), 1e-4);
  for (int64_t step = 101; step < 2001; ++step) ASSERT_GT(s.lr_at(step), s.lr_at(step + 1));
}

TEST(Schedule, LinearAndConstant) {
  const Schedule linear{ScheduleKind::linear, 1.0, 0.2, 0, 8};
  EXPECT_DOUBLE_EQ(linear.lr_at(1), 1.0);
  EXPECT_DOUBLE_EQ(linear.lr_at(3), 0.8);
  EXPECT_DOUBLE_EQ(linear.lr_at(9), 0.2);
  const Schedule constant{ScheduleKind::constant, 0.5, 0, 1, 0};
  constant.check();
  EXPECT_DOUBLE_EQ(constant.lr_at(1), 0.25);
  EXPECT_DOUBLE_EQ(constant.lr_at(2), 0.5);
  EXPECT_DOUBLE_EQ(constant.lr_at(1000000), 0.5);
}

TEST(Schedule, WrongNumbersAreRefused) {
  EXPECT_THROW((Schedule{ScheduleKind::constant, -1, 0, 0, 0}.check()), Error);
  EXPECT_THROW((Schedule{ScheduleKind::constant, 1, 0.1, 0, 0}.check()), Error);
  EXPECT_THROW((Schedule{ScheduleKind::cosine, 1e-3, 1e-2, 0, 10}.check()), Error);
  EXPECT_THROW((Schedule{ScheduleKind::linear, 1e-3, 0, 10, 10}.check()), Error);
  EXPECT_THROW(parse_schedule("square"), Error);
  for (const Named<ScheduleKind>& one : kSchedules) {
    EXPECT_EQ(parse_schedule(one.name), one.kind);
    EXPECT_EQ(name_of(kSchedules, one.kind), one.name);
  }
}

}  // namespace
}  // namespace shardrun
