// How meshes lie on nodes, and what a job sees of a cluster.
#include "planner/cost/cluster.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace shardrun {
namespace {

Cluster nodes_of(int64_t nodes, int64_t devices) {
  Cluster cluster;
  cluster.name = "h100:" + std::to_string(nodes);
  cluster.nodes = nodes;
  cluster.devices = devices;
  cluster.oversubscribes = false;
  return cluster;
}

GroupSpan span(const Cluster& cluster, const std::string& mesh, std::vector<int> axes) {
  return cluster.span_of(Mesh::parse(mesh), axes);
}

TEST(Cluster, LastAxesStayWithinANode) {
  const Cluster four = nodes_of(4, 8);
  EXPECT_EQ(span(four, "4x8", {0}), (GroupSpan{4, 1, 4}));
  EXPECT_EQ(span(four, "4x8", {1}), (GroupSpan{8, 8, 1}));
  EXPECT_EQ(span(four, "4x8", {0, 1}), (GroupSpan{32, 8, 4}));
  // Rank r = 4 a + b; a = 0, 1 are on node 0.
  EXPECT_EQ(span(four, "8x4", {0}), (GroupSpan{8, 2, 4}));
  EXPECT_EQ(span(four, "2x16", {1}), (GroupSpan{16, 8, 2}));
  EXPECT_EQ(span(four, "2x16", {0}), (GroupSpan{2, 1, 2}));
  // Eight ranks are all on the first node.
  EXPECT_EQ(span(four, "2x4", {0, 1}), (GroupSpan{8, 8, 1}));
}

/// Against counting: every mesh of up to three axes on nodes of any size, the group that spans most
/// nodes and the most members of a group on a node.
TEST(Cluster, SpansAreThoseOfTheGroups) {
  int meshes = 0;
  for (const std::string text : {"12", "3x4", "4x3", "2x6", "6x2", "2x2x3", "3x2x2", "2x3x2", "4x4",
                                 "2x4x2", "8x2", "2x8", "16", "5x3", "2x2x4"}) {
    const Mesh mesh = Mesh::parse(text);
    for (int64_t devices : {1, 2, 3, 4, 6, 8, 16}) {
      const Cluster cluster = nodes_of(16, devices);
      for (int set = 1; set < 1 << mesh.axis_count(); ++set) {
        std::vector<int> axes;
        for (int a = 0; a < mesh.axis_count(); ++a) {
          if (set >> a & 1) axes.push_back(a);
        }
        GroupSpan counted;
        for (int64_t rank = 0; rank < mesh.size(); ++rank) {
          const std::vector<int64_t> group = mesh.group(rank, axes);
          std::map<int64_t, int64_t> on;
          for (int64_t member : group) ++on[member / devices];
          counted.ranks = static_cast<int64_t>(group.size());
          counted.nodes = std::max(counted.nodes, static_cast<int64_t>(on.size()));
          for (const auto& [node, count] : on) counted.per_node = std::max(counted.per_node, count);
        }
        EXPECT_EQ(cluster.span_of(mesh, axes), counted)
            << text << " on nodes of " << devices << ", axes " << set;
      }
      ++meshes;
    }
  }
  EXPECT_EQ(meshes, 15 * 7);
}

TEST(Cluster, AnAxisAloneSpansAsItDoesInTheMesh) {
  const Cluster four = nodes_of(4, 8);
  for (const std::string text : {"4x8", "8x4", "2x16", "2x2x8", "4x2x4"}) {
    const Mesh mesh = Mesh::parse(text);
    for (int axis = 0; axis < mesh.axis_count(); ++axis) {
      const Mesh alone({mesh.axes()[static_cast<size_t>(axis)]});
      EXPECT_EQ(four.along(mesh, axis).span_of(alone, std::vector{0}),
                four.span_of(mesh, std::vector{axis}))
          << text << " axis " << axis;
    }
  }
}

TEST(Cluster, MoreRanksThanDevicesAreRefusedOrShareThem) {
  Cluster two = nodes_of(2, 8);
  EXPECT_EQ(two.for_ranks(16).memory_bandwidth.value(), two.memory_bandwidth.value());
  try {
    two.for_ranks(17);
    FAIL() << "17 ranks on 16 devices";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    EXPECT_STREQ(
        e.what(),
        "cluster 'h100:2' has 16 devices (2 nodes of 8), wanted 17 for as many ranks; take "
        "more nodes ('h100:3')");
  }
  two.name = "h100,memory=2x";
  try {
    two.for_ranks(17);
    FAIL() << "17 ranks on 16 devices";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("('h100:3,memory=2x')"), std::string::npos) << e.what();
  }
  two.oversubscribes = true;
  two.flops = {{DType::f32, {100e9, 0.5}}};
  EXPECT_DOUBLE_EQ(two.for_ranks(32).flops_for(DType::f32), 25e9);
  EXPECT_DOUBLE_EQ(two.for_ranks(32).memory_bandwidth.value(), two.memory_bandwidth.value() / 2);
}

TEST(Cluster, BandwidthByRanksIsInterpolated) {
  Cluster::Link link;
  link.bandwidth = 7;
  EXPECT_EQ(link.bandwidth_of(3), 7);
  link.bandwidth_by_ranks = {{2, 10}, {8, 40}};
  EXPECT_EQ(link.bandwidth_of(1), 10);
  EXPECT_EQ(link.bandwidth_of(2), 10);
  EXPECT_NEAR(link.bandwidth_of(4), 20, 1e-9);  // halfway in logarithms
  EXPECT_EQ(link.bandwidth_of(8), 40);
  EXPECT_EQ(link.bandwidth_of(16), 40);
}

}  // namespace
}  // namespace shardrun
