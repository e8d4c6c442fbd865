// Two hosts for real, as far as one machine has them: namespaces for the network, the name, mounts
// (support/two_hosts). Skips where these are not allowed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

class TwoHosts : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at_ = new Workspace;
    at_->write("text.txt", prose(20000));
    allowed_ = at_->sh(kHosts + "up " + name()).status == 0 &&
               at_->sh(on_both("hostname")).status == 0 &&
               at_->shardrun(
                      "model gpt --layers 1 --hidden 32 --heads 2 --vocab 256 --context 16 "
                      "-o gpt.onnx")
                       .status == 0;
  }
  static void TearDownTestSuite() {
    at_->sh(kHosts + "down " + name());
    delete at_;
    at_ = nullptr;
  }
  void SetUp() override {
    if (!allowed_) GTEST_SKIP() << "no namespaces, or no mpirun between them";
  }

  static std::string name() { return "sr" + std::to_string(getpid() % 1000000); }
  /// Starts two ranks on each host.
  static std::string mpirun() {
    return SHARDRUN_MPIEXEC " --host " + name() +
           "a:2,10.77.0.2:2 --oversubscribe --bind-to none -x OMP_NUM_THREADS -np 4";
  }
  /// The shell's line, on the first host.
  static std::string on_first(const std::string& words) {
    return kHosts + "run " + name() + " " + words;
  }
  static std::string on_both(const std::string& words) { return on_first(mpirun() + " " + words); }
  static std::string shardrun(const std::string& arguments) {
    return on_both(SHARDRUN_COMMAND " " + arguments);
  }

  /// Trains, has `happens` happen once steps are reported, and waits until no process is left on
  /// either host. Gives the seconds that took.
  double ends_after(const std::string& happens, const std::string& flags, Outcome& run) {
    run = at_->sh(
        "rm -f m.jsonl; touch m.jsonl\n" +
        shardrun("gpt.onnx --data text:text.txt --batch 8 --planner dp --validation 0 --steps "
                 "10000000 --metrics m.jsonl " +
                 flags) +
        " > out 2> err & pid=$!\n"
        "until [ $(wc -l < m.jsonl) -gt 5 ] || ! kill -0 $pid; do sleep 0.05; done\n"
        "date +%s.%N > begin\n" +
        happens +
        "\nwait $pid; status=$?\n"
        "until [ -z \"$(" +
        kHosts + "left " + name() +
        ")\" ]; do sleep 0.1; done\n"
        "date +%s.%N > end; cat err >&2; exit $status\n");
    return std::stod(at_->read("end")) - std::stod(at_->read("begin"));
  }

  /// One a line, with all digits.
  static std::string losses(const std::string& file) {
    const std::string name = "\"loss\":", text = at_->read(file);
    std::string out;
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
      out += text.substr(at + name.size(), text.find(',', at) - at - name.size()) + "\n";
    return out;
  }

  static inline const std::string kHosts = SHARDRUN_TWO_HOSTS " ";
  static inline Workspace* at_ = nullptr;
  static inline bool allowed_ = false;
};

/// Also by a slow link that loses messages.
TEST_F(TwoHosts, LossesAreThoseOfOneHost) {
  const std::string job =
      "gpt.onnx --data text:text.txt --batch 8 --steps 3 --validation 0 --mesh 4 --planner dp "
      "--metrics ";
  const Outcome one = at_->shardrun(mpi(4), job + "one.jsonl");
  ASSERT_EQ(one.status, 0) << describe(one);
  const Outcome two = at_->sh(shardrun(job + "two.jsonl"));
  ASSERT_EQ(two.status, 0) << describe(two);
  EXPECT_EQ(losses("two.jsonl"), losses("one.jsonl"));
  if (at_->sh(kHosts + "slow " + name() + " 10ms 1%").status != 0) return;  // no tc netem
  const Outcome slow = at_->sh(shardrun(job + "slow.jsonl --check collectives"));
  EXPECT_EQ(slow.status, 0) << describe(slow);
  EXPECT_EQ(losses("slow.jsonl"), losses("one.jsonl"));
  at_->sh(kHosts + "slow " + name() + " 0ms 0%");
}

/// mpirun and orted would stay for ever.
TEST_F(TwoHosts, ACutLinkEndsAll) {
  Outcome run;
  const double seconds = ends_after(kHosts + "cut " + name(), "--timeout 3", run);
  std::printf("a cut link, --timeout 3: all has ended after %.1f s\n", seconds);
  EXPECT_NE(run.status, 0) << describe(run);
  EXPECT_NE(run.err.find("waited 3 s for rank"), std::string::npos) << describe(run);
  EXPECT_LT(seconds, 60) << "only a person would have ended it";
  at_->sh(kHosts + "join " + name());
}

TEST_F(TwoHosts, AKilledHostEndsAll) {
  Outcome run;
  const double seconds = ends_after(kHosts + "kill " + name(), "--timeout 60", run);
  std::printf("a killed host: all has ended after %.1f s\n", seconds);
  EXPECT_NE(run.status, 0) << describe(run);
  EXPECT_LT(seconds, 60) << "it was waited for";
}

/// A whole host goes, and the run goes on without it; when it is there again, with it.
TEST_F(TwoHosts, RestartsMakeDoWithTheHostsThatAreLeft) {
  const std::string job = "train gpt.onnx --data text:text.txt --batch 8 --validation 0 ";
  const Outcome whole = at_->shardrun(mpi(4), job + "--steps 200 --metrics whole.jsonl");
  ASSERT_EQ(whole.status, 0) << describe(whole);
  const auto until = [](const std::string& seen) {
    return "until " + seen + " || ! kill -0 $pid; do sleep 0.02; done\n";
  };
  const auto steps = [&](int n) {
    return until("[ $(wc -l < r.jsonl) -ge " + std::to_string(n) + " ]");
  };
  const Outcome run = at_->sh(
      "touch r.jsonl r.err\n" +
      on_first(SHARDRUN_COMMAND " " + job +
               "--mesh 4 --checkpoint-every 4 --keep 2 --checkpoint c --restarts 3 --timeout 3 "
               "--steps 10000000 --metrics r.jsonl --mpirun '" +
               mpirun() + "'") +
      " > out 2> r.err & pid=$!\n" + steps(8) + kHosts + "lose " + name() + "\n" +
      until("grep -q 'restart 1 of 3' r.err") + steps(20) + kHosts + "back " + name() +
      "\nfor p in $(" + kHosts + "left " + name() +
      " | cut -d' ' -f2); do\n"
      "  tr '\\0' '\\n' < /proc/$p/environ | grep -qx OMPI_COMM_WORLD_RANK=1 && kill -KILL $p\n"
      "done\n" +
      until("grep -q 'restart 2 of 3' r.err") + steps(30) +
      "kill -TERM $pid; wait $pid; cat r.err >&2\n");
  EXPECT_NE(run.err.find("restart 1 of 3 on 2 ranks, for 10.77.0.2 does not answer, without "
                         "--mesh, from the newest checkpoint of c"),
            std::string::npos)
      << describe(run);
  EXPECT_NE(run.err.find("restart 2 of 3, from the newest checkpoint of c"), std::string::npos)
      << describe(run);
  std::istringstream got(losses("r.jsonl")), wanted(losses("whole.jsonl"));
  int compared = 0;
  for (double a = 0, b = 0; got >> a && wanted >> b; ++compared) EXPECT_NEAR(a, b, 1e-4 * b);
  EXPECT_GE(compared, 30) << describe(run);
}

}  // namespace
}  // namespace shardrun::test
