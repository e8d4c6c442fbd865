// plan_shardings on small training graphs whose best plan can be worked out by hand.
#include "planner/planner.h"

#include <gtest/gtest.h>

#include "planner/reshard/reshard.h"
#include "planner/space/folding.h"
#include "tests/planner/perceptron.h"

namespace shardrun {
namespace {

/// All widths equal.
Graph mlp(int64_t batch, int64_t width, int layers) {
  return test::perceptron(batch, std::vector<int64_t>(static_cast<size_t>(layers) + 1, width), {});
}

Cluster cluster() {
  Cluster c;
  c.flops = {{DType::f32, {50e9}}};
  return c;
}

RuleCache& rules() {
  static RuleCache cache;
  return cache;
}

Plan plan_of(const Graph& graph, const std::string& mesh, PlanOptions options = {},
             PlanReport* report = nullptr) {
  const Plan plan = plan_shardings(graph, Mesh::parse(mesh), cluster(), options, rules(), report);
  check_plan(plan, graph);
  return plan;
}

const Sharding& value(const Plan& plan, const std::string& name) { return plan.values.at(name); }

/// Bytes of everything persistent on the fullest rank.
int64_t persistent_bytes(const Graph& graph, const Plan& plan) {
  int64_t sum = 0;
  for (const Value& v : graph.values()) {
    if (!is_persistent(v.role)) continue;
    sum += max_local_bytes(v.type, plan.values.at(v.name), plan.mesh);
  }
  return sum;
}

/// Updates lie as what they replace; operands and results fit their nodes.
void check_consistent(const Graph& graph, const Plan& plan) {
  for (const auto& [held, next] : graph.updates) {
    EXPECT_EQ(value(plan, graph.value(held).name), value(plan, graph.value(next).name))
        << graph.value(held).name;
  }
  for (const Value& v : graph.values()) {
    if (v.role != Role::computed) {
      EXPECT_TRUE(value(plan, v.name).partial.empty()) << v.name;
    }
    if (v.role == Role::scalar) {
      EXPECT_TRUE(value(plan, v.name).is_replicated()) << v.name;
    }
  }
}

TEST(Planner, OneRankIsPlannedWithoutDiscovery) {
  const Graph g = mlp(8, 16, 2);
  RuleCache fresh;
  PlanReport report;
  const Plan plan = plan_shardings(g, Mesh(), cluster(), {}, fresh, &report);
  check_plan(plan, g);
  EXPECT_EQ(report.kernel_runs, 0);
  EXPECT_EQ(plan.comm_seconds, 0);
  EXPECT_GT(plan.bytes, 6 * 16 * 16 * 4);  // two weights, each with two moments
  for (const auto& [name, sharding] : plan.values) EXPECT_TRUE(sharding.is_replicated()) << name;
}

/// 16384 x 64 activations (4 MB) against 64 x 64 weights (16 KB): cutting the batch moves 16 KB a
/// layer, anything else megabytes.
TEST(Planner, ALargeBatchIsCut) {
  const Graph g = mlp(16384, 64, 2);
  const Plan plan = plan_of(g, "data=4");
  check_consistent(g, plan);
  EXPECT_EQ(plan.nodes.at("w0/matmul").out[0].dims[0], std::vector<int>{0});
  EXPECT_EQ(plan.nodes.at("w1/matmul").out[0].dims[0], std::vector<int>{0});
  EXPECT_TRUE(plan.nodes.at("w1/matmul").in[1].is_replicated());
  // On two axes both cut it.
  const Plan two = plan_of(g, "2x2");
  check_consistent(g, two);
  EXPECT_EQ(two.nodes.at("w1/matmul").out[0].dims[0], (std::vector<int>{0, 1}));
}

/// 4 x 1024 activations (16 KB) against 1024 x 1024 weights (4 MB): the weights stay cut and in
/// place, and only activations move. All-reducing one weight's gradient would take 2 x 3/4 x 4 MB /
/// 2 GB/s = 3 ms.
TEST(Planner, LargeWeightsAreCutAndStay) {
  const Graph g = mlp(4, 1024, 2);
  const Plan plan = plan_of(g, "model=4");
  check_consistent(g, plan);
  for (const char* name : {"w0", "w1", "adam_m/w0", "adam_v/w1"}) {
    EXPECT_EQ(max_local_count({1024, 1024}, value(plan, name), plan.mesh), 1024 * 256) << name;
  }
  EXPECT_LT(plan.comm_seconds, 1e-3);
  // Two layers as in Megatron: the weights are cut along different dims, so that one needs no
  // gather.
  EXPECT_NE(value(plan, "w0"), value(plan, "w1"));
  // As the same machinery under a constraint, dp is never better.
  const Plan dp = plan_of(g, "model=4", {.planner = parse_planner("dp")});
  check_consistent(g, dp);
  EXPECT_TRUE(value(dp, "w0").is_replicated());
  EXPECT_EQ(value(dp, "x").dims[0], std::vector<int>{0});
  EXPECT_GT(dp.seconds, plan.seconds);
  EXPECT_EQ(dp.planner, "dp");
}

/// Parameters and moments are 2 x 3 x 256 KB = 1.5 MB whole. A limit below that with the batch
/// large enough that the batch is cut: parameters and optimizer state are cut too (ZeRO).
TEST(Planner, AMemoryLimitCutsTheOptimizersState) {
  const Graph g = mlp(2048, 256, 2);
  const Plan free = plan_of(g, "data=4", {.planner = parse_planner("dp")});
  EXPECT_EQ(persistent_bytes(g, free), 2 * 3 * 256 * 256 * 4);
  PlanOptions options;
  options.memory_limit = 5'300'000;  // 4.7 MB of activations a rank, 1.5 MB / 4 persistent
  const Plan plan = plan_of(g, "data=4", options);
  check_consistent(g, plan);
  EXPECT_LE(plan.bytes, options.memory_limit);
  EXPECT_EQ(plan.nodes.at("w1/matmul").out[0].dims[0], std::vector<int>{0});
  EXPECT_EQ(max_local_count({256, 256}, value(plan, "adam_m/w0"), plan.mesh), 256 * 64);
}

/// Without training, whole weights cost nothing but memory. The backend's arena is 1 MB more than
/// what the Problem counts, so only tightening gets below a limit of all but 100 KB of what the
/// fastest plan needs.
TEST(Planner, TheLimitIsAppliedToTheArena) {
  Graph g;
  ValueId x = g.add_input("x", {DType::f32, {256, 256}}, Role::batch);
  for (int i = 0; i < 3; ++i) {
    const ValueId w = g.add_persistent("w" + std::to_string(i), {DType::f32, {256, 256}},
                                       Role::parameter, Source{});
    x = g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}});
  }
  g.outputs = {x};
  EXPECT_EQ(persistent_bytes(g, plan_of(g, "data=2")), 3 * 256 * 256 * 4);
  int asked = 0;
  PlanOptions options;
  options.memory_limit = 1'000'000 + 3 * 256 * 256 * 4 - 100'000;
  options.arena_use = [&](const Plan& plan, int64_t) {
    ++asked;
    const int64_t bytes = persistent_bytes(g, plan) + 1'000'000;
    return ArenaUse{bytes, std::vector<int64_t>(g.nodes().size(), bytes)};
  };
  const Plan plan = plan_of(g, "data=2", options);
  EXPECT_GT(asked, 1);
  EXPECT_LE(plan.bytes, options.memory_limit);
  EXPECT_EQ(plan.bytes, persistent_bytes(g, plan) + 1'000'000);
}

