// The passes from a Graph and a Plan to a Program: their order, where they stop, what they report.
#include "program/compile.h"

#include <gtest/gtest.h>

#include <set>

#include "program/plan_programs.h"
#include "tests/exec/random_plan.h"
#include "tests/planner/gpt_step.h"

namespace shardrun {
namespace {

Graph gpt() {
  GptOptions o;
  o.layers = 1, o.hidden = 8, o.heads = 2, o.vocab = 11, o.context = 4, o.batch = 2;
  return test::gpt_step(o, {}, true);
}

const std::vector<std::string> kAll = {"partition",     "order_collectives", "combine_collectives",
                                       "fuse_patterns", "keep_casts",        "keep_packed",
                                       "fuse_updates",  "share_groups",      "fuse_elements",
                                       "fuse_rows",     "place_memory"};

TEST(Compile, RunsItsPassesInOrderAndStopsAfterAny) {
  const Graph graph = gpt();
  const Plan plan = test::replicated_plan(graph, Mesh::parse("2"));
  const std::vector<std::string_view> names = compile_passes();
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.end()), kAll);
  for (size_t last = 0; last < kAll.size(); ++last) {
    std::vector<std::string> ran;
    size_t steps = 0;
    CompileOptions options;
    options.stop_after = kAll[last];
    options.after = [&](const PassReport& pass) {
      ran.emplace_back(pass.name);
      steps = pass.program.steps.size();
      EXPECT_GE(pass.milliseconds, 0);
      EXPECT_FALSE(pass.does.empty());
    };
    const Program program = compile(graph, plan, Cluster{}, 1, {}, options);
    EXPECT_EQ(ran,
              std::vector<std::string>(kAll.begin(), kAll.begin() + static_cast<long>(last) + 1));
    EXPECT_EQ(steps, program.steps.size());
    EXPECT_EQ(program.rank, 1);
    EXPECT_EQ(program.arena_bytes > 0, kAll[last] == "place_memory");
  }
}

TEST(Compile, NamesThePassesWhereOneIsUnknown) {
  const Graph graph = gpt();
  const Plan plan = test::replicated_plan(graph, Mesh());
  try {
    compile(graph, plan, Cluster{}, 0, {}, {.stop_after = "fuse_pattersn"});
    ADD_FAILURE() << "was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    for (const std::string& name : kAll)
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
  }
}

TEST(Compile, LeavesEveryNodeAStepOfItsOwnForAReplay) {
  const Graph graph = gpt();
  const Plan plan = test::replicated_plan(graph, Mesh());
  const Program all = compile(graph, plan, Cluster{}, 0, {}, {.steps = Steps::all}),
                fused = compile(graph, plan, Cluster{}, 0, {});
  EXPECT_EQ(all.steps.size(), graph.nodes().size());
  EXPECT_LT(fused.steps.size(), all.steps.size());
}

/// A backend may refuse what a pass offers it.
TEST(Compile, AsksTheBackend) {
  const Graph graph = gpt();
  const Plan plan = test::replicated_plan(graph, Mesh());
  const BackendTraits refuses{
      .takes = [](const Node&, const auto&, const auto&) { return false; },
      .runs_alike = [](const KernelCall&, const KernelCall&) { return false; }};
  const auto updates = [](const Program& program) {
    return std::count_if(program.steps.begin(), program.steps.end(),
                         [](const Step& step) { return step.node.op == "adamw"; });
  };
  EXPECT_EQ(updates(compile(graph, plan, Cluster{}, 0, {})), 1);
  EXPECT_EQ(updates(compile(graph, plan, Cluster{}, 0, refuses)), 16);
}

TEST(Compile, AsksForAsManyThreadsAsTheBackendHas) {
  const Graph graph = gpt();
  const Plan plan = test::replicated_plan(graph, Mesh());
  std::set<int> fusion, needs;
  const BackendTraits traits{.threads = 5,
                             .fusion =
                                 [&](const Program&, const Step&, int threads) {
                                   fusion.insert(threads);
                                   return StepFusion{};
                                 },
                             .needs =
                                 [&](const Program&, const Step&, int threads) {
                                   needs.insert(threads);
                                   return StepBytes{};
                                 }};
  compile(graph, plan, Cluster{}, 0, traits);
  EXPECT_EQ(fusion, std::set<int>{5});
  EXPECT_EQ(needs, std::set<int>{5});
}

