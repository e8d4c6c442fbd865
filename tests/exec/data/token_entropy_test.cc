// Entropies of texts whose counts one can do by hand.
#include "exec/data/token_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace shardrun {
namespace {

TokenEntropy entropy(const std::string& text) {
  TokenCounts counts(256);
  for (char c : text) counts.add(static_cast<unsigned char>(c));
  const auto found = counts.entropy();
  EXPECT_TRUE(found);
  return found.value_or(TokenEntropy{-1, -1});
}

TEST(TokenEntropy, OfTurnsIsNothingForWhoLooksBack) {
  std::string text = "a";
  for (int i = 0; i < 500; ++i) text += "ba";
  EXPECT_NEAR(entropy(text).unigram, std::log(2.0), 1e-12);  // 500 of each follow something
  EXPECT_NEAR(entropy(text).bigram, 0, 1e-12);
}

TEST(TokenEntropy, OfUnevenPairs) {
  // Pairs ab, bb, bb, ba: tokens b, b, b, a. Behind a comes b; behind b two of three times b.
  const TokenEntropy found = entropy("abbba");
  EXPECT_NEAR(found.unigram, -(0.75 * std::log(0.75) + 0.25 * std::log(0.25)), 1e-12);
  EXPECT_NEAR(found.bigram, -0.75 * (2.0 / 3 * std::log(2.0 / 3) + 1.0 / 3 * std::log(1.0 / 3)),
              1e-12);
}

TEST(TokenEntropy, OfNoPairIsNone) {
  TokenCounts counts(4);
  EXPECT_FALSE(counts.entropy());
  counts.add(3);
  EXPECT_FALSE(counts.entropy());
}

}  // namespace
}  // namespace shardrun
