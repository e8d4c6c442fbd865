// What Linux control groups let this process have of its machine: containers and batch systems set
// such limits, of which processors and memory themselves show nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardrun {

/// A limit for all processes of a group together.
struct GroupLimit {
  double amount = 0;
  uint64_t group = 0;  // who sets it: the same for all who share it, on this machine and others
};

/// The least that a group of this process sets, which may lie in others with limits of their own;
/// of equal ones the outermost. Processors' time: 1.5 is that of one and a half. None: no limit.
/// Reads cgroup v2's cpu.max and memory.max and v1's cpu.cfs_quota_us and memory.limit_in_bytes.
/// `root`: the folder that /proc and /sys are in.
std::optional<GroupLimit> processor_limit(const std::string& root = "");
/// Bytes.
std::optional<GroupLimit> memory_limit(const std::string& root = "");

}  // namespace shardrun
