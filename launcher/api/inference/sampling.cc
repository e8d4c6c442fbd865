#include "inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace shardrun {

int64_t pick_token(std::span<const float> logits, double temperature, std::optional<int64_t> top_k,
                   double uniform) {
  for (size_t i = 0; i < logits.size(); ++i)
    SR_REQUIRE(!std::isnan(logits[i]), invalid_input, "the logit of token ", i, " is NaN");
  const auto largest = std::max_element(logits.begin(), logits.end());
  SR_REQUIRE(largest != logits.end() && std::isfinite(*largest), invalid_input,
             "the largest logit is ", largest == logits.end() ? 0.0F : *largest);
  if (temperature == 0) return largest - logits.begin();
  std::vector<size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), size_t{0});
  if (top_k && *top_k < std::ssize(tokens)) {
    const auto last = tokens.begin() + *top_k;
    std::nth_element(tokens.begin(), last, tokens.end(), [&](size_t a, size_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    tokens.erase(last, tokens.end());
    std::sort(tokens.begin(), tokens.end());
  }
  std::vector<double> until;  // sums of probabilities, not yet divided by the whole sum
  double sum = 0;
  for (const size_t token : tokens) {
    sum += std::exp((static_cast<double>(logits[token]) - static_cast<double>(*largest)) /
                    temperature);
    until.push_back(sum);
  }
  const auto at = std::upper_bound(until.begin(), until.end(), uniform * sum);
  // Rounding may leave it behind the last one: that is then the last that has any probability.
  const size_t i =
      at == until.end()
          ? static_cast<size_t>(std::lower_bound(until.begin(), until.end(), sum) - until.begin())
          : static_cast<size_t>(at - until.begin());
  return static_cast<int64_t>(tokens[i]);
}

}  // namespace shardrun
