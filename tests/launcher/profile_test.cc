// --profile and --profile-summary through the command: what the trace holds, and whether the
// table's parts add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Profile : public testing::Test {
 protected:
  Profile() {
    const Outcome made = folder_.shardrun(
        "model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --context 16 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
  }

  Workspace folder_;
};

struct Event {
  std::string name, category;
  int64_t begin = 0, end = 0;  // ns
  Json args;
};

/// The complete events of each rank, in the order of the file.
std::map<int, std::vector<Event>> events_of(const Json& trace) {
  std::map<int, std::vector<Event>> out;
  for (const Json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    const int64_t begin = std::llround(e.at("ts").get<double>() * 1e3);
    out[e.at("pid")].push_back({e.at("name"), e.at("cat"), begin,
                                begin + std::llround(e.at("dur").get<double>() * 1e3),
                                e.at("args")});
  }
  return out;
}

/// Two events of a rank lie one in the other, or one after the other.
void expect_nested(const std::vector<Event>& events) {
  std::vector<const Event*> open;
  for (const Event& e : events) {
    while (!open.empty() && open.back()->end <= e.begin) open.pop_back();
    ASSERT_LE(e.begin, e.end) << e.name;
    if (!open.empty()) {
      ASSERT_LE(e.end, open.back()->end) << e.name << " in " << open.back()->name;
    }
    open.push_back(&e);
  }
}

TEST_F(Profile, TheTraceHasEveryStepOfEveryRank) {
  const std::string arguments =
      "train gpt.onnx --planner dp --steps 5 --batch 3 --accumulate 2 --profile trace.json "
      "--profile-steps 2";
  for (const Ranks ranks : {threads(2), mpi(2)}) {
    const Outcome run = folder_.shardrun(ranks, arguments);
    ASSERT_EQ(run.status, 0) << describe(run);
    const Json trace = Json::parse(folder_.read("trace.json"));
    EXPECT_EQ(trace.at("otherData").at("ranks"), 2);
    const auto events = events_of(trace);
    ASSERT_EQ(events.size(), 2u);
    std::map<int, std::multiset<std::string>> names;
    for (const auto& [rank, own] : events) {
      expect_nested(own);
      std::vector<std::string> steps;
      std::map<std::string, int> ops, validation;
      std::string outer;
      for (const Event& e : own) {
        if (e.category == "step") steps.push_back(e.name);
        if (e.category == "step" || e.category == "validation batch") outer = e.category;
        if (e.category != "kernel" && e.category != "collective") continue;
        names[rank].insert(e.name);
        ++(outer == "step" ? ops : validation)[e.args.at("op")];
        EXPECT_FALSE(e.args.at("out").empty()) << e.args;
        EXPECT_TRUE(says(e.args.at("out")[0], "[")) << e.args;
        EXPECT_GE(e.args.at("predicted_us"), 0.0) << e.args;
        EXPECT_NE(e.args.at("source"), "") << e.name;
        if (e.category == "kernel") {
          EXPECT_NE(e.args.at("kernel"), "") << e.args;
        }
        if (e.args.at("op") == "matmul") {
          EXPECT_GT(e.args.at("flops"), 0) << e.args;
          EXPECT_GT(e.args.at("bytes"), 0) << e.args;
        }
        if (e.args.at("op") == "all_reduce") {
          EXPECT_GT(e.args.at("bytes_sent"), 0) << e.args;
        }
      }
      EXPECT_EQ(steps, (std::vector<std::string>{"step 4", "step 5"}));
      EXPECT_EQ(ops["attention"], 2 * 2 * 2);  // of two layers, two micro-batches, two steps
      EXPECT_GT(ops["adamw"], 0);
      EXPECT_GT(ops["all_reduce"], 0);
      EXPECT_GT(validation["attention"], 0);  // at the end
      EXPECT_EQ(validation["adamw"], 0);
    }
    EXPECT_EQ(names[0], names[1]);
  }
}

constexpr size_t kFigures = 64;  // columns in front of a row's name

/// The figures of a row of the table whose name begins so; empty if there is none.
std::vector<double> row(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= kFigures || line.compare(kFigures, name.size(), name) != 0) continue;
    std::istringstream words(line.substr(0, kFigures));
    std::vector<double> out;
    for (std::string word; words >> word;) {
      if (word != "%") out.push_back(word == "-" ? 0 : std::stod(word));
    }
    return out;
  }
  return {};
}

TEST_F(Profile, TheTablesRowsAddUpToTheStep) {
  const Outcome run = folder_.shardrun("train gpt.onnx --steps 4 --profile-summary");
  ASSERT_EQ(run.status, 0) << describe(run);
  EXPECT_TRUE(says(run.out, "mean of steps 2 to 4")) << run.out;
  const std::string table = run.out.substr(run.out.find("profile of rank 0"));
  const std::vector<double> whole = row(table, "the step");
  ASSERT_EQ(whole.size(), 7u) << table;
  // The first table: from its head to the step.
  double ms = 0, predicted = 0;
  int rows = 0;
  std::istringstream lines(table);
  std::string line;
  for (std::getline(lines, line), std::getline(lines, line);
       std::getline(lines, line) && line.compare(kFigures, 8, "the step") != 0; ++rows) {
    ms += std::stod(line.substr(0, 9));
    const std::string text = line.substr(9, 11);
    if (!says(text, "-")) predicted += std::stod(text);
  }
  EXPECT_GT(rows, 8) << table;
  EXPECT_NEAR(ms, whole[0], 1e-3 * rows) << table;
  EXPECT_NEAR(predicted, whole[1], 1e-3 * rows) << table;
  // The second has the same steps, but for what no step is.
  std::getline(lines, line);
  std::getline(lines, line);
  EXPECT_TRUE(says(line, "the most expensive calls")) << table;
  double second = row(table, "outside of all these").at(0);
  for (const char* host : {"1 x reading", "1 x zeroing"}) {
    const std::vector<double> figures = row(table, host);
    if (!figures.empty()) second += figures[0];
  }
  while (std::getline(lines, line)) {
    const std::string first = line.substr(0, 9);
    if (first.find_first_not_of(' ') != std::string::npos && says(first, "."))
      second += std::stod(first);
  }
  EXPECT_NEAR(second, whole[0], 1e-3 * 60) << table;
}

TEST_F(Profile, ChangesNoNumber) {
  const std::string train = "gpt.onnx --steps 3 --batch 2";
  const TrainingRun plain = shardrun::test::train(folder_, threads(2), train);
  const TrainingRun seen =
      shardrun::test::train(folder_, threads(2), train + " --profile t.json --profile-summary");
  EXPECT_EQ(plain.loss_texts, seen.loss_texts);
  EXPECT_EQ(plain.allocated, seen.allocated);
}

TEST_F(Profile, WrongCallsAreRefusedBeforeTraining) {
  const auto refused = [&](const std::string& flags, const std::string& part) {
    const Outcome run = folder_.shardrun(threads(2), "gpt.onnx --steps 2 " + flags);
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_TRUE(says(message(run), part)) << describe(run);
    EXPECT_FALSE(says(run.out, "plan:")) << describe(run);
    EXPECT_FALSE(says(run.out, "step 1")) << describe(run);
  };
  refused("--profile no/such/folder/trace.json", "--profile: no/such/folder/trace.json");
  refused("--profile-steps 3", "--profile-steps: got 3");
  refused("--profile-summary --profile-steps 0", "profile-steps is 0");
}

}  // namespace
}  // namespace shardrun::test
