// Replaying plans against one rank: right ones agree, wrong ones are caught and named.
#include "verify/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "exec/executor.h"
#include "graph/op_def.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/processor.h"
#include "program/compile.h"
#include "tests/exec/random_plan.h"
#include "tests/graph/graph_build.h"
#include "tests/launcher/ranks/far_rank.h"

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

const std::vector<const KernelList*>& lists() {
  static const std::vector<const KernelList*> all = {&cpu_kernels(), &reference_kernels()};
  return all;
}

/// Programs of `compiled` for every rank, and the one that they are compared with.
ReplayAct act(const Graph& graph, const Plan& plan, const Plan& compiled,
              const ReplayAct* training = nullptr) {
  const BackendTraits traits{.needs = StepNeeds(lists())};
  ReplayAct out{graph, plan, {}, {}, training == nullptr};
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) {
    out.programs.push_back(compile(
        graph, compiled, host_cluster(), rank, traits,
        {.steps = Steps::all,
         .persistent_like = training ? &training->programs[static_cast<size_t>(rank)] : nullptr}));
  }
  out.whole =
      compile(graph, whole_plan(graph), host_cluster(), 0, traits,
              {.steps = Steps::all, .persistent_like = training ? &training->whole : nullptr});
  return out;
}

ReplayOptions options_for(const Graph& graph) {
  ReplayOptions options;
  options.seed = 3;
  options.fill = [&](int64_t, bool, const std::string& name, const Box& box, void* out) {
    fill(graph, name, box, out);
  };
  return options;
}

Replay replay_step(const Graph& graph, const Plan& plan, const Plan* compiled = nullptr) {
  std::vector<ReplayAct> acts;
  acts.push_back(act(graph, plan, compiled ? *compiled : plan));
  return replay(acts, lists(), options_for(graph));
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
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    test::ModelOptions options;
    options.optimizer.kind = kind;
    options.optimizer.clip_norm = 0.1;
    const Graph graph = test::small_model(options);
    for (const char* mesh : {"2", "3", "4", "2x2", "2x3"}) {
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        const Replay result = replay_step(graph, test::random_plan(graph, Mesh::parse(mesh), seed));
        EXPECT_FALSE(result.mismatch) << name_of(kOptimizers, kind) << " mesh " << mesh << " seed "
                                      << seed << ": " << describe(result);
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
  test::ModelOptions options;
  options.optimizer.accumulate = 3;
  const Graph graph = test::small_model(options);
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const Replay result = replay_step(graph, test::random_plan(graph, Mesh::parse("2x2"), seed));
    EXPECT_FALSE(result.mismatch) << "seed " << seed << ": " << describe(result);
  }
}

TEST(Replay, OneRankAgreesWithItself) {
  const Graph graph = test::small_model({});
  Plan plan = test::replicated_plan(graph, Mesh());
  const Replay result = replay_step(graph, plan);
  EXPECT_FALSE(result.mismatch) << describe(result);
  EXPECT_EQ(result.largest, 0);
}

/// The weights' gradient of a convolution over 802,816 pixels, whose terms nearly cancel: with
/// fewer channels oneDNN adds them in another order, and the sums differ by more than blurred terms
/// show.
TEST(Replay, LongSumsMayRoundByMore) {
  test::Build b(DType::f32);
  const Shape image = {16, 224, 224, 16};
  b.g.metrics["grad"] = b.op("conv_weight_grad", {b.in("x", image), b.in("y", image)},
                             {{"strides", std::vector<int64_t>{1, 1}},
                              {"dilations", std::vector<int64_t>{1, 1}},
                              {"pads_low", std::vector<int64_t>{1, 1}},
                              {"kernel", std::vector<int64_t>{3, 3}},
                              {"channels_last", int64_t{1}}});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(b.g, mesh);
  plan.values["x"] = plan.nodes.at("conv_weight_grad").in[0] =
      parse_sharding("[-, -, -, {a}]", mesh);
  leave(plan, b.g, "conv_weight_grad", parse_sharding("[-, {a}, -, -]", mesh));
  ReplayOptions options = options_for(b.g);
  options.fill = [&](int64_t, bool, const std::string& name, const Box& box, void* out) {
    Tensor whole({DType::f32, image});
    const RandomStream random{7, hash_name(name.data(), name.size()), 0};
    for (int64_t i = 0; i < whole.count(); ++i) {  // x is positive, y is about 0
      const double u = random.uniform(static_cast<uint64_t>(i));
      whole.as<float>()[i] = static_cast<float>(name == "x" ? u : u - 0.5);
    }
    copy_box(whole.data(), full_box(image), out, box, box, size_of(DType::f32));
  };
  const Replay cut = replay({act(b.g, plan, plan)}, lists(), options);
  EXPECT_FALSE(cut.mismatch) << describe(cut);
  if (cpu::multiplies_blocks()) {  // elsewhere oneDNN adds them in the same order
    EXPECT_GT(cut.largest, 0);
  }
}

