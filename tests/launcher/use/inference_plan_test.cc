// Plans of the forward pass alone and of the step that takes one token: which models get them, what
// takes them, and that they compute what one rank does.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

const std::string kLogits = std::string(SHARDRUN_GOLDEN) + "/wrn.dynamo_eval.onnx ";

class InferencePlan : public testing::Test {
 protected:
  Outcome done(const std::string& call) const {
    Outcome run = at_.shardrun(call);
    EXPECT_EQ(run.status, 0) << describe(run);
    return run;
  }
  void refused(const std::string& call, const std::string& sentence) const {
    const Outcome run = at_.shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_NE(message(run).find(sentence), std::string::npos) << describe(run);
  }
  nlohmann::json plan(const std::string& call) const {
    done("plan " + call + " -o plan.json");
    return nlohmann::json::parse(at_.read("plan.json"));
  }
  /// As TOAST's ITX has them: rotary positions, one key head for all queries.
  void write_itx() const {
    done(
        "model gpt --layers 2 --hidden 48 --heads 4 --kv-heads 1 --positions rotary --norm rms "
        "--mlp swiglu --no-biases --vocab 256 --context 32 -o itx.onnx");
  }
  Workspace at_;
};

/// A classifier's logits are no loss, and nobody said how to make one of them.
TEST_F(InferencePlan, IsThatOfAModelWithoutALoss) {
  const std::string lacking = "first output 'linear' is f32[4, 10], no loss; say --loss";
  const Outcome planned = done("plan " + kLogits + "--ranks 4 -o plan.json");
  EXPECT_NE(planned.out.find("inference plan: the forward pass alone; " + lacking),
            std::string::npos)
      << describe(planned);
  EXPECT_TRUE(nlohmann::json::parse(at_.read("plan.json"))["evaluation"].is_null());
  EXPECT_NE(done("explain plan.json").out.find(" forward "), std::string::npos);
  const Outcome verified = at_.shardrun(threads(4), "verify " + kLogits + "--plan plan.json");
  EXPECT_EQ(verified.status, 0) << describe(verified);
  EXPECT_NE(verified.out.find(" values agree with one rank"), std::string::npos);
  refused("train " + kLogits, "wrn.dynamo_eval.onnx cannot be trained: " + lacking);
  refused("evaluate " + kLogits,
          "evaluate: " + kLogits.substr(0, kLogits.find(' ')) + " cannot be evaluated: " + lacking);
  refused("plan " + kLogits + "--step train", "is f32[4, 10], no loss; say --loss");
  refused("plan " + kLogits + "--accumulate 2", "micro-batches of a training step");
  // With a loss it is a training step like others.
  EXPECT_FALSE(plan(kLogits + "--loss cross-entropy --ranks 2")["evaluation"].is_null());
}

TEST_F(InferencePlan, OfAnyModelWhereItIsAskedFor) {
  done("model unet --width 8 --image 16 --blocks 1 -o unet.onnx");
  const nlohmann::json training = plan("unet.onnx --mesh 4"),
                       forward = plan("unet.onnx --mesh 4 --step forward");
  // No gradients, and neither of AdamW's moments.
  EXPECT_LT(forward["train"]["bytes"].get<double>(),
            0.6 * training["train"]["bytes"].get<double>());
  for (const auto& [name, node] : forward["train"]["nodes"].items())
    EXPECT_EQ(name.find("grad"), std::string::npos) << name;
  for (const char* mesh : {"4", "2x2"}) {
    const Outcome verified = at_.shardrun(
        threads(4), "verify unet.onnx --step forward --batch 1 --mesh " + std::string(mesh));
    EXPECT_EQ(verified.status, 0) << describe(verified);
  }
  refused("train unet.onnx --step forward", "unet.onnx cannot be trained: its step is --step");
  refused("plan unet.onnx --step backward", "step 'backward' is not one of train, forward, token");
  refused("plan unet.onnx --step token", "unet.onnx: takes no tokens");
}

/// Samples are cut, or heads; keys and values are kept as state that lies as they do.
TEST_F(InferencePlan, OfTheStepThatTakesOneToken) {
  write_itx();
  const Outcome planned =
      done("plan itx.onnx --step token --batch 4 --mesh 4 --tactic batch@a -o plan.json");
  EXPECT_NE(planned.out.find("the step that takes one token and keeps keys and values"),
            std::string::npos)
      << describe(planned);
  EXPECT_NE(planned.out.find("kept keys and values"), std::string::npos) << describe(planned);
  const Outcome verified =
      at_.shardrun(threads(4), "verify itx.onnx --step token --batch 4 --plan plan.json");
  EXPECT_EQ(verified.status, 0) << describe(verified);
  for (const char* mesh : {"--mesh 2 --tactic inner@a", "--mesh 4 --planner megatron"}) {
    const Outcome run =
        at_.shardrun(threads(mesh[7] - '0'), "verify itx.onnx --step token " + std::string(mesh));
    EXPECT_EQ(run.status, 0) << describe(run);
  }
}

/// With kept keys and without them, whatever the number of ranks.
/// Of weights that no update writes bf16 copies are kept, so a token is not the slower for many of
/// them on a rank.
TEST_F(InferencePlan, KeptCopiesCostNothing) {
  done("model gpt --preset itx --no-weights -o preset.onnx");
  const auto seconds = [&](const std::string& planner) {
    done(
        "plan preset.onnx --step token --batch 128 --mesh 2x8 --cluster a100-40:2 --dtype bf16 "
        "--planner " +
        planner + " -o p.json");
    return nlohmann::json::parse(at_.read("p.json"))["train"]["seconds"].get<double>();
  };
  const double found = seconds("auto");
  for (const char* known : {"zero2", "megatron", "dp+zero2", "zero2+megatron"})
    EXPECT_LE(found, seconds(known)) << known;
}

TEST_F(InferencePlan, TokensAreTheSameOnAnyNumberOfRanks) {
  write_itx();
  const std::string call = "sample itx.onnx --prompt 'the ' --tokens 16 --temperature 0.9 --seed 3";
  const Outcome one = done(call);
  EXPECT_GE(one.out.size(), 4U + 16) << describe(one);
  EXPECT_EQ(done(call + " --recompute").out, one.out);
  for (const Ranks& ranks : {threads(2), mpi(2), threads(4)}) {
    const Outcome run = at_.shardrun(ranks, call);
    EXPECT_EQ(run.status, 0) << describe(run);
    EXPECT_EQ(run.out, one.out) << describe(run);
  }
}

}  // namespace
}  // namespace shardrun::test
