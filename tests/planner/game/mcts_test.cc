// Tree search: against brute force, and the same whatever runs it; its plans train.
#include "planner/game/mcts.h"

#include <map>

#include "planner/cost/cluster_file.h"
#include "planner/plan_search.h"
#include "planner/solver/narrowing.h"
#include "tests/planner/game/game_step.h"
#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::gpt_step;
using test::Played;
using test::small;

const Graph& gpt() {
  static const Graph graph = gpt_step(small());
  return graph;
}

const Cluster& gpus() {
  static const Cluster cluster = builtin_cluster("a100-80");
  return cluster;
}

/// A few products, sums and maxima with zero of square values, some with weights; the last is the
/// output.
Graph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  Graph g;
  g.name = "random";
  const int64_t size = 4 + 4 * static_cast<int64_t>(random() % 3);
  std::vector<ValueId> values = {g.add_input("x", {DType::f32, {size, size}}, Role::batch)};
  const int nodes = 2 + static_cast<int>(random() % 4);
  for (int n = 0; n < nodes; ++n) {
    const std::string name = "n" + std::to_string(n);
    const auto any = [&] { return values[random() % values.size()]; };
    switch (random() % 4) {
      case 0: values.push_back(g.add("relu", {values.back()}, {}, name)); break;
      case 1: values.push_back(g.add("add", {values.back(), any()}, {}, name)); break;
      case 2:
        values.push_back(g.add("matmul", {values.back(), any()},
                               {{"equation", std::string("ab,bc->ac")}}, name));
        break;
      default:
        const ValueId w = g.add_persistent("w" + std::to_string(n), {DType::f32, {size, size}},
                                           Role::parameter, Source{});
        values.push_back(
            g.add("matmul", {values.back(), w}, {{"equation", std::string("ab,bc->ac")}}, name));
    }
  }
  g.outputs = {values.back()};
  return g;
}

/// The least of all states that the game can reach, each priced in a game of its own; how many.
std::pair<double, int64_t> brute_force(const Played& played) {
  std::map<uint64_t, std::vector<Action>> known = {{played.game().state(), {}}};
  std::vector<std::vector<Action>> open = {{}};
  double least = std::numeric_limits<double>::infinity();
  while (!open.empty()) {
    const std::vector<Action> actions = std::move(open.back());
    open.pop_back();
    PlanGame game = played.game();
    for (const Action& action : actions) EXPECT_TRUE(game.apply(action));
    least = std::min(least, game.price().relative);
    for (const Action& action : game.legal()) {
      game.apply(action);
      if (known.emplace(game.state(), game.applied()).second) open.push_back(game.applied());
      game.undo();
    }
  }
  return {least, static_cast<int64_t>(known.size())};
}

TEST(Mcts, IsBruteForceOnSmallGraphs) {
  int64_t states = 0;
  int cut = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = random_graph(seed);
    GameOptions rules;
    rules.fewest_dims = 0;
    rules.in_front = seed % 2 == 1;
    rules.memory_limit = seed % 3 == 0 ? 600 : 0;
    const Played played(graph, seed % 4 < 2 ? "2x2" : "4", host_cluster(), rules);
    const auto [least, count] = brute_force(played);
    MctsOptions options;
    options.seed = seed;
    options.trees = 2;
    options.evaluations = 1000000;
    options.patience = 1000000;
    const MctsResult found = search_schedules(played.board(), {{}}, options);
    EXPECT_EQ(found.best.front().price.relative, least) << "seed " << seed;
    EXPECT_TRUE(found.exhausted) << "seed " << seed;
    EXPECT_EQ(found.evaluations, 1 + options.trees * count) << "seed " << seed;
    states += count;
    cut += !found.best.front().actions.empty();
  }
  EXPECT_GT(states, 2000);  // they are no trivial games,
  EXPECT_GT(cut, 20);       // and something is cut in some of them
}

