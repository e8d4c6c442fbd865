// Models with operators that few have, as PyTorch exports them, by the real command: PyTorch's
// losses on one rank and on two that really start.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "exec/data/array_file.h"
#include "exec/data/data_files.h"
#include "onnx-ml.pb.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

/// Of losses that PyTorch computed in f64, which are stored in f32.
constexpr double kTolerance = 5e-6;

class Operators : public testing::Test {
 protected:
  Workspace at_;

  static std::string golden(const std::string& file) {
    return std::string(SHARDRUN_GOLDEN) + "/operators_" + file;
  }
  TrainingRun trained(const std::string& model, Ranks ranks, const std::string& flags = "") {
    const std::string data = golden(model.substr(0, model.find('.'))) + ".npz";
    return train(at_, ranks, call(golden(model) + ".onnx", data) + flags);
  }
  static std::string call(const std::string& model, const std::string& archive) {
    return "train " + model + " --data npz:" + archive +
           " --validation 0 --steps 6 --optimizer sgd --momentum 0.9 --lr 0.05";
  }
  static void expect_pytorchs(const std::string& model, const TrainingRun& run) {
    const NpzArchive archive(golden(model.substr(0, model.find('.'))) + ".npz");
    const StoredArray* losses = archive.find("losses");
    ASSERT_EQ(run.losses.size(), 6U) << describe(run.outcome);
    for (size_t i = 0; i < 6; ++i) {
      float want = 0;
      std::memcpy(&want, losses->data + i * sizeof want, sizeof want);
      EXPECT_NEAR(run.losses[i], want, kTolerance * std::abs(want)) << model << ", step " << i;
    }
  }
  void expect_pytorchs(const std::vector<std::string>& models) {
    for (const std::string& model : models) expect_pytorchs(model, trained(model, {}));
  }
};

/// logits[labels != -100] and its relatives: the mean is over what the mask picks.
TEST_F(Operators, OfRowsThatAMaskPicks) {
  expect_pytorchs({"picked_labels.legacy", "picked_head.legacy", "picked_sum.legacy",
                   "picked_mse.legacy", "picked_by_hand.dynamo", "picked_elements.dynamo",
                   "picked_extremes.legacy", "picked_two_masks.dynamo", "picked_flattened.dynamo"});
}

/// They may go back to where they came from: experts that look for their tokens do so.
TEST_F(Operators, OfRowsThatGoBack) {
  expect_pytorchs({"sought.dynamo", "sought.legacy", "assigned.legacy", "assigned.dynamo",
                   "put_back_by_sign.dynamo", "put_back_samples.dynamo", "put_back_samples.legacy",
                   "put_back_features.dynamo", "put_back_token.dynamo"});
}

/// A condition that depends on data: both branches are computed, and only the one that is taken
/// counts.
TEST_F(Operators, OfBranches) { expect_pytorchs({"chosen_cond.dynamo", "chosen_script.legacy"}); }

TEST_F(Operators, OfBagsWhoseOffsetsAreData) {
  expect_pytorchs({"bag_mean.dynamo", "bag_mean.legacy", "bag_max.legacy", "bag_weighted.legacy",
                   "bag_last.dynamo", "bag_padded.dynamo", "dlrm_bags.dynamo", "dlrm_bags.legacy"});
}

/// With symbolic dims, which take their sizes from the archive.
TEST_F(Operators, OfBagsOfAnySize) {
  onnx::ModelProto model;
  std::ifstream file(golden("bag_mean.dynamo") + ".onnx", std::ios::binary);
  ASSERT_TRUE(model.ParseFromIstream(&file));
  for (auto& input : *model.mutable_graph()->mutable_input()) {
    auto* dim = input.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0);
    dim->set_dim_param(input.name() == "i" ? "words" : "bags");
  }
  at_.write("any.onnx", model.SerializeAsString());
  expect_pytorchs("bag_mean", train(at_, {}, call("any.onnx", golden("bag_mean") + ".npz")));
}

/// Where bags begin: 0 first, and none before another.
TEST_F(Operators, OfBagsThatAreNone) {
  const std::vector<std::pair<std::vector<int64_t>, std::string>> wrong = {
      {{1, 2, 4, 6}, "array 'o': value 1 at position 0"},
      {{0, 4, 2, 6}, "array 'o': value 2 at position 2 is below 4 before it"},
      {{0, 2, 4, 99}, "array 'o': element 3 is 99, but the model's input 'o' takes 0 to 8"},
      {{0, -2, 4, 6}, "array 'o': element 1 is -2"}};
  const NpzArchive archive(golden("bag_mean") + ".npz");
  const StoredArray words = *archive.find("i"), target = *archive.find("y");
  for (const auto& [offsets, text] : wrong) {
    ArrayFile file(at_.path() + "/wrong.npz", {{"i", {DType::i64, words.shape}},
                                               {"o", {DType::i64, {4}}},
                                               {"y", {DType::f32, target.shape}}});
    file.write(0, full_box(words.shape), words.data);
    file.write(1, {{0, 4}}, offsets.data());
    file.write(2, full_box(target.shape), target.data);
    file.finish();
    const Outcome refused = at_.shardrun(call(golden("bag_mean.dynamo") + ".onnx", "wrong.npz"));
    EXPECT_EQ(refused.status, 2) << describe(refused);
    EXPECT_NE(refused.err.find(text), std::string::npos) << describe(refused);
  }
}

TEST_F(Operators, OfImages) {
  expect_pytorchs({"grid_bilinear_reflection.legacy", "grid_bicubic_border_aligned.legacy",
                   "folded.legacy", "antialias_bicubic.dynamo"});
}

TEST_F(Operators, OfSignalsAndScans) {
  expect_pytorchs({"waves_stft.dynamo", "waves_stft_plain.dynamo", "waves_irfft.dynamo",
                   "scanned.dynamo", "ctcbyhand.dynamo"});
}

/// One row by its number: a sentence that names the nodes, and three lines of what to do.
TEST_F(Operators, ThatAreRefusedSayWhatToDo) {
  const Outcome run = at_.shardrun("train " + golden("picked_one.legacy.onnx"));
  EXPECT_EQ(run.status, 2) << describe(run);
  EXPECT_NE(message(run).find("op Gather (opset 20): an operand has as many rows as the mask of "
                              "'/NonZero' picks"),
            std::string::npos)
      << describe(run);
  size_t lines = 0;
  for (size_t at = run.err.find("\n  - "); at != std::string::npos;
       at = run.err.find("\n  - ", at + 1))
    ++lines;
  EXPECT_EQ(lines, 3U) << describe(run);
}

/// Two processes of mpirun, whose shards hold other numbers of picked rows.
TEST_F(Operators, OnTwoRanksHaveTheSameLosses) {
  for (const std::string model :
       {"picked_head.legacy", "sought.legacy", "dlrm_bags.legacy",
        "grid_bilinear_reflection.legacy", "put_back_features.dynamo", "chosen_cond.dynamo"}) {
    const bool bags = model.starts_with("dlrm");
    const TrainingRun two = trained(model, mpi(2), bags ? " --planner fsdp" : " --planner dp");
    expect_pytorchs(model, two);
  }
}

}  // namespace
}  // namespace shardrun::test
