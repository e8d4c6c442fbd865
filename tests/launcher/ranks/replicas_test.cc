// --check-replicas: runs go on where all is well, with the same numbers, and end where a rank's are
// not the others'.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>

#include "shardrun/models.h"
#include "shardrun/op.h"
#include "shardrun/shardrun.h"
#include "tests/launcher/command.h"
#include "tests/support/onnx_bytes.h"

namespace shardrun {
namespace {

struct Job {
  int ranks = 1;
  std::string mesh = "auto", planner = "auto", dtype = "f32";
  int accumulate = 1;
  std::optional<int64_t> batch = 7;
  std::string loss = {};
};

class Replicas : public testing::Test {
 protected:
  ~Replicas() override { std::filesystem::remove(path_); }

  /// With and without the check, bit for bit.
  void expect_same_losses(const Job& job) const {
    SCOPED_TRACE(job.mesh + " " + job.planner + " " + job.dtype);
    World world = World::threads(job.ranks);
    ModelOptions model_options;
    model_options.batch = job.batch;
    model_options.dtype = job.dtype;
    model_options.accumulate = job.accumulate;
    model_options.loss = job.loss;
    const Model model = load_model(world, path_, model_options);
    PlanRequest request;
    request.mesh = job.mesh;
    request.planner = job.planner;
    const TrainingPlan plan = make_plan(world, model, request);
    TrainOptions options;
    options.steps = 4;
    const std::vector<double> want = train(world, model, plan, options).losses;
    options.check_replicas = 2;
    EXPECT_EQ(train(world, model, plan, options).losses, want);
  }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("replicas_test_" + std::to_string(::getpid()) + ".onnx"))
                                .string();
};

TEST_F(Replicas, OfAGptAreTheSame) {
  GptModel gpt;
  gpt.layers = 1, gpt.hidden = 32, gpt.heads = 4, gpt.vocab = 61, gpt.context = 8;
  gpt.dropout = 0.1;
  write_gpt(gpt, path_);
  expect_same_losses({.ranks = 1, .mesh = "1"});
  expect_same_losses({.ranks = 3, .mesh = "3", .planner = "dp", .accumulate = 2});
  expect_same_losses({.ranks = 4, .mesh = "2x2", .dtype = "bf16"});
  expect_same_losses({.ranks = 4, .mesh = "data=2,model=2", .planner = "dp+megatron"});
}

TEST_F(Replicas, OfGraphsAndImagesAreTheSame) {
  GatModel gat;
  gat.nodes = 50, gat.edges = 170, gat.features = 9, gat.classes = 5;
  write_gat(gat, path_);
  for (const char* mesh : {"2", "2x2"})
    expect_same_losses(
        {.ranks = mesh_ranks(mesh), .mesh = mesh, .batch = {}, .loss = "cross-entropy"});
  WideResNetModel images;
  images.family = "cifar", images.layers = 10, images.width = 1, images.image = 8;
  images.classes = 5;
  write_wide_resnet(images, path_);
  expect_same_losses({.ranks = 2, .mesh = "2", .planner = "dp", .loss = "cross-entropy"});
}

std::atomic<bool> faulty{false};

/// Minus the operand; once, when that is asked for, with a wrong number.
UserOp opposite() {
  UserOp op;
  op.name = "acme::Opposite";
  op.shape = [](const Attributes&, const auto& in) { return std::vector{in.at(0)}; };
  op.kernel = [](const auto& call) {
    const auto x = call.in(0);
    const auto y = call.out(0);
    for (size_t i = 0; i < x.size(); ++i) y[i] = -x[i];
    if (!y.empty() && faulty.exchange(false)) y[0] += 1;
  };
  op.gradient = [](const auto& call) {
    const auto dy = call.in(2);
    const auto dx = call.out(0);
    for (size_t i = 0; i < dy.size(); ++i) dx[i] = -dy[i];
  };
  return op;
}

/// Under data parallelism what comes of a weight alone is the same on all ranks.
TEST_F(Replicas, OneRankThatComputesWronglyEndsTheRun) {
  register_op(opposite());
  test::OnnxBytes m;
  m.input("x", {0, 12});
  m.weight("w", {12, 4}, 0.4);
  m.node("acme::Opposite", {"w"}, {"turned"});
  m.node("MatMul", {"x", "turned"}, {"y"});
  m.output("y", {0, 4});
  m.write(path_);
  World world = World::threads(2);
  ModelOptions model_options;
  model_options.batch = 8;
  model_options.loss = "mse";
  const Model model = load_model(world, path_, model_options);
  PlanRequest request;
  request.planner = "dp";
  const TrainingPlan plan = make_plan(world, model, request);
  TrainOptions options;
  options.steps = 9;
  options.check_replicas = 3;
  int64_t last = 0;
  options.on_step = [&](const StepReport& step) {
    last = step.step;
    if (step.step == 5) faulty = true;
  };
  try {
    train(world, model, plan, options);
    ADD_FAILURE() << "went on to its end";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::run);
    EXPECT_TRUE(e.everywhere());
    const std::string said = e.what();
    EXPECT_EQ(said.rfind("step 6: ", 0), 0u) << said;
    EXPECT_NE(said.find("acme::Opposite 'turned.node'"), std::string::npos) << said;
    EXPECT_NE(said.find("rank 0"), std::string::npos) << said;
    EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
    EXPECT_NE(said.find("checkpoint of step 3 or before"), std::string::npos) << said;
  }
  EXPECT_EQ(last, 5);
}

TEST(ReplicasOfProcesses, TheCommandTrainsAsWithoutTheCheck) {
  const test::Workspace at;
  at.write("text.txt", test::prose(20000));
  const test::Outcome made =
      at.shardrun("model gpt --layers 1 --hidden 16 --heads 2 --vocab 256 --context 8 -o gpt.onnx");
  ASSERT_EQ(made.status, 0) << test::describe(made);
  const std::string job = "gpt.onnx --data text:text.txt --validation 0 --batch 4 --steps 6 ";
  const test::TrainingRun want = test::train(at, test::mpi(2), job),
                          got = test::train(at, test::mpi(2), job + "--check-replicas 2");
  EXPECT_EQ(got.losses.size(), 6u);
  EXPECT_EQ(got.loss_texts, want.loss_texts);
  const test::Outcome wrong = at.shardrun(job + "--check-replicas -1");
  EXPECT_EQ(wrong.status, 2) << test::describe(wrong);
  EXPECT_NE(test::message(wrong).find("check-replicas is -1"), std::string::npos)
      << test::describe(wrong);
}

}  // namespace
}  // namespace shardrun
