// What other compilers do by rewriting a program's collectives (folding, reassociating, sinking),
// here by choice of the search: counted, compared with the naive program, and run.
#include <gtest/gtest.h>

#include "tests/planner/schedule/planned_step.h"

namespace shardrun {
namespace {

using test::NamedTensors;
using test::rules;
using test::ShardedRun;

constexpr int kSteps = 5;

/// A step that is built by hand: inputs f32 of some rows, weights, and the sum of squares of
/// what comes out.
class HandMade {
 public:
  explicit HandMade(int64_t rows = 12) : rows_(rows) {}
  static constexpr int64_t kInner = 24, kOuter = 18;

  ValueId input(const std::string& name, int64_t width = kInner) {
    return graph.add_input(name, {DType::f32, {rows_, width}}, Role::batch);
  }
  ValueId product(ValueId x, const std::string& name) {
    Source normal;
    normal.kind = Source::Kind::normal;
    normal.b = 0.3;
    normal.stream = "w" + name;
    const ValueId w = graph.add_persistent(
        "w" + name, {DType::f32, {graph.type(x).shape[1], kOuter}}, Role::parameter, normal);
    graph.trainable[w] = true;
    return graph.add("matmul", {x, w}, {{"equation", std::string("bi,io->bo")}}, name);
  }
  ValueId op(const char* kind, std::vector<ValueId> of, const std::string& name) {
    return graph.add(kind, std::move(of), {}, name);
  }
  Graph trained(ValueId y) {
    const ValueId square = graph.add("mul", {y, y}, {}, "square");
    graph.loss =
        graph.add("reduce_sum", {square},
                  {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}, "loss");
    graph.metrics = {{"loss", graph.loss}};
    attach_optimizer(graph, {});
    return std::move(graph);
  }

  Graph graph;

 private:
  int64_t rows_;
};

Plan planned(const Graph& graph, const std::vector<std::string>& requests, int ranks = 2) {
  PlanOptions options;
  options.requests = requests;
  const Plan plan = plan_shardings(graph, Mesh::parse(str("m=", ranks)), host_cluster(), options,
                                   rules(), nullptr);
  check_plan(plan, graph);
  return plan;
}

struct Counted {
  std::map<std::string, int> calls;  // "all_reduce %s", what moves nothing between ranks left out
  int64_t bytes = 0;                 // that rank 0 sends in a step
  int of(const std::string& kind, const std::vector<std::string>& values) const {
    int sum = 0;
    for (const std::string& value : values) {
      const auto it = calls.find(kind + " " + value);
      sum += it == calls.end() ? 0 : it->second;
    }
    return sum;
  }
};
Counted counted(const Graph& graph, const Plan& plan) {
  Counted out;
  const Program program = Partition(graph, plan, host_cluster()).program(0);
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::collective || step.collective->traits().local) continue;
    ++out.calls[str(step.collective->traits().name, " ", step.source)];
    const DType dtype = type_of(program, step.in[0]).dtype;
    out.bytes += bytes_sent(*step.collective, dtype, 0);
  }
  return out;
}

std::vector<NamedTensors> floats(const Graph& graph) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  NamedTensors feed;
  for (ValueId id : graph.with_role(Role::batch)) {
    Tensor tensor(graph.type(id));
    for (int64_t i = 0; i < tensor.count(); ++i) tensor.as<float>()[i] = normal(random);
    feed.emplace(graph.value(id).name, tensor);
  }
  return std::vector<NamedTensors>(kSteps, feed);
}

/// The losses of 5 steps, and what is reported of each, as on one rank.
void expect_runs_as_one(const Graph& graph, const Plan& plan,
                        const Cluster& cluster = host_cluster()) {
  const Plan one = plan_shardings(graph, Mesh::parse("1"), host_cluster(), {}, rules(), nullptr);
  const std::vector<NamedTensors> batches = floats(graph);
  const ShardedRun alone = test::run_sharded(graph, one, batches, 1e-3),
                   run = test::run_sharded(graph, plan, batches, 1e-3, 0, cluster);
  EXPECT_EQ(run.allocated_bytes, run.predicted_bytes);
  for (size_t s = 0; s < batches.size(); ++s) {
    const double loss = alone.metrics[s].at("loss");
    EXPECT_NEAR(run.metrics[s].at("loss"), loss, 1e-6 * std::abs(loss)) << "step " << s;
    for (const auto& [name, tensor] : alone.outputs[s])
      EXPECT_LT(test::relative_difference(run.outputs[s].at(name), tensor), 1e-5) << name;
  }
  EXPECT_NE(alone.metrics[0].at("loss"), alone.metrics[kSteps - 1].at("loss"));
}

const std::vector<std::string> kSums = {"%u=[-,-] partial(sum: m)", "%v=[-,-] partial(sum: m)"};

