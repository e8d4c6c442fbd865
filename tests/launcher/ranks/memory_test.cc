// --memory is of a rank's whole process: one that may have no more is not killed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>

#include "tests/launcher/command.h"
#include "tests/support/npy.h"
#include "tests/support/sanitizer.h"

namespace shardrun::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// A control group for each of some ranks, whose processes together may have `bytes` of memory.
class Groups {
 public:
  Groups(int ranks, int64_t bytes) {
    const std::pair<const char*, const char*> kinds[] = {
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}};
    for (const auto& [root, limit] : kinds) {
      base_ = std::string(root) + "/shardrun_memory_test_" + std::to_string(getpid()) + "_";
      ranks_ = 0;
      made_ = true;
      for (int rank = 0; rank < ranks && made_; ++rank) {
        std::error_code error;
        std::filesystem::create_directory(folder(rank), error);
        if (!error) ++ranks_;
        std::ofstream file(folder(rank) + "/" + limit);
        file << bytes << std::flush;
        made_ = !error && file.good();
      }
      if (made_) return;
      remove();
    }
  }
  ~Groups() { remove(); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  bool made() const { return made_; }
  /// For a shell that is to go on as a rank.
  std::string enter() const {
    return "echo $$ > " + base_ + "${OMPI_COMM_WORLD_RANK:-0}/cgroup.procs && ";
  }

 private:
  std::string folder(int rank) const { return base_ + std::to_string(rank); }
  void remove() {
    for (; ranks_ > 0; --ranks_) {
      std::error_code error;
      for (int i = 0; i < 100 && (i == 0 || error); ++i) {
        std::filesystem::remove(folder(ranks_ - 1), error);
        if (error) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }
  std::string base_;
  int ranks_ = 0;
  bool made_ = false;
};

/// Data of 90 MiB in files of 0.4, and what trains on them.
void make_images(const Workspace& at) {
  const Outcome made = at.sh(
      "(printf '\\000\\000\\010\\003\\000\\001\\324\\300\\000\\000\\000\\034\\000\\000"
      "\\000\\034'; head -c 94080000 /dev/zero) | gzip -1 > x.gz; "
      "(printf '\\000\\000\\010\\001\\000\\001\\324\\300'; head -c 120000 /dev/zero) | gzip -1 > "
      "y.gz");
  ASSERT_EQ(made.status, 0) << describe(made);
  const Outcome model = at.shardrun(
      "model wide-resnet --preset wrn-16-4 --channels 1 --image 28 --no-weights -o wrn.onnx");
  ASSERT_EQ(model.status, 0) << describe(model);
}
const std::string kImageJob =
    "wrn.onnx --normalise 0.5/0.5 --data idx:x.gz,y.gz --batch 2 --steps 1 --validation 0 ";

class ProcessMemory : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made = at_.shardrun(
        "model gpt --layers 4 --hidden 256 --heads 4 --vocab 4096 --context 128 --no-weights "
        "-o gpt.onnx");
    ASSERT_EQ(made.status, 0) << describe(made);
  }
  /// The least that a refused job says would do, as in "53MiB".
  std::string least(const Ranks& ranks, const std::string& job) const {
    const Outcome refused = at_.shardrun(ranks, job + " --memory 20MiB");
    EXPECT_EQ(refused.status, 2) << describe(refused);
    const std::string before = " fits --memory ", said = message(refused);
    const size_t at = said.find(before), end = said.find("): ");
    EXPECT_LT(at, end) << describe(refused);
    if (at >= end || end == std::string::npos) return "";
    return said.substr(at + before.size(), end - at - before.size());
  }

  Workspace at_;
  const std::string job_ = "gpt.onnx --batch 4 --steps 3 --validation 0";
};

