// Which validations are the best so far, and when patience ends.
#include "exec/early_stopping.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace shardrun {
namespace {

TEST(EarlyStopping, TheLossAloneDecidesWithoutAccuracies) {
  EarlyStopping stopping(2);
  EXPECT_TRUE(stopping.take(1.0, {}));
  EXPECT_FALSE(stopping.take(1.5, {}));
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_TRUE(stopping.take(0.9, {}));  // patience begins anew
  EXPECT_FALSE(stopping.take(1.1, {}));
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_FALSE(stopping.take(0.9, {}));  // as good is not better
  EXPECT_TRUE(stopping.exhausted());
}

TEST(EarlyStopping, GoesOnFromWhereAnotherStopped) {
  const std::vector<std::pair<double, double>> validations = {
      {1.0, 0.1}, {1.2, 0.1}, {1.3, 0.3}, {0.9, 0.2}, {1.0, 0.3}, {0.9, 0.2}, {1.1, 0.1}};
  for (size_t stop = 0; stop <= validations.size(); ++stop) {
    EarlyStopping whole(3), first(3), second(3);
    for (size_t i = 0; i < validations.size(); ++i) {
      const auto [loss, accuracy] = validations[i];
      if (i == stop) second.restore(first.state());
      EarlyStopping& now = i < stop ? first : second;
      EXPECT_EQ(now.take(loss, accuracy), whole.take(loss, accuracy)) << stop << " " << i;
      EXPECT_EQ(now.exhausted(), whole.exhausted()) << stop << " " << i;
    }
    EXPECT_TRUE(whole.exhausted());
  }
}

/// What stays as it was does not keep a run going, whatever the other one does.
TEST(EarlyStopping, ConstantsAreNoProgress) {
  for (const double rise : {0.0, 0.1}) {
    for (const double fall : {0.0, 0.1}) {
      EarlyStopping stopping(3);
      stopping.take(1.0, 0.5);
      for (int i = 1; i <= 3; ++i) {
        EXPECT_FALSE(stopping.exhausted());
        EXPECT_FALSE(stopping.take(1.0 + i * rise, 0.5 - i * fall));
      }
      EXPECT_TRUE(stopping.exhausted());
    }
  }
}

/// Either one keeps it going; the least loss is the best.
TEST(EarlyStopping, LossOrAccuracyGoesOnAndTheLeastLossIsBest) {
  EarlyStopping stopping(2);
  EXPECT_TRUE(stopping.take(1.0, 0.5));
  EXPECT_FALSE(stopping.take(1.2, 0.6));  // accuracy alone
  EXPECT_TRUE(stopping.take(0.9, 0.5));   // loss alone
  EXPECT_FALSE(stopping.exhausted());
  EXPECT_FALSE(stopping.take(0.95, 0.55));  // neither
  EXPECT_FALSE(stopping.take(0.9, 0.7));
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
