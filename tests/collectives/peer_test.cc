// Ranks whose devices reach each other's memory: the common cases with threads for ranks and the
// host for a device, in memory that peers reach and in memory that they do not.
#include <gtest/gtest.h>

#include "collectives/reduce.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/in_shared_memory.h"
#include "tests/collectives/ranks.h"
#include "tests/support/pointer_access.h"

namespace shardrun::test {
namespace {

class HostAccess : public PointerAccess {
 public:
  HostAccess() : PointerAccess(host_device()) {}
  void reduce(std::span<const void* const> in, void* out, int64_t count, DType dtype,
              Reduction op) override {
    ++reductions;
    reduce_in_rank_order(in, out, count, dtype, op);
  }
  int reductions = 0;
};

/// A call waits for a GPU twice: what it allocates on the host besides does not count.
std::vector<Case> cases() {
  std::vector<Case> all = communicator_cases();
  std::erase_if(all, [](const Case& c) { return c.name == "calls_allocate_nothing"; });
  return all;
}

class PeerCase : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(PeerCase, HoldsByTheHost) {
  const auto& [test, ranks] = GetParam();
  run_ranks(ranks, [&, run = test.run](Communicator& host) {
    const auto access = std::make_shared<HostAccess>();
    run(*make_peer_communicator(host, access));
    EXPECT_EQ(access->reductions, 0);
  });
}

TEST_P(PeerCase, HoldsInReach) {
  const auto& [test, ranks] = GetParam();
  run_ranks(ranks, [&, run = test.run](Communicator& host) {
    const auto access = std::make_shared<HostAccess>();
    const auto peers = make_peer_communicator(host, access);
    InSharedMemory shared(*peers, int64_t{64} << 20);
    run(shared);
  });
}

INSTANTIATE_TEST_SUITE_P(Communicator, PeerCase,
                         testing::Combine(testing::ValuesIn(cases()), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(Peer, ReducesOnTheDeviceWhereAllReach) {
  run_ranks(3, [](Communicator& host) {
    const auto access = std::make_shared<HostAccess>();
    const auto peers = make_peer_communicator(host, access);
    const Memory memory = peers->allocate(4096);
    auto* data = reinterpret_cast<float*>(memory.data.get());
    for (int i = 0; i < 10; ++i) data[i] = static_cast<float>(host.rank() + i);
    peers->all_reduce(data, 10, DType::f32, Reduction::sum, nullptr);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(data[i], static_cast<float>(3 + 3 * i));
    EXPECT_EQ(access->reductions, 1);
    // One rank's buffer is out of reach: all see it, and go by the host.
    std::vector<float> own(10, 1);
    std::vector<char> staging(static_cast<size_t>(peers->all_reduce_staging(10, DType::f32)) + 64);
    peers->all_reduce(host.rank() == 1 ? own.data() : data, 10, DType::f32, Reduction::max,
                      staging.data());
    EXPECT_EQ(access->reductions, 1);
  });
}

/// As where CUDA IPC is forbidden, for one rank alone: all go by the host, and all know why.
TEST(Peer, GoesByTheHostWhereOneCannotOpen) {
  class Closed final : public HostAccess {
   public:
    std::shared_ptr<char> open(const std::string&) override {
      fail(ErrorKind::device, "opening is forbidden");
    }
  };
  run_ranks(3, [](Communicator& host) {
    const bool closed = host.rank() == 1;
    const std::shared_ptr<HostAccess> access =
        closed ? std::make_shared<Closed>() : std::make_shared<HostAccess>();
    const auto peers = make_peer_communicator(host, access);
    const Memory memory = peers->allocate(4096);
    EXPECT_EQ(memory.why_private, closed ? "opening is forbidden" : "rank 1 of 3 cannot open it");
    auto* data = reinterpret_cast<float*>(memory.data.get());
    for (int i = 0; i < 10; ++i) data[i] = static_cast<float>(host.rank() + i);
    std::vector<char> staging(static_cast<size_t>(peers->all_reduce_staging(10, DType::f32)) + 64);
    peers->all_reduce(data, 10, DType::f32, Reduction::sum, staging.data());
    for (int i = 0; i < 10; ++i) EXPECT_EQ(data[i], static_cast<float>(3 + 3 * i));
    EXPECT_EQ(access->reductions, 0);
  });
}

TEST(Peer, MemoryOutlivesTheCommunicator) {
  run_ranks(2, [](Communicator& host) {
    const auto access = std::make_shared<HostAccess>();
    Memory memory;
    {
      const auto peers = make_peer_communicator(host, access);
      memory = peers->allocate(64);
    }
    host.barrier();
    memory.data.get()[63] = 1;
    host.barrier();
  });
}

}  // namespace
}  // namespace shardrun::test
