// Evaluation of a checkpoint, through the public header and by the command: the run's own
// validation, bit for bit on the same mesh.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardrun/inference.h"
#include "tests/launcher/command.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;
using test::Workspace;

class Evaluate : public testing::Test {
 protected:
  Evaluate() {
    at_.write("text.txt", test::prose(4000));
    GptModel gpt;
    gpt.layers = 2, gpt.hidden = 24, gpt.heads = 3, gpt.vocab = 256, gpt.context = 10;
    gpt.dropout = 0.2;
    write_gpt(gpt, path("gpt.onnx"));
    WideResNetModel images;
    images.family = "cifar";
    images.layers = 10, images.width = 1, images.image = 8, images.classes = 5;
    write_wide_resnet(images, path("images.onnx"));
  }
  std::string path(const std::string& name) const { return at_.path() + "/" + name; }

  struct Run {
    std::string model;
    int ranks = 1;
    std::string mesh = "auto", planner = "auto";
    ModelOptions options = {};
    TrainOptions train = {};
  };
  Run gpt_run() const {
    Run run{path("gpt.onnx")};
    run.options.batch = 6;
    run.train.data = "text:" + path("text.txt");
    run.train.steps = 3;
    run.train.eval_batches = 5;
    run.train.validation = 0.2;
    return run;
  }

  static PlanRequest request_of(const Run& run) {
    PlanRequest request;
    request.mesh = run.mesh;
    request.planner = run.planner;
    request.solve_seconds = 0.2;
    return request;
  }
  /// Trains, with a checkpoint at the end, and gives the last validation.
  EvalReport train_there(Run run, const std::string& folder) const {
    World world = World::threads(run.ranks);
    const Model model = load_model(world, run.model, run.options);
    PlanRequest request = request_of(run);
    request.checkpoints = true;
    const TrainingPlan plan = make_plan(world, model, request);
    run.train.checkpoint = path(folder);
    return train(world, model, plan, run.train).evals.back();
  }
  /// With all that the call leaves out as the checkpoint's run had it.
  EvaluationReport evaluate_there(const Run& run, const std::string& folder) const {
    TrainedRun trained = read_trained_run(path(folder));
    trained.train.data = run.train.data;
    trained.model.data = run.options.data;
    World world = World::threads(run.ranks);
    const Model model = load_model(world, run.model, trained.model);
    return evaluate(world, model, make_plan(world, model, request_of(run)), trained.train);
  }

  Workspace at_;
};

TEST_F(Evaluate, IsTheRunsOwnValidationOnTheSameMesh) {
  Run cut = gpt_run(), bf16 = gpt_run(), images{path("images.onnx")};
  cut.ranks = 3, cut.planner = "fsdp";
  bf16.options.dtype = "bf16", bf16.ranks = 2;
  images.options.batch = 4, images.options.loss = "cross-entropy";
  images.options.optimizer = "sgd";
  images.ranks = 2;
  images.train.steps = 3, images.train.seed = 5;
  for (const Run& run : {gpt_run(), cut, bf16, images}) {
    SCOPED_TRACE(run.model + " " + run.planner + " " + run.options.dtype);
    fs::remove_all(path("run"));
    const EvalReport own = train_there(run, "run");
    const EvaluationReport found = evaluate_there(run, "run");
    EXPECT_EQ(found.loss, own.val_loss);
    EXPECT_EQ(found.accuracy, own.val_accuracy);
    EXPECT_EQ(found.step, 3);
    EXPECT_EQ(found.checkpoint, path("run/step-00000003"));
    EXPECT_EQ(found.perplexity.has_value(), run.model == path("gpt.onnx"));
    EXPECT_EQ(found.perplexity.value_or(std::exp(found.loss)), std::exp(found.loss));
    EXPECT_EQ(found.allocated_bytes, found.predicted_bytes);
  }
}

TEST_F(Evaluate, OnAnyOtherMeshToRounding) {
  Run run = gpt_run();
  const EvalReport own = train_there(run, "run");
  for (const auto& [ranks, mesh] :
       std::vector<std::pair<int, std::string>>{{2, "data=2"}, {3, "3"}, {4, "2x2"}}) {
    run.ranks = ranks, run.mesh = mesh;
    EXPECT_NEAR(evaluate_there(run, "run").loss, own.val_loss, 1e-5 * own.val_loss) << mesh;
  }
}

