// TokenEntropy: what loss a model of tokens reaches that only counts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shardrun {

/// Of tokens in their order, in nats, as the cross entropy is. A model that has not learned to look
/// at what stands before a token ends at `unigram`; one that looks at the token before it alone, at
/// `bigram`. Both by the counts of the tokens themselves, so a fitted model can be no better on
/// them.
struct TokenEntropy {
  double unigram = 0, bigram = 0;
};

/// Counts tokens and their pairs.
class TokenCounts {
 public:
  static constexpr int64_t kMostKinds = 1024;  // beyond, most pairs are seen too rarely to say much

  /// Tokens are below `kinds`, which is at most kMostKinds.
  explicit TokenCounts(int64_t kinds);

  /// Of a sequence; what follows the token added before.
  void add(int64_t token);
  /// None before two tokens.
  std::optional<TokenEntropy> entropy() const;

 private:
  int64_t kinds_, before_ = -1;
  std::vector<int64_t> pairs_;  // [before, token]
};

}  // namespace shardrun
