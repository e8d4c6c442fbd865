// Where the time of two plans differs, what is said of nodes in a plan file, and what it would cost
// if values lay otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using nlohmann::json;

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Explains : public testing::Test {
 protected:
  Explains() {
    const Outcome gpt = folder_.shardrun(
        "model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 -o gpt.onnx");
    EXPECT_EQ(gpt.status, 0) << describe(gpt);
    const Outcome wrn =
        folder_.shardrun("model wide-resnet --preset wrn-16-4 --image 64 --no-weights -o wrn.onnx");
    EXPECT_EQ(wrn.status, 0) << describe(wrn);
  }
  json plan(const std::string& how, const std::string& file) {
    const Outcome made = folder_.shardrun("plan " + how + " -o " + file);
    EXPECT_EQ(made.status, 0) << describe(made);
    return made.status == 0 ? json::parse(folder_.read(file)).at("train") : json();
  }
  std::string explain(const std::string& how) {
    const Outcome explained = folder_.shardrun("explain " + how);
    EXPECT_EQ(explained.status, 0) << describe(explained);
    return explained.out;
  }

  Workspace folder_;
};

int64_t nanoseconds(std::string text) {  // "-0.001234" of milliseconds
  text.erase(text.find('.'), 1);
  return std::stoll(text);
}

/// Rows of the table by name: this, other, difference.
std::map<std::string, std::vector<int64_t>> rows_of(const std::string& text) {
  std::map<std::string, std::vector<int64_t>> out;
  std::istringstream lines(text.substr(text.find("  ms of a step")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.rfind("  ", 0) == 0) {
    std::istringstream words(line.substr(32));
    std::vector<int64_t> numbers;
    for (std::string word; words >> word;) numbers.push_back(nanoseconds(word));
    out[line.substr(2, line.find_last_not_of(' ', 31) - 1)] = numbers;
  }
  return out;
}

/// Whatever the plans: rows add up, in each column and from left to right, to the last digit.
TEST_F(Explains, DifferencesAddUp) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> models = {
      {"gpt.onnx --ranks 4 ",
       {"--mesh 4 --planner dp", "--mesh 2x2 --planner fsdp+megatron", "--mesh 2x2",
        "--mesh 4 "
        "--planner megatron-sp"}},
      {"gpt.onnx --ranks 2 --accumulate 3 --dtype bf16 ", {"--planner zero2", "--planner ilp"}},
      {"wrn.onnx --batch 2 --loss cross-entropy --ranks 4 ", {"--mesh 4", "--mesh 2x2"}}};
  std::set<std::string> seen;
  for (const auto& [model, hows] : models) {
    std::vector<double> seconds;
    for (size_t i = 0; i < hows.size(); ++i)
      seconds.push_back(plan(model + hows[i], std::to_string(i) + ".json").at("seconds"));
    for (size_t i = 1; i < hows.size(); ++i) {
      const std::string text = explain("0.json --diff " + std::to_string(i) + ".json");
      auto rows = rows_of(text);
      ASSERT_EQ(rows.count("step"), 1u) << text;
      const std::vector<int64_t> step = rows["step"];
      rows.erase("step");
      std::vector<int64_t> sums(3, 0);
      for (const auto& [name, row] : rows) {
        seen.insert(name);
        ASSERT_EQ(row.size(), 3u) << text;
        EXPECT_EQ(row[2], row[1] - row[0]) << text;
        for (size_t k = 0; k < 3; ++k) sums[k] += row[k];
      }
      EXPECT_EQ(sums, step) << text;
      EXPECT_EQ(step[0], std::llround(seconds[0] * 1e9)) << text;
      EXPECT_EQ(step[1], std::llround(seconds[i] * 1e9)) << text;
      EXPECT_FALSE(says(text, "otherwise")) << text;  // all of it is accounted for
    }
  }
  for (const char* part :
       {"compute", "resharding by all_reduce", "resharding by all_gather",
        "resharding by reduce_scatter", "exchange by halo_exchange", "kernels of several nodes"})
    EXPECT_EQ(seen.count(part), 1u) << part;
}