/// The same, run on devices whose memory the host cannot touch.
Replay replay_far(const Graph& graph, const std::vector<ReplayAct>& acts) {
  static const KernelList cpu = test::far_kernels(cpu_kernels()),
                          reference = test::far_kernels(reference_kernels());
  const std::vector<const KernelList*> far = {&cpu, &reference};
  ReplayOptions options = options_for(graph);
  options.open = [](Communicator& host) { return std::make_unique<test::FarRank>(host); };
  return replay(acts, far, options);
}

/// Nothing that is compared, blurred or corrected is touched where it lies.
TEST(Replay, OnADeviceItIsTheSame) {
  test::ModelOptions small;
  small.optimizer.accumulate = 2;
  small.optimizer.clip_norm = 0.1;
  const Graph graph = test::small_model(small);
  for (const char* mesh : {"1", "3", "2x2"}) {
    const Plan plan = test::random_plan(graph, Mesh::parse(mesh), 5);
    const std::vector<ReplayAct> acts = {act(graph, plan, plan)};
    const Replay far = replay_far(graph, acts), near = replay(acts, lists(), options_for(graph));
    EXPECT_FALSE(far.mismatch) << mesh << ": " << describe(far);
    EXPECT_EQ(far.comparisons, near.comparisons);
    EXPECT_EQ(far.largest, near.largest);
  }
}

TEST(Replay, OnADeviceAForgottenSumIsNamed) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(graph, mesh);
  plan.nodes.at("fc1").in = {parse_sharding("[-, {a}]", mesh), parse_sharding("[{a}, -]", mesh)};
  const Replay wrong = replay_far(graph, {act(graph, plan, plan)});
  ASSERT_TRUE(wrong.mismatch);
  EXPECT_EQ(wrong.mismatch->where, "matmul 'fc1'");
  EXPECT_GT(std::abs(wrong.mismatch->got - wrong.mismatch->wanted), wrong.mismatch->allowed);
}

/// fc1's contraction is cut and its result called whole: each rank then holds only its own terms.
/// x is [6, 5]; 5 over 2 ranks is 3 and 2.
TEST(Replay, AForgottenSumIsNamed) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(graph, mesh);
  plan.nodes.at("fc1").in = {parse_sharding("[-, {a}]", mesh), parse_sharding("[{a}, -]", mesh)};
  const Replay wrong = replay_step(graph, plan);
  ASSERT_TRUE(wrong.mismatch);
  EXPECT_EQ(wrong.mismatch->value, graph.value(graph.nodes()[0].outputs[0]).name)
      << describe(wrong);
  EXPECT_EQ(wrong.mismatch->where, "matmul 'fc1'");
  EXPECT_EQ(wrong.mismatch->ranks, std::vector<int64_t>{0});
  EXPECT_EQ(wrong.mismatch->element, (std::vector<int64_t>{0, 0}));
  EXPECT_GT(std::abs(wrong.mismatch->got - wrong.mismatch->wanted), wrong.mismatch->allowed);

  leave(plan, graph, "fc1", parse_sharding("[-, -] partial(sum: a)", mesh));
  const Replay right = replay_step(graph, plan);
  EXPECT_FALSE(right.mismatch) << describe(right);
}

/// The forward pass of a training step, with the plan's Shardings of what persists.
Graph validation_of(const test::ModelOptions& options) {
  test::ModelOptions forward = options;
  forward.train = false;
  return test::small_model(forward);
}

