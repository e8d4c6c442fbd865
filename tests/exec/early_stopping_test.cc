// Which validations are the best so far, and when patience ends.
#include "exec/early_stopping.h"

#include <gtest/gtest.h>

#include <limits>

namespace shardrun {
namespace {

TEST(EarlyStopping, TheLossAloneDecidesWithoutAccuracies) {
  EarlyStopping stopping(2);
  EXPECT_TRUE(stopping.take(1.0, {}));
  EXPECT_FALSE(stopping.take(1.5, {}));
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_TRUE(stopping.take(1.0, {}));  // as good is good enough, and patience begins anew
  EXPECT_FALSE(stopping.take(1.1, {}));
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_FALSE(stopping.take(1.2, {}));
  EXPECT_TRUE(stopping.exhausted());
}

/// Either one keeps it going; the least loss is the best.
TEST(EarlyStopping, LossOrAccuracyGoesOnAndTheLeastLossIsBest) {
  EarlyStopping stopping(2);
  EXPECT_TRUE(stopping.take(1.0, 0.5));
  EXPECT_FALSE(stopping.take(1.2, 0.6));  // accuracy alone
  EXPECT_TRUE(stopping.take(0.9, 0.5));   // loss alone
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_FALSE(stopping.take(0.95, 0.55));  // neither
  EXPECT_TRUE(stopping.take(0.9, 0.6));
  EXPECT_FALSE(stopping.take(1.0, 0.1));
  EXPECT_FALSE(stopping.take(1.0, 0.1));
  EXPECT_TRUE(stopping.exhausted());
}

TEST(EarlyStopping, NoNumberIsNoStepForward) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EarlyStopping stopping(1);
  EXPECT_FALSE(stopping.take(nan, 1.0));
  EXPECT_TRUE(stopping.exhausted());
  EXPECT_TRUE(stopping.take(5.0, 0.1));
  EarlyStopping never(0);
  for (int i = 0; i < 100; ++i) never.take(static_cast<double>(i), 0.0);
  EXPECT_FALSE(never.exhausted());
}

}  // namespace
}  // namespace shardrun
