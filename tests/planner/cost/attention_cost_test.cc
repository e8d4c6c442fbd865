// Attention on GPUs: what it takes besides products, on which pairs, and what was measured of it.
#include "planner/cost/attention_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "planner/cost/cluster_file.h"

namespace shardrun {
namespace {

/// A call of attention, or of its gradient, on [batch, heads, length, width].
struct Call {
  Node node;
  std::vector<TensorType> in, out;
};

Call attention(bool gradient, Shape q, Shape k, bool causal, DType dtype = DType::bf16) {
  const TensorType queries{dtype, q}, keys{dtype, k}, lse{DType::f32, {q[0], q[1], q[2]}};
  Call c;
  c.node.op = gradient ? "attention_grad" : "attention";
  c.node.attrs = {{"scale", 0.125}, {"causal", int64_t{causal}}};
  c.in = {queries, keys, keys};
  c.out = {queries, lse};
  if (gradient) {
    c.in = {queries, queries, keys, keys, queries, lse};
    c.out = {queries, keys, keys};
  }
  return c;
}

Call attention(bool gradient, int64_t heads, int64_t length, int64_t width, bool causal,
               DType dtype = DType::bf16) {
  const Shape shape = {1, heads, length, width};
  return attention(gradient, shape, shape, causal, dtype);
}

AttentionWork work_of(const Call& c) {
  return attention_work(op_def(c.node.op).cost, c.node, c.in);
}
double seconds(const Call& c, const Cluster& cluster) {
  return kernel_seconds(c.node, c.in, c.out, cluster);
}
double products_alone(const Call& c, const Cluster& cluster) {
  return node_flops(c.node, c.in, c.out) / cluster.flops_for(c.in[0].dtype);
}

/// One multiprocessor that does 1e12 FLOP/s of a product, and 1e9 of f32.
Cluster one_multiprocessor() {
  Cluster cluster;
  cluster.flops = {{DType::f32, {1e9}}, {DType::bf16, {1e12}}};
  cluster.memory_bandwidth = {1e15};
  cluster.kernel_latency = 0;
  cluster.tiles = {1, {{128, 128}}, {1e15}, 0};
  return cluster;
}

/// 128 x 128 pairs are a tile. Of each, products take 2 * 128 FLOPs forward, an exponential 16 and
/// 4.5 instructions 9; backward 2 * 320, 16 and 12.
TEST(AttentionCost, APairTakesMoreThanItsProducts) {
  const Cluster cluster = one_multiprocessor();
  const double tile = 128 * 128, forward = 256 / 1e12 + (16 + 9) / 1e9,
               back = 640 / 1e12 + (16 + 12) / 1e9;
  EXPECT_NEAR(seconds(attention(false, 1, 128, 64, false), cluster), tile * forward, 1e-12);
  EXPECT_NEAR(seconds(attention(false, 3, 256, 64, false), cluster), 12 * tile * forward, 1e-12);
  // Of a causal mask's four tiles three.
  EXPECT_NEAR(seconds(attention(false, 3, 256, 64, true), cluster), 9 * tile * forward, 1e-12);
  EXPECT_NEAR(seconds(attention(false, 3, 200, 64, true), cluster), 9 * tile * forward, 1e-12);
  EXPECT_NEAR(seconds(attention(true, 1, 128, 64, true), cluster), tile * back, 1e-9);
  // The gradient of scores goes through memory in two bytes, once to it and once back.
  Cluster slow = cluster;
  slow.memory_bandwidth = {1e9};
  EXPECT_NEAR(seconds(attention(true, 1, 1024, 64, true), slow), 36 * tile * (back + 4 / 1e9),
              1e-9);
  // An exponential at half the price, of eight multiprocessors of which one has a tile.
  Cluster other = cluster;
  other.tiles.exponential_flops = 8;
  EXPECT_NEAR(seconds(attention(false, 1, 128, 64, false), other), tile * (forward - 8e-9), 1e-12);
  other.tiles.multiprocessors = 8;
  EXPECT_NEAR(seconds(attention(false, 1, 128, 64, false), other), 8 * tile * (forward - 8e-9),
              1e-12);
}

/// What neither bf16 nor cuDNN's fused kernel is for keeps its scores in memory: in f32 forward
/// 16 bytes of each pair, whatever the mask hides; backward 36.
TEST(AttentionCost, ScoresThatLieInMemoryAreReadAndWritten) {
  Cluster cluster = one_multiprocessor();
  cluster.flops = {{DType::f32, {1e30}}, {DType::bf16, {1e30}}};
  cluster.memory_bandwidth = {1e9};
  cluster.tiles.cache_bandwidth = {1e30};
  const double pairs = 2 * 1024 * 1024;
  for (bool causal : {false, true}) {
    const Call f32 = attention(false, 2, 1024, 64, causal, DType::f32);
    EXPECT_FALSE(work_of(f32).fused);
    EXPECT_NEAR(seconds(f32, cluster), pairs * 16 / 1e9, 1e-9);
    EXPECT_NEAR(seconds(attention(true, 2, 1024, 64, causal, DType::f32), cluster),
                pairs * 36 / 1e9, 1e-9);
  }
  EXPECT_NEAR(seconds(attention(false, 2, 1024, 256, true), cluster), pairs * 12 / 1e9, 1e-9);
  EXPECT_NEAR(seconds(attention(true, 2, 1024, 256, true), cluster), pairs * 26 / 1e9, 1e-9);
}

TEST(AttentionCost, WhatIsFused) {
  const auto fused = [](const Call& c) { return work_of(c).fused; };
  EXPECT_TRUE(fused(attention(false, 2, 1024, 64, true)));
  EXPECT_TRUE(fused(attention(true, 2, 1024, 128, false)));
  EXPECT_FALSE(fused(attention(true, 2, 1024, 256, false)));
  EXPECT_FALSE(fused(attention(true, 2, 1024, 60, false)));
  for (const auto& [name, value] : {std::pair("slope", 0.2), std::pair("dropout", 0.1)}) {
    Call c = attention(false, 2, 1024, 64, false);
    c.node.attrs.set(name, value);
    c.node.attrs.set("global_shape", std::vector<int64_t>{1, 2, 1024, 1024});
    EXPECT_FALSE(fused(c)) << name;
  }
  Call masked = attention(false, 2, 1024, 64, false);
  masked.node.attrs.set("has_mask", int64_t{1});
  EXPECT_FALSE(fused(masked));
  // Cut queries: of a causal mask all ranks but one have an offset, of none it does not matter.
  const Shape cut = {1, 2, 512, 64}, whole = {1, 2, 1024, 64};
  EXPECT_TRUE(fused(attention(false, cut, whole, false)));
  EXPECT_FALSE(fused(attention(false, cut, whole, true)));
  for (bool causal : {false, true}) {
    Call later = attention(false, 2, 1024, 64, causal);
    later.node.attrs.set("q_offset", int64_t{512});
    EXPECT_EQ(fused(later), !causal);
  }
  // Cut keys, of attention in parts.
  Call part = attention(false, whole, cut, false);
  part.node.attrs.set("keys", int64_t{1024});
  EXPECT_FALSE(fused(part));
  part.node.attrs.set("keys", int64_t{512});
  EXPECT_TRUE(fused(part));
}

/// A causal mask leaves 36 of 64 tiles of 1024 tokens, and of 16,384 nearly half.
TEST(AttentionCost, ACausalMaskDoesNotHalveFewTiles) {
  const Cluster h100 = builtin_cluster("h100");
  for (bool gradient : {false, true}) {
    const auto fraction = [&](int64_t length) {
      const double latency = h100.kernel_latency;
      return (seconds(attention(gradient, 384, length, 64, true), h100) - latency) /
             (seconds(attention(gradient, 384, length, 64, false), h100) - latency);
    };
    EXPECT_DOUBLE_EQ(fraction(128), 1);
    EXPECT_DOUBLE_EQ(fraction(1024), 36.0 / 64);
    EXPECT_NEAR(fraction(16384), 0.5, 0.005);
  }
}

/// On every GPU that is built in: never less than the products of pairs that are seen, nor less
/// with more of anything.
TEST(AttentionCost, GrowsAndIsAboveItsProducts) {
  for (const std::string& name : builtin_clusters()) {
    const Cluster cluster = builtin_cluster(name);
    if (cluster.tiles.multiprocessors == 0) continue;
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (int way = 0; way < 4; ++way) {
        const bool gradient = way % 2 == 1, causal = way / 2 == 1;
        double before[2] = {};
        for (int64_t size = 1; size < 3000; size = size * 5 / 4 + 1) {
          const Call calls[] = {attention(gradient, size, 200, 64, causal, dtype),
                                attention(gradient, 4, size, 64, causal, dtype)};
          for (size_t i = 0; i < 2; ++i) {
            const double now = seconds(calls[i], cluster);
            EXPECT_GE(now, before[i] * (1 - 1e-12)) << name << way << " " << size;
            EXPECT_GT(now, products_alone(calls[i], cluster)) << name << way << " " << size;
            before[i] = now;
          }
        }
      }
    }
  }
}

/// GPT-2 124M with 32 samples on an H200, a layer: 158 us alone and 175 in a step, and the gradient
/// 640 and 690 (docs/results/gpu.md). Products alone would be 66 and 164.
TEST(AttentionCost, OfAnH200) {
  const Cluster h200 = builtin_cluster("h200");
  EXPECT_NEAR(seconds(attention(false, 384, 1024, 64, true), h200), 171e-6, 1e-6);
  EXPECT_NEAR(seconds(attention(true, 384, 1024, 64, true), h200), 504e-6, 2e-6);
}

/// A measured grid goes before the price of pairs, in its own type. In another type, pairs count.
TEST(AttentionCost, WhatIsMeasuredGoesFirst) {
  Cluster h100 = builtin_cluster("h100");
  const Call bf16 = attention(false, 384, 1024, 64, true),
             f32 = attention(false, 384, 1024, 64, true, DType::f32);
  const double priced = seconds(bf16, h100);
  MeasuredKernels measured;
  measured.grids[{"attention", "", DType::f32}] = {{{{384}, {1024}, {64}}}, {0.5}};
  measured.ops[{"add", "", DType::f32}] = {false, Curve{{{1000, 1e-12}}}};
  h100.measured.kernels = {measured};
  EXPECT_DOUBLE_EQ(seconds(f32, h100), 0.5);
  EXPECT_NEAR(seconds(bf16, h100), priced, 1e-5);
  h100.measured.kernels[0].grids[{"attention", "", DType::bf16}] = {{{{384}, {1024}, {64}}},
                                                                    {0.25}};
  EXPECT_DOUBLE_EQ(seconds(bf16, h100), 0.25);
}

/// A processor, or a machine without tiles, takes its FLOPs as before.
TEST(AttentionCost, WithoutMultiprocessorsItTakesItsFlops) {
  Cluster cluster = one_multiprocessor();
  cluster.tiles = {};
  const Call call = attention(false, 2, 1024, 64, true);
  EXPECT_DOUBLE_EQ(seconds(call, cluster), products_alone(call, cluster));
}

}  // namespace
}  // namespace shardrun
