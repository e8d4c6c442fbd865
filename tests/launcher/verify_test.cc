// Verification and automatic meshes through the public header: a GPT, planned for real.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

/// Two layers; 3 divides neither heads, hidden, vocabulary nor context.
std::string gpt(double dropout = 0) {
  const std::string path = (std::filesystem::temp_directory_path() / ("verify_test_" + std::to_string(::getpid()) + ".onnx")).string();
  GptModel model;
  model.layers = 2;
  model.hidden = 128;
  model.heads = 4;
  model.vocab = 257;
  model.context = 32;
  model.dropout = dropout;
  write_gpt(model, path);
  return path;
}

struct Case {
  const char* mesh;
  int ranks;
  const char* planner = "auto";
  const char* dtype = "f32";
  int accumulate = 1;
  double dropout = 0, clip = 0;
};

TEST(Verify, PlansOfAGptAgreeWithOneRank) {
  for (const Case& c : {Case{"2", 2}, Case{"3", 3}, Case{"2x2", 4}, Case{"2x3", 6, "ilp"}, Case{"2x2x2", 8},
                        Case{"2", 2, "dp"}, Case{"3", 3, "dp", "f32", 2, 0.1, 0.5}, Case{"2x2", 4, "auto", "bf16"},
                        Case{"4", 4, "auto", "f32", 3, 0.1, 1.0}}) {
    World world = World::threads(c.ranks);
    ModelOptions options;
    options.batch = 7;
    options.dtype = c.dtype;
    options.accumulate = c.accumulate;
    options.clip = c.clip;
    options.seed = 5;
    const std::string path = gpt(c.dropout);
    const Model model = load_model(world, path, options);
    PlanRequest request;
    request.mesh = c.mesh;
    request.planner = c.planner;
    request.with_evaluation = false;
    const TrainingPlan plan = make_plan(world, model, request);
    const VerifyReport report = verify(world, model, plan, {});
    std::filesystem::remove(path);
    EXPECT_TRUE(report.verified) << c.mesh << " " << c.planner << " " << c.dtype << ": " << report.mismatch;
    EXPECT_GT(report.values, 200) << c.mesh;
    EXPECT_GE(report.comparisons, report.values) << c.mesh;
    EXPECT_GT(report.largest, 0) << c.mesh;
    EXPECT_LT(report.largest, std::string(c.dtype) == "bf16" ? 0.0625 : 2e-5) << c.mesh;
  }
}

}  // namespace
}  // namespace shardrun
