// --restarts: ranks are killed, and the run ends as one that nobody disturbed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

class Restarts : public testing::Test {
 protected:
  Restarts() {
    at_.write("text.txt", prose(20000));
    const Outcome made = at_.shardrun(
        "model gpt --layers 1 --hidden 16 --heads 2 --vocab 256 --context 8 --dropout 0.1 "
        "-o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
  }
  std::string call(const std::string& more) const {
    return SHARDRUN_COMMAND
           " train gpt.onnx --data text:text.txt --validation 0 --batch 4 --schedule cosine "
           "--checkpoint-every 10 --keep 2 --mesh 2 " +
           more;
  }
  const std::string mpirun_ =
      "--mpirun '" SHARDRUN_MPIEXEC " --oversubscribe --bind-to none -np 2' ";
  /// Kills rank `rank` of the run that $pid supervises, once `lines` steps are reported.
  static std::string kill(int lines, int rank) {
    return "until [ $(wc -l < m.jsonl) -ge " + std::to_string(lines) +
           " ] || ! kill -0 $pid; do sleep 0.02; done\n"
           "m=$(cat /proc/$pid/task/$pid/children); for p in $(cat "
           "/proc/${m% }/task/${m% }/children); do\n"
           "  tr '\\0' '\\n' </proc/$p/environ | grep -qx OMPI_COMM_WORLD_RANK=" +
           std::to_string(rank) + " && kill -KILL $p && echo killed $p\ndone\nsleep 1.5\n";
  }
  std::string losses(const std::string& file) const {
    std::string out;
    const std::string text = at_.read(file);
    for (size_t at = text.find("\"loss\":"); at != std::string::npos;
         at = text.find("\"loss\":", at + 1))
      out += text.substr(at + 7, text.find(',', at) - at - 7) + "\n";
    return out;
  }
  Workspace at_;
};

TEST_F(Restarts, LossesAreThoseOfAnUndisturbedRun) {
  const Outcome whole =
      at_.sh(call("--steps 150 --checkpoint whole --restarts 0 --metrics whole.jsonl " + mpirun_));
  ASSERT_EQ(whole.status, 0) << describe(whole);
  const Outcome run =
      at_.sh("touch m.jsonl\n" +
             call("--steps 150 --checkpoint c --restarts 3 --metrics m.jsonl " + mpirun_) +
             " & pid=$!\n" + kill(3, 1) + kill(60, 0) + "wait $pid\nexit $?\n");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.out.find("killed "), std::string::npos) << describe(run);
  EXPECT_NE(run.err.find("restart 1 of 3"), std::string::npos) << describe(run);
  EXPECT_EQ(losses("m.jsonl"), losses("whole.jsonl")) << describe(run);
  EXPECT_NE(losses("m.jsonl"), "");
}

/// The command that is printed starts the ranks as they were started.
TEST_F(Restarts, WhatIsPrintedKeepsTheLaunchersWords) {
  at_.write("hosts", "localhost slots=2\n");
  const std::string launcher = SHARDRUN_MPIEXEC " --hostfile hosts --bind-to none -np 2";
  const std::string model = " train gpt.onnx --data text:text.txt --validation 0 --batch 4 ";
  const std::string wanted = "go on from it with: " + launcher + " shardrun" + model;
  const Outcome alone =
      at_.sh(launcher + " " SHARDRUN_COMMAND + model + "--steps 1 --checkpoint a");
  EXPECT_EQ(alone.status, 0) << describe(alone);
  EXPECT_NE(alone.out.find(wanted + "--steps 1 --checkpoint a --resume\n"), std::string::npos)
      << describe(alone);
  const Outcome supervised =
      at_.sh(SHARDRUN_COMMAND + model + "--steps 1 --checkpoint b --restarts 1 --mpirun '" +
             launcher + "'");
  EXPECT_EQ(supervised.status, 0) << describe(supervised);
  EXPECT_NE(supervised.out.find(wanted + "--steps 1 --checkpoint b --resume\n"), std::string::npos)
      << describe(supervised);
}

