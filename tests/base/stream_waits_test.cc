// Which steps wait for which, where collectives have streams of their own.
#include "base/streams/stream_waits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace shardrun {
namespace {

using Waits = std::vector<std::vector<int>>;

StepMemory::Range at(int begin, int end) { return range_at(begin, end - begin); }

TEST(StreamWaits, ForWhatStillRunsOnAnotherStream) {
  const std::vector<StepMemory> steps = {
      {{at(0, 8)}, {at(8, 16)}, 1},     // a collective
      {{at(16, 24)}, {at(24, 32)}},     // has nothing to do with it
      {{at(0, 8)}, {at(32, 40)}},       // reads what it reads
      {{}, {at(4, 5)}},                 // writes what it reads
      {{at(8, 9)}, {at(32, 40)}},       // by now it is done
      {{at(40, 48)}, {at(40, 48)}, 1},  // another, in place
      {{at(47, 50)}, {}},               // reads what it writes
      {{}, {at(40, 41)}},               // done too
      {{at(0, 8)}, {at(8, 16)}, 1},
      {{at(7, 9)}, {at(3, 3)}},  // empty: but what it reads is written
  };
  EXPECT_EQ(stream_waits(steps), (Waits{{}, {}, {}, {0}, {}, {4}, {5}, {}, {7}, {8}}));
}

TEST(StreamWaits, ForNoLaterCollectiveThanNeeded) {
  const std::vector<StepMemory> steps = {
      {{at(0, 8)}, {at(0, 8)}, 1}, {{at(8, 16)}, {at(8, 16)}, 1}, {{at(16, 24)}, {at(16, 24)}, 1},
      {{at(8, 9)}, {at(32, 40)}},  // the third goes on
      {{at(0, 8)}, {at(32, 40)}},  // what stands before the second is done as well
      {{at(0, 24)}, {}},
  };
  EXPECT_EQ(stream_waits(steps), (Waits{{}, {}, {}, {1}, {}, {2}}));
}

TEST(StreamWaits, CollectivesOfOtherStreams) {
  const std::vector<StepMemory> steps = {
      {{}, {at(0, 8)}},
      {{at(0, 8)}, {at(8, 16)}, 1},
      {{at(8, 16)}, {at(16, 24)}, 2},  // reads what the other writes
      {{at(0, 8)}, {at(24, 32)}, 2},   // so it is done
      {{at(16, 24)}, {}},
      {{at(8, 16)}, {}, 1},  // a kernel has waited for what the second stream did
  };
  EXPECT_EQ(stream_waits(steps), (Waits{{}, {0}, {0, 1}, {}, {2}, {4}}));
}

/// Against a plain search over all pairs of steps.
TEST(StreamWaits, RandomStepsHaveNoConflictThatNothingWaitsFor) {
  std::mt19937 random(3);
  const auto below = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<StepMemory> steps(40);
    for (StepMemory& step : steps) {
      for (auto* ranges : {&step.reads, &step.writes}) {
        for (int i = below(3); i > 0; --i) {
          const int begin = below(60);
          ranges->push_back(at(begin, begin + below(8)));
        }
      }
      step.stream = std::max(0, below(5) - 2);
    }
    const Waits waits = stream_waits(steps);
    // ends[s][t]: has t ended before s begins?
    std::vector<std::vector<bool>> ends(steps.size(), std::vector<bool>(steps.size()));
    for (size_t s = 0; s < steps.size(); ++s) {
      std::vector<int> before = waits[s];
      for (size_t t = 0; t < s; ++t) {
        if (steps[t].stream == steps[s].stream) before.push_back(static_cast<int>(t));
      }
      for (int t : before) {
        ends[s][static_cast<size_t>(t)] = true;
        for (size_t u = 0; u < s; ++u) ends[s][u] = ends[s][u] || ends[static_cast<size_t>(t)][u];
      }
      const auto meet = [](const auto& a, const auto& b) {
        return std::any_of(a.begin(), a.end(), [&](const auto& x) {
          return std::any_of(b.begin(), b.end(), [&](const auto& y) {
            return x.first < x.second && y.first < y.second && x.first < y.second &&
                   y.first < x.second;
          });
        });
      };
      for (size_t t = 0; t < s; ++t) {
        if (meet(steps[s].reads, steps[t].writes) || meet(steps[s].writes, steps[t].writes) ||
            meet(steps[s].writes, steps[t].reads)) {
          EXPECT_TRUE(ends[s][t]) << t << " before " << s;
        }
      }
      for (int t : waits[s]) {  // and none is waited for in vain: a kernel, or a conflict
        const StepMemory& other = steps[static_cast<size_t>(t)];
        EXPECT_TRUE(other.stream == 0 || meet(steps[s].reads, other.writes) ||
                    meet(steps[s].writes, other.writes) || meet(steps[s].writes, other.reads));
      }
    }
  }
}

}  // namespace
}  // namespace shardrun
