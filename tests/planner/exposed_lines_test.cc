// Which fraction of exposed sums is searched for next.
#include "planner/exposed_lines.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

using Crossing = ExposedLines::Crossing;

void expect(const std::optional<Crossing>& found, size_t left, size_t right, double exposed,
            double seconds) {
  ASSERT_TRUE(found);
  EXPECT_EQ(found->left, left);
  EXPECT_EQ(found->right, right);
  EXPECT_NEAR(found->exposed, exposed, 1e-12);
  EXPECT_NEAR(found->seconds, seconds, 1e-12);
}

TEST(ExposedLines, TheFirstCrossingIsOfBothEnds) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({4, 12, 11});
  expect(lines.next(), 0, 1, 2.0 / 3, 8 + 4.0 / 3);
  EXPECT_FALSE(lines.next());  // each once
}

TEST(ExposedLines, ThenNextToTheFastestPlan) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({4, 12, 11});
  (void)lines.next();
  // Below both where they cross; as a plan the slowest. Its neighbour is the fastest.
  lines.add({5, 10.5, 13});
  expect(lines.next(), 0, 2, 3 / 3.5, 8 + 2 * 3 / 3.5);
  EXPECT_FALSE(lines.next());
}

TEST(ExposedLines, OfTwoNeighboursTheOneNearerToWhatThePlanExposes) {
  for (const bool more : {false, true}) {
    ExposedLines lines;
    lines.add({8, 10, 20});
    lines.add({4, 12, 20});
    (void)lines.next();
    // Of 5.5 seconds of sums it exposes a tenth, or nine.
    lines.add({5, 10.5, more ? 5 + 0.9 * 5.5 : 5 + 0.1 * 5.5});
    if (more) lines.add({9, 11, 20});  // never the least: no neighbour
    const std::optional<Crossing> found = lines.next(), other = lines.next();
    ASSERT_TRUE(found && other);
    EXPECT_EQ(found->left, more ? 0u : 2u);
    EXPECT_EQ(other->left, more ? 2u : 0u);
    EXPECT_FALSE(lines.next());
  }
}

TEST(ExposedLines, ALineThatIsNeverLeastIsNoNeighbour) {
  ExposedLines lines;
  lines.add({8, 10, 9});
  lines.add({7.9, 13, 5});  // the fastest plan, but above the others' crossing
  lines.add({4, 12, 11});
  expect(lines.next(), 0, 2, 2.0 / 3, 8 + 4.0 / 3);
  EXPECT_FALSE(lines.next());
}

TEST(ExposedLines, EqualLinesDoNotCross) {
  ExposedLines lines;
  lines.add({3, 3, 3});
  lines.add({3, 3, 3});
  EXPECT_FALSE(lines.next());
}

}  // namespace
}  // namespace shardrun
