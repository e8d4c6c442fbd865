// Ranks that keep what they measured at different places rehearse, and take the lowest rank's.
#include "ranks/agreement.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "tests/collectives/ranks.h"

namespace shardrun {
namespace {

struct Agreed {
  int rehearsals = 0;
  std::vector<std::vector<std::string>> taken;  // by rank
};

Agreed agreed(int ranks, const std::function<std::string(int rank)>& place) {
  Agreed out;
  out.taken.resize(static_cast<size_t>(ranks));
  std::atomic<int> rehearsals{0};
  test::run_ranks(ranks, [&](Communicator& host) {
    std::string chosen;
    const auto take = [&](std::span<const std::string> sent) {
      out.taken[static_cast<size_t>(host.rank())].assign(sent.begin(), sent.end());
    };
    agree(host, {place(host.rank()), [&] { return chosen; }, take}, [&] {
      ++rehearsals;
      chosen = std::string(static_cast<size_t>(host.rank()), 'x') + "measured";
    });
  });
  out.rehearsals = rehearsals;
  return out;
}

TEST(Agreement, IsThereWhereChoicesAreKeptAtOnePlace) {
  EXPECT_EQ(agreed(3, [](int) { return "here:/cache"; }).rehearsals, 0);
  EXPECT_EQ(agreed(1, [](int) { return ""; }).rehearsals, 0);
}

TEST(Agreement, IsFoundByARehearsal) {
  const std::vector<std::string> sent = {"measured", "xmeasured", "xxmeasured"};
  const auto places = {+[](int rank) { return str("machine ", rank / 2, ":/cache"); },
                       +[](int) { return std::string(); }};
  for (const auto& place : places) {
    const Agreed all = agreed(3, place);
    EXPECT_EQ(all.rehearsals, 3);
    for (const auto& taken : all.taken) EXPECT_EQ(taken, sent);
  }
}

}  // namespace
}  // namespace shardrun
