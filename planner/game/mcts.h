// Monte Carlo tree search over schedules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/game/plan_game.h"

namespace shardrun {

struct MctsOptions {
  uint64_t seed = 0;
  int trees = 8;                // each with a root, a seed and a budget of its own
  int threads = 1;              // that share the trees; what is found does not depend on it
  int depth = 30;               // actions at most
  int64_t evaluations = 20000;  // states looked at, by all trees together
  int patience = 4;             // a tree ends after so many rounds that found nothing better
  size_t kept = 64;             // states that are returned
};

/// A state to begin at: as PlanGame has it, and the tactics that say `start`.
struct GameStart {
  std::vector<ClassWays> first, start;
  std::vector<std::string> tactics;
};

struct FoundState {
  Price price;
  uint64_t state = 0;
  int start = 0;  // which one
  std::vector<Action> actions;
};

struct MctsResult {
  std::vector<FoundState> best;    // ascending by price, each once
  std::vector<FoundState> behind;  // of each tree, the best state behind each action
  std::vector<int> starts;         // the first one, then the others ascending by price
  int64_t evaluations = 0;         // prices that were computed
  double other_seconds = 0;        // processor seconds of other threads than the caller's
  bool exhausted = false;          // every state that the starts reach was looked at
};

/// UCT (Kocsis and Szepesvari 2006) with all of TOAST's section 4: from each state one may stop,
/// a state that several orders reach hangs at the first one's node, and trajectories that get no
/// better end early. A node's value is that of the best state below it and of the mean; a subtree
/// that was seen whole is not entered again, so with enough evaluations the search is exhaustive.
/// The first tree begins at the first start, the others at the cheapest ones. Results are merged in
/// the order of trees.
MctsResult search_schedules(const GameBoard& board, const std::vector<GameStart>& starts,
                            const MctsOptions& options);

}  // namespace shardrun
