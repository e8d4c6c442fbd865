// Text token by token: the same on any mesh, with keys and values kept or the context computed
// again.
#include <gtest/gtest.h>

#include <filesystem>

#include "shardrun/inference.h"
#include "tests/graph/onnx/build.h"
#include "tests/launcher/command.h"

namespace shardrun {
namespace {

namespace fs = std::filesystem;
using test::Workspace;

const std::string kGolden = SHARDRUN_GOLDEN;

class Sample : public testing::Test {
 protected:
  Sample() { at_.write("text.txt", test::prose(6000)); }
  std::string path(const std::string& name) const { return at_.path() + "/" + name; }

  /// A small GPT over bytes after some steps, in the folder NAME.run.
  void trained(const std::string& name, GptModel gpt = {}) const {
    gpt.layers = 2, gpt.hidden = 48, gpt.heads = 4;
    gpt.vocab = gpt.vocab.value_or(256), gpt.context = 32, gpt.dropout = 0.1;
    write_gpt(gpt, path(name + ".onnx"));
    const test::Outcome done =
        at_.shardrun("train " + name +
                     ".onnx --data text:text.txt --batch 4 "
                     "--steps 30 --lr 1e-2 --plan-seconds 0.2 --checkpoint " +
                     name + ".run");
    ASSERT_EQ(done.status, 0) << describe(done);
  }
  SampleRequest of(const std::string& name, const std::string& prompt = "the ") const {
    SampleRequest request;
    request.model = path(name + ".onnx");
    request.checkpoint = path(name + ".run");
    request.prompt_text = prompt;
    request.tokens = 24;
    request.seed = 3;
    request.plan.solve_seconds = 0.2;
    return request;
  }
  static SampleReport draw(const SampleRequest& request, int ranks = 1) {
    World world = World::threads(ranks);
    SampleReport report = sample(world, request);
    EXPECT_EQ(std::ssize(report.tokens), request.tokens);
    EXPECT_EQ(report.allocated_bytes, report.predicted_bytes);
    return report;
  }
  static std::string refusal(const SampleRequest& request) {
    try {
      draw(request);
    } catch (const Failure& e) {
      EXPECT_EQ(e.kind(), Failure::Kind::call) << e.what();
      return e.what();
    }
    return "(done)";
  }
  Workspace at_;
};

TEST_F(Sample, TheSameSeedIsTheSameTextOnAnyMesh) {
  trained("gpt");
  SampleRequest request = of("gpt");
  const SampleReport one = draw(request);
  EXPECT_EQ(one.computed_again, "");
  EXPECT_EQ(one.context, 32);
  EXPECT_EQ(one.vocabulary, 256);
  for (const std::string mesh : {"data=2", "model=2", "3", "2x2", "model=4"}) {
    request.plan.mesh = mesh;
    for (const bool keep : {true, false}) {
      request.keep_keys = keep;
      EXPECT_EQ(draw(request, mesh_ranks(mesh)).tokens, one.tokens) << mesh << " " << keep;
    }
  }
  request = of("gpt");
  request.seed = 4;
  EXPECT_NE(draw(request).tokens, one.tokens);
  // Each token has a number of its own: more of them begin with the same.
  request = of("gpt");
  request.tokens = 10;
  const std::vector<int64_t> fewer = draw(request).tokens;
  EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), one.tokens.begin()));
}