std::vector<std::string> with(std::vector<std::string> requests,
                              const std::vector<std::string>& more) {
  requests.insert(requests.end(), more.begin(), more.end());
  return requests;
}

/// all_reduce(u) + all_reduce(v) is all_reduce(u + v) (M19), and the same of reduce_scatter (M20).
TEST(CollectivesByChoice, SumsAreReassociated) {
  const auto step = [] {
    HandMade s;
    const ValueId u = s.product(s.input("a"), "u"), v = s.product(s.input("b"), "v");
    return s.trained(s.op("relu", {s.op("add", {u, v}, "s")}, "r"));
  };
  const Graph graph = step();
  for (const int ranks : {2, 3}) {
    const std::vector<std::string> all = {"%u", "%v", "%s"};
    const Plan whole = planned(graph, with(kSums, {"%r=[-,-]"}), ranks),
               naive = planned(graph, with(kSums, {"%r=[-,-]", "%s=[-,-]"}), ranks);
    EXPECT_EQ(counted(graph, whole).of("all_reduce", {"%s"}), 1);
    EXPECT_EQ(counted(graph, whole).of("all_reduce", all), 1);
    EXPECT_EQ(counted(graph, naive).of("all_reduce", {"%u", "%v"}), 2);
    EXPECT_LT(whole.seconds, naive.seconds);
    const Plan cut = planned(graph, with(kSums, {"%r=[m,-]"}), ranks),
               cut_naive = planned(graph, with(kSums, {"%r=[m,-]", "%s=[m,-]"}), ranks);
    EXPECT_EQ(counted(graph, cut).of("reduce_scatter", {"%s"}), 1);
    EXPECT_EQ(counted(graph, cut).of("reduce_scatter", all), 1);
    EXPECT_EQ(counted(graph, cut_naive).of("reduce_scatter", {"%u", "%v"}), 2);
    EXPECT_LT(cut.seconds, cut_naive.seconds);
    for (const Plan& plan : {whole, naive, cut, cut_naive}) expect_runs_as_one(graph, plan);
  }
}

/// Another reader wants all_reduce(u) itself: then it is the cheaper of both (MLIR's negative
/// test).
TEST(CollectivesByChoice, SumsWithOtherReaders) {
  const auto step = [] {
    HandMade s;
    const ValueId u = s.product(s.input("a"), "u"), v = s.product(s.input("b"), "v");
    const ValueId r = s.op("relu", {s.op("add", {u, v}, "s")}, "r");
    return s.trained(s.op("mul", {r, s.op("relu", {u}, "other")}, "both"));
  };
  const Graph graph = step();
  const std::vector<std::string> ends = with(kSums, {"%r=[-,-]", "%other=[-,-]"});
  const Plan free = planned(graph, ends),
             late = planned(graph, with(ends, {"%s=[-,-] partial(sum: m)"})),
             early = planned(graph, with(ends, {"%s=[-,-]"}));
  for (const Plan& plan : {free, late, early}) {
    const Counted sums = counted(graph, plan);
    EXPECT_EQ(
        sums.of("all_reduce", {"%u", "%v", "%s"}) + sums.of("reduce_scatter", {"%u", "%v", "%s"}),
        2);
    EXPECT_EQ(sums.of("all_reduce", {"%u"}) + sums.of("reduce_scatter", {"%u"}), 1);
    expect_runs_as_one(graph, plan);
  }
  EXPECT_LE(free.seconds, std::min(late.seconds, early.seconds) * (1 + 1e-9));
}

/// A gather sinks through what goes element by element to where it is wanted, or is not there at
/// all (M21).
TEST(CollectivesByChoice, GathersSink) {
  for (const bool reported : {false, true}) {
    const auto step = [&] {
      HandMade s(2000);  // where work counts
      ValueId x = s.product(s.input("x"), "h");
      for (int i = 1; i <= 5; ++i) x = s.op("relu", {x}, str("c", i));
      if (reported) s.graph.outputs = {x};
      return s.trained(x);
    };
    const Graph graph = step();
    std::vector<std::string> early = {"%h=[m,-]"};
    const Plan plan = planned(graph, early);
    for (int i = 1; i <= 5; ++i) early.push_back(str("%c", i, "=[-,-]"));
    const Plan naive = planned(graph, early);
    const Counted ours = counted(graph, plan), theirs = counted(graph, naive);
    EXPECT_EQ(theirs.of("all_gather", {"%h"}), 1);
    EXPECT_EQ(ours.of("all_gather", {"%h", "%c1", "%c2", "%c3", "%c4"}), 0);
    EXPECT_EQ(ours.of("all_gather", {"%c5"}), reported ? 1 : 0);
    EXPECT_LE(plan.seconds, naive.seconds);
    if (reported) {
      EXPECT_LE(ours.bytes, theirs.bytes);
    } else {
      EXPECT_LT(ours.bytes, theirs.bytes);
    }
    expect_runs_as_one(graph, plan);
    expect_runs_as_one(graph, naive);
  }
}