/// The list of what was found, and the pool, however many threads share the trees.
TEST(Mcts, IsTheSameForAnyNumberOfThreads) {
  GameOptions rules;
  rules.in_front = true;
  const Played played(gpt(), "2x2", gpus(), rules);
  const auto found = [&](int threads, uint64_t seed) {
    MctsOptions options;
    options.seed = seed;
    options.threads = threads;
    options.evaluations = 4000;
    return search_schedules(played.board(), played.starts(), options);
  };
  for (uint64_t seed : {0, 1, 7}) {
    const MctsResult one = found(1, seed);
    EXPECT_FALSE(one.exhausted);
    for (int threads : {2, 4, 16}) {
      const MctsResult more = found(threads, seed);
      EXPECT_EQ(more.evaluations, one.evaluations);
      ASSERT_EQ(more.best.size(), one.best.size());
      for (size_t i = 0; i < one.best.size(); ++i) {
        EXPECT_EQ(more.best[i].state, one.best[i].state);
        EXPECT_EQ(more.best[i].actions, one.best[i].actions);
        EXPECT_EQ(more.best[i].price.relative, one.best[i].price.relative);
      }
      ASSERT_EQ(more.behind.size(), one.behind.size());
      for (size_t i = 0; i < one.behind.size(); ++i)
        EXPECT_EQ(more.behind[i].state, one.behind[i].state);
    }
  }
}

/// What descents come to lies between the bound of all strategies and the best state, within one
/// per cent of the former, by the problem's own tables; the same for any number of threads.
TEST(Mcts, DescentsAreNearTheBound) {
  for (const char* mesh : {"2", "2x3"}) {
    for (const int64_t limit : {int64_t{0}, int64_t{160000}}) {
      GameOptions rules;
      rules.in_front = true;
      rules.memory_limit = limit;
      const Played played(gpt(), mesh, gpus(), rules);
      const FactoredProblem& problem = played.table->joint.problem;
      const auto proposed = [&](int threads) {
        MctsOptions options;
        options.evaluations = 300;
        options.threads = threads;
        return propose(played.board(), played.search->rule_of(), {}, options);
      };
      const Proposal one = proposed(1), four = proposed(4);
      EXPECT_EQ(one.descended.seconds, four.descended.seconds);
      EXPECT_EQ(one.strategies, four.strategies);
      EXPECT_LE(one.descended.relative, one.price.relative);
      const std::optional<Narrowed> all = narrow(problem, {.gap = 1e-4, .memory_limit = limit});
      ASSERT_TRUE(all && all->solution);
      EXPECT_GE(one.descended.seconds, all->lower_bound * (1 - 1e-9)) << mesh << ' ' << limit;
      // Where bytes are limited they have a price, which need not meet the limit exactly.
      EXPECT_LE(one.descended.seconds, all->cost * (limit > 0 ? 1.02 : 1.01))
          << mesh << ' ' << limit;
      if (limit > 0) {
        EXPECT_LE(one.descended.bytes, limit);
      }
    }
  }
}

/// What is found is at most what it began with, ascending, each state once.
TEST(Mcts, FindsNoLessThanKnownSchedules) {
  GameOptions rules;
  rules.in_front = true;
  const Played played(gpt(), "2x2", host_cluster(), rules);
  const std::vector<GameStart> starts = played.starts();
  EXPECT_EQ(starts.size(), 49u);  // six parallelisms, or none, along each of two axes
  double least = std::numeric_limits<double>::infinity();
  for (const GameStart& start : starts)
    least = std::min(least, PlanGame(played.board(), start.first, start.start).price().relative);
  const MctsResult found = search_schedules(played.board(), starts, {});
  EXPECT_LE(found.best.front().price.relative, least);
  std::set<uint64_t> states;
  for (size_t i = 0; i < found.best.size(); ++i) {
    EXPECT_TRUE(states.insert(found.best[i].state).second);
    if (i > 0) {
      EXPECT_LE(found.best[i - 1].price.relative, found.best[i].price.relative);
    }
  }
}

/// As fast as the integer program's over all strategies, on so small a model. Where few bytes are
/// allowed that also looks at what fits fewer, whose steps may by chance be a little shorter.
TEST(Mcts, PlansAreNearTheBound) {
  for (const char* mesh : {"2", "2x3"}) {
    for (const int64_t limit : {int64_t{0}, int64_t{160000}}) {
      PlanOptions options;
      options.memory_limit = limit;
      const auto planned = [&](const char* planner, PlanReport& report) {
        options.planner = parse_planner(planner);
        return plan_shardings(gpt(), Mesh::parse(mesh), gpus(), options, test::rules(), &report);
      };
      PlanReport exact, tree;
      const Plan best = planned("ilp", exact), found = planned("mcts", tree);
      EXPECT_LE(found.seconds, best.seconds * (limit > 0 ? 1.03 : 1.001)) << mesh << ' ' << limit;
      EXPECT_EQ(found.planner, "mcts");
      EXPECT_GT(tree.evaluations, 0);
      EXPECT_FALSE(tree.has_bound);
    }
  }
}