/// A file that says another time than it has is not believed.
TEST_F(Explains, WhatAFileSaysOtherwiseIsARow) {
  const json mine = plan("gpt.onnx --ranks 2 --planner dp", "dp.json");
  json file = json::parse(folder_.read("dp.json"));
  file["train"]["compute_seconds"] = mine.at("compute_seconds").get<double>() + 0.25;
  file["train"]["seconds"] = mine.at("seconds").get<double>() + 0.25;
  folder_.write("other.json", file.dump());
  const std::string text = explain("dp.json --diff other.json");
  EXPECT_TRUE(says(text, "otherwise, as its file says")) << text;
  EXPECT_TRUE(says(text, "+250.000000")) << text;
}

TEST_F(Explains, PlanFilesDescribeNodes) {
  // On GPUs each collective is a call of its own; on CPUs several sums are one.
  for (const std::string how :
       {"gpt.onnx --ranks 4 --mesh 2x2 --accumulate 2 --cluster a100-80",
        "wrn.onnx --batch 2 --loss cross-entropy --ranks 4 --mesh 4 --cluster a100-80",
        "gpt.onnx --ranks 4 --mesh 4 --planner dp"}) {
    const json train = plan(how, "plan.json");
    double compute = 0, moved = 0;
    std::map<std::string, int> phases;
    for (const auto& [name, node] : train.at("nodes").items()) {
      for (const char* field : {"op", "phase", "module"})
        EXPECT_TRUE(node.at(field).is_string()) << name << " " << field;
      EXPECT_EQ(node.at("operands").size(), node.at("in").size()) << name;
      EXPECT_EQ(node.at("results").size(), node.at("out").size()) << name;
      compute += node.at("compute_seconds").get<double>();
      moved +=
          node.at("exchange_seconds").get<double>() + node.at("resharding_seconds").get<double>();
      ++phases[node.at("phase")];
    }
    // Several nodes are one kernel, and some kernels are of no node: a row in addition to the
    // nodes' own.
    auto rows = rows_of(explain("plan.json --diff plan.json"));
    ASSERT_EQ(rows.count("compute") + rows.count("kernels of several nodes"), 2u) << how;
    const int64_t own = rows["compute"][0], joined = rows["kernels of several nodes"][0];
    EXPECT_NEAR(static_cast<double>(own), 1e9 * compute, 1) << how;
    EXPECT_NEAR(static_cast<double>(own + joined), 1e9 * train.at("compute_seconds").get<double>(),
                2)
        << how;
    const double communication = train.at("comm_seconds");
    if (how.find("a100-80") != std::string::npos) {
      EXPECT_NEAR(moved, communication, 1e-9 * moved) << how;
    } else {
      EXPECT_GT(moved, 1.5 * communication) << how;
    }
    for (const char* phase : {"forward", "backward", "update"}) EXPECT_GT(phases[phase], 0) << how;
    EXPECT_EQ(phases.size(), 3u);
  }
  const json nodes = plan("gpt.onnx --ranks 2", "plan.json").at("nodes");
  const json& product = nodes.at("h.0.MatMul_4");
  EXPECT_EQ(product.at("op"), "matmul");
  EXPECT_EQ(product.at("phase"), "forward");
  EXPECT_EQ(product.at("module"), "h.0.mlp.c_fc");
  EXPECT_EQ(product.at("operands")[1], "f32[64, 256]");
}

/// The cost of each is what --why says of it, and that of all what a plan with that request has.
TEST_F(Explains, WhatIf) {
  const std::string pinned = "'h.*c_fc.weight=[data,-]'";
  const json now = plan("gpt.onnx --mesh data=2,model=2", "plan.json");
  const std::string text = explain("plan.json --what-if " + pinned);
  for (const char* layer : {"h.0", "h.1"})
    EXPECT_TRUE(says(text, std::string(layer) + ".mlp.c_fc.weight")) << text;
  const std::string lies = now.at("values").at("h.0.mlp.c_fc.weight");
  ASSERT_NE(lies, "[{data}, -]");
  const json asked = plan("gpt.onnx --mesh data=2,model=2 --shard " + pinned, "asked.json");
  char step[64];
  std::snprintf(step, sizeof step, "all 2 together: step %.3g ms (",
                asked.at("seconds").get<double>() * 1e3);
  EXPECT_TRUE(says(text, step)) << step << "\n" << text;
  // One alone: the line of --why with that Sharding begins with the same cost.
  const std::string why = explain("plan.json --why h.0.mlp.c_fc.weight");
  std::istringstream lines(text);
  std::string line, cost;
  while (std::getline(lines, line)) {
    if (says(line, "h.0.mlp.c_fc.weight, now")) std::istringstream(line) >> cost;
  }
  EXPECT_TRUE(says(why, cost + " ms  [{data}, -]")) << cost << "\n" << why << "\n" << text;
  // What lies so already, and the batch, which no node makes.
  EXPECT_TRUE(
      says(explain("plan.json --what-if 'h.0.mlp.c_fc.weight=" + lies + "'"), "which lies so"));
  const std::string batch = explain("plan.json --what-if 'tokens=[-,-]'");
  EXPECT_TRUE(says(batch, "tokens, ")) << batch;
}

