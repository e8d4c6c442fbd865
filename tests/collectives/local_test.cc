// The local backend: the common cases on threads, and how abort, time limits and disagreeing calls
// end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "collectives/reduce.h"
#include "tests/collectives/cases.h"
#include "tests/collectives/ranks.h"

namespace shardrun::test {
namespace {

class LocalCase : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(LocalCase, Holds) {
  const auto& [test, ranks] = GetParam();
  run_ranks(ranks, test.run);
}

INSTANTIATE_TEST_SUITE_P(Communicator, LocalCase,
                         testing::Combine(testing::ValuesIn(communicator_cases()),
                                          testing::Values(1, 2, 3, 4, 8)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::comm);
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

TEST(Local, AbortWakesPeersInEveryGroupAndCall) {
  std::atomic<int> woken{0};
  run_ranks(4, [&](Communicator& c) {
    auto part = c.split({{0, 1, 2}, {3}});
    char byte = 0;
    if (c.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      c.abort();
      EXPECT_NE(error_of([&] { c.barrier(); }), "");
    } else if (c.rank() == 0) {
      EXPECT_EQ(error_of([&] { c.barrier(); }),
                "barrier on rank 0 of 4: another rank ended the job");
    } else if (c.rank() == 1) {
      EXPECT_EQ(error_of([&] { part->recv(&byte, 1, 2); }),
                "recv of 1 bytes on rank 1 (between ranks 0, 1 and 2): another rank ended the job");
    } else {
      EXPECT_EQ(error_of([&] { part->barrier(); }),
                "barrier on rank 2 (between ranks 0, 1 and 2): another rank ended the job");
    }
    ++woken;
  });
  EXPECT_EQ(woken, 4);
}

TEST(Local, BarrierTimeOutNamesTheMissingRanksAndEndsTheJob) {
  run_ranks(4, [](Communicator& c) {
    c.set_timeout(c.rank() == 0 ? 3 : 60);
    if (c.rank() == 0) {
      EXPECT_EQ(
          error_of([&] { c.barrier(); }),
          "barrier on rank 0 of 4: waited 3 s for rank 2 and rank 3, which have stopped or make "
          "other calls");
    } else if (c.rank() == 1) {
      EXPECT_EQ(error_of([&] { c.barrier(); }),
                "barrier on rank 1 of 4: another rank ended the job");
    }
  });
}

TEST(Local, DisagreeingCallsFailOnEveryRank) {
  run_ranks(3, [](Communicator& c) {
    const std::string what = error_of([&] {
      if (c.rank() == 2) {
        c.barrier();
      } else {
        char byte = 0;
        c.broadcast(&byte, 1, 0);
      }
    });
    EXPECT_NE(what.find("rank 2 calls barrier where rank 0 calls broadcast"), std::string::npos)
        << what;
  });
  run_ranks(2, [](Communicator& c) {
    float x[4] = {};
    char staging[256];
    const std::string what =
        error_of([&] { c.all_reduce(x, c.rank() + 1, DType::f32, Reduction::sum, staging); });
    EXPECT_NE(what.find("rank 1 has count 2 where rank 0 has 1"), std::string::npos) << what;
  });
}

/// The others get what fits.
TEST(Local, AllToAllOfOtherCountsFailsWhereItIsExpected) {
  run_ranks(2, [](Communicator& c) {
    const int32_t send[3] = {1, 2, 3};
    int32_t recv[3] = {};
    const std::vector<int64_t> sent = {1, c.rank() == 0 ? 2 : 1}, wanted = {1, 1};
    const auto call = [&] { c.all_to_all(send, sent, recv, wanted, DType::i32); };
    if (c.rank() == 1) {
      EXPECT_EQ(error_of(call),
                "all_to_all on rank 1 of 2: expects 1 elements from rank 0, which sends 2");
    } else {
      call();
      EXPECT_EQ(recv[1], 1);
    }
  });
}

TEST(Local, SendOfAnotherSizeFailsOnBothSides) {
  run_ranks(2, [](Communicator& c) {
    char bytes[8] = {};
    const std::string what = error_of([&] {
      if (c.rank() == 0) {
        c.send(bytes, 8, 1);
      } else {
        c.recv(bytes, 4, 0);
      }
    });
    EXPECT_NE(what.find(c.rank() == 0 ? "sends 8 bytes to rank 1, which expects 4"
                                      : "expects 4 bytes from rank 0, which sends 8"),
              std::string::npos)
        << what;
  });
}

TEST(Staging, IsTheSameForEveryBackendAndSmall) {
  EXPECT_EQ(all_reduce_staging_bytes(1, DType::f32, 1), 0);
  EXPECT_EQ(all_reduce_staging_bytes(1, DType::f32, 8), 7 * 64);
  // 1 MiB over 4 ranks: a chunk of 256 KiB from each of 3 peers, and no more for 1 GiB.
  EXPECT_EQ(all_reduce_staging_bytes(1 << 18, DType::f32, 4), 3 * (256 << 10));
  EXPECT_EQ(all_reduce_staging_bytes(1 << 28, DType::f32, 4), 3 * (256 << 10));
  EXPECT_EQ(reduce_scatter_staging_bytes(std::vector<int64_t>{5}, DType::bf16), 0);
  EXPECT_EQ(reduce_scatter_staging_bytes(std::vector<int64_t>{0, 10, 3}, DType::bf16), 2 * 64);
  EXPECT_EQ(reduce_scatter_staging_bytes(std::vector<int64_t>{0, 10, 1 << 20}, DType::bf16),
            2 * (256 << 10));
}

/// Loops over what can be reduced meet nothing that is then refused.
TEST(Local, ReducesTheTypesThatAreComputedIn) {
  const auto alone = make_local_communicators(1);
  for (DType dtype : kReducible) {
    EXPECT_NO_THROW(dispatch(dtype, [](auto) {})) << dtype;
    EXPECT_NO_THROW(check_reducible("all_reduce", dtype, *alone[0])) << dtype;
  }
  EXPECT_EQ(kReducible.size(), static_cast<size_t>(DType::boolean));  // all but f16
  EXPECT_THROW(check_reducible("all_reduce", DType::f16, *alone[0]), Error);
}

TEST(Local, NoRanksIsRefused) { EXPECT_THROW(make_local_communicators(0), Error); }

}  // namespace
}  // namespace shardrun::test
