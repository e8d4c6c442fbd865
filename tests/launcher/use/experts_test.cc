// Mixtures of experts as PyTorch exports them, by the real command: PyTorch's losses on one rank
// and on several that really start, with the experts cut.
#include <gtest/gtest.h>

#include <cstring>

#include "exec/data/data_files.h"
#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

/// Of losses that PyTorch computed in f64, which are stored in f32.
constexpr double kTolerance = 2e-6;

std::string golden(const std::string& file) { return std::string(SHARDRUN_GOLDEN) + "/" + file; }

class ExpertModels : public testing::Test {
 protected:
  Workspace at_;

  static std::string model(const std::string& form, const std::string& exporter = "dynamo") {
    return golden("experts_" + form + "." + exporter + ".onnx");
  }
  TrainingRun trained(const std::string& form, Ranks ranks, const std::string& flags = "",
                      const std::string& exporter = "dynamo") {
    return train(at_, ranks,
                 "train " + model(form, exporter) + " --data npz:" + golden("experts_" + form) +
                     ".npz --validation 0 --steps 6 --optimizer sgd --lr 0.1" + flags);
  }
  static void expect_pytorchs(const std::string& form, const TrainingRun& run) {
    const NpzArchive archive(golden("experts_" + form + ".npz"));
    const StoredArray* losses = archive.find("losses");
    ASSERT_EQ(run.losses.size(), 6U) << describe(run.outcome);
    for (size_t i = 0; i < 6; ++i) {
      float want = 0;
      std::memcpy(&want, losses->data + i * sizeof want, sizeof want);
      EXPECT_NEAR(run.losses[i], want, kTolerance * want) << form << ", step " << i;
    }
    EXPECT_EQ(run.outcome.out.find("note:"), std::string::npos) << describe(run.outcome);
  }
};

/// Each way to write a mixture, from both exporters where both write it; the balancing loss and the
/// values of the chosen scores have gradients in all.
TEST_F(ExpertModels, HavePyTorchsLosses) {
  for (const char* form : {"masked", "batched", "capacity", "after", "added", "mixtral"}) {
    expect_pytorchs(form, trained(form, {}));
    if (form != std::string("added") && form != std::string("mixtral"))
      expect_pytorchs(form, trained(form, {}, "", "legacy"));
  }
}

/// Stacked weights are cut by experts and the rest by samples, on processes of mpirun. Four experts
/// on eight ranks leave the second of two sub-axes to their hidden dim.
TEST_F(ExpertModels, TrainOnSeveralRanksAsOnOne) {
  const struct {
    const char *form, *stacked, *inner;
    int experts;
  } forms[] = {{"after", "mixture.w[123]", "mixture.w1.2", 8},
               {"mixtral", ".*experts.(gate_up|down)_proj", ".*experts.down_proj.2", 4}};
  for (const auto& [form, stacked, inner, experts] : forms) {
    const TrainingRun one = trained(form, {});
    for (const int ranks : {2, 4, 8}) {
      const bool shared = ranks > experts;
      const std::string axis = shared ? "model.0" : "model";
      std::string flags =
          " --planner propagate --mesh model=" + (shared ? "4*2" : std::to_string(ranks)) +
          " --tactic '" + stacked + ".0@" + axis + "'";
      if (shared) flags += std::string(" --tactic '") + inner + "@model.1'";
      flags += " --tactic batch@model";
      const TrainingRun run = trained(form, mpi(ranks), flags);
      expect_pytorchs(form, run);
      EXPECT_LE(largest_difference(run, one), 1e-6) << describe(run.outcome);
    }
  }
}

/// All forms with a dim of experts on two ranks, and experts as `explain` shows them. Tokens are
/// sent to where a form has places for them.
TEST_F(ExpertModels, AreCutInEachForm) {
  for (const char* form : {"batched", "capacity", "after", "added"}) {
    const std::string flags =
        " --planner propagate --mesh model=2 --tactic 'mixture.w[123].0@model' --tactic "
        "batch@model";
    const TrainingRun run = trained(form, threads(2), flags);
    expect_pytorchs(form, run);
    const bool sent = form == std::string("after");
    if (!sent && form != std::string("batched")) continue;
    const Outcome plan =
        at_.shardrun("plan " + model(form) + " --ranks 2" + flags + " -o plan.json");
    ASSERT_EQ(plan.status, 0) << describe(plan);
    const Outcome explained = at_.shardrun("explain plan.json");
    for (const char* weight : {"w1", "w2", "w3"}) {
      const size_t at = explained.out.find(std::string(weight) + " ");
      ASSERT_NE(at, std::string::npos) << describe(explained);
      const std::string line = explained.out.substr(at, explained.out.find('\n', at) - at);
      EXPECT_NE(line.find("as [{model}, -, -]"), std::string::npos) << form << ": " << line;
    }
    EXPECT_EQ(explained.out.find("all_to_all of") != std::string::npos, sent)
        << form << "\n"
        << describe(explained);
  }
  // Each expert with weights of its own has no dim of experts: the batch and hidden dims are cut.
  expect_pytorchs("masked", trained("masked", threads(4), " --mesh 2x2 --planner dp+megatron"));
}

TEST_F(ExpertModels, OfTheCommandsOwnModelTrain) {
  const std::string sizes = "model gpt --layers 1 --hidden 16 --heads 2 --context 16 -o own.onnx ";
  const Outcome alone = at_.shardrun(sizes + "--top-k 2");
  EXPECT_EQ(alone.status, 2) << describe(alone);
  EXPECT_EQ(message(alone),
            "top-k and capacity are those of a mixture; give its number of experts");
  ASSERT_EQ(at_.shardrun(sizes + "--experts 4 --top-k 2 --capacity 1").status, 0);
  at_.write("text.txt", prose(2000));
  const std::string text = "train own.onnx --data text:text.txt --batch 4 --steps 3";
  const TrainingRun one = train(at_, {}, text), two = train(at_, mpi(2), text + " --planner fsdp");
  EXPECT_LE(largest_difference(one, two), 1e-6) << describe(two.outcome);
}

/// An expert that looks for its own tokens computes all, and leaves out those of others.
TEST_F(ExpertModels, ThatLookForTheirTokensTrain) {
  const TrainingRun one = trained("sought", {}, "", "legacy");
  expect_pytorchs("sought", one);
  expect_pytorchs("sought", trained("sought", mpi(2), " --planner dp", "legacy"));
}

}  // namespace
}  // namespace shardrun::test
