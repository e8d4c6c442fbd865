// The game: states, actions and prices.
#include <random>

#include "planner/cost/cluster.h"
#include "tests/planner/game/game_step.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using testing::gpt_step;
using testing::perceptron;
using testing::Played;
using testing::small;

const Graph& gpt() {
  static const Graph graph = gpt_step(small());
  return graph;
}

/// Random actions, as many as there are or `most`.
std::vector<Action> play(PlanGame& game, std::mt19937_64& random, size_t most) {
  std::vector<Action> out;
  while (out.size() < most) {
    const std::vector<Action> legal = game.legal();
    if (legal.empty()) break;
    out.push_back(legal[random() % legal.size()]);
    EXPECT_TRUE(game.apply(out.back()));
  }
  return out;
}

/// The price is the cost of the choices behind it, to the problem's own tables.
TEST(PlanGame, PriceIsTheProblemsCost) {
  for (const char* mesh : {"2", "2x2", "2x3", "2x2x2"}) {
    const Played played(gpt(), mesh, host_cluster());
    PlanGame game = played.game();
    std::mt19937_64 random(1);
    for (int round = 0; round < 20; ++round) {
      play(game, random, 1 + random() % 6);
      const Solution solution = game.solution();
      const double cost = raw_cost(played.table->joint.problem, solution);
      EXPECT_NEAR(game.price().seconds, cost, 1e-9 * cost) << mesh << " round " << round;
      while (!game.applied().empty()) game.undo();
    }
  }
}

}  // namespace
}  // namespace shardrun
