// What a test sees and sets of the library that takes NCCL's place.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <vector>

namespace shardrun::test {

struct StandInNccl {
  std::mutex mutex;
  /// Each ncclCommInitRankConfig: the id's first byte, the rank, how many there are.
  struct Made {
    int id, rank, size;
  };
  std::vector<Made> made;
  std::vector<std::string> calls;  // "group of 2 sends, 2 receives", "ncclAllReduce"
  int aborted = 0;
  ncclResult_t state = ncclSuccess;  // what communicators say of themselves
};

/// What the library exports under this name.
inline constexpr const char* kStandInNccl = "stand_in_nccl";
using GetStandInNccl = StandInNccl* (*)();

}  // namespace shardrun::test
