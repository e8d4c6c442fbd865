// Training in less memory than the step takes: through the public header, on one rank and on two.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/cpu/processor.h"
#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("recompute_test_" + std::to_string(::getpid()) + name))
      .string();
}

struct Case {
  const char* name;
  std::function<void(const std::string&)> write;
  int batch;
  const char* loss;
  int most;  // percent of its memory: computing again, it needs less, whatever kernels' workspaces
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"gpt",
       [](const std::string& path) {
         GptModel model;
         model.layers = 3;
         model.hidden = 64;
         model.heads = 4;
         model.vocab = 128;
         model.context = 64;
         model.dropout = 0.1;
         write_gpt(model, path);
       },
       8, "", 80},
      {"wide-resnet",
       [](const std::string& path) {
         WideResNetModel model;
         model.family = "cifar";
         model.layers = 10;
         model.width = 2;
         model.image = 16;
         model.classes = 5;
         model.dropout = 0.2;
         write_wide_resnet(model, path);
       },
       8, "cross-entropy", 98},
      {"gat",
       [](const std::string& path) {
         GatModel model;
         model.dense = true;
         model.layers = 5;
         model.nodes = 128;
         model.features = 64;
         model.heads = 4;
         model.dropout = model.attention_dropout = 0.3;
         write_gat(model, path);
       },
       0, "cross-entropy", 95},
  };
  return all;
}

class Recompute : public testing::TestWithParam<size_t> {
 protected:
  Recompute() : which_(cases()[GetParam()]), path_(temporary(std::string(which_.name) + ".onnx")) {
    which_.write(path_);
  }
  ~Recompute() override {
    std::filesystem::remove(path_);
    std::filesystem::remove(plan_file_);
  }

  Model load(World& world) const {
    ModelOptions options;
    if (which_.batch > 0) options.batch = which_.batch;
    options.loss = which_.loss;
    options.seed = 4;
    return load_model(world, path_, options);
  }
  /// Of the training step alone: validation has nothing that could be computed again.
  static PlanRequest asked() {
    PlanRequest request;
    request.with_evaluation = false;
    return request;
  }
  /// What the refusal of so few bytes says that it would take.
  static int64_t least(World& world, const Model& model, PlanRequest request, int64_t limit) {
    request.arena_bytes = limit;
    try {
      make_plan(world, model, request);
      ADD_FAILURE() << "fits into " << limit;
    } catch (const Failure& e) {
      const std::string text = e.what(), before = "a plan that is sure to be found needs ";
      const size_t at = text.find(before);
      if (at != std::string::npos) return std::stoll(text.substr(at + before.size()));
      ADD_FAILURE() << text;
    }
    return 0;
  }
  static int64_t bytes(const TrainingPlan& plan) {
    const std::vector<int64_t> all = plan.predicted_bytes();
    return *std::max_element(all.begin(), all.end());
  }
  /// In training.
  static bool packs(const TrainingPlan& plan) {
    return nlohmann::json::parse(plan.json())["train"].value("keep_packed", false);
  }
  /// With too little memory for weights in kernels' layouts, if it would keep some.
  static TrainingPlan without_layouts(World& world, const Model& model, PlanRequest request) {
    TrainingPlan plan = make_plan(world, model, request);
    if (packs(plan)) {
      request.arena_bytes = bytes(plan) - 1;
      plan = make_plan(world, model, request);
    }
    return plan;
  }
  static TrainReport trained(World& world, const Model& model, const TrainingPlan& plan) {
    TrainOptions options;
    options.steps = 3;
    return train(world, model, plan, options);
  }

  const Case& which_;
  std::string path_, plan_file_ = temporary(".json");
};

