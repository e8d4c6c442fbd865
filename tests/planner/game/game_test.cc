// The game: states, actions and prices.
#include "planner/cost/cluster.h"
#include "tests/planner/game/game_step.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::gpt_step;
using test::perceptron;
using test::play;
using test::Played;
using test::small;

const Graph& gpt() {
  static const Graph graph = gpt_step(small());
  return graph;
}

const std::vector<std::string> kMeshes = {"2", "2x2", "2x3", "2x2x2"};

GameOptions limited() {
  GameOptions rules;
  rules.in_front = true;
  rules.memory_limit = 20000;
  return rules;
}

/// The price is the cost of the choices behind it, to the problem's own tables; so are the bytes.
TEST(PlanGame, PriceIsTheProblemsCost) {
  for (const std::string& mesh : kMeshes) {
    const Played played(gpt(), mesh, host_cluster(), limited());
    const FactoredProblem& problem = played.table->joint.problem;
    PlanGame game = played.game();
    std::mt19937_64 random(1);
    for (int round = 0; round < 20; ++round) {
      play(game, random, random() % 7);
      const Solution solution = game.solution();
      const double cost = raw_cost(problem, solution);
      const Price price = game.price();
      EXPECT_NEAR(price.seconds, cost, 1e-9 * cost) << mesh << " round " << round;
      EXPECT_EQ(price.bytes, peak_bytes(problem, solution)) << mesh << " round " << round;
      while (!game.applied().empty()) game.undo();
    }
  }
}

/// Of choices that the game leaves open, none is cheaper by itself, or with its neighbours.
TEST(PlanGame, HubsAreTheCheapest) {
  const Played played(gpt(), "2x2", host_cluster());
  const FactoredProblem& problem = played.table->joint.problem;
  PlanGame game = played.game();
  std::mt19937_64 random(2);
  for (int round = 0; round < 10; ++round) {
    play(game, random, 1 + random() % 5);
    Solution solution = game.solution();
    const double cost = raw_cost(problem, solution);
    for (size_t i = 0; i < solution.size(); ++i) {
      if (i < played.board().classes() && played.board().is_of_nodes(i)) continue;
      const int own = solution[i];
      for (size_t a = 0; a < problem.nodes[i].cost.size(); ++a) {
        solution[i] = static_cast<int>(a);
        EXPECT_GE(raw_cost(problem, solution), cost * (1 - 1e-9)) << problem.nodes[i].name;
      }
      solution[i] = own;
    }
    while (!game.applied().empty()) game.undo();
  }
}

/// Bit by bit: what was priced before is no matter.
TEST(PlanGame, UndoRestoresAndPricesComeFromNothing) {
  for (const std::string& mesh : kMeshes) {
    const Played played(gpt(), mesh, host_cluster(), limited());
    PlanGame game = played.game();
    std::mt19937_64 random(3);
    for (int round = 0; round < 10; ++round) {
      play(game, random, 1 + random() % 3);
      const uint64_t state = game.state();
      const Price before = game.price();
      const size_t more = play(game, random, 1 + random() % 3).size();
      game.price();
      for (size_t i = 0; i < more; ++i) game.undo();
      EXPECT_EQ(game.state(), state);
      PlanGame fresh = played.game();
      for (const Action& action : game.applied()) EXPECT_TRUE(fresh.apply(action));
      EXPECT_EQ(fresh.state(), state);
      for (const Price& price : {game.price(), fresh.price()}) {
        EXPECT_EQ(price.seconds, before.seconds);
        EXPECT_EQ(price.bytes, before.bytes);
        EXPECT_EQ(price.relative, before.relative);
      }
      EXPECT_EQ(fresh.solution(), game.solution());
      while (!game.applied().empty()) game.undo();
    }
  }
}

/// Cuts of different axes in any order are one state; of one axis the order counts where they meet.
TEST(PlanGame, StatesAreCanonical) {
  const Played played(gpt(), "2x2x2", host_cluster());
  PlanGame game = played.game();
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    const std::vector<Action> actions = play(game, random, 6);
    const uint64_t state = game.state();
    while (!game.applied().empty()) game.undo();
    // Merged anew at random, those of one axis in their order.
    std::vector<std::vector<Action>> by_axis(3);
    for (const Action& action : actions)
      by_axis[static_cast<size_t>(action.axis)].push_back(action);
    std::vector<size_t> next(3, 0);
    for (size_t done = 0; done < actions.size();) {
      const size_t axis = random() % 3;
      if (next[axis] == by_axis[axis].size()) continue;
      EXPECT_TRUE(game.apply(by_axis[axis][next[axis]++]));
      ++done;
    }
    EXPECT_EQ(game.state(), state);
    while (!game.applied().empty()) game.undo();
  }
  // x [8, 12] and w0 [12, 32] meet in their product.
  const Graph mlp = perceptron(8, {12, 32, 12});
  GameOptions rules;
  rules.fewest_dims = 0;
  const Played small_game(mlp, "2", host_cluster(), rules);
  PlanGame orders = small_game.game();
  const std::vector<Action> legal = orders.legal();
  ASSERT_GE(legal.size(), 2u);
  std::set<uint64_t> states;
  for (const auto& [first, second] : {std::pair(0, 1), std::pair(1, 0)}) {
    EXPECT_TRUE(orders.apply(legal[static_cast<size_t>(first)]));
    EXPECT_TRUE(orders.apply(legal[static_cast<size_t>(second)]));
    states.insert(orders.state());
    orders.undo();
    orders.undo();
  }
  EXPECT_EQ(states.size(), 2u);
}

