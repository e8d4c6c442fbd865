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
    // A piece can be cut along to_dim only where there is one.
    EXPECT_TRUE(t.has(Traits::has_to_dim) || t.packs != Traits::Along::to_dim) << t.name;
  }
}

}  // namespace
}  // namespace shardrun
