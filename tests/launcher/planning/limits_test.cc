// Plans within limits of memory: what fits, what a refusal names, and that more is no slower.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

constexpr double kOutOfMemory = std::numeric_limits<double>::infinity();

/// From a file that is removed again.
Model load_gpt(World& world, const GptModel& model, const ModelOptions& options) {
  const std::string name = "limits_" + std::to_string(::getpid()) + ".onnx",
                    path = (std::filesystem::temp_directory_path() / name).string();
  write_gpt(model, path);
  Model out = load_model(world, path, options);
  std::filesystem::remove(path);
  return out;
}

/// The bytes that the refusal of one byte names, and whose they are.
struct Refusal {
  int64_t bytes = 0;
  bool of_validation = false;
};
Refusal refusal(World& world, const Model& model, PlanRequest request) {
  request.arena_bytes = 1;
  try {
    (void)make_plan(world, model, request);
  } catch (const Failure& error) {
    const std::string text = error.what(), before = "is sure to be found needs ";
    const size_t at = text.find(before);
    if (at != std::string::npos)
      return {std::stoll(text.substr(at + before.size())),
              text.find("validation, whose weights lie as in training") == 0};
    ADD_FAILURE() << text;
  }
  return {};
}

/// What fits a known parallelism fits ours: here fsdp needs less than any plan that the free search
/// finds.
TEST(PlannersWithin, OursFitsWhereBaselinesDo) {
  World world = World::threads(1);
  GptModel gpt;
  gpt.layers = 2;
  gpt.hidden = 64;
  gpt.heads = 4;
  gpt.context = 64;
  gpt.vocab = 5003;
  gpt.weights = false;
  ModelOptions options;
  options.batch = 4;
  const Model model = load_gpt(world, gpt, options);
  for (const char* mesh : {"4", "2x2"}) {
    PlanRequest request;
    request.ranks = 4;
    request.mesh = mesh;
    request.with_evaluation = false;
    request.planner = "fsdp";
    const TrainingPlan known = make_plan(world, model, request);
    request.planner = "auto";
    request.arena_bytes = known.predicted_bytes()[0];
    const TrainingPlan own = make_plan(world, model, request);
    EXPECT_LE(own.predicted_bytes()[0], known.predicted_bytes()[0]) << mesh;
    EXPECT_LE(own.predicted_seconds(), known.predicted_seconds()) << mesh;
  }
}

/// In a small step what a look for so many bytes finds differs by more than what it costs. So each
/// takes longer, and the plan that needs least is known at every limit.
TEST(PlannersWithin, MoreMemoryIsNoSlower) {
  World world = World::threads(1);
  const Model model = load_model(world, SHARDRUN_GOLDEN "/operators_sought.dynamo.onnx", {});
  PlanRequest request;
  request.ranks = 4;
  request.mesh = "2x2";
  request.with_evaluation = false;
  const TrainingPlan free = make_plan(world, model, request);
  const int64_t least = refusal(world, model, request).bytes;
  ASSERT_GT(least, 1);
  constexpr int64_t kLimits = 8;
  double last = kOutOfMemory;
  for (int64_t k = 0; k <= kLimits; ++k) {
    request.arena_bytes = least + (free.predicted_bytes()[0] - least) * k / kLimits;
    const double seconds = make_plan(world, model, request).predicted_seconds();
    EXPECT_LE(seconds, 1.03 * last) << request.arena_bytes;
    last = std::min(last, seconds);
  }
}

/// In bf16 a forward pass holds copies of a large embedding that training spreads over its steps.
/// What a refusal names does for that, too.
TEST(PlannersWithin, ARefusalCountsValidation) {
  World world = World::threads(1);
  GptModel gpt;
  gpt.layers = 2;
  gpt.hidden = 32;
  gpt.heads = 4;
  gpt.context = 16;
  gpt.vocab = 20000;
  gpt.weights = false;
  ModelOptions options;
  options.batch = 32;
  options.dtype = "bf16";
  const Model model = load_gpt(world, gpt, options);
  PlanRequest request;
  request.ranks = 8;
  request.mesh = "a=2,b=4";
  request.cluster = "v100-32";
  const Refusal both = refusal(world, model, request);
  EXPECT_TRUE(both.of_validation);
  PlanRequest training = request;
  training.with_evaluation = false;
  const Refusal without = refusal(world, model, training);
  EXPECT_FALSE(without.of_validation);
  EXPECT_GT(both.bytes, without.bytes);
  request.arena_bytes = both.bytes;
  for (const std::vector<std::string>& hints : {{}, std::vector<std::string>{"?tokens=[a,-]"}}) {
    request.shard = hints;
    const TrainingPlan plan = make_plan(world, model, request);
    EXPECT_LE(plan.predicted_bytes()[0], both.bytes);
  }
}

}  // namespace
}  // namespace shardrun
