// Checked collectives between threads.
#include "collectives/reduce.h"
#include "tests/collectives/checked_cases.h"
#include "tests/collectives/ranks.h"
#include "tests/support/pointer_access.h"

namespace shardrun::test {
namespace {

TEST(CheckedThreads, CallsAreMade) { run_ranks(3, checked_calls_are_made); }
TEST(CheckedThreads, OtherCallsAreRefused) { run_ranks(3, other_calls_are_refused); }
TEST(CheckedThreads, CirclesAreFound) { run_ranks(3, circles_are_found); }
TEST(CheckedThreads, CallsOfADeviceAreChecked) {
  class HostAccess final : public PointerAccess {
   public:
    HostAccess() : PointerAccess(host_device()) {}
    void reduce(std::span<const void* const> in, void* out, int64_t count, DType dtype,
                Reduction op) override {
      reduce_in_rank_order(in, out, count, dtype, op);
    }
  };
  run_ranks(3, [](Communicator& world) {
    device_calls_are_checked(world, [](Communicator& host) {
      return make_peer_communicator(host, std::make_shared<HostAccess>());
    });
  });
}
TEST(CheckedThreads, LateRanksAreWaitedFor) { run_ranks(3, late_ranks_are_waited_for); }

}  // namespace
}  // namespace shardrun::test
