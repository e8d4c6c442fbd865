// shardrun play: agents from outside, by the command and by the library.
#include "shardrun/play.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using nlohmann::json;

class Play : public testing::Test {
 protected:
  Play() {
    const Outcome made = folder_.shardrun(
        "model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
  }

  /// What play says to these lines.
  std::vector<json> answers(const std::string& lines, const std::string& arguments) {
    folder_.write("lines.txt", lines);
    const Outcome outcome = folder_.shardrun("play gpt.onnx " + arguments + " < lines.txt");
    EXPECT_EQ(outcome.status, 0) << describe(outcome);
    std::vector<json> out;
    std::istringstream in(outcome.out);
    for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
    return out;
  }

  Workspace folder_;
};

std::string apply(const std::string& action) {
  return json({{"command", "apply"}, {"action", action}}).dump() + "\n";
}

TEST_F(Play, StatesActionsAndPrices) {
  const std::string undo = "{\"command\": \"undo\"}\n", state = "{\"command\": \"state\"}\n";
  const std::vector<json> said = answers(
      apply("#0@a") + state + undo + apply("#3@b") + apply("#0@a") + undo + undo + "\n" + state,
      "--mesh 2x2");
  ASSERT_EQ(said.size(), 9u);
  EXPECT_EQ(said[0]["tactics"], json::array());
  EXPECT_EQ(said[0]["price"]["relative"], 1.0);
  EXPECT_NE(std::find(said[0]["actions"].begin(), said[0]["actions"].end(), "#0@a"),
            said[0]["actions"].end());
  EXPECT_EQ(said[1]["tactics"], json({"#0@a"}));
  EXPECT_EQ(std::find(said[1]["actions"].begin(), said[1]["actions"].end(), "#0@a"),
            said[1]["actions"].end());
  EXPECT_LT(said[1]["price"]["relative"], 1.0);
  EXPECT_GT(said[1]["price"]["bytes"], 0);
  EXPECT_EQ(said[2], said[1]);
  EXPECT_EQ(said[3], said[0]);
  EXPECT_NE(said[4]["state"], said[5]["state"]);
  EXPECT_EQ(said[5]["tactics"], json({"#3@b", "#0@a"}));
  EXPECT_EQ(said[6], said[4]);
  EXPECT_EQ(said[7], said[0]);
  EXPECT_EQ(said[8], said[0]);
}

/// What is wrong is named, and the game goes on.
TEST_F(Play, BadLines) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"nonsense", "line 1: wanted a JSON object"},
      {"[]", "line 2: wanted a JSON object"},
      {"{}", "line 3: field 'command' is missing; wanted apply, undo, state, report or stop"},
      {"{\"command\": 3}", "line 4: field 'command' is number; wanted apply"},
      {"{\"command\": \"jump\"}", "line 5: field 'command' is 'jump'; wanted apply"},
      {"{\"command\": \"apply\"}", "line 6: field 'action' is missing"},
      {"{\"command\": \"apply\", \"action\": []}", "line 7: field 'action' is array"},
      {"{\"command\": \"apply\", \"action\": \"#99@a\"}", "line 8: action '#99@a' is none of"},
      {"{\"command\": \"apply\", \"action\": \"\xff\"}", "line 9: wanted a JSON object"},
      {"{\"command\": \"undo\"}", "line 10: there is no action left to undo"},
      {std::string(100000, '['), "line 11: wanted a JSON object"},
      {"{\"command\": \"apply\", \"action\": \"a\\u0000\\u001bb\"}",
       "line 12: field 'action' has a byte of 0; wanted one of the state's actions"},
      {"{\"command\": \"a\\u0000b\"}", "line 13: field 'command' has a byte of 0; wanted apply"},
  };
  std::string lines;
  for (const auto& [line, error] : bad) lines += line + "\n";
  const std::vector<json> said = answers(
      lines + apply("#0@a") + apply("#0@a") + "{\"command\": \"stop\"}\nmore\n", "--mesh 2");
  ASSERT_EQ(said.size(), bad.size() + 4);
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(said[i + 1].size(), 1u);
    EXPECT_EQ(said[i + 1]["error"].get<std::string>().substr(0, bad[i].second.size()),
              bad[i].second);
  }
  EXPECT_EQ(said[bad.size() + 1]["tactics"], json({"#0@a"}));
  EXPECT_EQ(said[bad.size() + 2]["error"].get<std::string>().substr(0, 40),
            "line 15: action '#0@a' changes nothing h");
  EXPECT_TRUE(said[bad.size() + 3].contains("report"));
}

