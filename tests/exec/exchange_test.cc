// Exchanges of halos and blocks between local ranks, and how many bytes of staging they take.
#include <gtest/gtest.h>

#include "exec/collective_step.h"
#include "graph/node_exchanges.h"
#include "tests/collectives/ranks.h"
#include "tests/exec/exchange_cases.h"

namespace shardrun {
namespace {

TEST(Exchange, RandomWindowsAndBlocks) {
  for (int ranks : {1, 2, 3, 4, 6, 8}) test::run_ranks(ranks, test::check_exchanges);
}

TEST(Exchange, RandomRows) {
  for (int ranks : {1, 2, 3, 4, 6, 8}) test::run_ranks(ranks, test::check_row_exchanges);
}

/// Rows 0 … 9 of 3 over two ranks; rank 0 names 0, 2, 5, 2, rank 1 names 5, 7, 4.
NodePlan two_ranks_name_rows(const Mesh& mesh, int64_t most_named, int64_t most_owned) {
  NodePlan plan{{parse_sharding("[{e}, -]", mesh), parse_sharding("[{e}]", mesh)},
                {parse_sharding("[{e}, -]", mesh)}};
  plan.rows = {{{true, 0, 0}, {false, 1, 0}, ReduceOp::sum, most_named, most_owned}};
  return plan;
}
const std::vector<Shape> kRowsIn = {{7, 3}, {7}}, kRowsOut = {{10, 3}};

/// Two lists of 2 integers, 10 places and the most rows named take 64, 64, 128 and 8 bytes each;
/// the sum two lists, one of 2 pointers, and 12 bytes for each of the most rows owned.
TEST(Exchange, RowsReserveTheirBounds) {
  const Mesh mesh = Mesh::parse("e=2");
  const auto bytes = [&](int64_t named, int64_t owned) {
    const NodePlan plan = two_ranks_name_rows(mesh, named, owned);
    const Collective route = *route_of(plan, kRowsIn, kRowsOut, mesh, 0),
                     add = *exchange_of(plan, kRowsIn, kRowsOut, true, 0, mesh, 0);
    EXPECT_EQ(routing_size(route), 4 + owned);
    return std::pair(CollectiveStep(route, DType::i64, 0).workspace_bytes(),
                     CollectiveStep(add, DType::f32, 0).workspace_bytes());
  };
  EXPECT_EQ(bytes(1, 1), std::pair(int64_t{64 + 64 + 128 + 64}, int64_t{3 * 64 + 64}));
  EXPECT_EQ(bytes(20, 100), std::pair(int64_t{64 + 64 + 128 + 192}, int64_t{3 * 64 + 1216}));
}

/// Where nobody names another's rows nothing is exchanged, but that is looked at.
TEST(Exchange, RowsAtHomeStay) {
  const Mesh mesh = Mesh::parse("e=2");
  const NodePlan plan = two_ranks_name_rows(mesh, 0, 0);
  EXPECT_TRUE(route_of(plan, kRowsIn, kRowsOut, mesh, 0).has_value());
  EXPECT_FALSE(exchange_of(plan, kRowsIn, kRowsOut, true, 0, mesh, 0).has_value());
}

TEST(Exchange, MoreRowsThanPlannedAreRefused) {
  const Mesh mesh = Mesh::parse("e=2");
  for (const auto& [most_named, most_owned, named] :
       {std::tuple{int64_t{0}, int64_t{0}, "the numbers of this rank name, of other ranks, 1 rows"},
        std::tuple{int64_t{1}, int64_t{0},
                   "the numbers of other ranks name, of this rank, 1 rows"}}) {
    const NodePlan plan = two_ranks_name_rows(mesh, most_named, most_owned);
    test::run_ranks(2, [&, named = named](Communicator& world) {
      const Collective route = *route_of(plan, kRowsIn, kRowsOut, mesh, world.rank());
      const CollectiveStep step(route, DType::i64, world.rank());
      const Tensor numbers = Tensor::vector_i64(world.rank() == 0 ? std::vector<int64_t>{0, 2, 5, 2}
                                                                  : std::vector<int64_t>{5, 7, 4});
      const Tensor renumbered(numbers.type()), routing({DType::i64, {routing_size(route)}});
      const std::vector<TensorView> in = {numbers.view()},
                                    out = {renumbered.view(), routing.view()};
      std::vector<char> workspace(static_cast<size_t>(step.workspace_bytes()));
      try {
        step.run(in, out, workspace.data(), &world);
        ADD_FAILURE() << "rank " << world.rank() << " routes more rows than the plan allows for";
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
        EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("the plan allows for 0"), std::string::npos);
      }
    });
  }
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

TEST(Exchange, WindowsThatAreShardsNeedNone) {
  const Mesh mesh = Mesh::parse("h=2");
  NodePlan plan{{parse_sharding("[{h}]", mesh)}, {parse_sharding("[{h}]", mesh)}};
  plan.halos = {{{false, 0, 0}, {true, 0, 0}, {2, 1, 0, 1}}};  // a pool of 2, stride 2
  EXPECT_FALSE(exchange_of(plan, {{8}}, {{4}}, false, 0, mesh, 1).has_value());
  // 10 rows are 5 and 5, 5 results 3 and 2: rank 0 needs row 5, which rank 1 has.
  EXPECT_TRUE(exchange_of(plan, {{10}}, {{5}}, false, 0, mesh, 1).has_value());
}

}  // namespace
}  // namespace shardrun
