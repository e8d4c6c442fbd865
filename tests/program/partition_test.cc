// Partition: what steps a plan becomes, and where updates end up.
#include "program/partition.h"

#include <gtest/gtest.h>

#include "program/compile.h"
#include "tests/exec/random_plan.h"

namespace shardrun {
namespace {

/// With the collectives where they run.
Program ordered(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank) {
  return compile(graph, plan, cluster, rank, {}, {.stop_after = "order_collectives"});
}

using test::replicated_plan;

std::string kinds(const Program& p) {
  std::string out;
  for (const Step& s : p.steps) {
    out += (out.empty() ? "" : " ");
    out += s.kind == Step::Kind::kernel ? s.node.op : std::string(to_string(s.collective->kind));
  }
  return out;
}

struct Fixture {
  Graph g;
  Mesh mesh = Mesh::parse("a=2,b=2");
  Plan plan;

  ValueId param(const std::string& name, Shape shape) {
    return g.add_persistent(name, {DType::f32, std::move(shape)}, Role::parameter, Source{});
  }
  ValueId batch(const std::string& name, Shape shape) {
    return g.add_input(name, {DType::f32, std::move(shape)}, Role::batch);
  }
  void start_plan() { plan = replicated_plan(g, mesh); }
  Sharding sh(const char* text) const { return parse_sharding(text, mesh); }
  void hold(const std::string& value, const char* text) { plan.values[value] = sh(text); }
  void cut(const std::string& node, std::vector<const char*> in, std::vector<const char*> out) {
    NodePlan np;
    for (const char* t : in) np.in.push_back(sh(t));
    for (const char* t : out) np.out.push_back(sh(t));
    plan.nodes[node] = np;
    for (const Node& n : g.nodes()) {
      if (n.name != node) continue;
      for (size_t i = 0; i < out.size(); ++i) plan.values[g.value(n.outputs[i]).name] = np.out[i];
    }
  }
  Program run(int64_t rank = 0) const {
    Cluster cluster;
    cluster.collectives = Collectives::apart;
    return ordered(g, plan, cluster, rank);
  }
};

TEST(Partition, OneRankHasNoCollectives) {
  Fixture f;
  f.g.outputs = {f.g.add("relu", {f.batch("x", {4})}, {}, "r")};
  f.mesh = Mesh();
  f.start_plan();
  EXPECT_EQ(kinds(f.run()), "relu");
}

TEST(Partition, LocalTypesAndBoxes) {
  Fixture f;
  const ValueId x = f.batch("x", {5, 6}), w = f.param("w", {6, 3});
  f.g.outputs = {f.g.add("matmul", {x, w}, {{"equation", std::string("mk,kn->mn")}}, "mm")};
  f.start_plan();
  f.hold("x", "[{a}, {b}]");
  f.hold("w", "[{b}, -]");
  f.cut("mm", {"[{a}, {b}]", "[{b}, -]"}, {"[{a}, -] partial(sum: b)"});
  const Program last = f.run(3);
  // 5 rows over a are 3 and 2; rank 3 has the second half of both.
  EXPECT_EQ(last.bindings[0].box, (Box{{3, 2}, {3, 3}}));
  EXPECT_EQ(last.buffers[static_cast<size_t>(last.bindings[1].buffer)].type,
            (TensorType{DType::f32, {3, 3}}));
  EXPECT_EQ(last.steps[0].kind, Step::Kind::kernel);
  EXPECT_EQ(last.buffers[static_cast<size_t>(last.steps[0].out[0])].type,
            (TensorType{DType::f32, {2, 3}}));
  EXPECT_EQ(last.outputs[0].sharding, f.sh("[-, -]"));
  EXPECT_EQ(last.buffers[static_cast<size_t>(last.outputs[0].buffer)].type,
            (TensorType{DType::f32, {5, 3}}));
}

// A partial sum has no part to read, so it ends whole even then.
TEST(Partition, OutputsStayCutWhereTheyMay) {
  Fixture f;
  const ValueId x = f.batch("x", {5, 6});
  f.g.outputs = {f.g.add("relu", {x}, {}, "r"),
                 f.g.add("reduce_sum", {x}, {{"axes", Shape{1}}, {"keepdims", int64_t{0}}}, "s")};
  f.g.outputs_stay_cut = true;
  f.start_plan();
  f.hold("x", "[{a}, {b}]");
  f.cut("r", {"[{a}, {b}]"}, {"[{a}, {b}]"});
  f.cut("s", {"[{a}, {b}]"}, {"[{a}] partial(sum: b)"});
  const Program last = f.run(3);
  EXPECT_EQ(last.outputs[0].sharding, f.sh("[{a}, {b}]"));
  EXPECT_EQ(last.outputs[0].box, (Box{{3, 2}, {3, 3}}));
  EXPECT_EQ(last.buffers[static_cast<size_t>(last.outputs[0].buffer)].type,
            (TensorType{DType::f32, {2, 3}}));
  EXPECT_EQ(last.outputs[1].sharding, f.sh("[-]"));
  EXPECT_EQ(last.outputs[1].box, full_box({5}));
  EXPECT_EQ(kinds(last), "relu reduce_sum all_reduce all_gather");
}

TEST(Partition, AReshardedValueIsMadeOnce) {
  Fixture f;
  const ValueId x = f.batch("x", {4, 4});
  const ValueId a = f.g.add("relu", {x}, {}, "r1"), b = f.g.add("neg", {x}, {}, "r2"),
                c = f.g.add("exp", {x}, {}, "r3");
  f.g.outputs = {f.g.add("add", {f.g.add("add", {a, b}, {}, "s1"), c}, {}, "s2")};
  f.start_plan();
  f.hold("x", "[{a}, -]");
  EXPECT_EQ(kinds(f.run()), "all_gather relu neg exp add add");
}

TEST(Partition, PrefixesAreShared) {
  Fixture f;
  const ValueId x = f.batch("x", {4096, 4096});
  f.g.outputs = {f.g.add("relu", {x}, {}, "r1"), f.g.add("neg", {x}, {}, "r2")};
  f.start_plan();
  f.hold("x", "[{a,b}, -]");
  f.cut("r1", {"[{a}, -]"}, {"[{a}, -]"});
  // whole = all_gather over b, which r1 has made already, then over a
  EXPECT_EQ(kinds(f.run()), "all_gather all_gather relu all_gather neg");
}

/// A partial sum that one reader wants cut and the next one whole: scattered and gathered again,
/// or, redistributed whole, all-reduced and sliced.
TEST(Partition, AValueIsHandedOutFromTheCopyThatThePlanNames) {
  Fixture f;
  const ValueId x = f.batch("x", {64, 64});
  const ValueId y = f.g.add("matmul", {x, x}, {{"equation", std::string("mk,kn->mn")}}, "mm");
  f.g.outputs = {f.g.add("relu", {y}, {}, "cut"), f.g.add("neg", {y}, {}, "whole")};
  f.start_plan();
  f.cut("mm", {"[-, {a}]", "[{a}, -]"}, {"[-, -] partial(sum: a)"});
  f.cut("cut", {"[{a}, -]"}, {"[{a}, -]"});
  EXPECT_EQ(kinds(f.run()), "slice slice matmul reduce_scatter all_gather relu all_gather neg");
  f.plan.redistributed["%mm"] = f.sh("[-, -]");
  EXPECT_EQ(kinds(f.run()), "slice slice matmul all_reduce slice relu all_gather neg");
  EXPECT_EQ(f.run().buffers.size(), 9u);
}

/// A copy that is no larger than what was made replaces it at once, whoever reads it when.
TEST(Partition, ASmallerHandedCopyComesEarly) {
  Fixture f;
  const ValueId x = f.batch("x", {64, 64});
  const ValueId y = f.g.add("matmul", {x, x}, {{"equation", std::string("mk,kn->mn")}}, "mm");
  const ValueId z = f.g.add("exp", {x}, {}, "between");
  f.g.outputs = {f.g.add("relu", {y}, {}, "r1"), f.g.add("neg", {y}, {}, "r2"), z};
  f.start_plan();
  f.cut("mm", {"[-, {a}]", "[{a}, -]"}, {"[-, -] partial(sum: a)"});
  f.plan.redistributed["%mm"] = f.sh("[{a}, -]");
  EXPECT_EQ(kinds(f.run()), "slice slice matmul reduce_scatter exp all_gather relu neg");
  f.plan.regathered = {"%mm"};
  EXPECT_EQ(kinds(f.run()), "slice slice matmul reduce_scatter exp all_gather relu all_gather neg");
}

/// A weight that two nodes want whole is gathered for each of them, and the first copy is free
/// again in between; what is redistributed from a copy of its own is gathered from there.
TEST(Partition, SomeValuesAreGatheredAnewForEachReader) {
  Fixture f;
  const ValueId w = f.param("w", {8, 8});
  f.g.outputs = {f.g.add("relu", {w}, {}, "r1"), f.g.add("neg", {w}, {}, "r2")};
  f.start_plan();
  f.hold("w", "[{a,b}, -]");
  EXPECT_EQ(kinds(f.run()), "all_gather all_gather relu neg");
  f.plan.regathered = {"w"};
  EXPECT_EQ(kinds(f.run()), "all_gather all_gather all_gather relu all_gather neg");
  f.plan.redistributed["w"] = f.sh("[{a}, -]");
  EXPECT_EQ(kinds(f.run()), "all_gather all_gather relu all_gather neg");
}

TEST(Partition, LargerCopiesComeLateSmallerOnesEarly) {
  Fixture f;
  const ValueId x = f.batch("x", {8, 8}), w = f.param("w", {8, 8});
  const ValueId y = f.g.add("matmul", {x, w}, {{"equation", std::string("mk,kn->mn")}}, "mm");
  const ValueId other = f.g.add("relu", {x}, {}, "other");
  f.g.outputs = {f.g.add("add", {y, other}, {}, "sum")};
  f.start_plan();
  f.hold("x", "[-, {a}]");
  f.hold("w", "[{a}, -]");
  f.cut("mm", {"[-, {a}]", "[{a}, -]"}, {"[-, -] partial(sum: a)"});
  f.cut("other", {"[-, {a}]"}, {"[-, {a}]"});
  f.cut("sum", {"[{a}, -]", "[{a}, -]"}, {"[{a}, -]"});
  EXPECT_EQ(kinds(f.run()), "matmul reduce_scatter relu all_to_all add all_gather");
  f.cut("sum", {"[-, -]", "[-, -]"}, {"[-, -]"});
  EXPECT_EQ(kinds(f.run()), "matmul all_reduce relu all_gather add");
}

/// sgd on w with gradient g, w read by `reader` before or after it.
Graph sgd_graph(bool read_after) {
  Graph g;
  const ValueId w = g.add_persistent("w", {DType::f32, {8}}, Role::parameter, Source{});
  const ValueId m = g.add_persistent("m", {DType::f32, {8}}, Role::state, Source{});
  const ValueId lr = g.add_input("lr", {DType::f32, {}}, Role::scalar),
                step = g.add_input("step", {DType::i64, {}}, Role::scalar);
  const ValueId x = g.add_input("x", {DType::f32, {8}}, Role::batch);
  const ValueId grad = g.add("mul", {w, x}, {}, "grad");
  g.phase = Phase::update;
  const ValueId one = g.add(
      "fill", {},
      {{"shape", std::vector<int64_t>{}}, {"dtype", std::string("f32")}, {"value", 1.0}}, "one");
  const auto next =
      g.add_node("sgd", {w, grad, m, lr, step, one},
                 {{"momentum", 0.9}, {"weight_decay", 0.0}, {"nesterov", int64_t{0}}}, "update");
  g.updates[w] = next[0];
  g.updates[m] = next[1];
  if (read_after) g.outputs = {g.add("relu", {w}, {}, "reader")};
  return g;
}

TEST(Partition, UpdatesAreWrittenInPlace) {
  Fixture f;
  f.g = sgd_graph(false);
  f.start_plan();
  const Program p = f.run();
  EXPECT_EQ(kinds(p), "mul fill sgd");
  EXPECT_EQ(p.steps[2].out[0], p.steps[2].in[0]);
  EXPECT_EQ(p.steps[2].out[1], p.steps[2].in[2]);
}

TEST(Partition, ALaterReaderOfTheOldValueForcesACopy) {
  Fixture f;
  f.g = sgd_graph(true);
  f.start_plan();
  const Program p = f.run();
  EXPECT_EQ(kinds(p), "mul fill sgd relu identity");
  EXPECT_NE(p.steps[2].out[0], p.steps[2].in[0]);
  EXPECT_EQ(p.steps[2].out[1], p.steps[2].in[2]);
  EXPECT_EQ(p.steps[4].out[0], p.steps[2].in[0]);
}

TEST(Partition, ShardedUpdateOfAReplicatedParameterGathersIntoIt) {
  Fixture f;
  f.g = sgd_graph(false);
  f.start_plan();
  f.hold("m", "[{a}]");
  f.cut("update", {"[{a}]", "[{a}]", "[{a}]", "[]", "[]", "[]"}, {"[{a}]", "[{a}]"});
  const Program p = f.run();
  EXPECT_EQ(kinds(p), "mul slice fill slice sgd all_gather");
  EXPECT_EQ(p.steps[5].out[0], p.bindings[0].buffer);  // w
  EXPECT_EQ(p.bindings[0].name, "w");
  EXPECT_EQ(p.steps[4].out[1], p.steps[4].in[2]);  // m
}

TEST(Partition, AnUpdateWithAnotherInputIsCopied) {
  Fixture f;
  const ValueId u = f.param("u", {4}), v = f.param("v", {4});
  f.g.updates[u] = v;
  f.g.updates[v] = u;
  f.start_plan();
  const Program p = f.run();
  // Both old values are taken before either is overwritten: v's copy can be made in u only after
  // u's.
  ASSERT_EQ(kinds(p), "identity identity identity");
  EXPECT_EQ(p.steps[0].in[0], p.bindings[1].buffer);
  EXPECT_EQ(p.steps[1].in[0], p.bindings[0].buffer);
  EXPECT_EQ(p.steps[1].out[0], p.bindings[1].buffer);
  EXPECT_EQ(p.steps[2].out[0], p.bindings[0].buffer);
}

TEST(Partition, AMicroUpdateMayNotBeReadOldInTheUpdatePhase) {
  Fixture f;
  f.g.micro_batches = 2;
  const ValueId s = f.g.add_persistent("sum", {DType::f32, {4}}, Role::state, Source{});
  const ValueId x = f.batch("x", {4});
  f.g.updates[s] = f.g.add("add", {s, x}, {}, "accumulate");
  f.g.phase = Phase::update;
  f.g.outputs = {f.g.add("relu", {s}, {}, "late")};
  f.start_plan();
  try {
    f.run();
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'late'"), std::string::npos) << e.what();
  }
}

TEST(Partition, AttributesAreLocalised) {
  Fixture f;
  f.g.outputs = {f.g.add("iota", {},
                         {{"shape", std::vector<int64_t>{7}},
                          {"dtype", std::string("f32")},
                          {"axis", int64_t{0}},
                          {"start", int64_t{0}},
                          {"step", int64_t{1}}},
                         "count")};
  f.start_plan();
  f.cut("count", {}, {"[{a,b}]"});
  // 7 over a: 4, 3; over b: 2, 2, 2, 1
  const Program p = f.run(3);
  EXPECT_EQ(p.steps[0].node.attrs.ints("shape"), std::vector<int64_t>{1});
  EXPECT_EQ(p.steps[0].node.attrs.i("start"), 6);
}

TEST(Partition, NamesWhatThePlanLacks) {
  Fixture f;
  f.g.outputs = {f.g.add("relu", {f.batch("x", {4})}, {}, "gelu_like")};
  f.start_plan();
  f.plan.nodes.clear();
  try {
    f.run();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    EXPECT_NE(std::string(e.what()).find("'gelu_like'"), std::string::npos) << e.what();
  }
}

TEST(Partition, EveryRankHasTheSameStepsInTheSameOrder) {
  const Graph g = test::small_model({});
  for (const char* text : {"3", "2x2", "2x2x2"}) {
    const Mesh mesh = Mesh::parse(text);
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const Plan plan = test::random_plan(g, mesh, seed);
      Cluster cluster;
      cluster.collectives = seed % 2 == 0 ? Collectives::together : Collectives::apart;
      const Program first = ordered(g, plan, cluster, 0);
      for (int64_t rank = 1; rank < mesh.size(); ++rank) {
        const Program p = ordered(g, plan, cluster, rank);
        ASSERT_EQ(p.steps.size(), first.steps.size());
        ASSERT_EQ(p.buffers.size(), first.buffers.size());
        for (size_t s = 0; s < p.steps.size(); ++s) {
          ASSERT_EQ(p.steps[s].node.name, first.steps[s].node.name)
              << "mesh " << text << " seed " << seed;
          ASSERT_EQ(p.steps[s].in, first.steps[s].in);
          ASSERT_EQ(p.steps[s].out, first.steps[s].out);
          ASSERT_EQ(p.steps[s].phase, first.steps[s].phase);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