/// h comes out of its product cut by columns, as the weights are held, and a softmax over them
/// wants rows: 1 MB of exchange, where gathering the weights for rows at once takes 4 MB. If there
/// is no memory for h in both Shardings at a time, the weights are gathered.
TEST(Planner, WhatDoesNotFitReshardedIsMadeAsItIsRead) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {64, 256}}, Role::batch);
  const ValueId w = g.add_persistent("w", {DType::f32, {256, 4096}}, Role::parameter, Source{});
  const ValueId h = g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, "product");
  const ValueId s = g.add("softmax", {h}, {{"axis", int64_t{1}}}, "softmax");
  const std::vector<int64_t> all{0, 1};
  g.outputs = {
      g.add("reduce_sum", {g.add("mul", {h, s})}, {{"axes", all}, {"keepdims", int64_t{0}}})};
  const std::string name = g.value(h).name;
  PlanOptions options;
  options.requests = {"w=[-,data]"};
  const auto stays = [&](const Plan& plan) {
    return plan.nodes.at("softmax").in[0] == value(plan, name);
  };
  EXPECT_FALSE(stays(plan_of(g, "data=2", options)));
  options.memory_limit = 8'000'000;
  options.arena_use = [&](const Plan& plan, int64_t) {
    const int64_t bytes = stays(plan) ? 7'000'000 : 8'500'000;
    ArenaUse use{bytes, std::vector<int64_t>(g.nodes().size(), 6'000'000)};
    use.alive[1] = bytes;
    return use;
  };
  EXPECT_TRUE(stays(plan_of(g, "data=2", options)));
}

