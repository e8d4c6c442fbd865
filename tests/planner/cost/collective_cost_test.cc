// What collectives cost: properties that hold on any cluster, and the formulas' numbers.
#include "planner/cost/collective_cost.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

using Kind = Collective::Kind;

/// Those that a Wire prices.
std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (const CollectiveTraits& traits : kCollectives) {
    if (traits.is_measured()) out.push_back(traits.kind);
  }
  return out;
}

Cluster nodes_of(int64_t nodes, int64_t devices) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices = devices;
  cluster.within = {.bandwidth = 100e9, .latency = 2e-6, .call_latency = 5e-6};
  cluster.between = {.bandwidth = 10e9, .latency = 5e-6, .call_latency = 8e-6};
  return cluster;
}

/// Of a value with `bytes` when whole: what a rank holds at the larger end.
double seconds(Kind kind, double bytes, const std::string& mesh, std::vector<int> axes,
               const Cluster& cluster) {
  const Wire wire = wire_of(axes, Mesh::parse(mesh), cluster);
  const double shard = bytes / static_cast<double>(wire.span.ranks);
  const CollectiveTraits& traits = traits_of(kind);
  return collective_seconds(
      kind, {traits.reduces ? bytes : shard, traits.replicates ? bytes : shard}, wire, cluster);
}

TEST(CollectiveCost, Numbers) {
  const Cluster c = nodes_of(4, 8);
  // Eight ranks of one node, 80 MB: 7 steps, 70 MB sent by each.
  EXPECT_NEAR(seconds(Kind::all_gather, 80e6, "4x8", {1}, c), 5e-6 + 14e-6 + 70e6 / 100e9, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, 80e6, "4x8", {1}, c), 5e-6 + 28e-6 + 140e6 / 100e9, 1e-12);
  // Four ranks on four nodes, each with the network link of one device.
  EXPECT_NEAR(seconds(Kind::reduce_scatter, 80e6, "4x8", {0}, c), 8e-6 + 15e-6 + 60e6 / 10e9,
              1e-12);
  // All: the eight network links of a node together, 80 GB/s; a tree of two levels is quicker for
  // small messages than 3 + 28 steps around the ring.
  EXPECT_NEAR(seconds(Kind::all_gather, 32e6, "4x8", {0, 1}, c), 8e-6 + 15e-6 + 56e-6 + 31e6 / 80e9,
              1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, 32e6, "4x8", {0, 1}, c),
              8e-6 + 2 * (10e-6 + 14e-6) + 62e6 / 80e9, 1e-12);
  // Of the 1 MB that a rank holds, 24 of 32 parts go to other nodes, by its own link.
  EXPECT_NEAR(seconds(Kind::all_to_all, 32e6, "4x8", {0, 1}, c),
              8e-6 + 15e-6 + 56e-6 + 0.75e6 / 10e9, 1e-12);
}

TEST(CollectiveCost, MoreBytesNeverCostLess) {
  for (const Cluster& c : {nodes_of(4, 8), host_cluster()}) {
    for (Kind kind : kinds()) {
      for (std::vector<int> axes : {std::vector{0}, std::vector{1}, std::vector{0, 1}}) {
        double before = 0;
        for (double bytes = 8; bytes < 1e10; bytes *= 1.7) {
          const double now = seconds(kind, bytes, "4x8", axes, c);
          EXPECT_GT(now, before) << to_string(kind) << " " << bytes;
          before = now;
        }
      }
    }
  }
}

TEST(CollectiveCost, ReduceScatterAndAllGatherMakeAnAllReduce) {
  const Cluster c = nodes_of(4, 8);
  for (std::vector<int> axes : {std::vector{0}, std::vector{1}, std::vector{0, 1}}) {
    for (double bytes : {1e6, 1e8, 1e10}) {
      const double both = seconds(Kind::reduce_scatter, bytes, "4x8", axes, c) +
                          seconds(Kind::all_gather, bytes, "4x8", axes, c);
      const double one = seconds(Kind::all_reduce, bytes, "4x8", axes, c);
      EXPECT_LE(one, both);
      // The difference is latency.
      EXPECT_NEAR(one, both, 8e-6 + 2 * 71e-6);
    }
  }
}

