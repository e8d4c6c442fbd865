// Entropies from counts of pairs.
#include "exec/data/token_entropy.h"

#include <cmath>

#include "base/error.h"

namespace shardrun {
namespace {

double log_of(int64_t count) { return std::log(static_cast<double>(count)); }

}  // namespace

TokenCounts::TokenCounts(int64_t kinds)
    : kinds_(kinds), pairs_(static_cast<size_t>(kinds * kinds), 0) {
  SR_REQUIRE(kinds >= 1 && kinds <= kMostKinds, internal, "counts of ", kinds, " kinds of tokens");
}

void TokenCounts::add(int64_t token) {
  if (before_ >= 0) ++pairs_[static_cast<size_t>(before_ * kinds_ + token)];
  before_ = token;
}

std::optional<TokenEntropy> TokenCounts::entropy() const {
  // With n pairs, of them n(b) that begin with b and n(b, t) that end with t:
  //   H(t)     = sum of n(t) / n     log n / n(t)
  //   H(t | b) = sum of n(b, t) / n  log n(b) / n(b, t)
  std::vector<int64_t> before(static_cast<size_t>(kinds_), 0), after = before;
  int64_t all = 0;
  for (int64_t b = 0; b < kinds_; ++b) {
    for (int64_t t = 0; t < kinds_; ++t) {
      const int64_t count = pairs_[static_cast<size_t>(b * kinds_ + t)];
      before[static_cast<size_t>(b)] += count;
      after[static_cast<size_t>(t)] += count;
      all += count;
    }
  }
  if (all == 0) return std::nullopt;
  TokenEntropy out;
  for (int64_t b = 0; b < kinds_; ++b) {
    if (const int64_t count = after[static_cast<size_t>(b)]; count > 0)
      out.unigram += static_cast<double>(count) * (log_of(all) - log_of(count));
    for (int64_t t = 0; t < kinds_; ++t) {
      const int64_t count = pairs_[static_cast<size_t>(b * kinds_ + t)];
      if (count > 0)
        out.bigram +=
            static_cast<double>(count) * (log_of(before[static_cast<size_t>(b)]) - log_of(count));
    }
  }
  out.unigram /= static_cast<double>(all);
  out.bigram /= static_cast<double>(all);
  return out;
}

}  // namespace shardrun
