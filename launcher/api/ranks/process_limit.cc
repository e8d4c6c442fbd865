// What is held is measured; what is to come was measured beforehand.
#include "ranks/process_limit.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/process/process_memory.h"
#include "base/process/processors.h"
#include "base/round_up.h"
#include "ranks/rank_device.h"

namespace shardrun {
namespace {

/// For what a process takes from its arena's allocation to its end. In all it was 35 to 60 MiB
/// besides the arena (scripts/memory_limit).
constexpr int64_t kLater = int64_t{32} << 20;
/// What a process takes differs by about as much from call to call.
constexpr int64_t kDiffers = int64_t{2} << 20;
/// What most processes take in all; and the steps in which more is counted.
constexpr int64_t kLeast = int64_t{80} << 20, kStep = int64_t{32} << 20;

int64_t held_and_later() {
  trim_heap();
  return process_memory().resident + kLater;
}

}  // namespace

int64_t expected_process_bytes() { return std::max(kLeast, round_up(held_and_later(), kStep)); }

void limit_unpacking(int64_t memory, int threads) {
  const int64_t part = host_capacity().bytes / ranks_of_machine();
  limit_process_memory(memory > 0 ? std::min(part, memory * threads) : part);
}

void require_process_fits(Communicator& host, int64_t limit, int64_t arena_bytes, int threads) {
  if (limit == 0) return;
  host.barrier();  // the heap of a rank that still plans is not what it will hold
  struct RankBytes {
    int64_t process, arena;
    int64_t all() const { return process + arena; }
  };
  const RankBytes mine = {held_and_later() / threads, arena_bytes};
  std::vector<RankBytes> all(static_cast<size_t>(host.size()));
  host.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), sizeof mine), DType::u8);
  const auto fullest =
      std::max_element(all.begin(), all.end(),
                       [](const RankBytes& a, const RankBytes& b) { return a.all() < b.all(); });
  const int64_t left = limit - fullest->process - kDiffers;
  SR_REQUIRE(fullest->all() <= limit, out_of_memory, "--memory ", limit, ": the process of rank ",
             fullest - all.begin(), " needs ", fullest->all(), " bytes: ", fullest->arena,
             " for its arena, and ", fullest->process,
             " for what it holds, data included, and its steps take; give more, or more ranks",
             left > 0 ? str(", or plan for what is left: --arena ", left) : std::string());
}

}  // namespace shardrun
