// Windows, the boxes that follow from them, checks, and the plan file.
#include "graph/node_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "graph/plan.h"

namespace shardrun {
namespace {

/// The rows that any of `rows` goes with, one by one.
Range by_hand(const HaloWindow& w, Range rows, int64_t extent) {
  int64_t begin = extent, end = 0;
  for (int64_t j = rows.begin; j < rows.end(); ++j) {
    for (int64_t x = 0; x < extent; ++x) {
      const auto floor_div = [&](int64_t a) {
        int64_t q = a / w.den;
        return q * w.den > a ? q - 1 : q;
      };
      if (x < floor_div(w.num * j + w.low) || x > floor_div(w.num * j + w.high)) continue;
      begin = std::min(begin, x);
      end = std::max(end, x + 1);
    }
  }
  return {begin, std::max<int64_t>(0, end - begin)};
}

TEST(HaloWindow, HoldsEveryRowAndIsClipped) {
  int checked = 0;
  for (int64_t num : {1, 2, 3}) {
    for (int64_t den : {1, 2, 3}) {
      if (num > 1 && den > 1) continue;
      for (int64_t low = -5; low <= 3; ++low) {
        for (int64_t high = low; high <= low + 4; ++high) {
          const HaloWindow w{num, den, low, high};
          for (int64_t begin = 0; begin < 6; ++begin) {
            for (int64_t size = 0; size < 4; ++size) {
              const Range got = w.of({begin, size}, 7), want = by_hand(w, {begin, size}, 7);
              ASSERT_GE(got.begin, 0);
              ASSERT_LE(got.end(), 7);
              if (want.size > 0) {
                // A window between two others may hold a row that only the stride skips.
                ASSERT_LE(got.begin, want.begin);
                ASSERT_GE(got.end(), want.end());
              }
              if (size == 0) {
                ASSERT_EQ(got.size, 0);
              }
              ++checked;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
  EXPECT_EQ((HaloWindow{2, 1, -1, 1}).of({2, 2}, 20), (Range{3, 5}));  // 2j - 1 … 2j + 1, j = 2, 3
  EXPECT_EQ((HaloWindow{1, 2, 0, 1}).of({3, 2}, 20), (Range{1, 2}));   // j / 2 … (j + 1) / 2
  EXPECT_EQ((HaloWindow{1, 1, -3, -3}).of({0, 2}, 5), (Range{0, 0}));  // padding only
  EXPECT_EQ((HaloWindow{1, 1, -3, -3}).of({9, 2}, 5), (Range{5, 0}));
}

TEST(HaloWindow, IsPrintedAsHalos) {
  EXPECT_EQ(to_string(HaloWindow{1, 1, -1, 1}), "1,1");
  EXPECT_EQ(to_string(HaloWindow{2, 1, -1, 1}), "1,0 stride 2");
  EXPECT_EQ(to_string(HaloWindow{1, 2, 0, 1}), "0,1 stride 1/2");
  EXPECT_EQ(to_string(HaloWindow{1, 1, -4, 0}), "4,0");
}

const Mesh kMesh = Mesh::parse("h=2,w=2");

/// A convolution of 4x4 rows with kernel 3 and padding 1, cut in both dims.
NodePlan conv_plan() {
  const Sharding image = parse_sharding("[-, -, {h}, {w}]", kMesh);
  NodePlan plan{{image, parse_sharding("[-, -, -, -]", kMesh)}, {image}};
  for (int dim : {2, 3}) plan.halos.push_back({{false, 0, dim}, {true, 0, dim}, {1, 1, -1, 1}});
  return plan;
}
const std::vector<Shape> kIn = {{1, 2, 4, 4}, {3, 2, 3, 3}}, kOut = {{1, 3, 4, 4}};

TEST(NodePlan, BoxesAreWindowsOfTheAnchorsShards) {
  const NodeBoxes boxes = node_boxes(conv_plan(), kIn, kOut, kMesh, {1, 0});
  EXPECT_EQ(boxes.in[0], (Box{{0, 1}, {0, 2}, {1, 3}, {0, 3}}));
  EXPECT_EQ(boxes.in[1], full_box(kIn[1]));
  EXPECT_EQ(boxes.out[0], (Box{{0, 1}, {0, 3}, {2, 2}, {0, 2}}));
  EXPECT_EQ(exchange_axes(conv_plan(), false, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(exchange_axes(conv_plan(), false, 1), std::vector<int>{});
  EXPECT_EQ(to_string(conv_plan(), false, 0, kMesh),
            "[-, -, {h}, {w}] halo 1,1 in dim 2 halo 1,1 in dim 3");
}

/// 5 and 3 rows over two ranks: rank 1 has rows 3, 4 of the first and row 2 of the second, which is
/// row 7 of both joined.
TEST(NodePlan, BlocksAreShardsOneAfterTheOther) {
  const Mesh mesh = Mesh::parse("h=2");
  const Sharding cut = parse_sharding("[{h}]", mesh);
  NodePlan plan{{cut, cut}, {cut}};
  plan.blocks = {{{true, 0, 0}, {{false, 0, 0}, {false, 1, 0}}}};
  const NodeBoxes boxes = node_boxes(plan, {{5}, {3}}, {{8}}, mesh, {1});
  EXPECT_EQ(boxes.out[0], (Box{{0, 3}}));
  EXPECT_EQ(boxes.blocks[0], (std::vector<Range>{{3, 2}, {7, 1}}));
  EXPECT_EQ(to_string(plan, true, 0, mesh), "[{h}] 2 blocks in dim 0");
  EXPECT_NO_THROW(check_node_plan(plan, {{5}, {3}}, {{8}}, mesh));
  EXPECT_THROW(check_node_plan(plan, {{5}, {3}}, {{9}}, mesh), Error);
}

std::string refusal(const NodePlan& plan) {
  try {
    check_node_plan(plan, kIn, kOut, kMesh);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(NodePlan, WrongWindowsAreRefused) {
  EXPECT_EQ(refusal(conv_plan()), "");
  NodePlan other_axes = conv_plan();
  other_axes.halos[0].anchor.dim = 3;
  EXPECT_EQ(refusal(other_axes),
            "operand 0 dim 2 is in windows of result 0 dim 3, which other axes cut");
  NodePlan twice = conv_plan();
  twice.halos[1] = twice.halos[0];
  EXPECT_EQ(refusal(twice), "operand 0 dim 2 has two windows");
  NodePlan absent = conv_plan();
  absent.halos[0].of.dim = 4;
  EXPECT_EQ(refusal(absent), "operand 0 dim 4 is not there");
  NodePlan still = conv_plan();
  still.halos[0].window.num = 0;
  EXPECT_EQ(refusal(still),
            "the window of operand 0 dim 2 has stride 0 / 1, wanted a positive one");
  for (int64_t HaloWindow::*number : {&HaloWindow::num, &HaloWindow::low, &HaloWindow::high}) {
    NodePlan far = conv_plan();
    far.halos[0].window.*number = std::numeric_limits<int64_t>::max();
    EXPECT_NE(refusal(far).find("wanted numbers of at most 1099511627776"), std::string::npos)
        << refusal(far);
  }
  NodePlan below = conv_plan();
  below.halos[0].window.low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(refusal(below),
            "the window of operand 0 dim 2 reaches from -9223372036854775808 to 1 at stride 1 / 1, "
            "wanted numbers of at most 1099511627776");
  NodePlan circle = conv_plan();
  circle.halos.push_back({{true, 0, 2}, {false, 0, 2}, {1, 1, 0, 0}});
  EXPECT_NE(refusal(circle).find("which is not in shards itself"), std::string::npos);
}

/// 10 rows over two ranks: one names 10 at most, and of one the two ranks name 20.
TEST(NodePlan, RowsBeyondAllThereAreAreRefused) {
  const Mesh mesh = Mesh::parse("e=2");
  NodePlan plan{{parse_sharding("[{e}]", mesh), parse_sharding("[{e}]", mesh)},
                {parse_sharding("[{e}]", mesh)}};
  for (const auto& [named, owned, accepted] :
       {std::tuple{10, 20, true}, {11, 0, false}, {0, 21, false}, {-1, 0, false}}) {
    plan.rows = {{{true, 0, 0}, {false, 1, 0}, ReduceOp::sum, named, owned}};
    try {
      check_node_plan(plan, {{7}, {7}}, {{10}}, mesh);
      EXPECT_TRUE(accepted) << named << " " << owned;
    } catch (const Error& e) {
      EXPECT_FALSE(accepted);
      EXPECT_EQ(e.what(), str("result 0 dim 0 has bounds of ", named, " and ", owned,
                              " rows, wanted 0 to 10 and 0 to 20"));
    }
  }
}

TEST(NodePlan, ReloadsFromThePlanFile) {
  Plan plan;
  plan.mesh = kMesh;
  plan.nodes["conv"] = conv_plan();
  NodePlan joined{{parse_sharding("[{h}]", kMesh), parse_sharding("[{h}]", kMesh)},
                  {parse_sharding("[{h}]", kMesh)}};
  joined.blocks = {{{true, 0, 0}, {{false, 0, 0}, {false, 1, 0}}}};
  plan.nodes["concat"] = joined;
  const std::string text = to_json(plan);
  EXPECT_EQ(plan_from_json(text, "plan.json").nodes, plan.nodes);
  std::string broken = text;
  broken.replace(broken.find("\"anchor\""), 8, "\"anchur\"");
  try {
    plan_from_json(broken, "plan.json");
    ADD_FAILURE() << "a halo without anchor was read";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "plan.json: field nodes['conv']: field 'anchor' is missing");
  }
}

}  // namespace
}  // namespace shardrun
