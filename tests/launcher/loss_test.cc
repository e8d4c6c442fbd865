// Language models that bring their loss: which output it is, and which tokens the targets get, by
// the real command.
#include <gtest/gtest.h>

#include <cstring>

#include "exec/data/data_files.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

constexpr double kTolerance = 2e-5;

std::string golden(const std::string& file) { return std::string(SHARDRUN_GOLDEN) + "/" + file; }

class Losses : public testing::Test {
 protected:
  Workspace at_;

  /// Bytes below 16, no two of which that follow each other are equal.
  Losses() {
    std::string text;
    for (unsigned i = 0; i < 600; ++i) text += static_cast<char>((i * i + 3 * i) / 2 % 16);
    at_.write("text.txt", text);
  }

  TrainingRun on_text(const std::string& model, Ranks ranks = {}, const std::string& flags = "") {
    return train(at_, ranks,
                 "train " + golden(model) + ".onnx --data text:text.txt --steps 4" + flags);
  }
};

bool says(const TrainingRun& run, const std::string& text) {
  return run.outcome.out.find(text) != std::string::npos;
}

TEST_F(Losses, ArePyTorchs) {
  for (const auto& [model, exporter] :
       std::vector<std::pair<std::string, std::string>>{{"loss_nano", "dynamo"},
                                                        {"loss_nano", "legacy"},
                                                        {"loss_shifting", "dynamo"},
                                                        {"loss_cut", "dynamo"},
                                                        {"loss_cut", "legacy"},
                                                        {"loss_alone", "dynamo"},
                                                        {"loss_gathered", "dynamo"}}) {
    const TrainingRun run =
        train(at_, {},
              "train " + golden(model + "." + exporter) + ".onnx --data npz:" + golden(model) +
                  ".npz --validation 0 --steps 6 --optimizer sgd --lr 0.1");
    const NpzArchive archive(golden(model) + ".npz");
    const StoredArray* losses = archive.find("losses");
    ASSERT_EQ(run.losses.size(), 6U) << describe(run.outcome);
    for (size_t i = 0; i < 6; ++i) {
      float want = 0;
      std::memcpy(&want, losses->data + i * sizeof want, sizeof want);
      EXPECT_NEAR(run.losses[i], want, kTolerance * want) << model << "." << exporter;
    }
    EXPECT_FALSE(says(run, "note:")) << describe(run.outcome);
  }
}

/// All five have the same weights. Where they compare the same logits with the same tokens their
/// losses are the same.
TEST_F(Losses, OfTextGetTheTokensThatTheyWant) {
  const TrainingRun nano = on_text("loss_nano.dynamo"), gathered = on_text("loss_gathered.dynamo");
  EXPECT_LE(largest_difference(nano, gathered), kTolerance) << describe(gathered.outcome);
  EXPECT_TRUE(says(nano, "targets are the tokens behind them")) << describe(nano.outcome);
  EXPECT_TRUE(says(nano, "loss: output 'cross_entropy_loss', the only scalar of 2 outputs"));
  const TrainingRun alone = on_text("loss_alone.dynamo");
  for (const char* model : {"loss_cut.dynamo", "loss_cut.legacy", "loss_shifting.dynamo"}) {
    const TrainingRun run = on_text(model);
    EXPECT_LE(largest_difference(run, alone), kTolerance) << describe(run.outcome);
    EXPECT_TRUE(says(run, "targets are the same tokens")) << describe(run.outcome);
    EXPECT_FALSE(says(run, "note:")) << describe(run.outcome);
  }
  const TrainingRun cut = on_text("loss_nano.legacy", mpi(2), " --planner dp");
  EXPECT_LE(largest_difference(cut, nano), kTolerance) << describe(cut.outcome);
}

TEST_F(Losses, OfWrongTokensAreNoted) {
  const std::string arrays = " --data npz:" + golden("loss_nano.npz");
  const std::string steps = " --validation 0 --steps 1";
  const TrainingRun copies =
      train(at_, {}, "train " + golden("loss_nano.dynamo.onnx") + arrays + ",targets=idx" + steps);
  EXPECT_TRUE(says(copies, "note: the targets 'targets' are the tokens of 'idx' themselves"))
      << describe(copies.outcome);
  const TrainingRun twice = train(
      at_, {},
      "train " + golden("loss_cut.dynamo.onnx") + arrays + ",input_ids=idx,labels=targets" + steps);
  EXPECT_TRUE(says(twice, "note: the targets 'labels' are the next tokens of 'input_ids' already"))
      << describe(twice.outcome);
  EXPECT_TRUE(says(on_text("loss_same.dynamo"), "it learns to copy them"));
  EXPECT_TRUE(says(on_text("loss_nano.dynamo", {}, " --target-shift 0"), "it learns to copy"));
  EXPECT_TRUE(says(on_text("loss_cut.dynamo", {}, " --target-shift 1"), "it learns to skip"));
  const Outcome other =
      at_.shardrun("train " + golden("loss_cut.dynamo.onnx") + " --target-shift 2");
  EXPECT_EQ(other.status, 2) << describe(other);
}

TEST_F(Losses, FlagsReachThePlan) {
  const std::string model = golden("loss_nano.dynamo.onnx");
  const Outcome plan = at_.shardrun("plan " + model +
                                    " --ranks 2 --loss-output cross_entropy_loss --train-only "
                                    "'^mix' -o plan.json");
  EXPECT_EQ(plan.status, 0) << describe(plan);
  const std::string text = at_.read("plan.json");
  for (const char* part : {"\"loss_output\": \"cross_entropy_loss\"", "\"^mix\""})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  const Outcome explained = at_.shardrun("explain plan.json");
  EXPECT_EQ(explained.status, 0) << describe(explained);
  const Outcome both =
      at_.shardrun("train " + model + " --loss mse --loss-output cross_entropy_loss");
  EXPECT_EQ(both.status, 2) << describe(both);
  EXPECT_NE(message(both).find("leave out one of the two"), std::string::npos) << describe(both);
  const Outcome idle = at_.shardrun("plan " + golden("tied.dynamo.onnx") +
                                    " --ranks 1 --train-only mix --freeze places");
  EXPECT_NE(idle.out.find("--freeze 'places' freezes nothing"), std::string::npos)
      << describe(idle);
}

}  // namespace
}  // namespace shardrun::test