/// What a step keeps is what the pass over the whole context computes: of learned and of rotary
/// positions, of fewer key heads, in bf16, and of exports.
TEST_F(Sample, KeptKeysGiveTheTextOfTheWholeContext) {
  GptModel llama;
  llama.norm = "rms", llama.mlp = "swiglu", llama.positions = "rotary";
  llama.kv_heads = 2, llama.biases = false, llama.tied = false;
  trained("gpt");
  trained("llama", llama);
  for (const std::string name : {"gpt", "llama"}) {
    for (const std::string dtype : {"f32", "bf16"}) {
      for (const double temperature : {0.0, 0.8}) {
        SCOPED_TRACE(name + " " + dtype + " " + std::to_string(temperature));
        SampleRequest request = of(name);
        request.options.dtype = dtype;
        request.temperature = temperature;
        const SampleReport kept = draw(request);
        EXPECT_EQ(kept.computed_again, "");
        request.keep_keys = false;
        const SampleReport again = draw(request);
        EXPECT_NE(again.computed_again, "");
        if (dtype == "f32") {
          EXPECT_EQ(again.tokens, kept.tokens);
        }
      }
    }
  }
  for (const std::string model : {"gpt_manual.legacy", "gpt_manual.dynamo", "gpt_sdpa.legacy",
                                  "gpt_sdpa.dynamo23", "rotary.legacy", "rotary.dynamo"}) {
    SCOPED_TRACE(model);
    SampleRequest request;
    request.model = kGolden + "/" + model + ".onnx";
    request.prompt = {3, 1};
    request.tokens = 6;
    const SampleReport kept = draw(request);
    EXPECT_EQ(kept.computed_again, "");
    request.keep_keys = false;
    EXPECT_EQ(draw(request).tokens, kept.tokens);
  }
}

/// Behind the context's length its last tokens count.
TEST_F(Sample, LongerThanTheContext) {
  trained("gpt");
  SampleRequest request = of("gpt");
  request.tokens = 60;
  const SampleReport longer = draw(request);
  EXPECT_NE(longer.computed_again.find("becomes longer than the context of 32 tokens"),
            std::string::npos);
  request.tokens = 24;
  const std::vector<int64_t> begin = draw(request).tokens;
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), longer.tokens.begin()));
}

TEST_F(Sample, TemperatureAndTopK) {
  trained("gpt");
  SampleRequest request = of("gpt");
  request.temperature = 0;
  const std::vector<int64_t> greedy = draw(request).tokens;
  request.seed = 99;
  EXPECT_EQ(draw(request).tokens, greedy);
  request.temperature = 1.5, request.top_k = 1;
  EXPECT_EQ(draw(request).tokens, greedy);
  request.top_k = 40;
  EXPECT_NE(draw(request).tokens, greedy);
}

TEST_F(Sample, TheCommand) {
  trained("gpt");
  const std::string call = "sample gpt.onnx --resume gpt.run --tokens 24 --seed 3 --prompt 'the '";
  const test::Outcome one = at_.shardrun(call);
  ASSERT_EQ(one.status, 0) << describe(one);
  EXPECT_EQ(one.out.substr(0, 4), "the ");
  EXPECT_GE(one.out.size(), 4u + 24 + 1);
  EXPECT_NE(one.err.find("tokens/s"), std::string::npos) << describe(one);
  const test::Outcome two = at_.shardrun(test::mpi(2), call + " --mesh model=2");
  ASSERT_EQ(two.status, 0) << describe(two);
  EXPECT_EQ(two.out, one.out);
  const test::Outcome again = at_.shardrun(call + " --recompute");
  EXPECT_EQ(again.out, one.out) << describe(again);
  EXPECT_NE(again.err.find("the whole context is computed again for each token"), std::string::npos)
      << describe(again);
  // Tokens by files, of two bytes each: those that come out go in again.
  const std::string files = "sample gpt.onnx --resume gpt.run --temperature 0 --tokens 4 ";
  at_.write("in.bin", std::string("t\0h\0", 4));
  ASSERT_EQ(at_.shardrun(files + "--tokens-in in.bin --tokens-out out.bin").status, 0);
  EXPECT_EQ(at_.read("out.bin").size(), 12u);
  EXPECT_EQ(at_.read("out.bin").substr(0, 4), at_.read("in.bin"));
  const test::Outcome numbers = at_.shardrun(files + "--tokens-in in.bin");
  EXPECT_EQ(numbers.out.substr(0, 8), "116 104 ") << describe(numbers);
}

