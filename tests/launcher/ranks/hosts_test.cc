// Which hosts a launcher's command names, which of them answer, and the command on those alone. The
// launcher is a script; tests of a real one are in two_hosts_test.cc.
#include "process/hosts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "process/child.h"
#include "shardrun/shardrun.h"
#include "tests/launcher/command.h"

namespace shardrun::cli {
namespace {

using Words = std::vector<std::string>;

class Hosts : public testing::Test {
 protected:
  Hosts() {
    // Hosts "dead…" fail, hosts "mute…" never say anything, wherever they are named.
    script("mpirun",
           "echo \"$*\" >> asked\n"
           "for word; do [ -f \"$word\" ] && all=\"$all $(cat \"$word\")\" || all=\"$all $word\"; "
           "done\n"
           "case $all in *mute*) exec sleep 1000;; *dead*) exit 1;; esac\n");
  }
  ~Hosts() override {
    for (const char* name : {"PBS_NODEFILE", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"})
      unsetenv(name);
  }
  void script(const std::string& name, const std::string& text) {
    at_.write(name, "#!/bin/sh\ncd " + at_.path() + "\n" + text);
    chmod(path(name).c_str(), 0755);
  }
  std::string path(const std::string& name) const { return at_.path() + "/" + name; }
  HostList list(const std::string& flags) const {
    return HostList(shell_words(path("mpirun") + " " + flags, "--mpirun"));
  }
  /// What is behind the program, on the hosts that answer.
  Words left(const HostList& all) const {
    Words words = all.without(all.silent(20, at_.path()), at_.path()).words();
    words.erase(words.begin());
    return words;
  }

  test::Workspace at_;
};

TEST_F(Hosts, OfAListThatTheCommandHas) {
  const HostList all = list("--host here:2,dead7:2 -np 4 --bind-to none");
  EXPECT_EQ(all.hosts(), (Words{"here", "dead7"}));
  EXPECT_EQ(all.silent(20, at_.path()), Words{"dead7"});
  EXPECT_EQ(left(all), (Words{"--host", "here:2", "-np", "2", "--bind-to", "none"}));
  // A host for each slot.
  EXPECT_EQ(left(list("-H here,here,dead,there -np 4")),
            (Words{"-H", "here,here,there", "-np", "3"}));
  // Slots to spare.
  EXPECT_EQ(left(list("-host here:8,dead:8 -np 4")), (Words{"-host", "here:8", "-np", "4"}));
  // More ranks than slots: a part of them.
  EXPECT_EQ(left(list("--host a,b,dead -np 9")), (Words{"--host", "a,b", "-np", "6"}));
  EXPECT_EQ(left(list("--host a,b -np 9")), (Words{"--host", "a,b", "-np", "9"}));
  EXPECT_EQ(left(list("--host dead1,dead2 -np 1")), (Words{"--host", "", "-np", "0"}));
}

TEST_F(Hosts, AreAskedAsTheCommandReachesThem) {
  list(
      "--mca plm_rsh_agent ssh2 --map-by ppr:2:node --allow-run-as-root --prefix /opt --host "
      "a:2,b:2 -np 4 "
      "-x PATH")
      .silent(20, at_.path());
  const std::string how = "--mca plm_rsh_agent ssh2 --allow-run-as-root --prefix /opt --host ";
  const std::string asked = at_.read("asked");
  EXPECT_NE(asked.find(how + "a:2 -np 1 true\n"), std::string::npos) << asked;
  EXPECT_NE(asked.find(how + "b:2 -np 1 true\n"), std::string::npos) << asked;
}

TEST_F(Hosts, OfAHostfile) {
  at_.write("hosts",
            "# the cluster\nhere slots=4 max_slots=8  # fast\nuser@dead1 slots = 2\n\n^there\nnear "
            "slots=2\n");
  const HostList all = list("--hostfile " + path("hosts") + " -np 8");
  EXPECT_EQ(all.hosts(), (Words{"here", "user@dead1", "near"}));
  EXPECT_EQ(left(all), (Words{"--hostfile", path("hosts"), "-np", "6"}));
  EXPECT_EQ(at_.read("hosts"), "^there\nhere slots=4 max_slots=8  # fast\nnear slots=2\n");
  at_.write("cores", "here\ndead\n");
  EXPECT_EQ(left(list("-n 8 -machinefile " + path("cores"))),
            (Words{"-n", "4", "-machinefile", path("hosts")}));
}

TEST_F(Hosts, OfAHostfileWithoutSlots) {
  at_.write("hosts", "here slots=0\ndead slots=0\n");
  EXPECT_EQ(left(list("--oversubscribe --hostfile " + path("hosts") + " -np 8")),
            (Words{"--oversubscribe", "--hostfile", path("hosts"), "-np", "4"}));
}

/// Such numbers are not said of slots: their sum would be none.
TEST_F(Hosts, OfAHostfileWithMoreSlotsThanCanBe) {
  at_.write("hosts", "here slots=9223372036854775807\ndead slots=9223372036854775807\n");
  EXPECT_EQ(left(list("--hostfile " + path("hosts") + " -np 8")),
            (Words{"--hostfile", path("hosts"), "-np", "4"}));
}

/// Such a host is not asked for a rank, nor is its silence a reason to leave it out.
TEST_F(Hosts, OfAHostfileThatTakeNoRank) {
  at_.write("hosts", "head slots=0\nnear slots=4\ndead slots=4\n");
  const HostList all = list("--hostfile " + path("hosts") + " -np 8");
  EXPECT_EQ(all.silent(20, at_.path()), Words{"dead"});
  EXPECT_EQ(at_.read("host-0"), "head\n");
  EXPECT_EQ(left(all), (Words{"--hostfile", path("hosts"), "-np", "4"}));
  at_.write("hosts", "dead slots=0\nnear slots=4\n");
  EXPECT_EQ(left(list("--hostfile " + path("hosts") + " -np 4")),
            (Words{"--hostfile", path("hosts"), "-np", "4"}));
}

TEST_F(Hosts, OfAHostfileThatCannotBeUsed) {
  const auto said = [&](const std::string& flags) {
    try {
      list(flags);
    } catch (const Failure& e) {
      EXPECT_EQ(e.status(), 2) << e.what();
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(said("--hostfile " + path("none") + " -np 2"),
            "--hostfile " + path("none") + ": cannot open: No such file or directory");
  // Neither is waited for, nor read without end.
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  for (const std::string& file : {path("pipe"), std::string("/dev/zero"), at_.path()})
    EXPECT_EQ(said("--hostfile " + file + " -np 2"),
              "--hostfile " + file + ": is not a regular file, wanted a list of hosts");
  setenv("PBS_NODEFILE", path("pipe").c_str(), 1);
  EXPECT_EQ(said("-np 2"), path("pipe") + ": is not a regular file, wanted a list of hosts");
  unsetenv("PBS_NODEFILE");
  at_.write("long", std::string((size_t{16} << 20) + 1, '#'));
  EXPECT_EQ(
      said("--hostfile " + path("long") + " -np 2"),
      "--hostfile " + path("long") + ": has more than 16777216 bytes, wanted a list of hosts");
  at_.write("empty", "# nobody\n\n");
  EXPECT_EQ(said("-machinefile " + path("empty")),
            "-machinefile " + path("empty") + ": it names no host");
  at_.write("zero", "here slots=0\n");
  EXPECT_EQ(said("--hostfile " + path("zero") + " -np 2"),
            "--hostfile " + path("zero") +
                ": slots=0 of every host is no rank; give slots, or the launcher --oversubscribe");
  EXPECT_EQ(said("--oversubscribe --hostfile " + path("zero") + " -np 2"), "nothing");
  for (const std::string& text : {std::string("a\0b\n", 4), std::string("/usr/bin:/bin\n")}) {
    at_.write("other", text);
    EXPECT_EQ(said("--hostfile " + path("other") + " -np 2"),
              "--hostfile " + path("other") +
                  ": names no hosts but something else, as with a control character or a '/' in a "
                  "name");
  }
  at_.write("without", "^here\n");
  EXPECT_EQ(said("--hostfile " + path("without") + " -np 2"), "nothing");
}

TEST_F(Hosts, OfABatchSystem) {
  at_.write("nodes", "here\nhere\ndead\ndead\n");
  setenv("PBS_NODEFILE", path("nodes").c_str(), 1);
  EXPECT_EQ(left(list("-np 4")), (Words{"--hostfile", path("hosts"), "-np", "2"}));
  EXPECT_EQ(at_.read("hosts"), "here slots=2\n");
  unsetenv("PBS_NODEFILE");

  script("scontrol", "[ \"$*\" = 'show hostnames n[1-2],dead' ] && printf 'n1\\nn2\\ndead\\n'\n");
  const std::string before = getenv("PATH");
  setenv("PATH", (at_.path() + ":" + before).c_str(), 1);
  setenv("SLURM_JOB_NODELIST", "n[1-2],dead", 1);
  setenv("SLURM_TASKS_PER_NODE", "2(x2),1", 1);
  EXPECT_EQ(left(list("")), (Words{"--hostfile", path("hosts")}));
  EXPECT_EQ(at_.read("hosts"), "n1 slots=2\nn2 slots=2\n");
  setenv("PATH", before.c_str(), 1);
}

TEST_F(Hosts, ThatSayNothingAreNotWaitedForLong) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(list("--host mute1,here,mute2").silent(0.3, at_.path()), (Words{"mute1", "mute2"}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
}

TEST_F(Hosts, AreNotKnownOfOtherCommands) {
  EXPECT_EQ(list("-np 4").hosts(), Words{});
  EXPECT_EQ(list("--host +n0,+n1").hosts(), Words{});
  EXPECT_EQ(list("--host a -np 1 x : -np 1 y").hosts(), Words{});
  EXPECT_EQ(HostList(Words{"./my_launcher", "--host", "a,b"}).hosts(), Words{});
  EXPECT_EQ(HostList(Words{}).hosts(), Words{});
  EXPECT_EQ(HostList(Words{"env", "A=1", "mpirun", "--host", "a,b"}).hosts(), (Words{"a", "b"}));
}

}  // namespace
}  // namespace shardrun::cli
