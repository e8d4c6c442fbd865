// Checked collectives between threads.
#include "tests/collectives/checked_cases.h"
#include "tests/collectives/ranks.h"

namespace shardrun::testing {
namespace {

TEST(CheckedThreads, CallsAreMade) { run_ranks(3, checked_calls_are_made); }
TEST(CheckedThreads, OtherCallsAreRefused) { run_ranks(3, other_calls_are_refused); }
TEST(CheckedThreads, CirclesAreFound) { run_ranks(3, circles_are_found); }
TEST(CheckedThreads, LateRanksAreWaitedFor) { run_ranks(3, late_ranks_are_waited_for); }

}  // namespace
}  // namespace shardrun::testing