TEST(CollectiveCost, BetweenNodesCostsMoreThanWithin) {
  for (Kind kind : kinds()) {
    for (double bytes : {1e2, 1e5, 1e8}) {
      EXPECT_GT(seconds(kind, bytes, "8x8", {0}, nodes_of(8, 8)),
                seconds(kind, bytes, "8x8", {1}, nodes_of(8, 8)))
          << to_string(kind) << " " << bytes;
    }
  }
}

TEST(CollectiveCost, AllToAllIsCheaperThanAllGatherOfTheSameValue) {
  for (std::vector<int> axes : {std::vector{0}, std::vector{1}, std::vector{0, 1}}) {
    for (double bytes : {1e5, 1e7, 1e9}) {
      EXPECT_LT(seconds(Kind::all_to_all, bytes, "4x8", axes, nodes_of(4, 8)),
                seconds(Kind::all_gather, bytes, "4x8", axes, nodes_of(4, 8)))
          << bytes;
    }
  }
}

/// Of f32[64, 256] over 8 ranks, cut along the rows nothing is packed, along the columns all of it;
/// of f32[1, 256] the columns are the outermost dim.
TEST(CollectiveCost, CutsThatAreNotOutermostArePacked) {
  const Cluster c = nodes_of(1, 8);
  const Mesh mesh = Mesh::parse("a=8");
  const auto gather = [&](const Shape& shape, const char* cut, int dim) {
    return collective_seconds(Kind::all_gather, {DType::f32, shape}, parse_sharding(cut, mesh),
                              Sharding::replicated(2), dim, 0, std::vector{0}, mesh, c);
  };
  const double packing = c.kernel_latency + 2 * 65536 / c.memory_bandwidth.value();
  EXPECT_NEAR(gather({64, 256}, "[-, {a}]", 1), gather({64, 256}, "[{a}, -]", 0) + packing, 1e-12);
  EXPECT_NEAR(gather({1, 256}, "[-, {a}]", 1), gather({256, 1}, "[{a}, -]", 0), 1e-12);
}

/// What one call sums of several values comes to the call's time; other kinds are by themselves.
TEST(CollectiveCost, ACallIsDividedByBytes) {
  const Cluster c = nodes_of(1, 8);
  const Mesh mesh = Mesh::parse("a=8");
  const auto of = [&](Kind kind, int64_t rows, double call) {
    const bool sum = kind == Kind::all_reduce;
    return collective_seconds(kind, {DType::f32, {rows, 256}},
                              parse_sharding(sum ? "[-, -]" : "[{a}, -]", mesh),
                              Sharding::replicated(2), 0, 0, std::vector{0}, mesh, c, call);
  };
  const double whole = of(Kind::all_reduce, 96, 0), bytes = 96 * 256 * 4;
  EXPECT_NEAR(of(Kind::all_reduce, 64, bytes) + of(Kind::all_reduce, 32, bytes), whole, 1e-15);
  EXPECT_LT(of(Kind::all_reduce, 32, bytes), of(Kind::all_reduce, 32, 0) / 2);
  EXPECT_EQ(of(Kind::all_gather, 64, bytes), of(Kind::all_gather, 64, 0));
}

/// Two borders of 1 MB each: neighbours send at the same time, whatever the size of the group.
TEST(CollectiveCost, ExchangeIsBetweenNeighbours) {
  const Cluster c = nodes_of(4, 8);
  const Wire near = wire_of(std::vector{1}, Mesh::parse("4x8"), c),
             far = wire_of(std::vector{0, 1}, Mesh::parse("4x8"), c);
  EXPECT_NEAR(exchange_seconds(2e6, 2e6, 2, near), 5e-6 + 4e-6 + 2e6 / 100e9, 1e-12);
  EXPECT_NEAR(exchange_seconds(2e6, 1e6, 2, far), 8e-6 + 10e-6 + 2e6 / 10e9, 1e-12);
}

}  // namespace
}  // namespace shardrun
