// How many threads each rank's kernels have, and on which cores they run.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace shardrun {

/// What the environment says of a process's threads.
struct ThreadsSet {
  int wanted = 0;                               // OMP_NUM_THREADS' first number; 0: none
  int limit = std::numeric_limits<int>::max();  // OMP_THREAD_LIMIT: OpenMP makes no more
  int64_t stack = 8 << 20;  // bytes of a thread's stack: OMP_STACKSIZE's, else what ulimit -s says
};
/// What a thread's stack must have: kernels keep rows and blocks there, up to 48 KiB of them.
inline constexpr int64_t kLeastStack = 256 << 10;
/// The bytes of OMP_STACKSIZE, such as "512", " 512K " or "1 m"; none where OpenMP ignores it.
std::optional<int64_t> stack_bytes(const char* text);
ThreadsSet threads_of_environment();

/// What several ranks share.
struct Shared {
  int processors = std::numeric_limits<int>::max();
  int ranks = 1;
};

/// Threads of a rank that shares `cores` with others, and the processors' time that a quota
/// (base/process/processors.h) leaves: as many as `asked` (--threads); else as `environment` wants,
/// but no more than its fraction; else its fraction. At least one. Never are there more threads
/// than cores or than the quota keeps busy, but one of each rank, nor more than `environment`
/// allows. Throws invalid_input if that many were asked, or if stacks have less than kLeastStack.
///   4 cores, 2 ranks: 2 each; --threads 3 is refused; OMP_NUM_THREADS=3 makes 2, =1 makes 1.
///   8 cores, 2 ranks, a quota of 4 for both: 2 each.
int threads_for(const Shared& cores, const Shared& quota, std::optional<int> asked,
                const ThreadsSet& environment);

/// Parallel regions of the calling thread have so many threads from now on, and never fewer:
/// kernels count on those that they were prepared for, of which OMP_DYNAMIC would leave out some
/// while the machine is busy.
void use_threads(int threads);

/// The part of `cores` that the index-th of `ranks` has for itself; empty if there are fewer cores
/// than ranks.
std::vector<int> part_of(const std::vector<int>& cores, int index, int ranks);

/// While it lives, the calling thread and those of its parallel regions run on `cores`: one thread
/// on each, if there are as many, else all of them on any. Does nothing without cores, or where the
/// environment binds threads itself (OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY).
class Pinned {
 public:
  Pinned(const std::vector<int>& cores, int threads);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  int threads_ = 0;  // 0: nothing was done
  std::vector<int> before_;
};

}  // namespace shardrun