/// all_gather then slice is an all_to_all, all_reduce then slice a reduce_scatter: against the same
/// plan with every copy made by way of the whole value.
TEST(CollectivesByChoice, SlicesBehindCollectives) {
  const auto step = [] {
    HandMade s;
    return s.trained(s.op("relu", {s.product(s.input("x"), "u")}, "r"));
  };
  const Graph graph = step();
  const auto by_way_of_whole = [&](Plan plan) {
    plan.redistributed["%u"] = Sharding::replicated(2);
    return plan;
  };
  for (const int ranks : {2, 3}) {
    const Plan turned = planned(graph, {"%u=[m,-]", "%r=[-,m]"}, ranks),
               summed = planned(graph, {"%u=[-,-] partial(sum: m)", "%r=[m,-]"}, ranks);
    const Counted a = counted(graph, turned), b = counted(graph, summed),
                  naive_a = counted(graph, by_way_of_whole(turned)),
                  naive_b = counted(graph, by_way_of_whole(summed));
    EXPECT_EQ(a.of("all_to_all", {"%u"}), 1);
    EXPECT_EQ(a.of("all_gather", {"%u"}), 0);
    EXPECT_EQ(naive_a.of("all_gather", {"%u"}), 1);
    EXPECT_EQ(b.of("reduce_scatter", {"%u"}), 1);
    EXPECT_EQ(b.of("all_reduce", {"%u"}), 0);
    EXPECT_EQ(naive_b.of("all_reduce", {"%u"}), 1);
    EXPECT_LT(a.bytes, naive_a.bytes);
    EXPECT_LT(b.bytes, naive_b.bytes);
    for (const Plan& plan : {turned, summed, by_way_of_whole(turned), by_way_of_whole(summed)})
      expect_runs_as_one(graph, plan);
  }
}

/// A matrix that is cut along both dims comes together in one call where that is cheaper (M13).
TEST(CollectivesByChoice, OneGatherOfTwoDims) {
  const auto step = [] {
    HandMade s;
    const ValueId y = s.op("relu", {s.product(s.input("x"), "u")}, "r");
    s.graph.outputs = {y};
    return s.trained(y);
  };
  const Graph graph = step();
  Cluster once = host_cluster(), twice = host_cluster();
  once.measured = twice.measured = {};
  once.within.call_latency = 1e-3;
  twice.within.call_latency = 0;
  for (const auto& [cluster, calls] : {std::pair{once, 1}, std::pair{twice, 2}}) {
    PlanOptions options;
    options.requests = {"%r=[a,b]"};
    const Plan plan =
        plan_shardings(graph, Mesh::parse("a=2,b=3"), cluster, options, rules(), nullptr);
    int gathers = 0;
    int64_t bytes = 0;
    for (const Step& step : Partition(graph, plan, cluster).program(0).steps) {
      if (step.kind != Step::Kind::collective || step.source != "%r" ||
          step.collective->kind != Collective::Kind::all_gather)
        continue;
      ++gathers;
      bytes += bytes_sent(*step.collective, DType::f32, 0);
    }
    EXPECT_EQ(gathers, calls);
    EXPECT_EQ(bytes, 5 * (12 / 2) * (18 / 3) * 4);
    expect_runs_as_one(graph, plan, cluster);
  }
}

/// A product over what is cut: factors of ranks, multiplied where it is wanted whole (M2).
TEST(CollectivesByChoice, ProductsAreReduced) {
  const auto step = [] {
    HandMade s;
    const ValueId u = s.product(s.input("x"), "u");
    const ValueId p = s.graph.add(
        "reduce_prod", {u}, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{1}}}, "p");
    return s.trained(s.op("tanh", {p}, "t"));
  };
  const Graph graph = step();
  for (const int ranks : {2, 3, 4}) {
    const Plan plan = planned(graph, {"%u=[-,m]", "%p=[-,-] partial(prod: m)", "%t=[-,-]"}, ranks);
    EXPECT_EQ(counted(graph, plan).of("all_reduce", {"%p"}), 1);
    const Plan scattered =
        planned(graph, {"%u=[-,m]", "%p=[-,-] partial(prod: m)", "%t=[m,-]"}, ranks);
    EXPECT_EQ(counted(graph, scattered).of("reduce_scatter", {"%p"}), 1);
    expect_runs_as_one(graph, plan);
    expect_runs_as_one(graph, scattered);
  }
}

}  // namespace
}  // namespace shardrun
