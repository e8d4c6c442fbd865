// Descents: what classes of a GameBoard choose where the states of a game are not all there is.
#pragma once

#include <vector>

#include "planner/game/mcts.h"

namespace shardrun {

struct Descended {
  Price price;
  Solution solution;
};

/// How many descents a board is worth: the fewer, the larger its tables are.
int most_descents(const GameBoard& board);

/// Lets classes choose their strategies anew from each of the `starts`, each given the others'
/// (TreeDescent). Then, in turns for as long as that gains, from the best one each action cuts what
/// it can along its axis, whatever is cut there, classes choose anew behind it, and all that this
/// comes to is joined: each class takes what one of these solutions has, by message passing.
/// Ascending by price; the same for any number of threads. `whole_seconds`: of a step that nothing
/// cuts. Adds processor seconds of other threads than this one to `other_seconds`.
std::vector<Descended> descended(const GameBoard& board, std::vector<Solution> starts,
                                 double whole_seconds, const MctsOptions& options,
                                 double& other_seconds);

}  // namespace shardrun
