// Counting cores, sharing them, pinning.
#include "ranks/threads.h"

#include <limits.h>
#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/process/processors.h"

namespace shardrun {

std::optional<int64_t> stack_bytes(const char* text) {
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const int64_t number = std::strtoll(text, &end, 10);
  if (end == text) return std::nullopt;
  const auto skip_space = [&] {
    while (std::isspace(static_cast<unsigned char>(*end))) ++end;
  };
  skip_space();
  int shift = 10;
  const std::string_view units = "BKMG";
  const size_t unit = *end == 0 ? units.npos : units.find(static_cast<char>(std::toupper(*end)));
  if (unit != units.npos) {
    shift = 10 * static_cast<int>(unit);
    ++end;
    skip_space();
  }
  if (*end != 0 || number > std::numeric_limits<int64_t>::max() >> shift) return std::nullopt;
  const int64_t bytes = number << shift;
  return bytes >= PTHREAD_STACK_MIN ? std::optional(bytes) : std::nullopt;
}

namespace {

int64_t own_stack() {
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    if (const std::optional<int64_t> bytes = stack_bytes(std::getenv(name))) return *bytes;
  }
  size_t bytes = 0;
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return ThreadsSet().stack;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(bytes);
}

}  // namespace

ThreadsSet threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return {std::max(0, text ? std::atoi(text) : 0), omp_get_thread_limit(), own_stack()};
}

int threads_for(const Shared& cores, const Shared& quota, std::optional<int> asked,
                const ThreadsSet& environment) {
  const auto threads_each = [](const Shared& what) {
    return std::max(1, what.processors / what.ranks);
  };
  const bool by_quota = threads_each(quota) < threads_each(cores);
  const Shared& least = by_quota ? quota : cores;
  const int each = threads_each(least);
  SR_REQUIRE(!asked || *asked <= each, invalid_input, "--threads ", asked.value_or(0), ": ",
             least.ranks, least.ranks == 1 ? " rank has " : " ranks share ",
             by_quota ? "the time of " : "", least.processors,
             least.processors == 1 ? " core" : " cores",
             by_quota ? ", the quota of their container or control group" : "", "; ask for ", each,
             each == 1 ? "" : " or fewer", least.ranks == 1 ? "" : ", or start fewer ranks");
  SR_REQUIRE(!asked || *asked <= environment.limit, invalid_input, "--threads ", asked.value_or(0),
             ": OMP_THREAD_LIMIT allows ", environment.limit, "; raise it, or ask for fewer");
  SR_REQUIRE(environment.stack >= kLeastStack, invalid_input, "threads have stacks of ",
             environment.stack, " bytes, wanted ", kLeastStack,
             " or more; unset OMP_STACKSIZE or set it to 1M, and see what 'ulimit -s' allows");
  const int wanted = environment.wanted > 0 ? environment.wanted : each;
  return asked.value_or(std::min({each, wanted, environment.limit}));
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
  // Threads allocate nothing that could throw in them.
  std::vector<std::vector<int>> own(static_cast<size_t>(threads), cores);
  if (cores.size() == own.size()) {
    for (size_t t = 0; t < own.size(); ++t) own[t] = {cores[t]};
  }
#pragma omp parallel num_threads(threads)
  run_on(own[static_cast<size_t>(omp_get_thread_num())]);
}

Pinned::~Pinned() {
  if (threads_ == 0) return;
#pragma omp parallel num_threads(threads_)
  run_on(before_);
}

}  // namespace shardrun