/// A validation in the training step's arena: it agrees, and leaves what persists as it was.
TEST(Replay, AValidationBehindTheStepAgrees) {
  const Graph graph = test::small_model({});
  const Graph evaluation = validation_of({});
  for (const char* mesh : {"2", "3", "2x2"}) {
    const Plan plan = test::random_plan(graph, Mesh::parse(mesh), 3);
    Plan behind = test::random_plan(evaluation, Mesh::parse(mesh), 4);
    for (auto& [name, sharding] : behind.values) {
      const ValueId id = evaluation.find(name);
      if (id != kNoValue && evaluation.value(id).role == Role::parameter)
        sharding = plan.values.at(name);
    }
    std::vector<ReplayAct> acts;
    acts.push_back(act(graph, plan, plan));
    acts.push_back(act(evaluation, behind, behind, &acts[0]));
    const Replay step = replay_step(graph, plan);
    const Replay both = replay(acts, lists(), options_for(graph));
    EXPECT_FALSE(both.mismatch) << mesh << ": " << describe(both);
    EXPECT_GE(both.values, step.values + static_cast<int64_t>(evaluation.nodes().size()));

    // The ranks' validation is placed as if nothing were there, over what persists.
    acts.pop_back();
    acts.push_back(act(evaluation, behind, behind, &acts[0]));
    for (Program& program : acts[1].programs) {
      program = compile(evaluation, behind, host_cluster(), program.rank,
                        {.needs = StepNeeds(lists())}, {.steps = Steps::all});
    }
    const Replay clobbered = replay(acts, lists(), options_for(graph));
    ASSERT_TRUE(clobbered.mismatch) << mesh;
    EXPECT_FALSE(clobbered.mismatch->training) << describe(clobbered);
  }
}

/// Ranks that meet only through a communicator, as processes do: rank 0 finds the same.
TEST(Replay, OverACommunicatorItIsTheSame) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("3");
  const Plan right = test::random_plan(graph, mesh, 2);
  Plan wrong = test::replicated_plan(graph, mesh);
  wrong.nodes.at("total").in[0] = parse_sharding("[{a}]", mesh);
  for (const Plan* plan : std::vector<const Plan*>{&right, &wrong}) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(graph, *plan, *plan));
    const Replay together = replay(acts, lists(), options_for(graph));
    auto communicators = make_local_communicators(3);
    std::vector<Replay> found(3);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        found[rank] = replay_over(*communicators[rank], acts, lists(), options_for(graph));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(describe(found[0]), describe(together));
    EXPECT_EQ(found[0].values, together.values);
    EXPECT_EQ(found[0].comparisons, together.comparisons);
    EXPECT_EQ(found[0].largest, together.largest);
    EXPECT_EQ(found[1].comparisons, 0);
  }
}

/// A rule that does not exist: cross-entropy of partial logits. Rank 0 keeps the logits and rank 1
/// has zeros, whose losses are log 3 and not 0: what is called partial adds up to too much. The
/// copies before agree.
TEST(Replay, AWrongRuleIsNamedAtItsNode) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(graph, mesh);
  const Sharding partial = parse_sharding("[-, -] partial(sum: a)", mesh);
  plan.nodes.at("losses").in[0] = partial;
  leave(plan, graph, "losses", parse_sharding("[-] partial(sum: a)", mesh));
  const Replay result = replay_step(graph, plan);
  ASSERT_TRUE(result.mismatch);
  EXPECT_EQ(result.mismatch->where, "cross_entropy 'losses'") << describe(result);
  EXPECT_EQ(result.mismatch->ranks, (std::vector<int64_t>{0, 1}));
}

/// A scalar: six losses summed over three ranks' two each, and the result called whole.
TEST(Replay, AScalarIsNamedWithoutElement) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("3");
  Plan plan = test::replicated_plan(graph, mesh);
  plan.nodes.at("total").in[0] = parse_sharding("[{a}]", mesh);
  const Replay result = replay_step(graph, plan);
  ASSERT_TRUE(result.mismatch);
  EXPECT_EQ(result.mismatch->where, "reduce_sum 'total'") << describe(result);
  EXPECT_TRUE(result.mismatch->element.empty());
}

