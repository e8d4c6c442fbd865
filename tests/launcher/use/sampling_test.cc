// Which token a number between 0 and 1 falls on.
#include "inference/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The fraction of evenly spaced numbers that falls on each token.
std::vector<double> fractions(const std::vector<float>& logits, double temperature,
                              std::optional<int64_t> top_k = std::nullopt) {
  constexpr int kDraws = 100000;
  std::vector<double> out(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    const int64_t token = pick_token(logits, temperature, top_k, (i + 0.5) / kDraws);
    out.at(static_cast<size_t>(token)) += 1.0 / kDraws;
  }
  return out;
}

void expect_softmax(const std::vector<float>& logits, double temperature,
                    const std::vector<bool>& kept, std::optional<int64_t> top_k) {
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    sum += kept[i] ? std::exp(static_cast<double>(logits[i]) / temperature) : 0;
  const std::vector<double> got = fractions(logits, temperature, top_k);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double want = kept[i] ? std::exp(static_cast<double>(logits[i]) / temperature) / sum : 0;
    EXPECT_NEAR(got[i], want, 2e-5) << "token " << i << " at " << temperature;
  }
}

TEST(Sampling, FollowsTheSoftmax) {
  const std::vector<float> logits = {0.5F, -1, 2, 1.25F, -kInfinity, 2};
  const std::vector<bool> all(6, true);
  for (const double temperature : {0.3, 1.0, 4.0})
    expect_softmax(logits, temperature, all, std::nullopt);
  expect_softmax(logits, 1, all, 6);
  expect_softmax(logits, 1, {false, false, true, false, false, false}, 1);  // the first of equals
  expect_softmax(logits, 1, {false, false, true, false, false, true}, 2);
  expect_softmax(logits, 2, {false, false, true, true, false, true}, 3);
}

TEST(Sampling, TemperatureZeroIsTheLikeliest) {
  for (const double uniform : {0.0, 0.5, 0.999})
    EXPECT_EQ(pick_token(std::vector<float>{1, 7, 7, 3}, 0, std::nullopt, uniform), 1);
}

/// Where rounding has the sum of probabilities below the number.
TEST(Sampling, TheEndsFallOnTokensThatHaveProbability) {
  const std::vector<float> logits = {-kInfinity, 0, 0, -200, -kInfinity};
  EXPECT_EQ(pick_token(logits, 1, std::nullopt, 0), 1);
  EXPECT_EQ(pick_token(logits, 1, std::nullopt, 1), 2);
}

TEST(Sampling, WhatIsNoDistributionIsRefused) {
  const auto error = [](const std::vector<float>& logits) -> std::string {
    try {
      pick_token(logits, 1, std::nullopt, 0.5);
    } catch (const Error& e) {
      return e.what();
    }
    return "(none)";
  };
  EXPECT_EQ(error({1, std::nanf(""), 2}), "the logit of token 1 is NaN");
  EXPECT_EQ(error({-kInfinity, -kInfinity}), "the largest logit is -inf");
  EXPECT_EQ(error({1, kInfinity}), "the largest logit is inf");
}

}  // namespace
}  // namespace shardrun