TEST_P(Recompute, OneRankTrainsInLessToTheSameLosses) {
  World world = World::threads(1);
  const Model model = load(world);
  const TrainingPlan free = without_layouts(world, model, asked());
  EXPECT_EQ(free.summary().find("computed again"), std::string::npos);
  PlanRequest request = asked();
  const int64_t all = free.predicted_bytes()[0], smallest = least(world, model, asked(), all / 50);
  EXPECT_LT(smallest, all * which_.most / 100);
  request.arena_bytes = (smallest + all) / 2;
  const TrainingPlan plan = make_plan(world, model, request);
  EXPECT_LE(plan.predicted_bytes()[0], request.arena_bytes);
  EXPECT_GT(plan.predicted_seconds(), free.predicted_seconds());
  EXPECT_NE(plan.summary().find("computed again in the backward pass: "), std::string::npos)
      << plan.summary();
  EXPECT_NE(explain_plan(model, plan).find("computed again"), std::string::npos);

  const TrainReport wanted = trained(world, model, free), got = trained(world, model, plan);
  EXPECT_EQ(got.losses, wanted.losses);
  EXPECT_EQ(got.allocated_bytes, plan.predicted_bytes());

  // A file reproduces it, and says what it computes again.
  std::ofstream(plan_file_) << plan.json();
  PlanRequest from_file = asked();
  from_file.plan_file = plan_file_;
  const TrainingPlan read = make_plan(world, model, from_file);
  EXPECT_EQ(read.json(), plan.json());
  EXPECT_EQ(read.predicted_bytes(), plan.predicted_bytes());
  EXPECT_NE(read.summary().find("computed again"), std::string::npos);
  EXPECT_EQ(trained(world, model, read).losses, wanted.losses);
  const VerifyReport report = verify(world, model, read, {});
  EXPECT_TRUE(report.verified) << report.mismatch;
}

TEST_P(Recompute, NeverIsOutOfMemoryAndTheLeastCountsIt) {
  World world = World::threads(1);
  const Model model = load(world);
  const int64_t all = bytes(without_layouts(world, model, asked()));
  PlanRequest never = asked();
  never.recompute = "never";
  EXPECT_EQ(least(world, model, never, all - 1), all);
  const int64_t smallest = least(world, model, asked(), all / 50);
  PlanRequest request = asked();
  request.arena_bytes = smallest;
  EXPECT_LE(make_plan(world, model, request).predicted_bytes()[0], smallest);
}

/// The bf16 copies of weights: kept where there is memory, from a plan file too, else cast anew.
class KeptCasts : public Recompute {
 protected:
  Model load_bf16(World& world) const {
    ModelOptions options;
    options.batch = which_.batch;
    options.seed = 4;
    options.dtype = "bf16";
    options.accumulate = 2;
    return load_model(world, path_, options);
  }
  static bool keeps(const TrainingPlan& plan) {
    return plan.json().find("\"keep_casts\": true") != std::string::npos;
  }
};

TEST_P(KeptCasts, WhereMemoryAllows) {
  for (const char* planner : {"auto", "fsdp"}) {
    World world = World::threads(planner == std::string("auto") ? 1 : 2);
    const Model model = load_bf16(world);
    PlanRequest request;
    request.planner = planner;
    const TrainingPlan plenty = without_layouts(world, model, request);
    EXPECT_TRUE(keeps(plenty));
    request.arena_bytes = bytes(plenty) - 1;
    const TrainingPlan tight = make_plan(world, model, request);
    EXPECT_FALSE(keeps(tight));
    EXPECT_LT(bytes(tight), bytes(plenty));
    const TrainReport all = trained(world, model, plenty), less = trained(world, model, tight);
    EXPECT_EQ(all.losses, less.losses);
    EXPECT_EQ(all.allocated_bytes, plenty.predicted_bytes());
    EXPECT_EQ(less.allocated_bytes, tight.predicted_bytes());

    std::ofstream(plan_file_) << plenty.json();
    PlanRequest from_file;
    from_file.plan_file = plan_file_;
    EXPECT_EQ(make_plan(world, model, from_file).json(), plenty.json());
    from_file.arena_bytes = request.arena_bytes;
    EXPECT_EQ(make_plan(world, model, from_file).predicted_bytes(), tight.predicted_bytes());
  }
}

class KeptLayouts : public KeptCasts {
 protected:
  void SetUp() override {
    if (!cpu::multiplies_bf16())
      GTEST_SKIP() << "bf16 is computed in f32: its weights stay as they are";
  }
  Model load_with_loss(World& world) const {
    ModelOptions options;
    options.batch = which_.batch;
    options.loss = which_.loss;
    options.dtype = "bf16";
    return load_model(world, path_, options);
  }
};

