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
  std::string call(const std::string& more, int every = 10) const {
    return SHARDRUN_COMMAND
           " train gpt.onnx --data text:text.txt --validation 0 --batch 4 --schedule cosine "
           "--keep 2 --mesh 2 --checkpoint-every " +
           std::to_string(every) + " " + more;
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

/// The ranks of an mpirun that is killed are no more when the newest checkpoint is chosen: it is
/// the one that the next start goes on from, and none is later.
TEST_F(Restarts, RanksOfALauncherThatIsKilledEndFirst) {
  const Outcome run = at_.sh(
      "touch m.jsonl\n" +
      call("--steps 1000000 --checkpoint c --restarts 1 --metrics m.jsonl " + mpirun_, 5) +
      " & pid=$!\nuntil ls c 2>/dev/null | grep -q 'step-[0-9]*$' || ! kill -0 $pid; do sleep "
      "0.02; done\n"
      "m=$(cat /proc/$pid/task/$pid/children); ranks=$(cat /proc/${m% }/task/${m% }/children)\n"
      "kill -KILL $m\n"
      "until grep -q 'restart 1 of 1' .err || ! kill -0 $pid; do sleep 0.01; done\n"
      "for p in $ranks; do kill -0 $p 2>/dev/null && echo lives || echo ended; done\n"
      "until grep -q 'goes on at step' .out || ! kill -0 $pid; do sleep 0.02; done\n"
      "kill -TERM $pid; wait $pid; exit $?\n");
  EXPECT_EQ(run.status, 143) << describe(run);
  EXPECT_NE(run.out.find("ended\nended\n"), std::string::npos) << describe(run);
  EXPECT_NE(run.err.find("restart 1 of 1, from the newest checkpoint of c"), std::string::npos)
      << describe(run);
  EXPECT_EQ((run.out + run.err).find(".set-aside"), std::string::npos) << describe(run);
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
  EXPECT_NE(run.err.find("restart 1 of 2, from its beginning"), std::string::npos) << describe(run);
  EXPECT_NE(run.err.find("restart 2 of 2 in 1 s, for it came no further, "), std::string::npos)
      << describe(run);
  EXPECT_EQ(run.err.find("restart 3"), std::string::npos) << describe(run);
  const Outcome wrong = at_.sh(call("--checkpoint c --restarts 2 --batch 0"));
  EXPECT_EQ(wrong.status, 2) << describe(wrong);
  EXPECT_EQ(wrong.err.find("restart "), std::string::npos) << describe(wrong);
}

/// A signal that comes during a pause ends it, and nothing is started.
TEST_F(Restarts, AskedToStopBetweenStartsItStartsNone) {
  const Outcome run = at_.sh(
      call("--checkpoint c --restarts 9 --ranks 2 --lr 1e30 --clip 0 --on-nan stop") +
      " 2>err & pid=$!\nuntil grep -q 'restart 4 of 9 in 4 s' err || ! kill -0 $pid; do sleep "
      "0.02; done\nkill -TERM $pid\nwait $pid\nexit $?\n");
  EXPECT_EQ(run.status, 143) << describe(run);
  EXPECT_EQ(at_.read("err").find("restart 5"), std::string::npos) << at_.read("err");
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

/// timeout, a terminal and Slurm signal whole groups of processes, and a launcher that gets a
/// signal twice kills its ranks. The status is the signal's, whatever the launcher's is.
TEST_F(Restarts, ASignalToTheGroupComesOnce) {
  for (const auto& [start, signal, status] :
       std::vector<std::tuple<std::string, std::string, int>>{{"--ranks 2 ", "TERM", 143},
                                                              {"--ranks 2 ", "HUP", 129},
                                                              {mpirun_, "TERM", 143},
                                                              {mpirun_, "INT", 130}}) {
    SCOPED_TRACE(start + signal);
    const Outcome run = at_.sh(
        "rm -rf c m.jsonl; touch m.jsonl; export OMPI_MCA_odls_base_sigkill_timeout=3\n"
        "setsid env --default-signal " +
        call("--checkpoint c --restarts 3 --metrics m.jsonl --steps 1000000 " + start, 1000000) +
        " & pid=$!\nuntil [ -s m.jsonl ] || ! kill -0 $pid; do sleep 0.02; done\n"
        "kill -s " +
        signal + " -- -$pid\nwait $pid\ns=$?\nls c; exit $s\n");
    EXPECT_EQ(run.status, status) << describe(run);
    EXPECT_NE(run.err.find("stopped by SIG"), std::string::npos) << describe(run);
    EXPECT_NE(run.out.find("\nstep-"), std::string::npos) << describe(run);
  }
  const Outcome timed =
      at_.sh("rm -rf c; timeout 5 " +
             call("--checkpoint c --restarts 3 --ranks 2 --steps 1000000", 1000000) +
             "; s=$?; ls c; [ $s -eq 124 ]");
  EXPECT_EQ(timed.status, 0) << describe(timed);
  EXPECT_NE(timed.err.find("stopped by SIGTERM"), std::string::npos) << describe(timed);
  EXPECT_NE(timed.out.find("\nstep-"), std::string::npos) << describe(timed);
}

/// A signal that asks for checkpoints is passed on, and ends nothing.
TEST_F(Restarts, ASignalForACheckpointGoesOn) {
  for (const std::string signal : {"HUP", "USR1"}) {
    SCOPED_TRACE(signal);
    const Outcome run = at_.sh(
        "rm -rf c m.jsonl; touch m.jsonl\nenv --default-signal " +
        call("--checkpoint c --restarts 1 --ranks 2 --metrics m.jsonl --steps 1000000 "
             "--checkpoint-on-signal " +
                 signal,
             1000000) +
        " & pid=$!\nuntil [ -s m.jsonl ] || ! kill -0 $pid; do sleep 0.02; done\nkill -s " +
        signal +
        " $pid\nfor i in $(seq 200); do sleep 0.05; ls c | grep -q 'step-[0-9]*$' && break; done\n"
        "ls c\nm=$(cat /proc/$pid/task/$pid/children); kill -KILL $m\n"
        "for i in $(seq 200); do sleep 0.05; grep -q 'restart 1' .err && break; done; sleep 1\n"
        "kill -TERM $pid; wait $pid\n");
    EXPECT_EQ(run.status, 143) << describe(run);
    EXPECT_NE(run.out.find("step-"), std::string::npos) << describe(run);
    EXPECT_NE(run.err.find("restart 1 of 1, from the newest checkpoint of c"), std::string::npos)
        << describe(run);
  }
}

/// What is not whole yet is no checkpoint: the run goes on from where the call said.
TEST_F(Restarts, WithoutACheckpointTheyGoOnFromWhereTheCallSays) {
  const Outcome first = at_.sh(call("--checkpoint a --ranks 2 --steps 20"));
  ASSERT_EQ(first.status, 0) << describe(first);
  at_.sh("mkdir -p c/step-00000030.partial");
  const Outcome run = at_.sh(
      "touch m.jsonl\n" +
      call("--resume a --checkpoint c --restarts 1 --ranks 2 --metrics m.jsonl --steps 2000000",
           1900000) +
      " & pid=$!\nuntil [ -s m.jsonl ] || ! kill -0 $pid; do sleep 0.02; done\n"
      "m=$(cat /proc/$pid/task/$pid/children); mkdir -p c/step-00000031.partial; kill -KILL $m\n"
      "for i in $(seq 600); do sleep 0.05; grep -q 'goes on at step' .out && break; done; sleep 1\n"
      "kill -TERM $pid; wait $pid\n");
  EXPECT_NE(run.err.find("from --resume a, for there is no checkpoint yet"), std::string::npos)
      << describe(run);
  EXPECT_NE((run.out + run.err).find("goes on at step 21"), std::string::npos) << describe(run);
  EXPECT_EQ((run.out + run.err).find("begins at step 1"), std::string::npos) << describe(run);
}

/// A damaged checkpoint is refused, and the next start goes on from the newest whole one.
TEST_F(Restarts, GoOnFromTheNewestWholeCheckpoint) {
  const Outcome run = at_.sh(
      "touch m.jsonl\n" +
      call("--checkpoint c --restarts 3 --ranks 2 --metrics m.jsonl --steps 1000000", 500) +
      " & pid=$!\nuntil [ $(ls -d c/step-*[0-9] 2>/dev/null | wc -l) -ge 2 ] || ! kill -0 $pid; do "
      "sleep 0.01; "
      "done\n"
      "m=$(cat /proc/$pid/task/$pid/children); kill -STOP $m\n"
      "new=$(ls -d c/step-*[0-9] | tail -1); old=$(ls -d c/step-*[0-9] | tail -2 | head -1)\n"
      "echo {} > $new/manifest.json; echo new=$new old=$old\n"
      "kill -KILL $m\n"
      "for i in $(seq 500); do sleep 0.05; ls c | grep -q set-aside && break; done; sleep 0.5\n"
      "kill -TERM $pid; wait $pid; exit $?\n");
  EXPECT_EQ(run.status, 143) << describe(run);
  EXPECT_NE(run.err.find("restart 2 of 3, from c/step-"), std::string::npos) << describe(run);
  EXPECT_NE(run.err.find(", for what is newer is damaged"), std::string::npos) << describe(run);
  EXPECT_NE(run.err.find("stopped by SIGTERM"), std::string::npos) << describe(run);
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
