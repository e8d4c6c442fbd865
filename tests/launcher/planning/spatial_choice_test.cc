// The planner alone cuts a large image in space and a usual batch along the batch, and says what
// the other way would cost.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardrun/shardrun.h"

namespace shardrun {
namespace {

/// Of all images of channels that nodes make, the fraction that is cut along `dim`.
double cut_along(const TrainingPlan& plan, size_t dim) {
  int cut = 0, all = 0;
  const auto values = nlohmann::json::parse(plan.json())["train"]["values"];
  for (const auto& [name, value] : values.items()) {
    std::vector<std::string> dims;  // "[-, -, {a}, -]"
    std::string text = value;
    text = text.substr(1, text.find(']') - 1);
    for (size_t at = 0; at != std::string::npos;) {
      const size_t next = text.find(", ", at);
      dims.push_back(text.substr(at, next - at));
      at = next == std::string::npos ? next : next + 2;
    }
    if (dims.size() != 4 || name.find("weight") != std::string::npos || name[0] != '%') continue;
    ++all;
    cut += dims[dim] != "-" ? 1 : 0;
  }
  return all == 0 ? 0 : static_cast<double>(cut) / all;
}

class SpatialChoice : public testing::Test {
 protected:
  static Model load(World& world, int64_t image, int64_t batch) {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("spatial_choice_" + std::to_string(::getpid()) + ".onnx"))
                                 .string();
    WideResNetModel network;
    network.preset = "wrn-16-4";
    network.image = image;
    network.weights = false;
    write_wide_resnet(network, path);
    ModelOptions options;
    options.batch = batch;
    options.loss = "cross-entropy";
    Model model = load_model(world, path, options);
    std::filesystem::remove(path);
    return model;
  }
  static PlanRequest on_four(int64_t memory_bytes) {
    PlanRequest request;
    request.ranks = 4;
    request.mesh = "4";
    request.arena_bytes = memory_bytes;
    request.with_evaluation = false;
    return request;
  }
};

TEST_F(SpatialChoice, OneLargeImageIsCutInSpace) {
  World world = World::threads(1);
  const Model model = load(world, 256, 1);
  const PlanRequest request = on_four(int64_t{80} << 20);
  const TrainingPlan plan = make_plan(world, model, request);
  EXPECT_GT(cut_along(plan, 1) + cut_along(plan, 2), 0.9);  // channels come last
  EXPECT_EQ(cut_along(plan, 0), 0);
  for (int64_t bytes : plan.predicted_bytes()) EXPECT_LE(bytes, int64_t{80} << 20);
  // What its first convolution's result would cost by channels is printed, and of the batch by
  // rows.
  const std::string why = explain_why(model, plan, "%Conv", request);
  EXPECT_NE(why.find(" ms  [-, -, -, {a}]"), std::string::npos) << why;
  EXPECT_NE(why.find("next best: "), std::string::npos) << why;
}

TEST_F(SpatialChoice, ABatchIsCutAlongTheBatch) {
  World world = World::threads(1);
  const Model model = load(world, 32, 64);
  const PlanRequest request = on_four(int64_t{4} << 30);
  const TrainingPlan plan = make_plan(world, model, request);
  EXPECT_GT(cut_along(plan, 0), 0.9);
  const std::string why = explain_why(model, plan, "%Conv", request);
  EXPECT_NE(why.find(" ms  [-, {a}, -, -]"), std::string::npos) << why;
  EXPECT_NE(why.find("next best: "), std::string::npos) << why;
}

}  // namespace
}  // namespace shardrun
