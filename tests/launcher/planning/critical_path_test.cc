// Two streams: what a step takes whose collectives overlap with kernels.
#include "explain/critical_path.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "plan/plan.h"
#include "planner/planner_choice.h"
#include "planner/schedule/schedule.h"
#include "program/memory.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

/// Steps on buffers of 64 bytes that lie one behind the other.
struct Written {
  Program program;
  explicit Written(int buffers) {
    for (int b = 0; b < buffers; ++b)
      program.buffers.push_back({str("b", b), {DType::f32, {16}}, b * 64});
  }
  void kernel(std::vector<BufferId> in, std::vector<BufferId> out, Phase phase = Phase::micro) {
    Step& step = program.steps.emplace_back();
    step.in = std::move(in), step.out = std::move(out), step.phase = phase;
  }
  void sum(BufferId buffer, Phase phase = Phase::micro) {
    kernel({buffer}, {buffer}, phase);
    program.steps.back().kind = Step::Kind::collective;
    Collective reduce;
    reduce.kind = Collective::Kind::all_reduce;
    program.steps.back().collective = std::make_shared<const Collective>(reduce);
  }
  /// Kernels take 1 s, collectives 3.
  double path() const {
    std::vector<double> seconds;
    for (const Step& step : program.steps)
      seconds.push_back(step.kind == Step::Kind::kernel ? 1 : 3);
    return critical_path(program, seconds);
  }
};

TEST(CriticalPath, CollectivesOverlapWithKernels) {
  Written w(3);
  w.kernel({}, {0});
  w.sum(0);           // 1 to 4
  w.kernel({}, {1});  // 1 to 2
  w.sum(1);           // 4 to 7
  w.kernel({0, 1}, {2});
  EXPECT_DOUBLE_EQ(w.path(), 8);
}

TEST(CriticalPath, KernelsWaitForWhatTheyRead) {
  Written w(3);
  w.kernel({}, {0});
  w.sum(0);
  w.kernel({0}, {1});  // at 4
  w.sum(1);
  w.kernel({1}, {2});
  EXPECT_DOUBLE_EQ(w.path(), 9);  // all of it
}

/// A buffer that a collective still reads is not written.
TEST(CriticalPath, MemoryIsWaitedFor) {
  Written w(2);
  w.kernel({}, {0});
  w.sum(0);
  w.kernel({}, {0});
  EXPECT_DOUBLE_EQ(w.path(), 5);
}

/// Each micro-batch ends with a wait, and the update comes behind all of them.
TEST(CriticalPath, PhasesEndWithAWait) {
  Written w(2);
  w.program.micro_batches = 4;
  w.kernel({}, {0});
  w.sum(0);
  w.kernel({}, {1}, Phase::update);
  EXPECT_DOUBLE_EQ(w.path(), 4 * 4 + 1);
}

/// On GPUs gradients are summed during the backward pass; on CPUs ranks wait for every collective.
TEST(CriticalPath, IsThePlannersTime) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("critical_path_test_" + std::to_string(::getpid()) + ".onnx"))
                               .string();
  GptModel gpt;
  gpt.layers = 2, gpt.hidden = 128, gpt.heads = 4, gpt.vocab = 257, gpt.context = 64;
  write_gpt(gpt, path);
  World world = World::threads(1);
  ModelOptions options;
  options.batch = 8;
  const Model model = load_model(world, path, options);
  for (const char* cluster : {"a100-80", "host"}) {
    PlanRequest request;
    request.ranks = 4;
    request.mesh = "4";
    request.planner = "dp";
    request.cluster = cluster;
    const Plan plan = make_plan(world, model, request).impl().train;
    const double all = plan.compute_seconds + plan.comm_seconds;
    EXPECT_NEAR(plan.seconds, all - plan.hidden_seconds, 1e-9 * all);
    EXPECT_GE(plan.seconds, std::max(plan.compute_seconds, plan.comm_seconds) * (1 - 1e-9));
    if (std::string(cluster) == "host") {
      EXPECT_EQ(plan.hidden_seconds, 0);
    } else {
      EXPECT_GT(plan.hidden_seconds, 0);
    }
  }
  std::filesystem::remove(path);
}

