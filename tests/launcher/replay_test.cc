// Replaying plans beside one rank: right ones agree, wrong ones are caught and named.
#include "launcher/api/replay.h"

#include <gtest/gtest.h>

#include <numeric>

#include "exec/executor.h"
#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "planner/partition.h"
#include "tests/exec/random_plan.h"

namespace shardrun {
namespace {

/// Batches by global position: x is about a standard normal, labels are 0, 1, 2, 0, …
void fill(const Graph& graph, const std::string& name, const Box& box, void* out) {
  const TensorType type = graph.type(graph.find(name));
  Tensor whole(type);
  for (int64_t i = 0; i < whole.count(); ++i) {
    if (type.dtype == DType::i64) whole.as<int64_t>()[i] = i % 3;
    if (type.dtype == DType::f64)
      whole.as<double>()[i] = static_cast<double>((i * 7919) % 211) / 100.0 - 1.0;
  }
  copy_box(whole.data(), full_box(type.shape), out, box, box, size_of(type.dtype));
}

Replay replay(const Graph& graph, const Plan& plan, int accumulate = 1,
              const Plan* compiled = nullptr) {
  static const std::vector<const KernelList*> lists = {&cpu_kernels(), &reference_kernels()};
  const StepWorkspaces workspaces(lists);
  std::vector<Program> programs;
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) {
    programs.push_back(partition(graph, compiled ? *compiled : plan, host_cluster(), rank));
    place_memory(programs.back(), workspaces);
  }
  Program whole = partition(graph, whole_plan(graph), host_cluster(), 0);
  place_memory(whole, workspaces);
  ReplayOptions options;
  options.seed = 3;
  options.accumulate = accumulate;
  options.fill = [&](int64_t, const std::string& name, const Box& box, void* out) {
    fill(graph, name, box, out);
  };
  return replay_step(graph, plan, programs, whole, lists, options);
}

/// The Sharding of a node's result, to be changed.
void leave(Plan& plan, const Graph& graph, const std::string& node, const Sharding& sharding) {
  for (const Node& n : graph.nodes()) {
    if (n.name == node) plan.values[graph.value(n.outputs[0]).name] = sharding;
  }
  plan.nodes.at(node).out[0] = sharding;
}

std::string describe(const Replay& r) {
  return r.mismatch ? r.mismatch->value + " " + r.mismatch->where + " " + r.mismatch->sharding
                    : "agrees";
}

TEST(Replay, RandomPlansAgreeOnEvenAndUnevenMeshes) {
  for (const char* kind : {"adamw", "sgd"}) {
    testing::ModelOptions options;
    options.optimizer.kind = kind;
    options.optimizer.clip_norm = 0.1;
    const Graph graph = testing::small_model(options);
    for (const char* mesh : {"2", "3", "4", "2x2", "2x3"}) {
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        const Replay result = replay(graph, testing::random_plan(graph, Mesh::parse(mesh), seed));
        EXPECT_FALSE(result.mismatch)
            << kind << " mesh " << mesh << " seed " << seed << ": " << describe(result);
        EXPECT_LT(result.largest, 1e-12);
        // Every node's results, and the persistent values.
        int64_t least = 0;
        for (const Node& node : graph.nodes()) least += static_cast<int64_t>(node.outputs.size());
        EXPECT_GE(result.values, least);
      }
    }
  }
}

TEST(Replay, AccumulationAgrees) {
  testing::ModelOptions options;
  options.optimizer.accumulate = 3;
  const Graph graph = testing::small_model(options);
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const Replay result = replay(graph, testing::random_plan(graph, Mesh::parse("2x2"), seed), 3);
    EXPECT_FALSE(result.mismatch) << "seed " << seed << ": " << describe(result);
  }
}

TEST(Replay, OneRankAgreesWithItself) {
  const Graph graph = testing::small_model({});
  Plan plan = testing::replicated_plan(graph, Mesh());
  const Replay result = replay(graph, plan);
  EXPECT_FALSE(result.mismatch) << describe(result);
  EXPECT_EQ(result.largest, 0);
}

/// fc1's contraction is cut and its result called whole: each rank then holds only its own terms.
/// x is [6, 5]; 5 over 2 ranks is 3 and 2.
TEST(Replay, AForgottenSumIsNamed) {
  const Graph graph = testing::small_model({});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = testing::replicated_plan(graph, mesh);
  plan.nodes.at("fc1").in = {parse_sharding("[-, {a}]", mesh), parse_sharding("[{a}, -]", mesh)};
  const Replay wrong = replay(graph, plan);
  ASSERT_TRUE(wrong.mismatch);
  EXPECT_EQ(wrong.mismatch->value, graph.value(graph.nodes()[0].outputs[0]).name)
      << describe(wrong);
  EXPECT_EQ(wrong.mismatch->where, "matmul 'fc1'");
  EXPECT_EQ(wrong.mismatch->ranks, std::vector<int64_t>{0});
  EXPECT_EQ(wrong.mismatch->element, (std::vector<int64_t>{0, 0}));
  EXPECT_GT(std::abs(wrong.mismatch->got - wrong.mismatch->wanted), wrong.mismatch->allowed);

  leave(plan, graph, "fc1", parse_sharding("[-, -] partial(sum: a)", mesh));
  const Replay right = replay(graph, plan);
  EXPECT_FALSE(right.mismatch) << describe(right);
}

/// A rule that does not exist: cross-entropy of partial logits. Rank 0 keeps the logits and rank 1
/// has zeros, whose losses are log 3 and not 0: what is called partial adds up to too much. The
/// copies before agree.
TEST(Replay, AWrongRuleIsNamedAtItsNode) {
  const Graph graph = testing::small_model({});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = testing::replicated_plan(graph, mesh);
  const Sharding partial = parse_sharding("[-, -] partial(sum: a)", mesh);
  plan.nodes.at("losses").in[0] = partial;
  leave(plan, graph, "losses", parse_sharding("[-] partial(sum: a)", mesh));
  const Replay result = replay(graph, plan);
  ASSERT_TRUE(result.mismatch);
  EXPECT_EQ(result.mismatch->where, "cross_entropy 'losses'") << describe(result);
  EXPECT_EQ(result.mismatch->ranks, (std::vector<int64_t>{0, 1}));
}

/// A scalar: six losses summed over three ranks' two each, and the result called whole.
TEST(Replay, AScalarIsNamedWithoutElement) {
  const Graph graph = testing::small_model({});
  const Mesh mesh = Mesh::parse("3");
  Plan plan = testing::replicated_plan(graph, mesh);
  plan.nodes.at("total").in[0] = parse_sharding("[{a}]", mesh);
  const Replay result = replay(graph, plan);
  ASSERT_TRUE(result.mismatch);
  EXPECT_EQ(result.mismatch->where, "reduce_sum 'total'") << describe(result);
  EXPECT_TRUE(result.mismatch->element.empty());
}

/// Programs of another plan than the one that they are compared by are refused with a sentence.
TEST(Replay, ProgramsOfAnotherPlanAreRefused) {
  const Graph graph = testing::small_model({});
  const Mesh mesh = Mesh::parse("2");
  const Plan plan = testing::replicated_plan(graph, mesh);
  Plan other = plan;
  other.nodes.at("fc1").in[0] = parse_sharding("[{a}, -]", mesh);
  leave(other, graph, "fc1", parse_sharding("[{a}, -]", mesh));
  try {
    replay(graph, plan, 1, &other);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("fc1' on rank 0 is f64[3, 7]"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace shardrun
