// Proposal: strategies that a tree search over schedules finds worth a look.
#pragma once

#include <string>
#include <vector>

#include "planner/game/mcts.h"

namespace shardrun {

/// A board with the problem that it is about.
struct GameTable {
  /// `complete`: with the strategies of held values. The rest must outlive this.
  GameTable(const Graph& graph, const Mesh& mesh, const Folding& folding, const RuleOf& rule_of,
            SearchSpace complete, ReshardTimes& times, const GameOptions& options)
      : space(std::move(complete)),
        joint(build_problem(space, graph, folding, mesh, times)),
        board(graph, mesh, folding, rule_of, space, joint, options) {}
  GameTable(const GameTable&) = delete;
  GameTable& operator=(const GameTable&) = delete;

  SearchSpace space;
  JointProblem joint;
  GameBoard board;
};

struct Proposal {
  std::vector<std::vector<int>> strategies;  // per class of nodes, those of the best states
  std::vector<int> cheapest;                 // per class of nodes, that of the cheapest of all
  std::vector<std::string> tactics;          // of the best state, as --tactic takes them
  Price price;                               // its
  Price descended;                           // of the best that descents come to
  int64_t evaluations = 0;
  bool exhausted = false;
  double other_seconds = 0;  // processor seconds of other threads than the caller's
};

/// States that known parallelisms give: each of them, or none, along each axis that `tactics` say
/// nothing of. The first is that of the tactics alone.
std::vector<GameStart> known_starts(const GameBoard& board, const RuleOf& rule_of,
                                    const std::vector<std::string>& tactics);

/// Searches from the known starts, descends from the best state of each tree's and from cheap
/// starts (planner/game/descents.h), and pools the strategies of all; where moves are arguments it
/// begins with nothing but the tactics, and the best state is all there is.
Proposal propose(const GameBoard& board, const RuleOf& rule_of,
                 const std::vector<std::string>& tactics, const MctsOptions& options);

}  // namespace shardrun
