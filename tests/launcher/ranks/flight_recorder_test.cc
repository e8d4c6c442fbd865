// What ranks did last: left by those that were killed and those that failed, gone where all is
// well.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launcher/command.h"

namespace shardrun::test {
namespace {

class FlightRecorders : public testing::Test {
 protected:
  FlightRecorders() {
    at_.write("text.txt", prose(20000));
    const Outcome made = at_.shardrun(
        "model gpt --layers 1 --hidden 16 --heads 2 --vocab 256 --context 8 -o gpt.onnx");
    EXPECT_EQ(made.status, 0) << describe(made);
  }
  /// The lines of a rank, in order; the first says whose they are.
  std::vector<std::string> lines(int rank, const std::string& of, bool sorted) const {
    std::istringstream file(at_.read("f/rank-" + std::to_string(rank) + "." + of));
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) {
      if (line.find_first_not_of(' ') != std::string::npos) out.push_back(line);  // few as yet
    }
    if (sorted && !out.empty()) std::sort(out.begin() + 1, out.end());
    return out;
  }
  Workspace at_;
  const std::string job_ =
      "gpt.onnx --data text:text.txt --validation 0 --batch 4 --mesh 2 --planner dp "
      "--flight-recorder f ";
};

TEST_F(FlightRecorders, KilledRanksLeaveTheirs) {
  const Outcome run = at_.sh(
      "touch m.jsonl\n" + Workspace::line(mpi(2), job_ + "--steps 1000000 --metrics m.jsonl") +
      " & pid=$!\nuntil [ $(wc -l < m.jsonl) -ge 8 ] || ! kill -0 $pid; do sleep 0.02; done\n"
      "kill -KILL $(cat /proc/$pid/task/$pid/children)\nwait $pid\nexit $?\n");
  EXPECT_NE(run.status, 0) << describe(run);
  for (int rank = 0; rank < 2; ++rank) {
    for (const std::string of : {"steps", "collectives"}) {
      const std::vector<std::string> all = lines(rank, of, true);
      ASSERT_GE(all.size(), of == "steps" ? 65u : 8u) << describe(run);
      EXPECT_EQ(all[0].find("rank " + std::to_string(rank)), 0u) << all[0];
      for (size_t i = 1; i < all.size(); ++i) {
        EXPECT_EQ(std::stoll(all[i]), std::stoll(all[1]) + static_cast<int64_t>(i) - 1) << all[i];
        EXPECT_NE(all[i].find(" train: "), std::string::npos) << all[i];
        if (of == "collectives") {
          EXPECT_NE(all[i].find(" bytes, ranks 0 1"), std::string::npos) << all[i];
        }
      }
      const size_t step = all.back().find(" step ");
      ASSERT_NE(step, std::string::npos) << all.back();
      EXPECT_GE(std::stoll(all.back().substr(step + 6)), 8) << all.back();
    }
  }
}

TEST_F(FlightRecorders, FailedRunsLeaveThemInOrder) {
  const Outcome run = at_.shardrun(mpi(2), job_ + "--steps 100 --lr 1e30 --clip 0");
  EXPECT_EQ(run.status, 1) << describe(run);
  const std::vector<std::string> all = lines(0, "steps", false);
  ASSERT_EQ(all.size(), 65u) << describe(run);
  EXPECT_TRUE(std::is_sorted(all.begin() + 1, all.end()));
}

TEST_F(FlightRecorders, GoneWhereAllIsWell) {
  const Outcome run = at_.shardrun(mpi(2), job_ + "--steps 3");
  EXPECT_EQ(run.status, 0) << describe(run);
  EXPECT_FALSE(at_.exists("f/rank-0.steps")) << describe(run);
  at_.write("file", "");
  const Outcome wrong =
      at_.shardrun("gpt.onnx --data text:text.txt --steps 3 --flight-recorder file/below");
  EXPECT_EQ(wrong.status, 2) << describe(wrong);
  EXPECT_NE(message(wrong).find("--flight-recorder: file/below"), std::string::npos)
      << describe(wrong);
}

/// A call that is refused leaves no file, of no rank.
TEST_F(FlightRecorders, GoneWhereOneCannotBeMade) {
  const auto expect_none = [&](const Outcome& run, const std::string& said) {
    EXPECT_EQ(run.status, 2) << describe(run);
    EXPECT_NE(message(run).find("--flight-recorder: f/" + said), std::string::npos)
        << describe(run);
    EXPECT_EQ(messages(run), 1) << describe(run);
    for (const std::string file : {"rank-0.steps", "rank-0.collectives", "rank-1.steps"})
      EXPECT_FALSE(at_.exists("f/" + file)) << file << "\n" << describe(run);
  };
  // As a full disk, the limit leaves no bytes for a file.
  expect_none(
      at_.sh("ulimit -f 8\n" +
             Workspace::line(threads(1),
                             "gpt.onnx --data text:text.txt -q --steps 3 --flight-recorder f")),
      "rank-0.steps: cannot be mapped; give a folder of a file system with space");
  at_.sh("mkdir -p f/rank-1.collectives");
  for (const Ranks ranks : {mpi(2), threads(2)})
    expect_none(at_.shardrun(ranks, job_ + "--steps 3"), "rank-1.collectives: Is a directory");
}

}  // namespace
}  // namespace shardrun::test