/// A table that is looked up in and is the head too: its two gradients are one fused step.
Graph tied_model() {
  Graph g;
  Source source;
  source.kind = Source::Kind::normal;
  source.b = 0.5;
  source.stream = "table";
  const ValueId table = g.add_persistent("table", {DType::f32, {3, 8}}, Role::parameter, source);
  g.trainable[table] = true;
  const ValueId rows = g.add_input("rows", {DType::i64, {6}}, Role::batch),
                labels = g.add_input("labels", {DType::i64, {6}}, Role::batch);
  const ValueId x = g.add("gather", {table, rows}, {{"axis", int64_t{0}}}, "lookup");
  const ValueId logits =
      g.add("matmul", {x, table}, {{"equation", std::string("mk,nk->mn")}}, "head");
  const ValueId losses = g.add_node("cross_entropy", {logits, labels}, {}, "losses")[0];
  g.loss = g.add("reduce_sum", {losses},
                 {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}}, "loss");
  g.metrics["loss"] = g.loss;
  g.outputs = {logits};
  attach_optimizer(g, {});
  remove_dead_nodes(g);
  return g;
}

/// The ranks' steps are fused as in training, the reference's are not: what the fused step leaves
/// is compared, and a wrong one is named.
TEST(Replay, FusedStepsAreCompared) {
  const Graph graph = tied_model();
  const Plan plan = test::replicated_plan(graph, Mesh::parse("2"));
  const auto found = [&](const std::function<void(Step&)>& change) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(graph, plan, plan));
    for (Program& program : acts[0].programs) {
      program =
          compile(graph, plan, host_cluster(), program.rank, {}, {.stop_after = "fuse_patterns"});
      for (Step& step : program.steps) change(step);
      place_memory(program, StepNeeds(lists()));
    }
    return replay(acts, lists(), options_for(graph));
  };
  int fused = 0;
  const Replay right = found([&](Step& step) { fused += step.node.op == "add_rows"; });
  EXPECT_EQ(fused, 2);  // one on each rank
  EXPECT_FALSE(right.mismatch) << describe(right);
  EXPECT_EQ(right.fused, 1);
  const Replay wrong = found([](Step& step) {
    if (step.node.op == "add_rows") step.node.attrs.set("offset", int64_t{1});
  });
  ASSERT_TRUE(wrong.mismatch);
  EXPECT_EQ(wrong.mismatch->where.substr(0, 9), "add_rows ") << describe(wrong);
}

/// Rank 0 joins its steps, rank 1 does not, as ranks whose shards have other shapes may: all but
/// what only rank 1 has is compared, and a wrong step of either is named.
TEST(Replay, RanksThatJoinOtherStepsAgree) {
  const Graph graph = tied_model();
  const Plan plan = test::replicated_plan(graph, Mesh::parse("2"));
  const auto found = [&](size_t rank, const std::string& op) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(graph, plan, plan));
    Program& fused = acts[0].programs[0];
    fused = compile(graph, plan, host_cluster(), 0, {}, {.stop_after = "fuse_patterns"});
    EXPECT_LT(fused.steps.size(), acts[0].programs[1].steps.size());
    for (Program& program : acts[0].programs) {
      for (Step& step : program.steps) {
        if (program.rank == static_cast<int64_t>(rank) && step.node.op == op)
          step.node.attrs.set("offset", int64_t{1});
      }
      place_memory(program, StepNeeds(lists()));
    }
    return replay(acts, lists(), options_for(graph));
  };
  const Replay right = found(0, "");
  EXPECT_FALSE(right.mismatch) << describe(right);
  EXPECT_GT(right.fused, 0);
  EXPECT_GT(right.values, 15);
  const Replay first = found(0, "add_rows"), second = found(1, "gather_grad");
  for (const Replay* wrong : {&first, &second}) {
    ASSERT_TRUE(wrong->mismatch);
    EXPECT_EQ(wrong->mismatch->where.substr(0, 9), "add_rows ") << describe(*wrong);
  }
  EXPECT_EQ(first.mismatch->ranks, std::vector<int64_t>{0});
  EXPECT_EQ(second.mismatch->ranks, std::vector<int64_t>{1});
}

