// Several sums in one call, on threads.
#include "tests/exec/one_call.h"

#include <gtest/gtest.h>

#include "tests/collectives/ranks.h"

namespace shardrun {
namespace {

TEST(OneCall, EqualsACallForEach) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    test::run_ranks(ranks, test::check_one_call);
  }
}

}  // namespace
}  // namespace shardrun