TEST_F(Evaluate, TheCommandSaysWhatTheRunSaid) {
  const std::string call = "gpt.onnx --data text:text.txt ";
  const std::string how = "--batch 6 --steps 3 --eval-batches 4 --validation 0.3 --dtype bf16 ";
  const test::TrainingRun run =
      test::train(at_, test::mpi(2), call + how + "--checkpoint run --plan-seconds 0.2");
  ASSERT_EQ(run.evals.size(), 1u) << describe(run.outcome);
  const test::Outcome done = at_.shardrun(
      test::mpi(2), "evaluate " + call + "--resume run --plan-seconds 0.2 --report e.json");
  ASSERT_EQ(done.status, 0) << describe(done);
  const auto report = nlohmann::json::parse(at_.read("e.json"));
  EXPECT_EQ(report["val_loss"].get<double>(), run.evals.back().second);
  EXPECT_EQ(report["batches"], 4);
  EXPECT_EQ(report["step"], 3);
  EXPECT_EQ(report["val_perplexity"].get<double>(), std::exp(run.evals.back().second));
  EXPECT_NE(done.out.find("run/step-00000003: validation of 4 batches: loss "), std::string::npos)
      << describe(done);
  EXPECT_NE(done.out.find("perplexity"), std::string::npos) << describe(done);
  // Another type, and another fraction of the text, where the call says so.
  const test::Outcome other = at_.shardrun(
      "evaluate " + call + "--resume run --dtype f32 --validation 0.1 --eval-batches 2");
  EXPECT_NE(other.out.find("validation of 2 batches"), std::string::npos) << describe(other);
}

TEST_F(Evaluate, WhatIsWrongIsSaid) {
  const std::string call = "gpt.onnx --data text:text.txt ";
  ASSERT_EQ(at_.shardrun("train " + call + "--batch 6 --steps 1 --checkpoint run").status, 0);
  struct Case {
    std::string arguments, sentence;
  };
  at_.write("short.txt", "too short");
  GptModel other;
  other.layers = 1, other.hidden = 24, other.heads = 3, other.vocab = 256, other.context = 10;
  write_gpt(other, path("other.onnx"));
  const std::vector<Case> cases = {
      {call + "--resume none", "--resume none: no such folder"},
      {call + "--resume .", "--resume .: holds no checkpoint"},
      {"other.onnx --data text:text.txt --resume run", "it is of another model"},
      {call + "--resume run --weights gpt.onnx", "--resume run and --weights gpt.onnx: both have"},
      {call + "--resume run --validation 0", "--data text:text.txt: no part is for validation"},
      {"gpt.onnx --data text:short.txt --resume run", "short.txt"},
      {"gpt.onnx --data npz:none.npz --resume run", "none.npz"},
      {call + "--resume run --optimizer sgd", "was trained by --optimizer adamw"},
      {call + "--resume run --lr 1", "'shardrun evaluate' does not take '--lr 1'"},
      {call + "--resume run --report none/e.json", "--report: none/e.json: cannot be written"}};
  for (const Case& c : cases) {
    const test::Outcome done = at_.shardrun("evaluate " + c.arguments);
    EXPECT_EQ(done.status, 2) << describe(done);
    EXPECT_EQ(messages(done), 1) << describe(done);
    EXPECT_NE(message(done).find(c.sentence), std::string::npos) << describe(done);
  }
  // A byte that has changed.
  const std::string file = "run/step-00000001/shard-00001-model-00001-of-00001.safetensors";
  std::string bytes = at_.read(file);
  bytes[bytes.size() - 40] = static_cast<char>(bytes[bytes.size() - 40] ^ 1);
  at_.write(file, bytes);
  const test::Outcome damaged = at_.shardrun("evaluate " + call + "--resume run");
  EXPECT_EQ(damaged.status, 2) << describe(damaged);
  EXPECT_NE(message(damaged).find("the file is damaged"), std::string::npos) << describe(damaged);
}

/// Without a checkpoint: the weights of the file.
TEST_F(Evaluate, AModelAsItStands) {
  const test::Outcome done =
      at_.shardrun("evaluate gpt.onnx --data text:text.txt --batch 4 --eval-batches 3");
  ASSERT_EQ(done.status, 0) << describe(done);
  EXPECT_NE(done.out.find("gpt.onnx: validation of 3 batches: loss 5.5"), std::string::npos)
      << describe(done);
}

}  // namespace
}  // namespace shardrun
