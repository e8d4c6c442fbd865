// Limits of control groups, read from made-up folders /proc and /sys.
#include "base/process/control_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace shardrun {
namespace {

namespace fs = std::filesystem;

class ControlGroup : public testing::Test {
 protected:
  ~ControlGroup() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  /// cgroup v2 alone, its root at /sys/fs/cgroup; the process in `group`.
  void v2(const std::string& group, const std::string& root = "/") const {
    put("proc/self/cgroup", "0::" + group);
    put("proc/self/mountinfo",
        "21 1 0:20 / /proc rw - proc proc rw\n"
        "30 23 0:26 " +
            root + " /sys/fs/cgroup rw,nosuid shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate");
  }
  /// v1's controllers with an empty v2, as systemd's hybrid mode has them.
  void v1(const std::string& group, const std::string& root = "/") const {
    put("proc/self/cgroup",
        "5:cpu,cpuacct:" + group + "\n4:memory:" + group + "\n3:cpuset:/x\n0::/");
    put("proc/self/mountinfo",
        "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 30 0:28 " +
            root +
            " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
            "33 30 0:29 " +
            root +
            " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "34 30 0:30 " +
            root + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory");
  }
  double processors() const {
    const std::optional<GroupLimit> limit = processor_limit(root_.string());
    return limit ? limit->amount : -1;
  }
  double bytes() const {
    const std::optional<GroupLimit> limit = memory_limit(root_.string());
    return limit ? limit->amount : -1;
  }

  const fs::path root_ =
      fs::path(testing::TempDir()) / ("shardrun_groups_" + std::to_string(getpid()));
};

TEST_F(ControlGroup, AbsentLimitsNothing) {
  EXPECT_EQ(processors(), -1);
  v2("/a");
  EXPECT_EQ(processors(), -1);
  put("sys/fs/cgroup/a/cpu.max", "max 100000");
  put("sys/fs/cgroup/a/memory.max", "max");
  EXPECT_EQ(processors(), -1);
  EXPECT_EQ(bytes(), -1);
}

TEST_F(ControlGroup, OfSeveralTheLeastCounts) {
  v2("/job/task");
  put("sys/fs/cgroup/job/cpu.max", "400000 100000");
  EXPECT_EQ(processors(), 4);
  const uint64_t job = processor_limit(root_.string())->group;
  put("sys/fs/cgroup/job/task/cpu.max", "150000 100000");
  EXPECT_EQ(processors(), 1.5);
  EXPECT_NE(processor_limit(root_.string())->group, job);
  put("sys/fs/cgroup/job/task/cpu.max", "800000 100000");
  EXPECT_EQ(processors(), 4);
  // Tasks with as much as their job has share the job's.
  put("sys/fs/cgroup/job/task/cpu.max", "200000 50000");
  EXPECT_EQ(processor_limit(root_.string())->group, job);
  put("sys/fs/cgroup/job/memory.max", "1073741824");
  put("sys/fs/cgroup/job/task/memory.max", "max");
  EXPECT_EQ(bytes(), 1 << 30);
}

TEST_F(ControlGroup, OfVersionOne) {
  v1("/docker/7f");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors(), -1);
  put("sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_quota_us", "250000");
  put("sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors(), 2.5);
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none, in v1's words
  put("sys/fs/cgroup/memory/docker/7f/memory.limit_in_bytes", "2048");
  EXPECT_EQ(bytes(), 2048);
}

/// A container's /sys/fs/cgroup begins at its own group.
TEST_F(ControlGroup, SeenFromInsideOfAContainer) {
  put("sys/fs/cgroup/cpu.max", "50000 100000");
  put("sys/fs/cgroup/b/cpu.max", "25000 100000");
  for (const char* group : {"/", "/docker/7f", "/../other"}) {
    v2(group, "/docker/7f");
    EXPECT_EQ(processors(), 0.5) << group;
  }
  v2("/docker/7f/b", "/docker/7f");
  EXPECT_EQ(processors(), 0.25);
  v2("/docker/7fb", "/docker/7f");
  EXPECT_EQ(processors(), 0.5);
  v1("/docker/7f", "/docker/7f");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000");
  put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors(), 3);
}

TEST_F(ControlGroup, WhatIsNotUnderstoodLimitsNothing) {
  v2("/a");
  for (const char* text : {"", "many", "100000", "0 0", "-5 100000"}) {
    put("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(processors(), -1) << text;
  }
  put("proc/self/mountinfo", "30 23 0:26 - cgroup2");
  EXPECT_EQ(processors(), -1);
  put("proc/self/cgroup", "0:");
  v2("/a");
  EXPECT_EQ(processors(), -1);
}

}  // namespace
}  // namespace shardrun
