// Checkpoints of the command, alone and under mpirun: signals, disks that fail, refusals, and what
// it says to do next.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class Checkpoints : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(20000));
    const auto model = [](const std::string& sizes, const std::string& file) {
      const Outcome run = at_->shardrun("model gpt --heads 2 --vocab 256 --context 8 " + sizes +
                                        " --dropout 0.1 -o " + file);
      ASSERT_EQ(run.status, 0) << describe(run);
    };
    model("--layers 1 --hidden 16", "gpt.onnx");
    model("--layers 2 --hidden 16", "other.onnx");
  }
  static void TearDownTestSuite() {
    delete at_;
    at_ = nullptr;
  }
  void SetUp() override { at_->sh("rm -rf c d *.jsonl *.json"); }

  /// "train gpt.onnx …" of `steps` steps.
  static std::string call(int steps, const std::string& more) {
    return "train gpt.onnx --data text:text.txt --validation 0 --batch 4 --accumulate 2 "
           "--plan-seconds 0.2 --schedule cosine --steps " +
           std::to_string(steps) + " " + more;
  }
  static Outcome run(Ranks ranks, int steps, const std::string& more, int status = 0) {
    const Outcome out = at_->shardrun(ranks, call(steps, more));
    EXPECT_EQ(out.status, status) << describe(out);
    return out;
  }
  /// Starts a run, and does `harm` once it has taken a step ($pid: the process that was started).
  static Outcome interrupted(Ranks ranks, int steps, const std::string& more,
                             const std::string& harm) {
    return at_->sh("touch m.jsonl; env --default-signal=INT " +
                   Workspace::line(ranks, call(steps, more + " --metrics m.jsonl")) +
                   " & pid=$!\nuntil test -s m.jsonl || ! kill -0 $pid; do sleep 0.01; done\n" +
                   harm + "\nwait $pid\nexit $?\n");
  }

  /// The checkpoints in a folder, oldest first.
  static std::vector<std::string> checkpoints(const std::string& folder) {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(at_->path() + "/" + folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-")) out.push_back(name);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  static int64_t newest(const std::string& folder) {
    const std::vector<std::string> all = checkpoints(folder);
    return all.empty() ? 0 : std::stoll(all.back().substr(5));
  }
  /// Step, loss, gradients' norm and rate of each line.
  static std::vector<Json> metrics(const std::string& file) {
    std::vector<Json> out;
    std::istringstream lines(at_->read(file));
    for (std::string line; std::getline(lines, line);) {
      const Json all = Json::parse(line);
      out.push_back({all["step"], all["loss"], all["grad_norm"], all["lr"]});
    }
    return out;
  }
  static std::string path(const std::string& name) { return at_->path() + "/" + name; }

  static Workspace* at_;
};

Workspace* Checkpoints::at_ = nullptr;

/// The child of $pid that was started last: the last rank, of mpirun.
constexpr char kLastRank[] =
    "for s in /proc/[0-9]*/stat; do\n"
    "  read -r p name state parent rest < $s || continue\n"
    "  if [ \"$parent\" = $pid ]; then victim=$p; fi\n"
    "done 2>/dev/null\n";

/// And what goes on from it ends as a run that was never stopped.
TEST_F(Checkpoints, ASignalLeavesOne) {
  constexpr int kSteps = 3000;
  run(mpi(2), kSteps, "--metrics whole.jsonl");
  const std::vector<Json> whole = metrics("whole.jsonl");
  ASSERT_EQ(whole.size(), static_cast<size_t>(kSteps));
  struct Case {
    std::string harm;
    int status;
  };
  const Case cases[] = {{std::string(kLastRank) + "kill -TERM $victim", 143},
                        {"kill -TERM $pid", 1}};  // mpirun's own
  for (const Case& one : cases) {
    SCOPED_TRACE(one.harm);
    at_->sh("rm -rf c m.jsonl");
    const Outcome stopped = interrupted(mpi(2), kSteps, "--checkpoint c --report r.json", one.harm);
    EXPECT_EQ(stopped.status, one.status) << describe(stopped);
    ASSERT_EQ(checkpoints("c").size(), 1u) << describe(stopped);
    const int64_t step = newest("c");
    EXPECT_LT(step, kSteps);
    EXPECT_EQ(Json::parse(at_->read("r.json"))["stopped"]["step"], step);
    const Outcome rest = run(mpi(2), kSteps, "--checkpoint c --resume --metrics m.jsonl");
    EXPECT_NE(rest.out.find("goes on at step " + std::to_string(step + 1)), std::string::npos)
        << describe(rest);
    EXPECT_EQ(metrics("m.jsonl"), whole);
  }
}