/// The limit is hardly more than the least that the run says it can do with: little is to spare.
TEST_F(ProcessMemory, RunsMeetNoKiller) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  for (const int ranks : {1, 2}) {
    const TrainingRun free = train(at_, mpi(ranks), job_);
    ASSERT_EQ(free.allocated.size(), static_cast<size_t>(ranks));
    const int64_t memory = (std::stoll(least(mpi(ranks), job_)) + 1) * kMiB;
    const Groups groups(ranks, memory);
    if (!groups.made()) GTEST_SKIP() << "no control groups with a limit of memory here";
    const std::string line = std::string(SHARDRUN_MPIEXEC) +
                             " --oversubscribe --bind-to none -np " + std::to_string(ranks) +
                             " sh -c '" + groups.enter() + "exec " SHARDRUN_COMMAND " " + job_ +
                             " --report r.json --memory " + std::to_string(memory) + "'";
    const Outcome run = at_.sh(line);
    EXPECT_EQ(run.status, 0) << describe(run);
    const nlohmann::json report = nlohmann::json::parse(at_.read("r.json"), nullptr, false);
    ASSERT_TRUE(report.contains("process_bytes")) << describe(run);
    for (const int64_t bytes : report["process_bytes"].get<std::vector<int64_t>>()) {
      EXPECT_LE(bytes, memory);
      EXPECT_GT(bytes, free.allocated[0] * 3 / 4) << "the arena does not count";
    }
  }
}

/// What planning holds is within the limit of the rank that plans.
TEST_F(ProcessMemory, PlanningMeetsNoKiller) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  const struct {
    std::string what, model, plan;
    int64_t arena, limit;  // MiB; the limit is the group's
  } cases[] = {
      {"some twenty searches, of 5 MiB and more",
       "unet --width 32 --levels 3 --blocks 1 --heads 2 --groups 8 --channels 3 --image 32",
       "--ranks 2 --batch 8", 31, 127},
      {"a gap that HiGHS would take 50 MiB to close", "wide-resnet --preset wrn-16-4",
       "--ranks 2 --batch 16", 60, 48},
  };
  for (const auto& [what, model, plan, arena, limit] : cases) {
    SCOPED_TRACE(what);
    const Outcome made = at_.shardrun("model " + model + " --no-weights -o m.onnx");
    ASSERT_EQ(made.status, 0) << describe(made);
    const Groups group(1, limit * kMiB);
    if (!group.made()) GTEST_SKIP() << "no control groups with a limit of memory here";
    const Outcome planned =
        at_.sh("sh -c '" + group.enter() + "exec " SHARDRUN_COMMAND " plan m.onnx " + plan +
               " --arena " + std::to_string(arena) + "MiB'");
    EXPECT_EQ(planned.status, 0) << describe(planned);
  }
}

TEST_F(ProcessMemory, TooLittleIsRefusedWithNumbers) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  const Outcome none = at_.shardrun(mpi(2), job_ + " --memory 20MiB");
  EXPECT_EQ(none.status, 2) << describe(none);
  EXPECT_NE(message(none).find("--memory 20971520 is of a rank's whole process, which takes "),
            std::string::npos)
      << describe(none);
  EXPECT_NE(message(none).find(" besides its arena, so that nothing is left for that (the plan "
                               "that needs least fits --memory "),
            std::string::npos)
      << describe(none);
  const Outcome unit = at_.shardrun(job_ + " --memory 8");
  EXPECT_NE(message(unit).find("besides its arena; give more, with a unit, as in 8GiB"),
            std::string::npos)
      << describe(unit);
  const Outcome little = at_.shardrun(job_ + " --memory 82MiB");
  EXPECT_EQ(little.status, 2) << describe(little);
  for (const char* text : {"--memory 85983232 is of a rank's whole process", "the limit is ",
                           " besides its arena (the plan that needs least fits --memory "})
    EXPECT_NE(message(little).find(text), std::string::npos) << text << describe(little);
}

