// Looking at plans through the command: plan, explain, verify, and a plan that was tampered with.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "command.h"

namespace shardrun::test {
namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Look : public ::testing::Test {
 protected:
  Look() {
    const Outcome made = folder_.shardrun(
        "model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
    folder_.write("text.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  }

  Workspace folder_;
};

TEST_F(Look, PlanThenExplainThenVerify) {
  const Outcome plan =
      folder_.shardrun("plan gpt.onnx --ranks 4 --mesh data=2,model=2 -o plan.json");
  ASSERT_EQ(plan.status, 0) << describe(plan);
  for (const char* part :
       {"mesh data=2,model=2", "time of a step", "dearest collectives", "at the peak"}) {
    EXPECT_TRUE(says(plan.out, part)) << part << "\n" << describe(plan);
  }
  const Outcome explain = folder_.shardrun("explain plan.json");
  EXPECT_EQ(explain.status, 0) << describe(explain);
  EXPECT_TRUE(says(explain.out, "outside layers")) << describe(explain);
  const Outcome why = folder_.shardrun("explain plan.json --why wte.weight");
  EXPECT_EQ(why.status, 0) << describe(why);
  EXPECT_TRUE(says(why.out, "value 'wte.weight' lies as [")) << describe(why);
  EXPECT_TRUE(says(why.out, "next best: ")) << describe(why);
  const Outcome diff = folder_.shardrun("explain plan.json --diff plan.json");
  EXPECT_EQ(diff.status, 0) << describe(diff);
  EXPECT_TRUE(says(diff.out, "\n0 of ")) << describe(diff);
  const Outcome verify =
      folder_.shardrun("verify gpt.onnx --ranks 4 --plan plan.json --data text:text.txt");
  EXPECT_EQ(verify.status, 0) << describe(verify);
  EXPECT_TRUE(says(verify.out, "verified: ")) << describe(verify);
  EXPECT_TRUE(says(verify.out, " values agree with one rank to ")) << describe(verify);
}

/// A product's partial sums, called whole in the file: the first one is named, and the status is 1.
TEST_F(Look, VerifyCatchesATamperedPlan) {
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 --planner dp -o plan.json").status, 0);
  nlohmann::json file = nlohmann::json::parse(folder_.read("plan.json"));
  std::string tampered;
  for (auto& [name, node] : file["train"]["nodes"].items()) {
    const std::string out = node["out"].empty() ? "" : node["out"][0].get<std::string>();
    const size_t partial = out.find(" partial(sum");
    if (name.rfind("matmul", 0) != 0 || partial == std::string::npos || !tampered.empty()) continue;
    tampered = name;
    node["out"][0] = out.substr(0, partial);
    file["train"]["values"]["%" + name] = out.substr(0, partial);
  }
  ASSERT_FALSE(tampered.empty()) << "no product of this plan leaves partial sums";
  folder_.write("wrong.json", file.dump());
  const Outcome verify = folder_.shardrun("verify gpt.onnx --ranks 2 --plan wrong.json");
  EXPECT_EQ(verify.status, 1) << describe(verify);
  EXPECT_EQ(messages(verify), 1) << describe(verify);
  for (const std::string& part : {"verify: value '%" + tampered + "'",
                                  std::string("rank 0, element ["), std::string("one rank has ")}) {
    EXPECT_TRUE(says(message(verify), part)) << part << "\n" << describe(verify);
  }
}

TEST_F(Look, WrongCallsAreRefused) {
  folder_.write("no.json", "{}");
  const Outcome no_plan = folder_.shardrun("explain no.json");
  EXPECT_EQ(no_plan.status, 2) << describe(no_plan);
  EXPECT_TRUE(says(message(no_plan), "no.json")) << describe(no_plan);
  ASSERT_EQ(folder_.shardrun("plan gpt.onnx --ranks 2 -o two.json").status, 0);
  const Outcome ranks = folder_.shardrun("verify gpt.onnx --ranks 3 --plan two.json");
  EXPECT_EQ(ranks.status, 2) << describe(ranks);
  EXPECT_TRUE(says(message(ranks), "field 'mesh'")) << describe(ranks);
  const Outcome batch = folder_.shardrun("verify gpt.onnx --ranks 2 --batch 4 --plan two.json");
  EXPECT_EQ(batch.status, 2) << describe(batch);
  EXPECT_TRUE(says(message(batch), "field 'model_hash'")) << describe(batch);
  const Outcome value = folder_.shardrun("explain two.json --why nothing");
  EXPECT_EQ(value.status, 2) << describe(value);
  EXPECT_TRUE(says(message(value), "'nothing'")) << describe(value);
}

}  // namespace
}  // namespace shardrun::test