/// h cannot be made otherwise, so that it must be resharded is no way out of a full arena: one of
/// the weights behind it is cut instead, the lighter one.
TEST(Planner, WhatMustBeReshardedMayBeAgain) {
  Graph g;
  const std::string product = "bi,io->bo";
  const ValueId x = g.add_input("x", {DType::f32, {64, 256}}, Role::batch);
  const auto times = [&](ValueId by, const std::string& name, int64_t width) {
    const int64_t rows = g.type(by).shape[1];
    const ValueId w = g.add_persistent(name, {DType::f32, {rows, width}}, Role::parameter, {});
    return g.add("matmul", {by, w}, {{"equation", product}}, "times_" + name);
  };
  const ValueId h = times(x, "w", 4096);
  const ValueId s = g.add("softmax", {h}, {{"axis", int64_t{1}}}, "softmax");
  const ValueId both = g.add("mul", {h, s});
  g.outputs = {times(both, "heavy", 512), times(both, "light", 128)};
  PlanOptions options;
  options.requests = {"w=[-,data]", g.value(h).name + "=[-,data]"};
  const auto weights = [&](const Plan& plan) { return persistent_bytes(g, plan); };
  const int64_t free = weights(plan_of(g, "data=2", options));
  options.memory_limit = 16'000'000;
  options.arena_use = [&](const Plan& plan, int64_t) {
    const int64_t bytes = options.memory_limit + 500'000 - (free - weights(plan));
    ArenaUse use{bytes, std::vector<int64_t>(g.nodes().size(), 10'000'000)};
    use.alive[1] = bytes;
    return use;
  };
  const Plan plan = plan_of(g, "data=2", options);
  EXPECT_TRUE(value(plan, "heavy").is_replicated());
  EXPECT_FALSE(value(plan, "light").is_replicated());
}

TEST(Planner, WhatDoesNotFitIsRefusedWithTheNumbers) {
  const Graph g = mlp(256, 256, 2);
  PlanOptions options;
  options.memory_limit = 10'000;
  try {
    plan_of(g, "data=2", options);
    FAIL() << "a plan was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::out_of_memory);
    const std::string message = e.what();
    EXPECT_NE(message.find("the limit is 10000"), std::string::npos) << message;
    EXPECT_NE(message.find("data=2"), std::string::npos) << message;
    // The least: half of 2 x 3 x 256 KB, and some activations.
    const size_t needs = message.find("needs ");
    ASSERT_NE(needs, std::string::npos) << message;
    const int64_t least = std::stoll(message.substr(needs + 6));
    EXPECT_GE(least, 3 * 256 * 256 * 4);
    EXPECT_LT(least, 2 * 3 * 256 * 256 * 4 + 2'000'000);
  }
}

TEST(Planner, PinnedValuesStayWhereTheyAre) {
  const Graph g = mlp(1024, 64, 2);
  const Mesh mesh = Mesh::parse("a=2,b=2");
  PlanOptions options;
  options.pinned["w0"] = parse_sharding("[{b}, {a}]", mesh);
  options.pinned["not in this graph"] = parse_sharding("[{a}]", mesh);
  const Plan plan = plan_of(g, "a=2,b=2", options);
  check_consistent(g, plan);
  EXPECT_EQ(value(plan, "w0"), options.pinned["w0"]);
  options.pinned["w0"] = Sharding::replicated(3);
  EXPECT_THROW(plan_of(g, "a=2,b=2", options), Error);
}

TEST(Planner, EachNameIsParsedAndPrinted) {
  for (const Named<PlannerKind>& one : kPlanners) {
    const PlannerChoice planner = parse_planner(one.name);
    EXPECT_EQ(planner, PlannerChoice{one.kind});
    EXPECT_EQ(to_string(planner), one.name);
  }
  for (const Named<Baseline>& one : kBaselines) {
    EXPECT_EQ(parse_planner(one.name), (PlannerChoice{PlannerKind::baselines, {one.kind}}));
    for (const Named<Baseline>& other : kBaselines) {
      const std::string both = str(one.name, "+", other.name);
      const PlannerChoice planner = parse_planner(both);
      EXPECT_EQ(planner, (PlannerChoice{PlannerKind::baselines, {one.kind, other.kind}}));
      EXPECT_EQ(to_string(planner), both);
    }
  }
  for (const char* none : {"", "+", "dp+", "+dp", "dp+ilp", "ilp+dp", "DP", "lns"})
    EXPECT_THROW(parse_planner(none), Error) << none;
}

TEST(Planner, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    parse_planner("magic");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    EXPECT_STREQ(
        e.what(),
        "planner 'magic' is not known; known are auto, ilp, beam, plain-ilp, mcts, "
        "mcts-arguments, propagate, dp, zero1, zero2, fsdp, "
        "megatron, megatron-sp and, one for each mesh axis, two or more of the last six joined "
        "by +");
  }
}