TEST_F(Explains, WhatIfRefuses) {
  plan("gpt.onnx --ranks 2 --planner dp --mesh r=2", "dp.json");
  const std::string none = explain("dp.json --what-if 'h.0.mlp.c_fc.weight=[r,-]'");
  EXPECT_TRUE(says(none, "planned anew: none with it; ")) << none;
  const std::pair<const char*, const char*> wrong[] = {
      {"'nothing=[r,-]'", "no value's whole name matches"},
      {"'wte.weight=[r]'", "names 1 dims"},
      {"'wte.weight=[q,-]'", "'q'"},
      {"wte.weight", "is not REGEX=SHARDING"}};
  for (const auto& [call, part] : wrong) {
    const Outcome refused = folder_.shardrun(std::string("explain dp.json --what-if ") + call);
    EXPECT_EQ(refused.status, 2) << describe(refused);
    EXPECT_TRUE(says(message(refused), "--what-if ")) << describe(refused);
    EXPECT_TRUE(says(message(refused), part)) << describe(refused);
  }
}

TEST_F(Explains, FlagsThatWouldDoNothingAreRefused) {
  plan("gpt.onnx --ranks 2 --planner dp --mesh r=2", "dp.json");
  const std::pair<const char*, const char*> wrong[] = {
      {"--html page.html --why tokens", "--html excludes --why"},
      {"--html page.html --what-if 'tokens=[-,-]'", "--html excludes --what-if"},
      {"--html page.html --loops", "--html excludes --loops"},
      {"--html page.html --colours", "--html excludes --colours"},
      {"--report run.json", "--report requires --html"},
      {"--memory 1GiB", "--memory: is of the search for --why or --what-if"},
      {"--loops --plan-seconds 1", "--plan-seconds: is of the search for --why or --what-if"}};
  for (const auto& [call, part] : wrong) {
    const Outcome refused = folder_.shardrun(std::string("explain dp.json ") + call);
    EXPECT_EQ(refused.status, 2) << describe(refused);
    EXPECT_TRUE(says(message(refused), part)) << describe(refused);
    EXPECT_FALSE(folder_.exists("page.html"));
  }
}

/// What tactics leave is a plan that the search can only better; it says what it changed. All of
/// them learn what one rank does.
TEST_F(Explains, TheSearchIsNoWorseThanTactics) {
  folder_.write("text.txt", prose(20000));
  const std::string mesh = "gpt.onnx --mesh data=2,model=2 ",
                    job = "gpt.onnx --data text:text.txt --steps 5 ";
  const json best = plan(mesh + "--planner ilp", "ilp.json");
  const TrainingRun alone = train(folder_, threads(1), job);
  EXPECT_LT(largest_difference(train(folder_, threads(4), job + "--plan ilp.json"), alone), 1e-6);
  for (const std::string tactics :
       {"--tactic batch@data --tactic inner@model", "--tactic batch@data --tactic batch@model",
        "--tactic batch@data --tactic weights@data --tactic inner@model"}) {
    const json said = plan(mesh + "--planner propagate " + tactics, "said.json");
    EXPECT_LE(best.at("seconds"), said.at("seconds").get<double>() * (1 + 1e-6)) << tactics;
    int changed = 0;
    for (const auto& [name, sharding] : said.at("values").items())
      changed += best.at("values").at(name) != sharding;
    EXPECT_GT(changed, 0);
    const std::string text = explain("said.json --diff ilp.json");
    EXPECT_TRUE(says(text, "\n" + std::to_string(changed) + " of ")) << text;
    EXPECT_LE(rows_of(text)["step"].at(2), 0) << text;
    EXPECT_LT(largest_difference(train(folder_, threads(4), job + "--plan said.json"), alone), 1e-6)
        << tactics;
  }
}

}  // namespace
}  // namespace shardrun::test