TEST_F(Sample, EndsWhereNobodyReadsTheText) {
  trained("gpt");
  at_.sh("(timeout 100 " +
         Workspace::line({}, "sample gpt.onnx --resume gpt.run --prompt the --tokens 99999999") +
         "; echo $? >status) | head -c 1");
  EXPECT_EQ(at_.read("status"), "141\n");  // 128 + SIGPIPE
}

TEST_F(Sample, WhatIsWrongIsSaid) {
  trained("gpt");
  struct Case {
    std::string arguments, sentence;
  };
  at_.write("odd.bin", "abc");
  at_.write("empty.bin", "");
  at_.write("far.bin", std::string("\0\1", 2));
  const std::string call = "gpt.onnx --resume gpt.run ", text = call + "--prompt hello ";
  const std::vector<Case> cases = {
      {call, "no prompt: give one, --prompt or --tokens-in"},
      {call + "--prompt ''", "got an empty text"},
      {text + "--tokens-in odd.bin", "several prompts"},
      {call + "--prompt " + std::string(33, 'a'),
       "the prompt has 33 tokens, the model's context is 32"},
      {text + "--top-k 257", "--top-k is 257, but the model has 256 tokens"},
      {text + "--top-k 0", "--top-k is 0, wanted 1 or more"},
      {text + "--temperature -1", "--temperature is -1"},
      {text + "--temperature nan", "--temperature is nan"},
      {text + "--tokens 0", "--tokens is 0"},
      {call + "--tokens-in odd.bin", "odd.bin: has 3 bytes, wanted tokens of 2 bytes each"},
      {call + "--tokens-in empty.bin", "empty.bin: is an empty prompt"},
      {call + "--tokens-in far.bin", "the prompt's token 0 is 256, the model takes 0 to 255"},
      {call + "--tokens-in none.bin", "none.bin"},
      {"gpt.onnx --resume none --prompt a", "none: no such folder"},
      {text + "--weights gpt.onnx", "both have the parameters"},
      {kGolden + "/gpt_manual.legacy.onnx --prompt a",
       "the model has 32 tokens, and a text is for"},
      {kGolden + "/weights_images.legacy.onnx --prompt a",
       "weights_images.legacy.onnx: takes no tokens"}};
  for (const Case& c : cases) {
    const test::Outcome done = at_.shardrun("sample " + c.arguments);
    EXPECT_EQ(done.status, 2) << describe(done);
    EXPECT_EQ(messages(done), 1) << describe(done);
    EXPECT_NE(message(done).find(c.sentence), std::string::npos) << describe(done);
    EXPECT_EQ(done.out, "") << describe(done);
  }
  SampleRequest four = of("gpt");
  four.plan.ranks = 4;
  try {
    draw(four, 2);
    ADD_FAILURE() << "ran on 2 ranks";
  } catch (const Failure& e) {
    EXPECT_EQ(e.kind(), Failure::Kind::call);
    EXPECT_STREQ(e.what(), "sample: the plan is for 4 ranks, there are 2");
  }
}

/// Tokens that see later ones give no text token by token.
TEST_F(Sample, AModelThatIsNotCausalIsRefused) {
  test::TemporaryFolder folder;
  test::ModelBuilder b;
  std::vector<float> table(7 * 5);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * i % 11) / 7;
  b.input("tokens", {1, 4}, test::kInt64);
  b.floats("table", {7, 5}, table);
  b.floats("head", {5, 7}, table);
  b.node("Gather", {"table", "tokens"}, {"x"});
  auto& mean = b.node("ReduceMean", {"x"}, {"m"});
  auto* axes = mean.add_attribute();
  axes->set_name("axes");
  axes->set_type(::onnx::AttributeProto::INTS);
  axes->add_ints(1);
  b.node("Add", {"x", "m"}, {"y"});
  b.node("MatMul", {"y", "head"}, {"logits"});
  b.output("logits", {1, 4, 7});
  SampleRequest request;
  request.model = b.write(folder);
  request.prompt = {1, 2};
  request.tokens = 2;
  const std::string got = refusal(request);
  EXPECT_NE(got.find("the model is not causal"), std::string::npos) << got;
}

}  // namespace
}  // namespace shardrun
