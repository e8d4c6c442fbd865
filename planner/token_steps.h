// Token steps: a model of tokens as Graphs that take one token after another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// What the steps below read and make: batch input kTokens, i64 or i32 as the model has it; a
/// scalar, i64; and their only output, f32 [vocabulary]: the logits behind one token.
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kPosition = "position";
inline constexpr const char* kLogits = "logits";

/// Where a forward Graph takes tokens and gives logits.
struct TokenModel {
  ValueId tokens = kNoValue;  // a batch input [batch, context] or [context]
  int64_t batch = 1, context = 0, vocabulary = 0;
  /// What may be the logits, the best guess first: outputs, and what a cross entropy takes.
  std::vector<ValueId> logits;
};
/// Throws invalid_input where there is not one integer input that floating outputs follow from.
TokenModel find_tokens(const Graph& forward);

/// Takes `count` tokens [batch, count] from kPosition on, and gives the logits behind the last of
/// them, for the first of the batch. The keys and values of all tokens are kept, as state that
/// begins every step at zero: a sequence is a step of the Graph, and each run of it a micro-batch.
///
/// Every value must be made token by token (planner/rules/axis_ways.h), but for causal attention,
/// whose keys and values are kept in rows, one for each position, and whose rows see those that are
/// not behind them. What depends on positions alone, such as a table of embeddings or of angles, is
/// looked up. nullopt, with the reason in *why, if something else mixes tokens.
std::optional<Graph> cached_step(const Graph& forward, const TokenModel& model, int64_t count,
                                 RuleCache& rules, std::string* why);

/// Takes all tokens [batch, context], and gives the logits behind the one at kPosition: what needs
/// no other tokens is computed for that one alone.
Graph whole_step(const Graph& forward, const TokenModel& model, RuleCache& rules);

}  // namespace shardrun
