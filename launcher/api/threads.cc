// Counting cores, sharing them, pinning.
#include "threads.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/processors.h"

namespace shardrun {

ThreadsSet threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return {std::max(0, text ? std::atoi(text) : 0), omp_get_thread_limit()};
}

int threads_for(const Shared& cores, const Shared& quota, std::optional<int> asked,
                const ThreadsSet& environment) {
  const auto share_of = [](const Shared& what) {
    return std::max(1, what.processors / what.ranks);
  };
  const bool by_quota = share_of(quota) < share_of(cores);
  const Shared& least = by_quota ? quota : cores;
  const int share = share_of(least);
  SR_REQUIRE(!asked || *asked <= share, invalid_input, "--threads ", asked.value_or(0), ": ",
             least.ranks, least.ranks == 1 ? " rank has " : " ranks share ",
             by_quota ? "the time of " : "", least.processors,
             least.processors == 1 ? " core" : " cores",
             by_quota ? ", the quota of their container or control group" : "", "; ask for ", share,
             share == 1 ? "" : " or fewer", least.ranks == 1 ? "" : ", or start fewer ranks");
  SR_REQUIRE(!asked || *asked <= environment.limit, invalid_input, "--threads ", asked.value_or(0),
             ": OMP_THREAD_LIMIT allows ", environment.limit, "; raise it, or ask for fewer");
  const int wanted = environment.wanted > 0 ? environment.wanted : share;
  return asked.value_or(std::min({share, wanted, environment.limit}));
}

void use_threads(int threads) {
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
}

std::vector<int> part_of(const std::vector<int>& cores, int index, int ranks) {
  const auto bound = [&](int i) {
    return cores.begin() + static_cast<std::ptrdiff_t>(cores.size()) * i / ranks;
  };
  if (static_cast<int>(cores.size()) < ranks) return {};
  return {bound(index), bound(index + 1)};
}

Pinned::Pinned(const std::vector<int>& cores, int threads) {
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    if (std::getenv(name)) return;
  }
  if (cores.empty()) return;
  before_ = own_processors();
  threads_ = threads;
  const bool one_each = static_cast<int>(cores.size()) == threads;
#pragma omp parallel num_threads(threads)
  run_on(one_each ? std::vector{cores[static_cast<size_t>(omp_get_thread_num())]} : cores);
}

Pinned::~Pinned() {
  if (threads_ == 0) return;
#pragma omp parallel num_threads(threads_)
  run_on(before_);
}

}  // namespace shardrun
