// The lines that a person watches while a run trains.
#include "screen/screen.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardrun::cli {
namespace {

StepReport step(int64_t at, double loss) {
  StepReport out;
  out.step = at;
  out.loss = loss;
  out.step_ms = 500;
  out.comm_ms = 100;
  out.tokens_per_s = 1024;
  out.peak_bytes = 3 << 20;
  return out;
}

TEST(Screen, SparklinesGoFromTheLeastToTheMost) {
  EXPECT_EQ(sparkline({0, 1, 2, 7}, false), "▁▂▃█");
  EXPECT_EQ(sparkline({0, 1, 4}, true), "_.^");
  EXPECT_EQ(sparkline({3, 3}, true), "__");
  EXPECT_EQ(sparkline({1, std::nan(""), INFINITY, 2}, true), "_  ^");
  EXPECT_EQ(sparkline({-1e308, 1e308}, true), "_^");
  EXPECT_EQ(sparkline({}, true), "");
}

TEST(Screen, ThinnedKeepsTheMeanOfAll) {
  Thinned thinned(4);
  for (int i = 0; i < 8; ++i) thinned.add(i);
  EXPECT_EQ(thinned.means(), (std::vector<double>{0.5, 2.5, 4.5, 6.5}));
  for (int i = 8; i < 1000; ++i) thinned.add(i);
  EXPECT_LE(thinned.means().size(), 4u);
  EXPECT_GE(thinned.means().size(), 2u);
}

TEST(Screen, ClocksAreShort) {
  EXPECT_EQ(clock_text(7.4), "0:07");
  EXPECT_EQ(clock_text(65), "1:05");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "0:00");
}

TEST(Screen, LinesSayWhereTheRunStands) {
  Screen screen(10, true);
  screen.step(step(1, 4), 0.5);
  screen.step(step(2, 2), 1);
  EvalReport eval;
  eval.step = 2;
  eval.val_loss = 2.5;
  screen.eval(eval);
  const std::vector<std::string> lines = screen.lines(80);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "step 2 of 10  [####....................]  20 %  left 0:04");
  EXPECT_EQ(lines[1], "loss 2.0000  ^_");
  EXPECT_EQ(lines[2], "rate 1024 tokens/s  500.0 ms a step  communication 20 %");
  EXPECT_EQ(lines[3], "memory 3.0 MiB of this rank  validation loss 2.5000 at step 2");
}

/// A resumed run's rate is that of the steps that it took itself.
TEST(Screen, TheTimeLeftIsOfThisCallsSteps) {
  Screen screen(110, true);
  screen.step(step(101, 1), 0.5);
  EXPECT_NE(screen.lines(80)[0].find("left 0:05"), std::string::npos) << screen.lines(80)[0];
}

/// Which may be resized.
TEST(Screen, NoLineIsLongerThanTheTerminal) {
  Screen screen(1000000, true);
  for (int i = 1; i < 200; ++i) screen.step(step(i, i), i);
  for (const int columns : {1, 300, 10, 20, 40}) {
    for (const std::string& line : screen.lines(columns))
      EXPECT_LT(line.size(), static_cast<size_t>(std::max(columns, 2))) << line;
  }
}

}  // namespace
}  // namespace shardrun::cli