/// Of a process that takes more by itself, too, and of a plan from a file.
TEST_F(ProcessMemory, ARefusalNamesALimitThatAPlanFits) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  const Outcome planned =
      at_.shardrun("plan " + job_.substr(0, job_.find(" --steps")) + " --ranks 2 -o plan.json");
  ASSERT_EQ(planned.status, 0) << describe(planned);
  for (const std::string call : {"", " --mesh 2 --arena 1GiB", " --plan plan.json"}) {
    const std::string named = least(mpi(2), job_ + call);
    const Outcome run = at_.shardrun(mpi(2), job_ + call + " --memory " + named);
    EXPECT_EQ(run.status, 0) << named << describe(run);
  }
}

/// What a search took goes back before the arena comes.
TEST_F(ProcessMemory, AHardSearchLeavesRoomForTheArena) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  const Outcome model = at_.shardrun("model unet --no-weights -o unet.onnx");
  ASSERT_EQ(model.status, 0) << describe(model);
  const std::string images = npy({12, 3, 32, 32}, std::vector<float>(12 * 3 * 32 * 32));
  at_.write("x.npy", images);
  at_.write("y.npy", images);
  const Outcome run = at_.shardrun(mpi(3),
                                   "unet.onnx --data npy:x.npy,y.npy --batch 6 --steps 1 "
                                   "--validation 0 --memory 150MiB --arena 40MiB");
  EXPECT_EQ(run.status, 0) << describe(run);
}

/// Data that are unpacked into memory are the process's, too, and known before the arena.
TEST_F(ProcessMemory, DataCount) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  make_images(at_);
  const std::string job = kImageJob;
  const Outcome refused = at_.shardrun(job + "--memory 180MiB");
  EXPECT_EQ(refused.status, 2) << describe(refused);
  EXPECT_NE(message(refused).find("data included"), std::string::npos) << describe(refused);
  EXPECT_NE(message(refused).find(", or plan for what is left: --arena "), std::string::npos)
      << describe(refused);
  const Outcome fits = at_.shardrun(job + "--memory 400MiB");
  EXPECT_EQ(fits.status, 0) << describe(fits);
}

/// What would not fit is not unpacked, with --memory or without: nothing is killed.
TEST_F(ProcessMemory, DataThatDoNotFitAreNotUnpacked) {
  SKIP_WHERE_MEMORY_IS_SHADOWED();
  make_images(at_);
  const Groups group(1, 110 * kMiB);
  if (!group.made()) GTEST_SKIP() << "no control groups with a limit of memory here";
  for (const char* limit : {"", " --memory 110MiB"}) {
    const Outcome refused =
        at_.sh("sh -c '" + group.enter() + "exec " SHARDRUN_COMMAND " " + kImageJob + limit + "'");
    EXPECT_EQ(refused.status, 2) << describe(refused);
    EXPECT_NE(message(refused).find("x.gz: takes 94080000 bytes unpacked, and this process holds "),
              std::string::npos)
        << describe(refused);
    EXPECT_NE(message(refused).find(" of the 115343360 that it may"), std::string::npos)
        << describe(refused);
  }
}

/// Plans for machines that are not here are not about a process here.
TEST_F(ProcessMemory, PlansForOthersHaveItAll) {
  const Outcome plan = at_.shardrun("plan gpt.onnx --ranks 2 --batch 4 --memory 70MiB -o p.json");
  EXPECT_EQ(plan.status, 0) << describe(plan);
  EXPECT_NE(plan.out.find("memory limit of a rank 70.00 MiB"), std::string::npos) << plan.out;
}

/// --arena is of the arena alone.
TEST_F(ProcessMemory, ArenaIsApart) {
  const TrainingRun free = train(at_, mpi(2), job_);
  ASSERT_FALSE(free.allocated.empty());
  const TrainingRun less =
      train(at_, mpi(2), job_ + " --arena " + std::to_string(free.allocated[0] - 1));
  ASSERT_FALSE(less.allocated.empty());
  EXPECT_LT(less.allocated[0], free.allocated[0]) << describe(less.outcome);
}

}  // namespace
}  // namespace shardrun::test