TEST(PlanGame, LegalActionsChangeTheState) {
  const Played played(gpt(), "2x2", host_cluster(), limited());
  PlanGame game = played.game();
  std::mt19937_64 random(5);
  play(game, random, 3);
  const uint64_t state = game.state();
  const std::vector<Action> legal = game.legal();
  for (const Action& action : legal) {
    EXPECT_TRUE(game.apply(action));
    EXPECT_NE(game.state(), state);
    EXPECT_FALSE(game.apply(action)) << game.text(action);  // twice is once
    game.undo();
  }
  for (int move = 0; move < static_cast<int>(played.board().moves().size()); ++move) {
    const Action action{move, 0, false};
    if (std::find(legal.begin(), legal.end(), action) == legal.end()) {
      EXPECT_FALSE(game.apply(action));
    }
  }
}

/// What the game makes of a list of cuts is what propagation makes of the same tactics, node by
/// node. A plan under these tactics costs no more: parts of a sum are left to its search. (But
/// inputs lie as tactics say, which the game leaves open: some are moved where shards are uneven.)
TEST(PlanGame, AgreesWithTactics) {
  Cluster apart = host_cluster();  // where one call sums all gradients, whole weights are cheaper
  apart.collectives = Collectives::apart;
  for (const char* mesh : {"2", "2x2", "2x3"}) {
    const Played played(gpt(), mesh, apart);
    PlanGame game = played.game();
    std::mt19937_64 random(6);
    for (int round = 0; round < 12; ++round) {
      play(game, random, 1 + random() % 5);
      const std::vector<std::string> tactics = game.schedule({});
      const Schedule schedule = parse_tactics(tactics, played.mesh);
      const std::vector<ClassWays> passed =
          played.board().of_schedule(schedule, played.search->rule_of());
      for (size_t axis = 0; axis < passed.size(); ++axis) {
        EXPECT_EQ(played.board().passing_on(passed[axis]), game.ways(static_cast<int>(axis)))
            << mesh << ' ' << tactics.back();
      }
      std::string all;
      for (const std::string& text : tactics) all += text + ' ';
      SCOPED_TRACE(str(mesh, ": ", all));
      PlanOptions options;
      options.planner = parse_planner("propagate");
      options.tactics = tactics;
      const Plan plan = plan_shardings(gpt(), played.mesh, apart, options, test::rules());
      const double more = std::string(mesh) == "2x3" ? 0.05 : 1e-9;
      EXPECT_LE(plan.seconds, game.price().seconds * (1 + more));
      while (!game.applied().empty()) game.undo();
    }
  }
}

/// As AutoMap has it: a cut argument, and what follows from it.
TEST(PlanGame, Arguments) {
  const Graph mlp = perceptron(8, {12, 32, 12});
  GameOptions rules;
  rules.arguments_only = true;
  const Played played(mlp, "m=2", host_cluster(), rules);
  PlanGame game = played.game();
  std::vector<std::string> texts;
  for (const Action& action : game.legal()) texts.push_back(game.text(action));
  for (const char* text : {"\\Qx\\E.0@m", "\\Qx\\E.1@m", "\\Qw0\\E.1@m", "\\Qw1\\E.0@m"})
    EXPECT_EQ(std::count(texts.begin(), texts.end(), text), 1) << text;
  std::mt19937_64 random(7);
  for (int round = 0; round < 10; ++round) {
    play(game, random, 1 + random() % 3);
    PlanOptions options;
    options.planner = parse_planner("propagate");
    options.tactics = game.schedule({});
    const Plan plan = plan_shardings(mlp, played.mesh, host_cluster(), options, test::rules());
    EXPECT_LE(plan.seconds, game.price().seconds * (1 + 1e-9)) << options.tactics.back();
    while (!game.applied().empty()) game.undo();
  }
}

/// Layers alike are cut by one action, also where some of them lie otherwise by then: what is
/// offered is a tactic that is taken.
TEST(PlanGame, ArgumentsOfferWhatTacticsTake) {
  GameOptions rules;
  rules.arguments_only = true;
  GptOptions deep = small();
  deep.layers = 4;
  const Graph graph = gpt_step(deep);
  const Played played(graph, "2x2", host_cluster(), rules);
  PlanGame game = played.game();
  std::mt19937_64 random(8);
  for (int round = 0; round < 20; ++round) {
    play(game, random, 12);
    const std::vector<std::string> tactics = game.schedule({});
    EXPECT_NO_THROW((void)played.board().of_schedule(parse_tactics(tactics, played.mesh),
                                                     played.search->rule_of()))
        << tactics.back();
    while (!game.applied().empty()) game.undo();
  }
}

}  // namespace
}  // namespace shardrun
