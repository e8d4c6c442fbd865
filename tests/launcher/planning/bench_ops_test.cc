// bench ops and bench step through the command: whether they hold all of a step, and whether their
// figures follow from each other. No figure is judged: those depend on the machine.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class BenchOps : public testing::Test {
 protected:
  BenchOps() {
    const Outcome made = folder_.shardrun(
        "model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --context 16 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
  }

  /// How often a step of training calls each op, by its trace.
  std::map<std::string, int> calls(const std::string& flags) {
    const Outcome run =
        folder_.shardrun("train gpt.onnx --steps 1 --validation 0 --profile trace.json " + flags);
    EXPECT_EQ(run.status, 0) << describe(run);
    std::map<std::string, int> out;
    const Json trace = Json::parse(folder_.read("trace.json"));
    for (const Json& e : trace.at("traceEvents")) {
      if (e.value("cat", "") == "kernel") ++out[e.at("args").at("op")];
    }
    return out;
  }

  Workspace folder_;
};

TEST_F(BenchOps, HasEveryCallOfAStepWorstFirst) {
  const std::string flags = "--batch 2 --accumulate 2 --dtype bf16";
  const Outcome run = folder_.shardrun("bench ops --model gpt.onnx --json ops.json " + flags);
  ASSERT_EQ(run.status, 0) << describe(run);
  const Json report = Json::parse(folder_.read("ops.json"));
  const Json& ceilings = report.at("ceilings");
  std::map<std::string, int> counted;
  double last = 1e300;
  for (const Json& k : report.at("kernels")) {
    counted[k.at("op")] += k.at("calls").get<int>();
    EXPECT_NE(k.at("kernel"), "") << k;
    EXPECT_TRUE(says(run.out, k.at("op").get<std::string>() + " ")) << k;
    const double lost = k.at("lost_ms");
    EXPECT_LE(lost, last) << k;
    last = lost;
    EXPECT_NEAR(
        lost,
        k.at("calls").get<double>() * (k.at("ms").get<double>() - k.at("least_ms").get<double>()),
        1e-9);
    const std::string dtype = k.at("dtype") == "bf16" ? "bf16" : "f32";
    const double least =
        std::max(k.at("flops").get<double>() / ceilings.at("flops_per_s").at(dtype).get<double>(),
                 k.at("bytes").get<double>() / ceilings.at("bytes_per_s").get<double>());
    EXPECT_NEAR(k.at("least_ms"), least * 1e3, 1e-9) << k;
    if (k.at("op") == "adamw") {  // as in the step: over the weights and moments
      const std::vector<int> places = k.at("places");
      EXPECT_EQ((std::vector<int>{places[0], places[1], places[2]}), (std::vector<int>{0, 2, 3}))
          << k;
    }
    // [2, 16, 32] x [32, 128]: operands and result once each, in bf16.
    if (k.at("op") == "matmul" && k.at("flops") == 2.0 * 32 * 32 * 128) {
      EXPECT_GE(k.at("bytes"), 2.0 * (32 * 32 + 32 * 128 + 32 * 128)) << k;
    }
  }
  EXPECT_EQ(counted, calls(flags));
}

TEST_F(BenchOps, ComparesAStepWithItsPartsAlone) {
  const Outcome run = folder_.shardrun("bench step gpt.onnx --batch 2 --rounds 2 --json step.json");
  ASSERT_EQ(run.status, 0) << describe(run);
  const Json report = Json::parse(folder_.read("step.json"));
  const std::map<std::string, int> expected = calls("--batch 2");
  std::map<std::string, int> counted;
  double traffic = 0, in_parts = 0, in_steps = 0;
  std::set<std::string> host;
  for (const Json& part : report.at("parts")) {
    in_steps += part.at("in_step_ms").get<double>();
    const std::string op = part.at("op");
    if (op.find(' ') != std::string::npos) {
      host.insert(op);
      EXPECT_EQ(part.at("bytes"), 0) << part;
      continue;
    }
    counted[op] = part.at("calls");
    const bool product = op == "matmul" || op == "matmul_post" || op.starts_with("attention");
    EXPECT_EQ(part.at("product"), product) << part;
    EXPECT_EQ(part.at("alone_ms") > 0.0, product) << part;
    if (product) in_parts += part.at("flops").get<double>();
    // Of a product what is read for what follows it: bias, residual.
    const double counted_bytes = part.at("traffic_bytes");
    const bool reads_more = op == "matmul_post";
    EXPECT_EQ(product ? counted_bytes > 0 : counted_bytes == part.at("bytes").get<double>(),
              !product || reads_more)
        << part;
    EXPECT_LE(counted_bytes, part.at("bytes").get<double>()) << part;
    traffic += counted_bytes;
  }
  EXPECT_EQ(counted, expected);
  EXPECT_EQ(host, (std::set<std::string>{"reading a batch", "zeroing gradients",
                                         "outside of all these"}));
  EXPECT_NEAR(report.at("traffic_bytes"), traffic, 1e-6 * traffic);
  const double traffic_ms = traffic / report.at("ceilings").at("bytes_per_s").get<double>() * 1e3;
  ASSERT_EQ(report.at("rounds").size(), 2u);
  double sum = 0;
  for (const Json& round : report.at("rounds")) {
    const double limit = round.at("products_ms").get<double>() + traffic_ms;
    EXPECT_NEAR(round.at("ratio"), round.at("step_ms").get<double>() / limit, 1e-6);
    sum += round.at("ratio").get<double>();
  }
  EXPECT_NEAR(report.at("ratio"), sum / 2, 1e-6);
  EXPECT_TRUE(says(run.out, "a step takes ")) << run.out;
  EXPECT_NEAR(report.at("recorded_ms"), in_steps, 1e-6 * in_steps);
  // 32 tokens by 12 x 32 x 32 weights in each of two layers and 64 x 32 of the head, thrice, and
  // attention: seven products of 16 x 16 pairs, half of them seen, in 4 heads of 16 in each layer.
  const double flops = 6 * 32 * (2 * 12 * 32 * 32 + 64 * 32) + 2 * 7 * (16 * 16 * 4 * 16);
  EXPECT_EQ(report.at("flops"), flops);
  EXPECT_GE(in_parts, flops);  // with what follows products in their steps
  EXPECT_LT(in_parts, 1.01 * flops);
  const double rate = flops / report.at("step_ms").get<double>() * 1e3;
  const double ceiling = report.at("ceilings").at("flops_per_s").at("f32").get<double>();
  EXPECT_NEAR(report.at("of_ceiling"), rate / ceiling, 1e-9);
  EXPECT_TRUE(says(run.out, " of the matmul's ceiling in f32")) << run.out;
}

TEST_F(BenchOps, RefusesWhatCannotBe) {
  for (const std::string call :
       {"bench ops --model no.onnx", "bench step no.onnx", "bench ops --json no/such/ops.json",
        "bench step gpt.onnx --rounds 0", "bench step"}) {
    const Outcome run = folder_.shardrun(call);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
  }
}

}  // namespace
}  // namespace shardrun::test
