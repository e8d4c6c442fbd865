// SIGTERM and SIGINT to a run: the step ends, the files are whole, the status says which signal.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

/// A job and what it leaves.
class Signals : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(50000));
    const auto model = [](const std::string& sizes, const std::string& file) {
      const Outcome run = at_->shardrun("model gpt " + sizes + " -o " + file);
      ASSERT_EQ(run.status, 0) << describe(run);
    };
    model("--layers 1 --hidden 16 --heads 2 --vocab 256 --context 8", "quick.onnx");
    model("--layers 2 --hidden 512 --heads 8 --vocab 256 --context 256 --no-weights", "slow.onnx");
    model("--layers 12 --hidden 64 --heads 8 --vocab 256 --context 64 --no-weights", "deep.onnx");
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }

  /// Starts a run without end and does `harm` ($pid: the process that was started) when `begun`
  /// holds. The shell would have its background processes ignore SIGINT.
  static Outcome interrupted(Ranks ranks, const std::string& model, const std::string& begun,
                             const std::string& harm) {
    at_->sh("rm -f m.jsonl r.json; touch m.jsonl");
    return at_->sh("env --default-signal=INT " +
                   Workspace::line(ranks, model + " --data text:text.txt --validation 0 --batch 4 "
                                                  "--steps 100000000 --metrics m.jsonl "
                                                  "--report r.json") +
                   " & pid=$!\nuntil " + begun + " || ! kill -0 $pid; do sleep 0.01; done\n" +
                   harm + "\nwait $pid\nexit $?\n");
  }

  /// Metrics and report are whole and agree on the last step.
  static void expect_whole(const Outcome& run, const std::string& signal) {
    int64_t steps = 0;
    std::istringstream lines(at_->read("m.jsonl"));
    for (std::string line; std::getline(lines, line); ++steps) {
      const Json entry = Json::parse(line, nullptr, false);
      ASSERT_TRUE(entry.is_object()) << line;
      EXPECT_EQ(entry["step"], steps + 1);
    }
    const Json report = Json::parse(at_->read("r.json"), nullptr, false);
    ASSERT_TRUE(report.is_object()) << describe(run);
    EXPECT_FALSE(report.contains("failure")) << report.dump(1);
    EXPECT_EQ(report["stopped"], (Json{{"step", steps}, {"signal", signal}})) << report.dump(1);
    EXPECT_EQ(report["losses"].size(), static_cast<size_t>(steps));
    EXPECT_TRUE(report.contains("allocated_bytes"));
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_EQ(message(run),
              "stopped by " + signal + " after step " + std::to_string(steps) + " of 100000000");
    EXPECT_NE(run.out.find("trained " + std::to_string(steps) + " steps"), std::string::npos)
        << describe(run);
  }

  static Workspace* at_;
};

Workspace* Signals::at_ = nullptr;

constexpr char kTrains[] = "test -s m.jsonl";
/// The child of $pid that was started last: the last rank, of mpirun.
constexpr char kLastRank[] =
    "for s in /proc/[0-9]*/stat; do\n"
    "  read -r p name state parent rest < $s || continue\n"
    "  if [ \"$parent\" = $pid ]; then victim=$p; fi\n"
    "done 2>/dev/null\n";

TEST_F(Signals, EndTheStepOfThreads) {
  for (const std::string name : {"TERM", "INT"}) {
    const Outcome run = interrupted(threads(2), "quick.onnx", kTrains, "kill -" + name + " $pid");
    EXPECT_EQ(run.status, name == "TERM" ? 143 : 130) << describe(run);
    expect_whole(run, "SIG" + name);
  }
}

TEST_F(Signals, ToOneRankEndTheStepOfAll) {
  for (const std::string name : {"TERM", "INT"}) {
    const Outcome run = interrupted(mpi(3), "quick.onnx", kTrains,
                                    std::string(kLastRank) + "kill -" + name + " $victim");
    EXPECT_EQ(run.status, name == "TERM" ? 143 : 130) << describe(run);
    expect_whole(run, "SIG" + name);
  }
}