/// Weights in kernels' layouts are given up before their bf16 copies, and change no loss, of
/// validation as well.
TEST_P(KeptLayouts, WhereMemoryAllows) {
  World world = World::threads(2);
  const Model model = load_with_loss(world);
  PlanRequest request;
  request.planner = "dp";
  const TrainingPlan plenty = make_plan(world, model, request);
  EXPECT_TRUE(packs(plenty));
  request.arena_bytes = bytes(plenty) - 1;
  const TrainingPlan tight = make_plan(world, model, request);
  EXPECT_FALSE(packs(tight));
  EXPECT_TRUE(keeps(tight));
  const auto train_with = [&](const TrainingPlan& plan) {
    TrainOptions training;
    training.steps = 3;
    training.eval_every = 1;
    const TrainReport report = train(world, model, plan, training);
    EXPECT_EQ(report.allocated_bytes, plan.predicted_bytes());
    std::vector<double> losses = report.losses;
    for (const EvalReport& e : report.evals) losses.push_back(e.val_loss);
    EXPECT_EQ(losses.size(), 6u);
    return losses;
  };
  EXPECT_EQ(train_with(plenty), train_with(tight));
}

/// Kernels of GPUs read weights as they lie, so a plan for GPUs, wherever it is made, has no
/// layouts of those that this machine's kernels read.
TEST_P(KeptLayouts, AreOfProcessorsAlone) {
  World world = World::threads(2);
  const Model model = load_with_loss(world);
  PlanRequest request;
  request.planner = "dp";
  for (const char* cluster : {"", "h100"}) {
    request.cluster = cluster;
    const TrainingPlan plan = make_plan(world, model, request);
    EXPECT_TRUE(keeps(plan)) << cluster;
    EXPECT_EQ(packs(plan), request.cluster.empty()) << cluster;
  }
}

class RecomputeOnTwoRanks : public Recompute {};

TEST_P(RecomputeOnTwoRanks, Verifies) {
  World world = World::threads(2);
  const Model model = load(world);
  PlanRequest request = asked();
  request.planner = "dp";
  const int64_t all = bytes(without_layouts(world, model, request));
  request.arena_bytes = (least(world, model, request, all / 50) + all) / 2;
  const TrainingPlan plan = make_plan(world, model, request);
  const std::vector<int64_t> bytes = plan.predicted_bytes();
  EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), request.arena_bytes);
  const VerifyReport report = verify(world, model, plan, {});
  EXPECT_TRUE(report.verified) << report.mismatch;
  EXPECT_EQ(trained(world, model, plan).allocated_bytes, plan.predicted_bytes());
}

class RecomputeOnFourRanks : public Recompute {};

/// Three quarters of what the smallest plan that keeps all needs: of values cut as there, little is
/// computed again. Chosen of the fastest plan's values it takes 1.24 times as long.
TEST_P(RecomputeOnFourRanks, CutsAndComputesAgain) {
  World world = World::threads(4);
  const Model model = load(world);
  PlanRequest request = asked();
  request.planner = "ilp";
  request.mesh = "ranks=4";
  request.recompute = "never";
  request.arena_bytes = least(world, model, request, 10'000);
  const TrainingPlan keeping = make_plan(world, model, request);
  request.recompute = "auto";
  request.arena_bytes = bytes(keeping) * 3 / 4;
  const TrainingPlan plan = make_plan(world, model, request);
  EXPECT_LE(bytes(plan), request.arena_bytes);
  EXPECT_LT(plan.predicted_seconds(), 1.15 * keeping.predicted_seconds());
}

INSTANTIATE_TEST_SUITE_P(Gpt, KeptCasts, testing::Values(size_t{0}));
INSTANTIATE_TEST_SUITE_P(WideResNet, KeptLayouts, testing::Values(size_t{1}));
INSTANTIATE_TEST_SUITE_P(Gpt, RecomputeOnTwoRanks, testing::Values(size_t{0}));
INSTANTIATE_TEST_SUITE_P(Gpt, RecomputeOnFourRanks, testing::Values(size_t{0}));
INSTANTIATE_TEST_SUITE_P(Models, Recompute, testing::Range(size_t{0}, cases().size()),
                         [](const auto& info) {
                           std::string name = cases()[info.param].name;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

}  // namespace
}  // namespace shardrun