/// bf16 sums of 4 + 1/32 and 1/128, and of -3 - 1/64 and 0, on two ranks: the first rounds to
/// 4 + 1/32, one rank has 1 + 3/128. No two bf16 numbers of such sizes have that sum, so the copy
/// in f32 differs by the rounding of the first, which the shadow has to show.
TEST(Replay, PartialSumsRoundToTheirType) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::bf16, {4, 1}}, Role::batch);
  const ValueId sum = g.add("reduce_sum", {x},
                            {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}}, "sum");
  g.outputs = {g.add("cast", {sum}, {{"to", std::string("f32")}}, "wide")};
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(g, mesh);
  const Sharding rows = parse_sharding("[{a}, -]", mesh),
                 partial = parse_sharding("[-] partial(sum: a)", mesh);
  plan.values.at("x") = plan.nodes.at("sum").in[0] = rows;
  leave(plan, g, "sum", partial);
  plan.nodes.at("wide").in[0] = partial;
  leave(plan, g, "wide", partial);
  std::vector<ReplayAct> acts;
  acts.push_back(act(g, plan, plan));
  ReplayOptions options = options_for(g);
  options.fill = [](int64_t, bool, const std::string&, const Box& box, void* out) {
    const double all[] = {4 + 1.0 / 32, 1.0 / 128, -3 - 1.0 / 64, 0};
    for (int64_t i = 0; i < box[0].size; ++i)
      static_cast<bfloat16*>(out)[i] = static_cast<bfloat16>(all[box[0].begin + i]);
  };
  const Replay result = replay(acts, lists(), options);
  EXPECT_FALSE(result.mismatch) << describe(result);
  EXPECT_EQ(result.values, 2);
}

/// f32 sums of 1000.3337 and -1000.3333 on two ranks, 0.0004 in all: a thousand in f32 has steps of
/// 0.00006, so neither can take up what they differ by from one rank's, yet the reshape's result
/// has to be that to within 6e-9.
TEST(Replay, PartialSumsThatCancelAreCorrected) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {4, 1}}, Role::batch);
  const ValueId sum = g.add("reduce_sum", {g.add("neg", {x}, {}, "terms")},
                            {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}}, "sum");
  g.outputs = {g.add("reshape", {sum}, {{"shape", std::vector<int64_t>{1, 1}}}, "column")};
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(g, mesh);
  const Sharding partial = parse_sharding("[-] partial(sum: a)", mesh);
  const Sharding rows = parse_sharding("[{a}, -]", mesh);
  plan.values.at("x") = plan.nodes.at("terms").in[0] = plan.nodes.at("sum").in[0] = rows;
  leave(plan, g, "terms", rows);
  leave(plan, g, "sum", partial);
  plan.nodes.at("column").in[0] = partial;
  leave(plan, g, "column", parse_sharding("[-, -] partial(sum: a)", mesh));
  const std::vector<ReplayAct> acts = {act(g, plan, plan)};
  ReplayOptions options = options_for(g);
  options.fill = [](int64_t, bool, const std::string&, const Box& box, void* out) {
    const float all[] = {-1000, -0.3337F, 1000, 0.3333F};
    for (int64_t i = 0; i < box[0].size; ++i) static_cast<float*>(out)[i] = all[box[0].begin + i];
  };
  const Replay result = replay(acts, lists(), options);
  EXPECT_FALSE(result.mismatch) << describe(result);
  EXPECT_EQ(result.values, 3);
}

/// One update of all parameters, by the reference's kernels, which take it.
TEST(Replay, UpdatesOfSeveralParametersAreCompared) {
  const Graph graph = test::small_model({});
  const Plan plan = test::replicated_plan(graph, Mesh::parse("2"));
  const std::vector<const KernelList*> reference = {&reference_kernels()};
  const auto found = [&](double decay) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(graph, plan, plan));
    for (Program& program : acts[0].programs) {
      program =
          compile(graph, plan, host_cluster(), program.rank, {}, {.stop_after = "fuse_updates"});
      const auto update = std::find_if(program.steps.begin(), program.steps.end(),
                                       [](const Step& step) { return step.node.op == "adamw"; });
      EXPECT_EQ(update->out.size(), 9u);  // w1, b1, w2 and their moments
      if (decay != 0) update->node.attrs.set("weight_decays", std::vector<double>{0, 0, decay});
      place_memory(program, StepNeeds(reference));
    }
    return replay(acts, reference, options_for(graph));
  };
  const Replay right = found(0);
  EXPECT_FALSE(right.mismatch) << describe(right);
  const Replay wrong = found(0.5);
  ASSERT_TRUE(wrong.mismatch);
  EXPECT_EQ(wrong.mismatch->where.substr(0, 6), "adamw ") << describe(wrong);
  EXPECT_NE(wrong.mismatch->value.find("w2"), std::string::npos) << describe(wrong);
}