/// One program of each class of ranks is what compile makes of any of them.
TEST(Compile, MakesOfAllRanksWhatItMakesOfOne) {
  const Graph graph = gpt();
  const Plan plan = test::random_plan(graph, Mesh::parse("a=2,b=2"), 5);
  const BackendTraits traits;
  const Cluster cluster = host_cluster();
  PlanPrograms programs(graph, plan, cluster, traits);
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(programs.of_rank(rank).arena_bytes,
              compile(graph, plan, cluster, rank, traits).arena_bytes);
}

/// Two plans that are compared are compiled once each, whichever is asked for again.
TEST(Compile, RemembersTwoPlans) {
  const Graph graph = gpt();
  const Mesh mesh = Mesh::parse("a=2");
  const Cluster cluster = host_cluster();
  MeasuredPlans measured(graph, cluster, BackendTraits());
  const Plan one = test::random_plan(graph, mesh, 5), two = test::random_plan(graph, mesh, 6);
  const auto of_one = measured.of(one), of_two = measured.of(two);
  ASSERT_NE(of_one, of_two);
  EXPECT_EQ(measured.of(one), of_one);
  EXPECT_EQ(measured.of(two), of_two);
  // With another training step's memory it is another.
  EXPECT_NE(measured.of(one, of_two), of_one);
}

/// By the first rank's where memory is ample, else by that of the rank that needs most: here the
/// last, whose kernels ask for more than its smaller shards save.
TEST(Compile, ComparesPlansByOneRankWhereMemoryIsAmple) {
  const Graph graph = gpt();
  const Mesh mesh = Mesh::parse("a=3");
  const BackendTraits traits{.needs = [](const Program& program, const Step&, int) {
    return StepBytes{program.rank << 24};
  }};
  PlanPrograms programs(graph, test::random_plan(graph, mesh, 5), host_cluster(), traits);
  const int64_t last = programs.classes().first.back();
  const int64_t first = programs.of_rank(0).arena_bytes, most = programs.of_rank(last).arena_bytes;
  ASSERT_GT(most, first);
  EXPECT_EQ(programs.fullest().arena_bytes, most);
  EXPECT_EQ(programs.compared(0).arena_bytes, first);
  EXPECT_EQ(programs.compared(2 * first).arena_bytes, first);
  EXPECT_EQ(programs.compared(2 * first - 1).arena_bytes, most);
  EXPECT_EQ(programs.compared(2 * first - 1, first).arena_bytes, most);
  EXPECT_EQ(programs.compared(2 * first - 1, first - 1).arena_bytes, first);
}

/// A Program that was looked at within limits is made anew where more is asked of it.
TEST(Compile, EarlierLimitsChangeNothing) {
  const Graph graph = gpt();
  const Plan plan = test::random_plan(graph, Mesh::parse("a=2"), 5);
  const BackendTraits traits;
  Cluster cluster = host_cluster();
  cluster.collectives = Collectives::apart;
  const auto offsets = [](const Program& program) {
    std::vector<int64_t> out;
    for (const Buffer& buffer : program.buffers) out.push_back(buffer.offset);
    return out;
  };
  PlanPrograms fresh(graph, plan, cluster, traits), programs(graph, plan, cluster, traits);
  const Program& whole = fresh.fullest();
  // Memory that is held longer may by chance come to fewer bytes.
  for (const int64_t enough : {int64_t{1}, whole.arena_bytes, int64_t{1} << 40})
    EXPECT_GE(programs.compared(1, enough).arena_bytes, whole.arena_bytes);
  EXPECT_NE(offsets(programs.compared(1, whole.arena_bytes)), offsets(whole));
  EXPECT_EQ(offsets(programs.of_rank(whole.rank)), offsets(whole));
}

}  // namespace
}  // namespace shardrun
