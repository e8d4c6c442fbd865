// Models whose forward() changes tensors of its own train as PyTorch trains them, on any ranks and
// with micro-batches, by the real command under the real mpirun.
#include <gtest/gtest.h>

#include <cstring>

#include "exec/data/data_files.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr double kTolerance = 2e-5;

/// Six numbers that make_state.py recorded.
std::vector<double> recorded(const std::string& model, const std::string& name) {
  const NpzArchive archive(std::string(SHARDRUN_GOLDEN) + "/" + model + ".npz");
  const StoredArray* array = archive.find(name);
  std::vector<double> out;
  for (int64_t i = 0; array != nullptr && i < array->shape.at(0); ++i) {
    float number = 0;
    std::memcpy(&number, array->data + i * 4, sizeof number);
    out.push_back(number);
  }
  return out;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                 const Outcome& outcome) {
  ASSERT_EQ(got.size(), want.size()) << describe(outcome);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], kTolerance * std::abs(want[i])) << "step " << i + 1 << "\n"
                                                                 << describe(outcome);
  }
}

/// Four samples are trained on in each step, four others validate behind it.
void expect_as_recorded(const std::string& model, const std::string& exporter, Ranks ranks,
                        int accumulate, const std::string& flags) {
  const Workspace at;
  const std::string golden = std::string(SHARDRUN_GOLDEN) + "/" + model;
  const std::string batch = exporter == "legacy" ? "" : " --batch 4";
  const TrainingRun run = train(
      at, ranks,
      "train " + golden + "." + exporter + ".onnx --data npz:" + golden + ".npz" + batch +
          " --steps 6 --eval-every 1 --validation 0.5 --optimizer sgd --lr 0.05 --accumulate " +
          std::to_string(accumulate) + flags);
  const std::string by = "/" + std::to_string(accumulate);
  expect_near(run.losses, recorded(model, "losses" + by), run.outcome);
  std::vector<double> validated;
  for (const auto& [step, loss] : run.evals) validated.push_back(loss);
  expect_near(validated, recorded(model, "validated" + by), run.outcome);
}

constexpr const char* kModels[] = {"state_averages",  "state_spectral",  "state_momentum",
                                   "state_codebook",  "state_projected", "state_quantile",
                                   "state_instances", "state_instance",  "state_pair",
                                   "state_twice",     "state_queue",     "state_filled"};

TEST(State, IsPyTorchsOnOneRank) {
  for (const char* model : kModels) {
    for (const int accumulate : {1, 2}) expect_as_recorded(model, "dynamo", {}, accumulate, "");
  }
}

/// The batch cut by samples, so that what moves an average is a sum over ranks.
TEST(State, IsPyTorchsOnSeveralRanks) {
  for (const char* model : kModels) {
    expect_as_recorded(model, "dynamo", threads(2), 2, " --planner dp");
    expect_as_recorded(model, "dynamo", threads(3), 1, " --planner fsdp");
  }
}

TEST(State, IsPyTorchsUnderMpirun) {
  for (const char* model : {"state_averages", "state_spectral", "state_instances"})
    expect_as_recorded(model, "dynamo", mpi(2), 2, " --planner dp");
}

/// A tensor that keeps something of each sample is cut with the samples.
TEST(State, OfSamplesIsCutWithThem) {
  const Workspace at;
  const std::string golden = std::string(SHARDRUN_GOLDEN) + "/state_recurrent";
  const std::string call = "train " + golden + ".dynamo.onnx --data npz:" + golden +
                           ".npz --steps 6 --lr 0.05 --accumulate 2";
  const TrainingRun alone = train(at, {}, call);
  for (const char* planner : {" --planner dp", " --planner zero2"}) {
    const TrainingRun cut = train(at, threads(2), call + planner);
    EXPECT_LE(largest_difference(cut, alone), kTolerance) << describe(cut.outcome);
    EXPECT_NE(cut.outcome.out.find("[{ranks}, -]"), std::string::npos) << describe(cut.outcome);
  }
}

}  // namespace
}  // namespace shardrun::test