/// Memory is not taken for what has no end.
TEST_F(Play, EndsAtALineWithoutAnEnd) {
  const Outcome outcome = folder_.shardrun("play gpt.onnx --mesh 2 < /dev/zero");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(message(outcome),
            "line 1 of standard input has more than 1048576 bytes, wanted a JSON object");
}

/// The agent may be gone while its lines go on.
TEST_F(Play, EndsWhereNobodyReadsTheAnswers) {
  folder_.sh("yes '{\"command\": \"state\"}' | (timeout 100 " +
             Workspace::line(threads(2), "play gpt.onnx --mesh 2") +
             "; echo $? >status) | head -n 1");
  EXPECT_EQ(folder_.read("status"), "141\n");  // 128 + SIGPIPE
}

TEST_F(Play, RefusesWhatIsNoGame) {
  for (const auto& [flags, why] : std::map<std::string, std::string>{
           {"--mesh auto", "--mesh auto: a game is played on one mesh"},
           {"--mesh 2x2x2x2", "--mesh 2x2x2x2: has 4 axes that can cut; a game has at most 3"},
           {"--mesh 2 --planner dp", "--planner dp: a game is not planned"},
           {"--mesh 2 --plan plan.json", "--plan plan.json: a game begins with tactics"},
           {"--mesh 2 --ranks 4", "mesh a=2 has 2 ranks, the job has 4"},
           {"--mesh a=?,b=2 --ranks 3", "mesh 'a=?,b=2': 3 ranks do not divide by 2"},
           {"--mesh 2 --strict", "--strict: a game goes on where"},
           {"--mesh 2 --recompute now", "--recompute 'now' is not one of auto, never"},
           {"--mesh 2 --shard '?none=[a]'", "--shard '?none=[a]': no value's whole name matches"},
           {"--mesh 2 --tactic batch@turns=2",
            "--tactic batch@turns=2: the model was loaded for 1 micro-batch a step"},
           {"--mesh 2 --step forward --tactic batch@turns=2",
            "--tactic batch@turns=2: a forward pass takes its batch at once"},
           {"--mesh 2 --tactic batch@b", "--tactic 'batch@b': mesh a=2 has no axis 'b'"}}) {
    const Outcome outcome = folder_.shardrun("play gpt.onnx " + flags);
    EXPECT_NE(outcome.status, 0);
    EXPECT_EQ(message(outcome).substr(0, why.size()), why) << describe(outcome);
  }
}

/// What --tactic says is cut from the start, and stays; arguments are cut by name.
TEST_F(Play, BeginsWithTactics) {
  const std::vector<json> rows =
      answers("{\"command\": \"undo\"}\n", "--mesh a=2,b=2 --tactic batch@a");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["tactics"], json({"batch@a"}));
  EXPECT_EQ(rows[1]["error"], "line 1: there is no action left to undo");
  const std::vector<json> arguments = answers("", "--mesh a=2 --planner mcts-arguments");
  ASSERT_EQ(arguments.size(), 1u);
  const json& actions = arguments[0]["actions"];
  EXPECT_NE(std::find(actions.begin(), actions.end(), "\\Qtokens\\E.0@a"), actions.end())
      << actions;
}

/// The mesh's unknown size follows from --ranks; turns are the model's micro-batches; a hint is no
/// cut, and what the file requires is one.
TEST_F(Play, TakesTheFlagsOfAPlan) {
  const auto first = [&](const std::string& flags) { return answers("", flags).at(0); };
  EXPECT_EQ(first("--mesh a=?,b=2 --ranks 6"), first("--mesh a=3,b=2"));
  const std::vector<json> turns =
      answers("{\"command\": \"report\"}\n",
              "--mesh a=2,b=2 --accumulate 2 --tactic batch@turns=2 --tactic batch@a");
  const std::vector<json> plain =
      answers("{\"command\": \"report\"}\n", "--mesh a=2,b=2 --accumulate 2 --tactic batch@a");
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0]["tactics"], json({"batch@turns=2", "batch@a"}));
  EXPECT_EQ(turns[0]["price"], plain.at(0)["price"]);
  EXPECT_EQ(turns[1]["report"], plain.at(1)["report"]);

  const json whole = first("--mesh a=2"), cut = first("--mesh a=2 --shard 'wte.weight=[a,-]'");
  EXPECT_NE(cut["price"], whole["price"]);
  EXPECT_EQ(first("--mesh a=2 --shard '?wte.weight=[a,-]'")["price"], whole["price"]);
  const Outcome annotated = folder_.shardrun(
      "plan gpt.onnx --mesh a=2 --planner fsdp -o plan.json --annotate annotated.onnx");
  ASSERT_EQ(annotated.status, 0) << describe(annotated);
  folder_.sh("mv annotated.onnx gpt.onnx");
  EXPECT_EQ(first("--mesh a=2")["price"], whole["price"]);
  EXPECT_NE(first("--mesh a=2 --annotations required")["price"], whole["price"]);
}