TEST_F(Checkpoints, ASignalThatAsksForOneLetsTheRunGoOn) {
  constexpr int kSteps = 3000;
  const Outcome asked = interrupted(mpi(2), kSteps, "--checkpoint c --checkpoint-on-signal USR1",
                                    "kill -USR1 $pid\nuntil ls c | grep -q '^step-[0-9]*$' || ! "
                                    "kill -0 $pid; do sleep 0.01; done\n" +
                                        std::string(kLastRank) + "kill -USR1 $victim");
  EXPECT_EQ(asked.status, 0) << describe(asked);
  EXPECT_EQ(checkpoints("c").size(), 3u) << describe(asked);
  EXPECT_EQ(newest("c"), kSteps);
}

/// `ulimit -f`: files that grow no longer, as on a full disk.
TEST_F(Checkpoints, ADiskThatFailsEndsNoRun) {
  run(threads(2), 2, "--checkpoint c");
  const std::string before = at_->read("c/step-00000002/manifest.json");
  const Outcome full = at_->sh(
      "ulimit -f 16; " +
      Workspace::line(threads(2), call(7,
                                       "--checkpoint c --resume --checkpoint-every 3 --keep 1 "
                                       "--report r.json")));
  EXPECT_EQ(full.status, 1) << describe(full);
  EXPECT_NE(full.out.find("trained 5 steps"), std::string::npos) << describe(full);
  EXPECT_EQ(checkpoints("c"), std::vector<std::string>{"step-00000002"});
  EXPECT_EQ(at_->read("c/step-00000002/manifest.json"), before);
  EXPECT_EQ(message(full),
            "3 checkpoints could not be written; the newest whole one is c/step-00000002");
  for (const std::string step : {"3", "6", "7"}) {
    const std::string warning = "warning: the checkpoint of step " + step + " was not written: ";
    const size_t first = full.err.find(warning);
    ASSERT_NE(first, std::string::npos) << describe(full);
    EXPECT_NE(full.err.find("cannot write: File too large", first), std::string::npos);
    EXPECT_EQ(full.err.find(warning, first + 1), std::string::npos) << "once an attempt";
  }
  EXPECT_EQ(Json::parse(at_->read("r.json"))["checkpoints"].size(), 3u);
  run(threads(2), 7, "--checkpoint c --resume");
  EXPECT_EQ(newest("c"), 7);
}

/// Before anything is planned.
TEST_F(Checkpoints, FoldersThatAreRefused) {
  run({}, 2, "--checkpoint c");
  const auto refused = [&](const std::string& command, const std::string& sentence) {
    const Outcome out = at_->shardrun(mpi(2), command);
    EXPECT_EQ(out.status, 2) << describe(out);
    EXPECT_EQ(messages(out), 1) << describe(out);
    EXPECT_NE(message(out).find(sentence), std::string::npos) << describe(out);
    EXPECT_EQ(out.out.find("plan:"), std::string::npos) << describe(out);
  };
  refused(call(4, "--checkpoint /proc/run"),
          "--checkpoint: /proc/run: cannot be written: No such file or directory");
  refused(call(4, "--checkpoint c"), "holds checkpoints already, the newest of step 2");
  std::string other = call(4, "--checkpoint c --resume");
  refused(other.replace(other.find("gpt.onnx"), 8, "other.onnx"), "it is of another model");
  run({}, 4, "--checkpoint c --resume");
  fs::resize_file(path("c/step-00000004/shard-00001-model-00001-of-00001.safetensors"), 1000);
  refused(call(6, "--checkpoint c --resume"), "has 1000 bytes, ");
  refused(call(6, "--checkpoint c --resume"),
          "go on from that with --resume " + path("c/step-00000002"));
  fs::remove_all(path("c/step-00000004/manifest.json"));
  refused(call(6, "--resume c"), "go on from that with --resume " + path("c/step-00000002"));
}