/// x [batch, width] through two products, forward alone.
Graph two_products(int64_t batch, int64_t width) {
  Graph g;
  ValueId x = g.add_input("x", {DType::f32, {batch, width}}, Role::batch);
  for (const char* name : {"up", "down"}) {
    const ValueId w =
        g.add_persistent(str(name, "/w"), {DType::f32, {width, width}}, Role::parameter, Source{});
    x = g.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, name);
  }
  g.outputs = {x};
  return g;
}

// Megatron's way has the second product's sums in parts. Whole sums have none in any plan, and both
// weights are cut by columns.
TEST(Planner, WholeSumsDivideNone) {
  const Graph g = two_products(1, 4096);
  PlanOptions options;
  options.memory_limit = int64_t{70} << 20;  // of 128 MiB of weights
  options.requests = {"up/w=[-,model]", "down/w=[model,-]"};
  const auto partial_in = [](const Plan& plan) {
    return std::any_of(plan.values.begin(), plan.values.end(),
                       [](const auto& value) { return !value.second.partial.empty(); });
  };
  EXPECT_TRUE(partial_in(plan_of(g, "model=2", options)));
  options.requests.clear();
  options.whole_sums = true;
  const Plan plan = plan_of(g, "model=2", options);
  EXPECT_FALSE(partial_in(plan));
  for (const char* name : {"up/w", "down/w"})
    EXPECT_EQ(to_string(value(plan, name), plan.mesh), "[-, {model}]");
}

// The rows of 64 samples cost more to gather than to leave.
TEST(Planner, OutputsThatMayStayCutDo) {
  Graph g = two_products(64, 64);
  EXPECT_TRUE(value(plan_of(g, "data=2"), "%down").is_replicated());
  g.outputs_stay_cut = true;
  EXPECT_EQ(to_string(value(plan_of(g, "data=2"), "%down"), Mesh::parse("data=2")), "[{data}, -]");
}

TEST(Planner, RepeatsItself) {
  const Graph g = mlp(64, 128, 3);
  for (const char* mesh : {"4", "2x2", "2x2x2"}) {
    EXPECT_EQ(to_json(plan_of(g, mesh)), to_json(plan_of(g, mesh))) << mesh;
  }
}

/// Without its favourite, a value takes another, which costs at least as much; the other layers'
/// weights are free.
TEST(Planner, AnAvoidedShardingIsNotTaken) {
  const Graph g = mlp(16384, 64, 2);
  const Plan best = plan_of(g, "4");
  for (const std::string name : {"w1", "%w0/matmul", "x"}) {
    const std::string value_name = best.values.count(name) ? name : name.substr(1);
    PlanOptions options;
    options.avoided = {{value_name, value(best, value_name)}};
    const Plan other = plan_of(g, "4", options);
    check_consistent(g, other);
    EXPECT_NE(value(other, value_name), value(best, value_name)) << value_name;
    EXPECT_GE(other.seconds, best.seconds * (1 - 5e-3)) << value_name;  // the solver's gap
  }
  PlanOptions impossible;
  impossible.avoided = {{"lr", Sharding{}}};
  EXPECT_THROW(plan_of(g, "4", impossible), Error);
  impossible.avoided = {{"nothing", Sharding{}}};
  EXPECT_THROW(plan_of(g, "4", impossible), Error);
}

/// Forty layers: those more than six hops from the ends share their decisions.
TEST(Folding, EqualLayersShareAClass) {
  const Graph g = mlp(64, 128, 40);
  const Folding folding = fold(g, {});
  const auto class_of = [&](const std::string& name) {
    for (size_t n = 0; n < g.nodes().size(); ++n) {
      if (g.nodes()[n].name == name) return folding.class_of_node[n];
    }
    ADD_FAILURE() << name;
    return -1;
  };
  EXPECT_EQ(class_of("w15/matmul"), class_of("w20/matmul"));
  EXPECT_EQ(class_of("update/w15"), class_of("update/w20"));
  EXPECT_NE(class_of("w0/matmul"), class_of("w20/matmul"));
  EXPECT_NE(class_of("w20/matmul"), class_of("w20/relu"));
  EXPECT_LT(folding.classes.size(), g.nodes().size() / 2);
  PlanReport report;
  const Plan plan = plan_of(g, "2x2", {}, &report);
  check_consistent(g, plan);
  EXPECT_LT(report.folded_nodes, report.nodes / 2);
  EXPECT_EQ(plan.nodes.at("w15/matmul").out, plan.nodes.at("w20/matmul").out);
}

}  // namespace
}  // namespace shardrun