/// The tactics that it names are a plan of their own, not slower than it said.
TEST(Mcts, NamesTheTactics) {
  PlanOptions options;
  options.planner = parse_planner("mcts");
  PlanReport report;
  const Mesh mesh = Mesh::parse("a=2,b=2");
  (void)plan_shardings(gpt(), mesh, gpus(), options, test::rules(), &report);
  options.planner = parse_planner("propagate");
  options.tactics = report.found_tactics;
  const Plan plan = plan_shardings(gpt(), mesh, gpus(), options, test::rules());
  EXPECT_LE(plan.seconds, report.found_seconds * (1 + 1e-9));
}

/// The integer program begins with what descents found, so it never ends above that, even where it
/// has no time of its own.
TEST(Mcts, TheProgramIsNeverAboveDescents) {
  for (double seconds : {1e-6, 10.0}) {
    PlanOptions options;
    options.planner = parse_planner("mcts");
    options.solve_seconds = seconds;
    PlanReport report;
    (void)plan_shardings(gpt(), Mesh::parse("2x2x2"), host_cluster(), options, test::rules(),
                         &report);
    EXPECT_LE(report.cost, report.descended_seconds * (1 + 1e-9)) << seconds << " s";
  }
}

/// What tactics say holds, and the search goes on from there.
TEST(Mcts, GoesOnFromTactics) {
  PlanOptions options;
  options.planner = parse_planner("mcts");
  options.tactics = {"batch@a"};
  const Mesh mesh = Mesh::parse("a=2,b=2");
  PlanReport report;
  const Plan plan = plan_shardings(gpt(), mesh, gpus(), options, test::rules(), &report);
  EXPECT_EQ(to_string(plan.values.at("tokens"), mesh).substr(0, 4), "[{a}");
  EXPECT_EQ(report.found_tactics.at(0), "batch@a");
  options.planner = parse_planner("propagate");
  const Plan alone = plan_shardings(gpt(), mesh, gpus(), options, test::rules());
  EXPECT_LE(plan.seconds, alone.seconds * (1 + 1e-9));
}

/// Where sums are hidden, the tree search is not made again: solutions can be priced both ways.
TEST(Mcts, OtherPricesChooseInWhatWasProposed) {
  PlanOptions options;
  options.planner = parse_planner("mcts");
  const Mesh mesh = Mesh::parse("2x2");
  MeshTables tables(mesh, gpus());
  PlanReport report, its;
  PlanSearch own(gpt(), tables, options, test::rules());
  own.open(report);
  EXPECT_GT(report.evaluations, 0);
  PlanOptions other = options;
  other.exposed = 0;
  other.proposed = &own.proposed();
  PlanSearch hidden(gpt(), tables, other, test::rules());
  hidden.open(its, true, {own.loosest()});
  EXPECT_EQ(its.evaluations, 0);
  EXPECT_FALSE(its.has_bound);
  EXPECT_LE(hidden.cost(hidden.loosest()), hidden.cost(own.loosest()) * (1 + 1e-9));
  EXPECT_LE(hidden.cost(own.loosest()), own.cost(own.loosest()) * (1 + 1e-9));
  EXPECT_LT(own.cost(hidden.loosest()), kInfeasible);
}

/// More axes than strategies can be listed for: searched on meshes with axes joined.
TEST(Mcts, FourAxes) {
  PlanOptions options;
  options.planner = parse_planner("mcts");
  const Mesh mesh = Mesh::parse("2x2x2x2");
  const Plan plan = plan_shardings(gpt(), mesh, host_cluster(), options, test::rules());
  check_plan(plan, gpt());
}

TEST(Mcts, TrainsAsOneRankDoes) {
  for (const char* planner : {"mcts", "mcts-arguments"}) {
    for (const char* mesh : {"2", "3", "2x2"}) {
      PlanOptions options;
      options.planner = parse_planner(planner);
      const Plan plan = plan_shardings(gpt(), Mesh::parse(mesh), gpus(), options, test::rules());
      check_plan(plan, gpt());
      test::expect_trains_as_one(gpt(), plan);
    }
  }
}

}  // namespace
}  // namespace shardrun