/// One step for two nodes that others stand between: the ranks wait until both are there, and what
/// the reference no longer has by then (neg takes the place of its operand) is compared too.
TEST(Replay, AStepForSeveralNodesIsComparedWhenTheLastIsThere) {
  using Ints = std::vector<int64_t>;
  Graph g;
  const ValueId x = g.add_input("x", {DType::f64, {4, 2}}, Role::batch);
  const auto rows = [&](int64_t begin, const std::string& name) {
    return g.add("slice", {x},
                 {{"starts", Ints{begin, 0}}, {"ends", Ints{begin + 2, 2}}, {"steps", Ints{1, 1}}},
                 name);
  };
  const ValueId low = g.add("neg", {rows(0, "low")}, {}, "neg");
  g.outputs = {g.add("add", {low, rows(2, "high")}, {}, "sum")};
  const Plan plan = test::replicated_plan(g, Mesh::parse("2"));
  for (const bool swapped : {false, true}) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(g, plan, plan));
    ASSERT_EQ(acts[0].whole.steps.size(), 4u);
    for (Program& program : acts[0].programs) {
      Step& split = program.steps[0];
      split.node.op = "split";
      split.node.attrs = {{"axis", int64_t{0}}, {"sizes", Ints{2, 2}}};
      split.out.push_back(program.steps[2].out[0]);
      if (swapped) std::swap(split.out[0], split.out[1]);
      split.node.outputs = split.out;
      program.steps.erase(program.steps.begin() + 2);
      place_memory(program, StepNeeds(lists()));
    }
    const Replay result = replay(acts, lists(), options_for(g));
    ASSERT_EQ(result.mismatch.has_value(), swapped) << describe(result);
    if (swapped) {
      EXPECT_EQ(result.mismatch->where, "split 'low'");
    } else {
      EXPECT_EQ(result.values, 4);
    }
  }
}

/// The ranks reshard a value when the reference has written another in its place (neg takes that of
/// its operand): the collective is compared with what was there.
TEST(Replay, WhatIsReshardedLateIsCompared) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f64, {4, 2}}, Role::batch);
  const ValueId y = g.add_input("y", {DType::f64, {4, 2}}, Role::batch);
  const ValueId low = g.add("neg", {g.add("exp", {x}, {}, "exp")}, {}, "neg");
  g.outputs = {g.add("add", {low, g.add("exp", {y}, {}, "other")}, {}, "sum")};
  const Mesh mesh = Mesh::parse("2");
  Plan plan = test::replicated_plan(g, mesh);
  const Sharding cut = parse_sharding("[{" + mesh.axes()[0].name + "}, -]", mesh);
  plan.nodes.at("exp").in[0] = cut;
  leave(plan, g, "exp", cut);
  for (const bool wrong : {false, true}) {
    std::vector<ReplayAct> acts;
    acts.push_back(act(g, plan, plan));
    for (Program& program : acts[0].programs) {
      std::vector<Step>& steps = program.steps;  // x cut, exp, its result whole, neg, other, sum
      ASSERT_EQ(steps.size(), 6u);
      ASSERT_EQ(steps[4].node.name, "other");
      std::rotate(steps.begin() + 2, steps.begin() + 4, steps.begin() + 5);
      if (wrong) steps[3].in = steps[0].out;  // gathers x
      place_memory(program, StepNeeds(lists()));
    }
    const Replay result = replay(acts, lists(), options_for(g));
    ASSERT_EQ(result.mismatch.has_value(), wrong) << describe(result);
    if (wrong) {
      EXPECT_EQ(result.mismatch->where.substr(0, 10), "all_gather") << describe(result);
    }
  }
}

/// Programs of another plan than the one that they are compared by are refused with a sentence.
TEST(Replay, ProgramsOfAnotherPlanAreRefused) {
  const Graph graph = test::small_model({});
  const Mesh mesh = Mesh::parse("2");
  const Plan plan = test::replicated_plan(graph, mesh);
  Plan other = plan;
  other.nodes.at("fc1").in[0] = parse_sharding("[{a}, -]", mesh);
  leave(other, graph, "fc1", parse_sharding("[{a}, -]", mesh));
  try {
    replay_step(graph, plan, &other);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("fc1' on rank 0 is f64[3, 7]"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace shardrun