/// What the machine, or its description, becomes meanwhile changes no plan: the losses stay those
/// of the first.
TEST_F(Restarts, GoOnByThePlanOfTheFirstStart) {
  const auto planned = [&](const std::string& cluster) {
    const Outcome made = at_.shardrun("plan gpt.onnx --ranks 2 --batch 4 --mesh 2 --cluster " +
                                      cluster + " -o plan.json");
    EXPECT_EQ(made.status, 0) << describe(made);
    return nlohmann::json::parse(at_.read("plan.json"));
  };
  const nlohmann::json first = planned("h100");
  nlohmann::json smaller = first["cluster"];
  smaller["memory_bytes"] = 120000;  // weights have to be cut
  at_.write("smaller.json", smaller.dump());
  const nlohmann::json second = planned("smaller.json");
  ASSERT_NE(second["train"]["values"], first["train"]["values"]) << "there is nothing to keep";

  at_.write("cluster.json", first["cluster"].dump());
  const Outcome whole = at_.sh(call(
      "--steps 100 --checkpoint whole --cluster cluster.json --metrics whole.jsonl --ranks 2"));
  ASSERT_EQ(whole.status, 0) << describe(whole);
  const Outcome run =
      at_.sh("touch m.jsonl\n" +
             call("--steps 100 --checkpoint c --restarts 3 --cluster cluster.json "
                  "--metrics m.jsonl " +
                  mpirun_) +
             " & pid=$!\nuntil [ -s m.jsonl ] || ! kill -0 $pid; do sleep 0.02; done\n"
             "cp smaller.json cluster.json\n" +
             kill(30, 1) + "wait $pid\nexit $?\n");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_NE(run.err.find("from the newest checkpoint of c, by the plan c/plan-2-ranks.json"),
            std::string::npos)
      << describe(run);
  EXPECT_EQ(losses("m.jsonl"), losses("whole.jsonl")) << describe(run);
  EXPECT_NE(losses("m.jsonl"), "");
}

/// One that an earlier job has left in the folder is not taken, nor is one that is refused.
TEST_F(Restarts, PlansOfOthersAreNotTaken) {
  at_.sh("mkdir c; echo '{}' > c/plan-2-ranks.json");
  // The first start ends before it trains.
  at_.write("once", "[ -e did ] && exec \"$@\"; touch did; exit 1\n");
  const Outcome early =
      at_.sh(call("--ranks 2 --steps 2 --checkpoint c --restarts 1 --mpirun 'sh once'"));
  EXPECT_EQ(early.status, 0) << describe(early);
  EXPECT_NE(early.err.find("restart 1 of 1, from its beginning"), std::string::npos)
      << describe(early);
  EXPECT_EQ(early.err.find("by the plan"), std::string::npos) << describe(early);
  EXPECT_NE(at_.read("c/plan-2-ranks.json"), "{}\n");
  // The plan is no plan any more when the run is started again.
  const Outcome run = at_.sh(
      "(until grep -q train d/plan-2-ranks.json; do sleep 0.005; done; echo '{}' > x; "
      "mv x d/plan-2-ranks.json) & " +
      call("--lr 1e30 --clip 0 --on-nan stop --ranks 2 --checkpoint d --restarts 2"));
  EXPECT_EQ(run.status, 1) << describe(run);
  EXPECT_NE(run.err.find("restart 1 of 2, from its beginning, for there is no checkpoint yet, by "
                         "the plan d/plan-2-ranks.json"),
            std::string::npos)
      << describe(run);
  EXPECT_NE(run.err.find("status 2; restart 2 of 2, from its beginning, for there is no checkpoint "
                         "yet\n"),
            std::string::npos)
      << describe(run);
}

/// A run that fails each time does so once more than it is started again; a wrong call once.
TEST_F(Restarts, AreCounted) {
  const Outcome run =
      at_.sh("touch m.jsonl; " +
             call("--checkpoint c --restarts 2 --ranks 2 --lr 1e30 --clip 0 --on-nan stop"));
  EXPECT_EQ(run.status, 1) << describe(run);
  EXPECT_NE(run.err.find("restart 2 of 2"), std::string::npos) << describe(run);
  EXPECT_EQ(run.err.find("restart 3"), std::string::npos) << describe(run);
  const Outcome wrong = at_.sh(call("--checkpoint c --restarts 2 --batch 0"));
  EXPECT_EQ(wrong.status, 2) << describe(wrong);
  EXPECT_EQ(wrong.err.find("restart "), std::string::npos) << describe(wrong);
}

TEST_F(Restarts, AskedToStopItStops) {
  const Outcome run = at_.sh("touch m.jsonl\n" +
                             call("--checkpoint c --restarts 3 --ranks 2 --metrics m.jsonl "
                                  "--steps 1000000") +
                             " & pid=$!\nuntil [ -s m.jsonl ] || ! kill -0 $pid; do sleep 0.02; "
                             "done\nkill -TERM $pid\nwait $pid\nexit $?\n");
  EXPECT_EQ(run.status, 143) << describe(run);
  EXPECT_NE(run.err.find("stopped by SIGTERM"), std::string::npos) << describe(run);
  EXPECT_EQ(run.err.find("restart "), std::string::npos) << describe(run);
}

TEST_F(Restarts, RefusedWhereTheyCannotBe) {
  const Outcome none = at_.shardrun("train gpt.onnx --restarts 2");
  EXPECT_EQ(none.status, 2) << describe(none);
  EXPECT_NE(message(none).find("--checkpoint"), std::string::npos) << describe(none);
  const Outcome ranks = at_.shardrun(mpi(2), "gpt.onnx --checkpoint c --restarts 2");
  EXPECT_EQ(ranks.status, 2) << describe(ranks);
  EXPECT_NE(message(ranks).find("--mpirun 'mpirun -np 2'"), std::string::npos) << describe(ranks);
}

}  // namespace
}  // namespace shardrun::test
