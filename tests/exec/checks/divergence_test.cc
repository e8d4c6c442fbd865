// When a run is said to diverge, and when not.
#include "exec/checks/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace shardrun {
namespace {

/// The step at which it is said; 0: never.
int64_t said_at(const std::vector<double>& losses) {
  Divergence divergence;
  int64_t at = 0, said = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto step = static_cast<int64_t>(i + 1);
    const std::string text = divergence.take(step, losses[i]);
    if (text.empty()) continue;
    ++said;
    at = step;
    EXPECT_NE(text.find("diverges"), std::string::npos) << text;
    EXPECT_EQ(text.rfind("step " + std::to_string(step) + ": ", 0), 0u) << text;
  }
  EXPECT_LE(said, 1) << "more than once";
  return at;
}

TEST(Divergence, ALossThatRunsAway) {
  EXPECT_EQ(said_at({4.1, 1e4, 1e9, 3e14, 3e14}), 4);
  EXPECT_EQ(said_at({4, 20, 60, 80, 90, 90, 90, 90}), 5);
}

TEST(Divergence, ALossThatClimbsAboveWhereItBegan) {
  std::vector<double> losses;
  for (int i = 0; i < 100; ++i) losses.push_back(5.5 - 0.04 * i);  // down to 1.5
  for (int i = 0; i < 20; ++i) losses.push_back(9);
  const int64_t at = said_at(losses);
  EXPECT_EQ(at, 103);
}

TEST(Divergence, NoiseIsNone) {
  std::vector<double> losses;
  for (int i = 0; i < 1000; ++i) losses.push_back(2 + std::sin(i * 1.7) * 1.5);  // 0.5 to 3.5
  losses[500] = 40;                                                              // a spike
  EXPECT_EQ(said_at(losses), 0);
  losses.assign(1000, 0.001);  // what was learnt comes and goes, far below the first loss
  losses[0] = 5;
  for (size_t i = 300; i < 400; ++i) losses[i] = 0.5;
  EXPECT_EQ(said_at(losses), 0);
}

TEST(Divergence, LossesBelowZero) {
  std::vector<double> losses;
  for (int i = 0; i < 100; ++i) losses.push_back(-0.1 * i);
  for (int i = 0; i < 100; ++i) losses.push_back(-9 + std::cos(i));
  EXPECT_EQ(said_at(losses), 0);
  for (int i = 0; i < 100; ++i) losses.push_back(50);
  EXPECT_GT(said_at(losses), 200);
}

}  // namespace
}  // namespace shardrun
