// Exchanges of halos and blocks between local ranks, and how many bytes of staging they take.
#include <gtest/gtest.h>

#include "exec/collective_step.h"
#include "planner/halo.h"
#include "tests/collectives/ranks.h"
#include "tests/exec/exchange_cases.h"

namespace shardrun {
namespace {

TEST(Exchange, RandomWindowsAndBlocks) {
  for (int ranks : {1, 2, 3, 4, 6, 8}) testing::run_ranks(ranks, testing::check_exchanges);
}

/// 8 rows of 6 x f32 over two ranks, a halo of 1 on each side: 24 bytes go each way, in 64.
TEST(Exchange, StagingIsWhatIsMoved) {
  const Mesh mesh = Mesh::parse("h=2");
  NodePlan plan{{parse_sharding("[{h}, -]", mesh)}, {parse_sharding("[{h}, -]", mesh)}};
  plan.halos = {{{false, 0, 0}, {true, 0, 0}, {1, 1, -1, 1}}};
  const auto exchange = exchange_of(plan, {{8, 6}}, {{8, 6}}, false, 0, mesh, 0);
  ASSERT_TRUE(exchange.has_value());
  EXPECT_EQ(exchange->kind, Collective::Kind::halo_exchange);
  EXPECT_EQ(exchange->out_boxes, (std::vector<Box>{{{0, 5}, {0, 6}}, {{3, 5}, {0, 6}}}));
  EXPECT_EQ(CollectiveStep(*exchange, DType::f32, 0).workspace_bytes(), 128);
  // A row of the halo that is beyond the image is nobody's, and is not sent.
  plan.halos[0].window = {1, 1, -20, 0};
  const auto wide = exchange_of(plan, {{8, 6}}, {{8, 6}}, false, 0, mesh, 0);
  EXPECT_EQ(CollectiveStep(*wide, DType::f32, 0).workspace_bytes(), 128);  // sends 4 rows
  EXPECT_EQ(CollectiveStep(*wide, DType::f32, 1).workspace_bytes(), 128);  // receives them
}

/// Two dims cut by two axes: rank 0 gets a row, a column and the corner between them from three
/// ranks.
TEST(Exchange, CornersComeFromTheDiagonal) {
  const Mesh mesh = Mesh::parse("h=2,w=2");
  NodePlan plan{{parse_sharding("[{h}, {w}]", mesh)}, {parse_sharding("[{h}, {w}]", mesh)}};
  for (int dim : {0, 1}) plan.halos.push_back({{false, 0, dim}, {true, 0, dim}, {1, 1, -1, 1}});
  const auto exchange = exchange_of(plan, {{4, 4}}, {{4, 4}}, false, 0, mesh, 0);
  ASSERT_TRUE(exchange.has_value());
  EXPECT_EQ(exchange->group, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(exchange->out_boxes[0], (Box{{0, 3}, {0, 3}}));
  // Rank 0 sends and receives 2 + 2 + 1 elements.
  EXPECT_EQ(CollectiveStep(*exchange, DType::f64, 0).workspace_bytes(), 128);
}

TEST(Exchange, WindowsThatAreChunksNeedNone) {
  const Mesh mesh = Mesh::parse("h=2");
  NodePlan plan{{parse_sharding("[{h}]", mesh)}, {parse_sharding("[{h}]", mesh)}};
  plan.halos = {{{false, 0, 0}, {true, 0, 0}, {2, 1, 0, 1}}};  // a pool of 2, stride 2
  EXPECT_FALSE(exchange_of(plan, {{8}}, {{4}}, false, 0, mesh, 1).has_value());
  // 10 rows are 5 and 5, 5 results 3 and 2: rank 0 needs row 5, which rank 1 has.
  EXPECT_TRUE(exchange_of(plan, {{10}}, {{5}}, false, 0, mesh, 1).has_value());
}

}  // namespace
}  // namespace shardrun