/// An agent of random actions: what it is told in the end is what a plan under the same tactics
/// has, to the last bit and byte; and what the table of tactics prints.
TEST_F(Play, ReportsAreThePlansOfTheSameTactics) {
  World world = World::threads(1);
  const Model model = load_model(world, folder_.path() + "/gpt.onnx", {});
  std::mt19937 random(7);
  std::string lines;
  std::vector<TacticReport> wanted;
  for (int episode = 0; episode < 8; ++episode) {
    PlanRequest request;
    request.mesh = "2x2";
    request.ranks = 4;
    request.cluster = "a100-80";  // each collective a call of its own, as the price takes them
    PlanSession session(world, model, request);
    const uint64_t begin = session.state();
    for (int i = 0; i < 1 + episode % 4; ++i) {
      const std::vector<std::string> actions = session.actions();
      ASSERT_FALSE(actions.empty());
      const std::string action = actions[random() % actions.size()];
      session.apply(action);
      lines += apply(action);
    }
    EXPECT_NE(session.state(), begin);
    EXPECT_GT(session.price().seconds, 0);
    PlanRequest same = request;
    same.tactics = session.tactics();
    same.planner = "propagate";
    same.memory_bytes = int64_t{1} << 40;
    const TrainingPlan plan = make_plan(world, model, same);
    const TacticReport report = session.report();
    EXPECT_EQ(report.seconds, plan.predicted_seconds());
    const std::vector<int64_t> bytes = plan.predicted_bytes();
    EXPECT_EQ(report.bytes, *std::max_element(bytes.begin(), bytes.end()));
    EXPECT_LE(report.seconds, session.price().seconds * (1 + 1e-9));
    wanted.push_back(report);
    lines += "{\"command\": \"report\"}\n";
    for (int i = 0; i < 1 + episode % 4; ++i) {
      session.undo();
      lines += "{\"command\": \"undo\"}\n";
    }
    EXPECT_EQ(session.state(), begin);
  }
  size_t next = 0;
  for (const json& line : answers(lines, "--mesh 2x2 --cluster a100-80")) {
    ASSERT_FALSE(line.contains("error")) << line;
    if (!line.contains("report")) continue;
    const TacticReport& report = wanted.at(next++);
    EXPECT_EQ(line["report"]["seconds"].get<double>(), report.seconds);
    EXPECT_EQ(line["report"]["bytes"].get<int64_t>(), report.bytes);
    EXPECT_EQ(line["report"]["unresolved"].get<size_t>(), report.unresolved);
    EXPECT_EQ((line["report"]["collectives"].get<std::map<std::string, int64_t>>()),
              report.collectives);
  }
  EXPECT_EQ(next, wanted.size());
}

/// A plan that a tree search found: in its file, trained by ranks, as one rank trains.
TEST_F(Play, PlansOfTreeSearchesTrain) {
  folder_.write("text.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  for (const char* planner : {"mcts", "mcts-arguments"}) {
    const Outcome planned =
        folder_.shardrun(std::string("plan gpt.onnx --mesh 2x2 --cluster a100-80 --planner ") +
                         planner + " -o plan.json");
    ASSERT_EQ(planned.status, 0) << describe(planned);
    EXPECT_NE(planned.out.find("tree search: "), std::string::npos) << describe(planned);
    EXPECT_NE(planned.out.find("no bound"), std::string::npos) << describe(planned);
    EXPECT_EQ(json::parse(folder_.read("plan.json"))["train"]["planner"], planner);
    const Outcome verified = folder_.shardrun(threads(4), "verify gpt.onnx --plan plan.json");
    EXPECT_EQ(verified.status, 0) << describe(verified);
  }
}

}  // namespace
}  // namespace shardrun::test