/// A bit that has changed is found when the bytes are read, by whichever rank.
TEST_F(Checkpoints, AFlippedBitIsOneSentenceOfAllRanks) {
  run(mpi(2), 4, "--checkpoint c --checkpoint-every 2");
  const std::string shard = "c/step-00000004/shard-00002-model-00001-of-00001.safetensors";
  std::string bytes = at_->read(shard);
  bytes[bytes.size() - 7] = static_cast<char>(bytes[bytes.size() - 7] ^ 16);
  at_->write(shard, bytes);
  const Outcome out = run(mpi(3), 6, "--checkpoint c --resume", 2);
  EXPECT_EQ(messages(out), 1) << describe(out);
  EXPECT_NE(message(out).find(shard + ": the checksum of '"), std::string::npos) << describe(out);
  EXPECT_NE(message(out).find("the newest whole one before it is " + path("c/step-00000002")),
            std::string::npos)
      << describe(out);
  EXPECT_EQ(checkpoints("c"), (std::vector<std::string>{"step-00000002", "step-00000004"}));
  run(mpi(3), 6, "--checkpoint c --resume c/step-00000002");
  EXPECT_EQ(checkpoints("c"), (std::vector<std::string>{"step-00000002", "step-00000004.set-aside",
                                                        "step-00000006"}));
}

/// The command after "go on from it with: ".
std::string hint(const Outcome& out) {
  std::smatch found;
  const bool there =
      std::regex_search(out.out, found, std::regex("go on from it with: shardrun ([^\n]*)"));
  return there ? found[1].str() : "";
}

TEST_F(Checkpoints, TheCommandThatGoesOnIsOneThatCan) {
  const auto follow = [](const Outcome& out) {
    ASSERT_NE(hint(out), "") << describe(out);
    EXPECT_NE(out.out.find("; with a larger --steps go on from it with: "), std::string::npos)
        << describe(out);
    const Outcome next = at_->shardrun(hint(out));
    EXPECT_EQ(next.status, 0) << describe(next);
    EXPECT_NE(next.out.find("nothing is left to train"), std::string::npos) << describe(next);
  };
  follow(run({}, 2, "--checkpoint c"));
  follow(run({}, 3, "--checkpoint c --resume"));
  follow(run({}, 4, "--resume c/step-00000003 --checkpoint d"));
  // Nothing of it is kept, and there is nothing to go on from.
  EXPECT_EQ(hint(run({}, 5, "--resume c")), "");
  // None could be written: the newest is the one that it went on from.
  SetUp();
  run({}, 2, "--checkpoint c");
  const Outcome full =
      at_->sh("ulimit -f 16; " + Workspace::line({}, call(4, "--resume c --checkpoint d")));
  EXPECT_EQ(full.status, 1) << describe(full);
  const Outcome next = at_->shardrun(hint(full));
  EXPECT_NE(next.out.find("goes on at step 3 of 4"), std::string::npos) << describe(next);
}

TEST_F(Checkpoints, TheModelMayStandBehindResume) {
  const std::string rest = " --data text:text.txt --validation 0 --batch 4 ";
  for (const std::string steps : {"2", "3"}) {
    const Outcome out =
        at_->shardrun("train --checkpoint c --resume gpt.onnx" + rest + "--steps " + steps);
    EXPECT_EQ(out.status, 0) << describe(out);
  }
  EXPECT_EQ(newest("c"), 3);
}

TEST_F(Checkpoints, WeightsAreOfTheBeginning) {
  run({}, 2, "--checkpoint c");
  const std::string again = "--weights c --checkpoint d --resume";
  const std::string note =
      "note: --weights c/step-00000002: not used, for a run goes on with its checkpoint's";
  const Outcome first = run({}, 2, again), second = run({}, 3, again);
  EXPECT_EQ(first.out.find(note), std::string::npos) << describe(first);
  EXPECT_NE(second.out.find(note), std::string::npos) << describe(second);
}

/// mpirun kills what does not end in time.
TEST_F(Checkpoints, NotesAnMpirunThatDoesNotWait) {
  const auto notes = [&](const std::string& seconds, const std::string& more) {
    const Outcome out = at_->sh("export OMPI_MCA_odls_base_sigkill_timeout=" + seconds + "; " +
                                Workspace::line(mpi(2), call(6, more)));
    EXPECT_EQ(out.status, 0) << describe(out);
    const std::regex note("note: a step[^\n]*odls_base_sigkill_timeout=60");
    return std::distance(std::sregex_iterator(out.out.begin(), out.out.end(), note), {});
  };
  EXPECT_EQ(notes("0", "--checkpoint c"), 1);
  EXPECT_EQ(notes("600", "--checkpoint d"), 0);
  EXPECT_EQ(notes("0", ""), 0);
}

}  // namespace
}  // namespace shardrun::test
