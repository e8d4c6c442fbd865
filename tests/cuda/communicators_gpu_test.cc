// What every Communicator must do, in memory of GPUs, with threads for ranks: all on one GPU, which
// reach each other's memory, and two with a GPU each, by NCCL.
#include <gtest/gtest.h>

#include "collectives/nccl/cuda_communicator.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/in_shared_memory.h"
#include "tests/collectives/ranks.h"

namespace shardrun::test {
namespace {

/// Rank r on GPU r, of as many as are to be used.
void run_on(int gpus, int ranks, const Case& test) {
  run_ranks(ranks, [&](Communicator& host) {
    const auto device = cuda::open_device(host.rank() % gpus);
    const auto comm = cuda::make_cuda_communicator(host, *device);
    InSharedMemory there(*comm, int64_t{64} << 20, *device);
    test.run(there);
  });
}

class GpuCase : public testing::TestWithParam<Case> {};

TEST_P(GpuCase, HoldsOnOneGpu) {
  std::string why;
  if (cuda::device_count(&why) == 0) GTEST_SKIP() << why;
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    run_on(1, ranks, GetParam());
  }
}

/// Of two numbers NCCL makes the same sum; but it may lose a NaN, and names no rank that is
/// missing.
TEST_P(GpuCase, HoldsOnTwoGpus) {
  std::string why;
  const int gpus = cuda::device_count(&why);
  if (gpus < 2) GTEST_SKIP() << (gpus == 1 ? "there is one GPU" : why);
  const std::string& name = GetParam().name;
  if (name == "nan_wins" || name == "timeout_names_the_missing_rank")
    GTEST_SKIP() << "not what NCCL does";
  run_on(2, 2, GetParam());
}

/// A call waits for a GPU, and allocates on the host meanwhile.
std::vector<Case> cases() {
  std::vector<Case> all = communicator_cases();
  std::erase_if(all, [](const Case& c) { return c.name == "calls_allocate_nothing"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Communicator, GpuCase, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardrun::test
