// Counting cores, sharing them, pinning.
#include "threads.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"

namespace shardrun {

cpu_set_t own_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) CPU_SET(0, &mask);
  return mask;
}

std::vector<int> cores_of(const cpu_set_t& mask) {
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");  // "3,35" or "6-7"
    int first = cpu;
    if (!(in >> first) || first == cpu || !CPU_ISSET(first, &mask)) cores.push_back(cpu);
  }
  return cores;
}

ThreadsSet threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return {std::max(0, text ? std::atoi(text) : 0), omp_get_thread_limit()};
}

int threads_for(int cores, int ranks, std::optional<int> asked, const ThreadsSet& environment) {
  const int share = std::max(1, cores / ranks);
  SR_REQUIRE(!asked || *asked <= share, invalid_input, "--threads ", asked.value_or(0), ": ", ranks,
             ranks == 1 ? " rank has " : " ranks share ", cores, cores == 1 ? " core" : " cores",
             "; ask for ", share, share == 1 ? "" : " or fewer",
             ranks == 1 ? "" : ", or start fewer ranks");
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
  before_ = own_mask();
  threads_ = threads;
  const bool one_each = static_cast<int>(cores.size()) == threads;
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (one_each) {
      CPU_SET(cores[static_cast<size_t>(omp_get_thread_num())], &mask);
    } else {
      for (int core : cores) CPU_SET(core, &mask);
    }
    sched_setaffinity(0, sizeof mask, &mask);
  }
}

Pinned::~Pinned() {
  if (threads_ == 0) return;
#pragma omp parallel num_threads(threads_)
  sched_setaffinity(0, sizeof before_, &before_);
}

}  // namespace shardrun
