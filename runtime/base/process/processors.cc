// Linux's sets of processors, as lists.
#include "base/process/processors.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/process/control_group.h"

namespace shardrun {
namespace {

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using ProcessorSet = std::unique_ptr<cpu_set_t, FreeSet>;

}  // namespace

std::vector<int> own_processors() {
  std::vector<int> out;
  // Linux refuses a set that is smaller than its own.
  for (int count = 1024; count <= 1 << 20 && out.empty(); count *= 2) {
    const ProcessorSet set(CPU_ALLOC(static_cast<size_t>(count)));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    if (!set) break;
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int processor = 0; processor < count; ++processor)
      if (CPU_ISSET_S(static_cast<size_t>(processor), bytes, set.get())) out.push_back(processor);
  }
  if (out.empty()) {
    for (int i = 0; i < static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); ++i)
      out.push_back(i);
  }
  return out;
}

void run_on(const std::vector<int>& processors) {
  if (processors.empty()) return;
  const auto count =
      static_cast<size_t>(*std::max_element(processors.begin(), processors.end())) + 1;
  const ProcessorSet set(CPU_ALLOC(count));
  const size_t bytes = CPU_ALLOC_SIZE(count);
  if (!set) return;
  CPU_ZERO_S(bytes, set.get());
  for (const int processor : processors)
    CPU_SET_S(static_cast<size_t>(processor), bytes, set.get());
  sched_setaffinity(0, bytes, set.get());
}

std::vector<int> cores_of(const std::vector<int>& processors) {
  std::vector<int> cores;
  for (const int processor : processors) {
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(processor) +
                     "/topology/thread_siblings_list");  // "3,35" or "6-7"
    int first = processor;
    if (!(in >> first) || first == processor ||
        !std::binary_search(processors.begin(), processors.end(), first))
      cores.push_back(processor);
  }
  return cores;
}

Quota own_quota() {
  const std::optional<GroupLimit> limit = processor_limit();
  if (!limit || limit->amount > 1e6) return {};
  return {std::max(1, static_cast<int>(std::ceil(limit->amount))), limit->group};
}

int64_t ranks_of_machine() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    const char* const text = std::getenv(name);
    if (const int64_t ranks = text == nullptr ? 0 : std::atoll(text); ranks > 0) return ranks;
  }
  return 1;
}

int usable_cores() {
  return std::min(static_cast<int>(cores_of(own_processors()).size()), own_quota().processors);
}

}  // namespace shardrun