Model trained_in_bf16(World& world, GptModel gpt) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("critical_path_test_" + std::to_string(::getpid()) + ".onnx"))
                               .string();
  gpt.weights = false;
  write_gpt(gpt, path);
  ModelOptions options;
  options.batch = 8;
  options.dtype = "bf16";
  Model model = load_model(world, path, options);
  std::filesystem::remove(path);
  return model;
}

/// Where sums overlap with kernels, a search that counts all of them or none misses plans that hide
/// a part. With few layers dp+megatron hides more than what costs the least sum.
TEST(CriticalPath, NoKnownParallelismIsFaster) {
  World world = World::threads(1);
  const Mesh mesh = Mesh::parse("2x4");
  for (const int64_t layers : {6, 2}) {
    SCOPED_TRACE(layers);
    GptModel gpt;
    gpt.layers = layers, gpt.hidden = 768, gpt.heads = 12, gpt.context = 1024, gpt.vocab = 50257;
    const Model model = trained_in_bf16(world, gpt);
    const auto seconds = [&](const std::string& planner) {
      PlanRequest request;
      request.ranks = mesh.size();
      request.mesh = mesh.to_string();
      request.planner = planner;
      request.cluster = "h100";
      return make_plan(world, model, request).impl().train.seconds;
    };
    const double found = seconds("auto");
    for (const PlannerChoice& known : baselines_of(mesh))
      EXPECT_LE(found, seconds(to_string(known)) * (1 + 1e-9)) << to_string(known);
  }
}

/// A plan fits a limit below its bytes by holding memory of collectives less long, before it gives
/// up the copies of its weights. From a file, too.
TEST(CriticalPath, MemoryIsHeldForAsLongAsALimitAllows) {
  GptModel gpt;
  gpt.layers = 2, gpt.hidden = 768, gpt.heads = 12, gpt.context = 1024, gpt.vocab = 50257;
  World world = World::threads(1);
  const Model model = trained_in_bf16(world, gpt);
  int held_less = 0;
  for (const char* planner : {"fsdp", "zero2", "megatron", "dp+megatron", "megatron+dp"}) {
    SCOPED_TRACE(planner);
    PlanRequest request;
    request.ranks = 8, request.mesh = "2x4", request.cluster = "h100";
    request.planner = planner;
    const TrainingPlan free = make_plan(world, model, request);
    const Plan& most = free.impl().train;
    EXPECT_EQ(most.hold_fraction, kHoldFraction);
    EXPECT_TRUE(most.keep_casts);
    request.arena_bytes = most.bytes - 1;
    const Plan less = make_plan(world, model, request).impl().train;
    EXPECT_LE(less.bytes, request.arena_bytes);
    if (less.nodes != most.nodes) continue;  // that took no more bytes
    EXPECT_LT(less.hold_fraction, kHoldFraction);
    if (!less.keep_casts) continue;
    ++held_less;
    EXPECT_GE(less.seconds, most.seconds);
    const std::string file = (std::filesystem::temp_directory_path() /
                              ("critical_path_test_" + std::to_string(::getpid()) + ".json"))
                                 .string();
    std::ofstream(file) << free.json();
    PlanRequest again;
    again.plan_file = file, again.ranks = request.ranks;
    again.arena_bytes = request.arena_bytes;
    const Plan kept = make_plan(world, model, again).impl().train;
    std::filesystem::remove(file);
    EXPECT_TRUE(kept.keep_casts);
    EXPECT_EQ(kept.hold_fraction, less.hold_fraction);
    EXPECT_EQ(kept.bytes, less.bytes);
  }
  EXPECT_GT(held_less, 1);
}

/// The search's own plans of a LLaMA of four layers hide less than the one that a descent by timed
/// steps ends with.
TEST(CriticalPath, ADescentGoesOnFromTheFastestPlan) {
  GptModel llama;
  llama.preset = "llama-8b", llama.layers = 4;
  World world = World::threads(1);
  const Model model = trained_in_bf16(world, llama);
  PlanRequest request;
  request.ranks = 8, request.mesh = "8", request.cluster = "h100";
  EXPECT_EQ(make_plan(world, model, request).impl().report.solver, "descent");
}

}  // namespace
}  // namespace shardrun
