// The table of collective kinds: what is printed of each, and what rows have to agree with.
#include "graph/collective.h"

#include <gtest/gtest.h>

#include <set>

namespace shardrun {
namespace {

using Kind = Collective::Kind;

/// Rank 1 of two has rows 2 … 4 of 4, then rows 1 … 4.
Collective collective_of(Kind kind) {
  Collective c;
  c.kind = kind;
  c.axes = {0};
  c.group = {0, 1};
  c.dim = 3;
  c.to_dim = 5;
  c.op = ReduceOp::max;
  c.in_boxes = {{{0, 2}}, {{2, 2}}};
  c.out_boxes = {{{0, 3}}, {{1, 3}}};
  return c;
}

TEST(Collective, PrintsWhatAKindHas) {
  const Mesh mesh = Mesh::parse("e=2");
  const std::pair<Kind, const char*> wanted[] = {
      {Kind::all_gather, "all_gather{axes=e dim=3}"},
      {Kind::reduce_scatter, "reduce_scatter{axes=e dim=3 op=max}"},
      {Kind::all_reduce, "all_reduce{axes=e op=max}"},
      {Kind::all_to_all, "all_to_all{axes=e dim=3 to_dim=5}"},
      {Kind::slice, "slice{axes=e dim=3}"},
      {Kind::keep_first, "keep_first{axes=e op=max}"},
      {Kind::halo_exchange, "halo_exchange{axes=e [2:4] -> [1:4]}"},
      {Kind::halo_add, "halo_add{axes=e [2:4] -> [1:4]}"},
      {Kind::block_exchange, "block_exchange{axes=e dim=3}"},
      {Kind::row_route, "row_route{axes=e dim=3 most_named=7 most_owned=9}"},
      {Kind::row_fetch, "row_fetch{axes=e dim=3 most_named=7 most_owned=9}"},
      {Kind::row_add, "row_add{axes=e dim=3 op=max most_named=7 most_owned=9}"},
  };
  EXPECT_EQ(std::size(wanted), kCollectives.size());
  for (const auto& [kind, text] : wanted) {
    Collective c = collective_of(kind);
    if (c.traits().by_rows) c.payload = RowBounds{7, 9};
    if (kind == Kind::block_exchange) c.payload = MemberBlocks(2);
    EXPECT_EQ(to_string(c, mesh, 1), text);
  }
}

TEST(Collective, TraitsAgree) {
  using Traits = CollectiveTraits;
  std::set<std::string_view> names;
  for (const Traits& t : kCollectives) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    // What is priced by a node's plan belongs to a node, and nothing else does.
    EXPECT_EQ(t.is_exchange(),
              t.price == Traits::Price::exchange || t.price == Traits::Price::route)
        << t.name;
    // A copy needs no wire, and nobody else to reduce with.
    EXPECT_EQ(t.local, t.price == Traits::Price::copy) << t.name;
    EXPECT_FALSE(t.local && t.reduces) << t.name;
    // Rows that numbers name are those of a node; its own pieces are packed otherwise.
    EXPECT_TRUE(!t.by_rows || t.is_exchange()) << t.name;
    EXPECT_TRUE(!t.is_exchange() ||
                (t.packs == Traits::Along::none && t.unpacks == Traits::Along::none))
        << t.name;
    // Others are given something by what is no move within a rank.
    EXPECT_EQ(t.local, t.sends == Traits::Sends::nothing) << t.name;
    EXPECT_EQ(t.by_rows, t.sends >= Traits::Sends::numbers) << t.name;
    // What a node takes is its own, and what is cut differs.
    EXPECT_FALSE(t.replicates && (t.is_exchange() || t.local)) << t.name;
    // A piece can be cut along to_dim only where there is one.
    EXPECT_TRUE(t.has(Traits::has_to_dim) || t.packs != Traits::Along::to_dim) << t.name;
  }
}

/// f32[5, 4] of which three ranks have two, two and one row.
TEST(Collective, CountsWhatARankGives) {
  const Box whole = {{0, 5}, {0, 4}};
  const std::vector<Box> rows = {{{0, 2}, {0, 4}}, {{2, 2}, {0, 4}}, {{4, 1}, {0, 4}}};
  const std::vector<Box> columns = {{{0, 5}, {0, 2}}, {{0, 5}, {2, 1}}, {{0, 5}, {3, 1}}};
  const auto sent = [](Kind kind, const std::vector<Box>& in, const std::vector<Box>& out,
                       int64_t rank, decltype(Collective::payload) payload = {}) {
    Collective c;
    c.kind = kind;
    c.group = {3, 5, 8};
    c.in_boxes = in;
    c.out_boxes = out;
    c.payload = std::move(payload);
    return bytes_sent(c, DType::f32, rank);
  };
  const std::vector<Box> all(3, whole);
  EXPECT_EQ(sent(Kind::all_gather, rows, all, 8), 2 * 4 * 4);
  EXPECT_EQ(sent(Kind::reduce_scatter, all, rows, 8), (8 + 8) * 4);
  EXPECT_EQ(sent(Kind::all_reduce, all, all, 8), 2 * 2 * 20 / 3 * 4);
  EXPECT_EQ(sent(Kind::all_to_all, rows, columns, 3), 2 * (1 + 1) * 4);
  EXPECT_EQ(sent(Kind::slice, all, rows, 3), 0);
  EXPECT_EQ(sent(Kind::keep_first, all, all, 3), 0);
  // Each wants a row more on both sides, as far as there are any.
  const std::vector<Box> windows = {{{0, 3}, {0, 4}}, {{1, 4}, {0, 4}}, {{3, 2}, {0, 4}}};
  EXPECT_EQ(sent(Kind::halo_exchange, rows, windows, 5), (4 + 4) * 4);
  EXPECT_EQ(sent(Kind::halo_add, windows, rows, 5), (4 + 4) * 4);
  // Rank 5 made rows 0 and 3, the one rank 3's and the other its own.
  const MemberBlocks blocks = {{{1, 1}, {2, 1}}, {{0, 1}, {3, 1}}, {{4, 1}}};
  EXPECT_EQ(sent(Kind::block_exchange, rows, rows, 5, blocks), 4 * 4);
  const RowBounds bounds = {.most_named = 2, .most_owned = 3};
  EXPECT_EQ(sent(Kind::row_route, rows, rows, 5, bounds), (2 + 2) * 8);
  EXPECT_EQ(sent(Kind::row_route, rows, rows, 5, RowBounds{}), 0);
  EXPECT_EQ(sent(Kind::row_fetch, rows, rows, 5, bounds), 3 * 4 * 4);
  EXPECT_EQ(sent(Kind::row_add, rows, rows, 5, bounds), 2 * 4 * 4);
  EXPECT_THROW(sent(Kind::all_gather, rows, all, 4), Error);
}

}  // namespace
}  // namespace shardrun