/// Open MPI has its own status for that, and sends ranks SIGTERM in either case.
TEST_F(Signals, ToMpirunEndTheStepOfAll) {
  for (const std::string name : {"TERM", "INT"}) {
    const Outcome run = interrupted(mpi(2), "quick.onnx", kTrains, "kill -" + name + " $pid");
    EXPECT_NE(run.status, 0) << describe(run);
    expect_whole(run, "SIGTERM");
  }
}

/// Which mpirun does not pass on. Once one rank has ended it kills what is left: the other's shell,
/// as a rule before it can say more.
TEST_F(Signals, ToMpirunGiveEachRankItsStatus) {
  at_->write("rank.sh", "trap : TERM\n\"$@\" >/dev/null\necho $? >>statuses\n");
  std::string line = Workspace::line(
      mpi(2), "quick.onnx --data text:text.txt --steps 100000000 --metrics m.jsonl");
  line.insert(line.find(" -np 2 ") + 7, "sh rank.sh ");
  at_->sh("rm -f m.jsonl statuses; touch m.jsonl");
  const Outcome run = at_->sh(line +
                              " & pid=$!\nuntil test -s m.jsonl; do sleep 0.01; done\n"
                              "kill -TERM $pid; wait $pid");
  EXPECT_NE(run.status, 0) << describe(run);
  EXPECT_EQ(message(run).rfind("stopped by SIGTERM after step ", 0), 0u) << describe(run);
  const std::string statuses = at_->read("statuses");
  EXPECT_TRUE(statuses == "143\n" || statuses == "143\n143\n") << statuses << describe(run);
}

/// While nothing trains yet there is nothing to end.
TEST_F(Signals, DuringPlanningEndAtOnce) {
  constexpr char kPlans[] = "grep -q ^data: .out";
  for (const auto& [ranks, sent] : std::vector<std::pair<Ranks, std::string>>{
           {threads(2), "TERM"}, {threads(2), "INT"}, {mpi(2), "TERM"}, {mpi(2), "INT"}}) {
    const Outcome run =  // a search of minutes
        interrupted(ranks, "deep.onnx --planner mcts-arguments --plan-seconds 100000", kPlans,
                    "kill -" + sent + " $pid");
    const std::string name = ranks.mpi ? "TERM" : sent;  // what mpirun sends in either case
    EXPECT_EQ(run.status, ranks.mpi ? 1 : sent == "TERM" ? 143 : 130) << describe(run);
    EXPECT_EQ(at_->read("m.jsonl"), "");
    EXPECT_EQ(messages(run), 1) << describe(run);
    EXPECT_EQ(message(run), "ended at once by SIG" + name);
    const Json report = Json::parse(at_->read("r.json"), nullptr, false);
    ASSERT_TRUE(report.is_object()) << describe(run);
    EXPECT_EQ(report["failure"], "ended at once by SIG" + name);
    EXPECT_EQ(report["failure_kind"], "signal");
  }
}

TEST_F(Signals, ASecondOneEndsAtOnce) {
  const Outcome run =
      interrupted(threads(1), "slow.onnx", kTrains, "kill -TERM $pid; sleep 0.15; kill -TERM $pid");
  EXPECT_EQ(run.status, 143) << describe(run);
  EXPECT_EQ(message(run), "ended at once by SIGTERM");
  const Json report = Json::parse(at_->read("r.json"), nullptr, false);
  ASSERT_TRUE(report.is_object()) << describe(run);
  EXPECT_EQ(report["failure_kind"], "signal");
}

/// nohup's way, and that of shells with background processes.
TEST_F(Signals, ThatAreIgnoredStaySo) {
  const Outcome run = at_->sh(
      "trap '' INT\n" + Workspace::line(threads(1), "quick.onnx --steps 3000 --metrics m.jsonl") +
      " & pid=$!\nuntil test -s m.jsonl; do sleep 0.01; done\nkill -INT $pid\nwait $pid");
  EXPECT_EQ(run.status, 0) << describe(run);
}

}  // namespace
}  // namespace shardrun::test
