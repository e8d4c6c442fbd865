// Sampling: one token drawn from a distribution.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace shardrun {

/// The token that `uniform`, in [0, 1), falls on when the probabilities of all tokens,
/// softmax(logits / temperature), stand one behind the other. Temperature 0: the first of the
/// largest logits. `top_k`: only the so many largest logits have probabilities, of equal ones the
/// first. Throws invalid_input where a logit is not a number, or all are minus infinity.
int64_t pick_token(std::span<const float> logits, double temperature, std::optional<int64_t> top_k,
                   double uniform);

}  // namespace shardrun
