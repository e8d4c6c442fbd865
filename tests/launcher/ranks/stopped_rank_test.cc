// A rank that stops: whoever notices names it, where it is and what was wanted of it, also in the
// report.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

using Json = nlohmann::json;

class StoppedRanks : public testing::Test {
 protected:
  /// Trains on four ranks, stops one of them once `until` holds, by default once steps are
  /// reported, and gives what came of it.
  Outcome stopped(const std::string& arguments, int victim,
                  const std::string& until = "test -s m.jsonl") {
    at_.write("text.txt", prose(20000));
    const std::string rank = "OMPI_COMM_WORLD_RANK=" + std::to_string(victim);
    return at_.sh("rm -f m.jsonl r.json; touch m.jsonl\n" +
                  Workspace::line(mpi(4), arguments +
                                              " --validation 0 --steps 100000000 --timeout " +
                                              timeout_ + " --metrics m.jsonl --report r.json") +
                  " & pid=$!\nuntil " + until +
                  " || ! kill -0 $pid; do sleep 0.05; done\n"
                  "for p in $(cat /proc/$pid/task/$pid/children); do\n"
                  "  tr '\\0' '\\n' </proc/$p/environ | grep -qx " +
                  rank + " && kill -STOP $p && echo stopped $p\ndone\nwait $pid\nexit $?\n");
  }

  /// One sentence by a rank that lives about the one that does not; `parts` say in which call.
  void expect_named(const Outcome& run, int victim, const std::vector<std::string>& parts) {
    expect_named_at(
        "data=" + std::to_string(victim / 2) + ", model=" + std::to_string(victim % 2) + "; ", run,
        victim, parts);
  }
  void expect_named_at(const std::string& place, const Outcome& run, int victim,
                       const std::vector<std::string>& parts) {
    EXPECT_NE(run.status, 0) << describe(run);
    EXPECT_NE(run.out.find("stopped "), std::string::npos) << "nobody to stop\n" << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    const std::string text = message(run),
                      blame = "for rank " + std::to_string(victim) + " (" + place + "on ";
    EXPECT_NE(text.rfind(blame), std::string::npos) << text;
    EXPECT_NE(text.find("which has stopped or makes other calls"), std::string::npos) << text;
    EXPECT_NE(text.find("waited " + timeout_ + " s for "), std::string::npos) << text;
    // Every call but a barrier moves bytes.
    EXPECT_NE(text.find(" bytes on rank ") != std::string::npos,
              text.find("barrier on rank ") != std::string::npos)
        << text;
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "wanted " << part << "\n" << text;
    const Json report = Json::parse(at_.read("r.json"), nullptr, false);
    ASSERT_TRUE(report.is_object()) << describe(run);
    const std::string failure = report.value("failure", "");
    EXPECT_EQ(failure, text) << describe(run);
    EXPECT_EQ(report["failure_kind"], "run");
    EXPECT_EQ(report.value("ranks", 4), 4);  // known with the plan
  }

  void write_gpt() {
    ASSERT_EQ(at_.shardrun("model gpt --layers 2 --hidden 64 --heads 4 --vocab 256 --context 32 "
                           "-o gpt.onnx")
                  .status,
              0);
  }

  Workspace at_;
  std::string timeout_ = "8";  // s: longer than rank 0 plans, for which the others wait
};

constexpr char kGpt[] =
    "gpt.onnx --data text:text.txt --mesh data=2,model=2 --planner dp+megatron --batch 4";

TEST_F(StoppedRanks, AreNamedWhoeverNotices) {
  write_gpt();
  for (const int victim : {3, 0}) expect_named(stopped(kGpt, victim), victim, {"step "});
}

/// In one group: the one whose time is up first asks the others before it speaks, and these wait
/// for that.
TEST_F(StoppedRanks, AreNamedWhereAllWaitTogether) {
  write_gpt();
  for (const int victim : {3, 0}) {
    const Outcome run =
        stopped("gpt.onnx --data text:text.txt --mesh data=4 --planner dp --batch 4", victim);
    expect_named_at("", run, victim, {"step "});
  }
}

/// The others wait for the plan.
TEST_F(StoppedRanks, AreNamedBeforeTheFirstStep) {
  ASSERT_EQ(at_.shardrun("model gpt --layers 2 --hidden 512 --heads 8 --vocab 256 --context 256 "
                         "--no-weights -o gpt.onnx")
                .status,
            0);
  const Outcome run =
      stopped("gpt.onnx --data text:text.txt --mesh data=4 --batch 4", 0, "grep -q ^data: .out");
  expect_named_at("", run, 0, {" on rank "});
}

/// Convolutions that are cut in rows and columns.
TEST_F(StoppedRanks, InHaloExchanges) {
  timeout_ = "30";
  ASSERT_EQ(at_.shardrun("model wide-resnet --family cifar --layers 10 --width 1 --image 16 -o "
                         "wrn.onnx")
                .status,
            0);
  const Outcome run = stopped(
      "wrn.onnx --batch 4 --mesh data=2,model=2 --shard "
      "'.*(Conv|Relu|Add|conv_data_grad)[_0-9]*=[-,data,model,-]'",
      3);
  expect_named(run, 3, {"step "});
}

/// Rows of a graph that ranks name to each other.
TEST_F(StoppedRanks, InExchangesOfRows) {
  ASSERT_EQ(at_.shardrun("model gat --nodes 512 --edges 2048 --features 32 --hidden 8 --heads 2 -o "
                         "gat.onnx")
                .status,
            0);
  expect_named(stopped("gat.onnx --mesh data=2,model=2", 3), 3, {"step ", " on rank "});
}

/// By messages, as between machines.
TEST_F(StoppedRanks, WithoutSharedMemory) {
  write_gpt();
  setenv("OMPI_MCA_osc", "^sm", 1);
  expect_named(stopped(kGpt, 3), 3, {"step "});
  unsetenv("OMPI_MCA_osc");
}

}  // namespace
}  // namespace shardrun::test
