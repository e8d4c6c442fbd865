// The fit alone, on models of which the answer is known.
#include "simulate/fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardrun::cli {
namespace {

/// The host's time for n launches, or a kernel's and a collective's, whichever is longer.
std::vector<double> step(const std::vector<double>& c, bool apart) {
  std::vector<double> out;
  for (int i = 0; i < 20; ++i) {
    const double launches = 1 + i % 4, flops = 1 + i % 5, bytes = apart ? 1 + i % 3 : flops;
    out.push_back(std::max(launches * c[0], flops * c[1] + bytes * c[2]));
  }
  return out;
}

const std::vector<FitConstant> kConstants = {
    {"host", 1, {1, 2, 4, 8, 16}}, {"flops", 1, {1}}, {"bytes", 1, {1}}};

TEST(Fit, FindsWhatFiguresWereMadeBy) {
  std::vector<double> measured = step({5, 1.3, 2.2}, true);
  for (size_t i = 0; i < measured.size(); ++i) measured[i] *= 1 + 0.03 * std::sin(40.0 * i * i);
  measured[7] *= 3;  // an odd one decides nothing
  const auto found =
      fit(kConstants, measured, [](const std::vector<double>& c) { return step(c, true); });
  const double expected[] = {5, 1.3, 2.2};
  for (size_t c = 0; c < found.size(); ++c) {
    EXPECT_TRUE(found[c].identifiable) << found[c].name;
    EXPECT_LT(found[c].low, expected[c]);
    EXPECT_GT(found[c].high, expected[c]);
    EXPECT_NEAR(found[c].value / expected[c], 1, 0.15) << found[c].name;
  }
}

/// Of two that only their sum can be told of, one is neutral and the other has the rest.
TEST(Fit, SaysWhatCannotBeTold) {
  const auto found = fit(kConstants, step({0.01, 1.5, 1.5}, false),
                         [](const std::vector<double>& c) { return step(c, false); });
  EXPECT_FALSE(found[0].identifiable);  // the host never counts
  EXPECT_EQ(found[0].value, 1);
  EXPECT_NE(found[1].identifiable, found[2].identifiable);
  EXPECT_NEAR(found[1].value + found[2].value, 3, 0.01);
}

}  // namespace
}  // namespace shardrun::cli
