// Reading between measurements, and choosing among them.
#include "planner/cost/measured.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/cost/cluster_file.h"
#include "planner/cost/kernel_cost.h"
#include "planner/cost/tile_cost.h"
#include "program/ops/post.h"

namespace shardrun {
namespace {

TEST(Curve, IsStraightInLogarithms) {
  const Curve curve{{{100, 1}, {10000, 10}, {1e6, 1000}}};
  EXPECT_DOUBLE_EQ(curve.at(0), 1);
  EXPECT_DOUBLE_EQ(curve.at(50), 1);  // what a call costs at least
  EXPECT_DOUBLE_EQ(curve.at(100), 1);
  EXPECT_NEAR(curve.at(1000), std::sqrt(10), 1e-9);  // half way from 1 to 10
  EXPECT_NEAR(curve.at(1e5), 100, 1e-9);
  EXPECT_DOUBLE_EQ(curve.at(1e6), 1000);
  EXPECT_DOUBLE_EQ(curve.at(3e6), 3000);  // in proportion
  double before = 0;
  for (double size = 1; size < 1e8; size *= 1.3) {
    EXPECT_GE(curve.at(size), before);
    before = curve.at(size);
  }
}

TEST(Grid, InterpolatesAlongEachDim) {
  // Seconds are m n^2 / 1e6 at every point: straight in logarithms everywhere.
  Grid grid{{{{10, 100}, {10, 40}, {5}}}, {}};
  for (double m : grid.sizes[0]) {
    for (double n : grid.sizes[1]) grid.seconds.push_back(m * n * n / 1e6);
  }
  const std::array<double, 3> powers = {1, 2, 1};
  EXPECT_NEAR(grid.at({10, 10, 5}, powers), 1e-3, 1e-12);
  EXPECT_NEAR(grid.at({30, 20, 5}, powers), 30 * 400 / 1e6, 1e-9);
  EXPECT_NEAR(grid.at({200, 80, 5}, powers), 200 * 6400 / 1e6, 1e-9);  // outside
  EXPECT_NEAR(grid.at({100, 40, 15}, powers), 3 * 100 * 1600 / 1e6, 1e-9);
  EXPECT_NEAR(grid.at({1, 1, 1}, powers), 1e-3, 1e-12);  // never less than the smallest
}

MeasuredKernels kernels(int64_t ranks, double seconds) {
  MeasuredKernels out;
  out.ranks = ranks;
  out.ops[{"add", "", DType::f32}] = {false, Curve{{{1000, seconds}}}};
  out.grids[{"matmul", "nn", DType::f32}] = {{{{8}, {8}, {8}}}, {seconds}};
  return out;
}

double add_seconds(const Measured& m) {
  return m.kernels.at(0).ops.at({"add", "", DType::f32}).curve.points[0].second;
}

TEST(Measured, AJobSeesWhatWasMeasuredMostLikeIt) {
  Measured all;
  all.kernels = {kernels(1, 1e-6), kernels(2, 2e-6), kernels(4, 3e-6)};
  const int64_t cores = 4;
  EXPECT_DOUBLE_EQ(add_seconds(all.for_ranks(1, cores, "threads")), 1e-6);
  EXPECT_DOUBLE_EQ(add_seconds(all.for_ranks(2, cores, "threads")), 2e-6);
  EXPECT_DOUBLE_EQ(add_seconds(all.for_ranks(3, cores, "threads")),
                   3e-6);  // the least that is no less
  EXPECT_DOUBLE_EQ(add_seconds(all.for_ranks(4, cores, "threads")), 3e-6);
  // Eight ranks on four cores take turns.
  const Measured eight = all.for_ranks(8, cores, "threads");
  EXPECT_DOUBLE_EQ(add_seconds(eight), 6e-6);
  EXPECT_DOUBLE_EQ((eight.kernels[0].grids.at({"matmul", "nn", DType::f32}).seconds[0]), 6e-6);
  EXPECT_TRUE(Measured().for_ranks(2, 2, "mpi").kernels.empty());
}

TEST(Measured, AJobOfFewThreadsSeesWhatFewThreadsDid) {
  Measured all;
  all.kernels = {kernels(1, 1e-6), kernels(2, 2e-6), kernels(4, 4e-6)};
  for (MeasuredKernels& k : all.kernels) k.threads = 4 / k.ranks;
  const auto seconds = [&](int64_t ranks, int64_t threads) {
    return add_seconds(all.for_ranks(ranks, 4, "threads", threads));
  };
  EXPECT_DOUBLE_EQ(seconds(1, 0), 1e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 4), 1e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 3), 2e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 1), 4e-6);
  EXPECT_DOUBLE_EQ(seconds(2, 1), 4e-6);
  EXPECT_DOUBLE_EQ(seconds(2, 2), 2e-6);
  all.kernels.push_back(kernels(1, 8e-6));  // of one thread
  EXPECT_DOUBLE_EQ(seconds(1, 0), 1e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 4), 1e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 2), 2e-6);
  EXPECT_DOUBLE_EQ(seconds(1, 1), 8e-6);
  EXPECT_DOUBLE_EQ(seconds(2, 1), 4e-6);
  all.kernels.resize(2);
  EXPECT_DOUBLE_EQ(seconds(1, 1), 1e-6);  // never measured
}

TEST(Measured, CollectivesAreThoseOfTheBackend) {
  Measured all;
  const auto add = [&](const std::string& backend, int64_t ranks) {
    all.collectives.push_back({backend, ranks, 2, Collective::Kind::all_gather, Curve{{{1, 1}}}});
  };
  add("threads", 2);
  add("threads", 4);
  add("mpi", 2);
  const auto chosen = [&](int64_t ranks, const std::string& backend) {
    const Measured m = all.for_ranks(ranks, 2, backend);
    EXPECT_EQ(m.collectives.size(), 1u);
    return m.collectives.at(0).backend + std::to_string(m.collectives.at(0).ranks);
  };
  EXPECT_EQ(chosen(2, "threads"), "threads2");
  EXPECT_EQ(chosen(3, "threads"), "threads4");
  EXPECT_EQ(chosen(4, "mpi"), "mpi2");  // the backend counts for more than the number
  EXPECT_EQ(chosen(2, "nccl"), "threads2");
}

Node matmul(const std::string& equation) {
  Node node;
  node.op = node.name = "matmul";
  node.attrs.set("equation", equation);
  return node;
}

TEST(KernelCost, AMatmulIsSeenThroughItsEquation) {
  const auto work = [](const std::string& equation, Shape a, Shape b) {
    return matmul_work(matmul(equation), std::vector<TensorType>{{DType::f32, std::move(a)},
                                                                 {DType::f32, std::move(b)}});
  };
  const auto expect = [](const MatmulWork& w, const std::string& layout, double batch, double m,
                         double n, double k) {
    EXPECT_EQ(w.layout, layout);
    EXPECT_EQ(w.batch, batch);
    EXPECT_EQ(w.m, m);
    EXPECT_EQ(w.n, n);
    EXPECT_EQ(w.k, k);
  };
  expect(work("mk,kn->mn", {3, 5}, {5, 7}), "nn", 1, 3, 7, 5);
  expect(work("amk,kn->amn", {2, 3, 5}, {5, 7}), "nn", 1, 6, 7, 5);
  expect(work("amn,kn->amk", {2, 3, 7}, {5, 7}), "nt", 1, 6, 5, 7);
  expect(work("amk,amn->kn", {2, 3, 5}, {2, 3, 7}), "tn", 1, 5, 7, 6);
  expect(work("amk,amn->nk", {2, 3, 5}, {2, 3, 7}), "tn", 1, 7, 5, 6);  // columns come from a
  expect(work("bmk,bkn->bmn", {4, 3, 5}, {4, 5, 7}), "nn", 4, 3, 7, 5);
  expect(work("bhmk,bhnk->bhmn", {2, 2, 3, 5}, {2, 2, 7, 5}), "nt", 4, 3, 7, 5);
  expect(work("mk,kn->mn", {3, 1}, {1, 7}), "nn", 1, 3, 7, 1);
}

TEST(KernelCost, WhatIsMeasuredGoesBeforeTheRoofline) {
  Cluster cluster;
  cluster.flops = {{DType::f32, {1e9}}};
  cluster.memory_bandwidth = {1e9};
  cluster.kernel_latency = 1e-6;
  Node add;
  add.op = "add";
  const std::vector<TensorType> in(2, {DType::f32, {1000}}), out(1, {DType::f32, {1000}});
  EXPECT_DOUBLE_EQ(kernel_seconds(add, in, out, cluster), 12000 / 1e9 + 1e-6);
  MeasuredKernels measured;
  measured.ops[{"add", "", DType::f32}] = {false, Curve{{{6000, 3e-6}, {24000, 12e-6}}}};
  measured.ops[{"exp", "", DType::f32}] = {false, Curve{{{1000, 9e-6}}}};
  cluster.measured.kernels = {measured};
  EXPECT_DOUBLE_EQ(kernel_seconds(add, in, out, cluster), 6e-6);
  // An op that was not: as an add of as many bytes; or its FLOPs at the large matmul's rate.
  Node sub;
  sub.op = "sub";
  EXPECT_DOUBLE_EQ(kernel_seconds(sub, in, out, cluster), 6e-6);
  const std::vector<TensorType> matrices(2, {DType::f32, {100, 100}}), result(1, matrices[0]);
  EXPECT_DOUBLE_EQ(kernel_seconds(matmul("mk,kn->mn"), matrices, result, cluster), 2e6 / 1e9);
  // Of one type only: the other counts its bytes.
  Node exp;
  exp.op = "exp";
  const std::vector<TensorType> half(1, {DType::bf16, {1000}});
  EXPECT_DOUBLE_EQ(kernel_seconds(exp, half, half, cluster), 9e-6 * 4);
  // Also where an add of the type was measured: an op's own bytes say more than an add's.
  cluster.measured.kernels[0].ops[{"add", "", DType::bf16}] = {false, Curve{{{6000, 1e-6}}}};
  EXPECT_DOUBLE_EQ(kernel_seconds(exp, half, half, cluster), 9e-6 * 4);
}

/// An add behind a product reads its other operand; a GELU's exponentials stay, and its passes
/// through memory do not. A result that is kept is written.
TEST(KernelCost, WhatFollowsAProductCostsWhatItComputes) {
  Cluster cluster;
  cluster.memory_bandwidth = {1e9};
  cluster.kernel_latency = 1e-6;
  MeasuredKernels measured;
  measured.grids[{"matmul", "nn", DType::f32}] = {{{{100}, {100}, {100}}}, {1e-3}};
  measured.ops[{"add", "", DType::f32}] = {false, Curve{{{1000, 1e-6}, {1e6, 1e-3}}}};
  measured.ops[{"gelu", "", DType::f32}] = {false, Curve{{{80000, 241e-6}}}};
  cluster.measured.kernels = {measured};
  const TensorType square{DType::f32, {100, 100}}, bias{DType::f32, {100}};
  const std::vector<TensorType> out(1, square), kept(2, square);
  const auto node = [](const std::string& op, size_t operands) {
    Node out;
    out.op = out.name = op;
    out.inputs.resize(operands);
    return out;
  };
  Node with_bias = matmul("mk,kn->mn");
  add_post_op(with_bias, node("add", 2), 0);
  EXPECT_NEAR(kernel_seconds(with_bias, std::vector{square, square, bias}, out, cluster),
              1e-3 + 400 / 1e9, 1e-12);
  Node both = with_bias, keeps = with_bias;
  add_post_op(both, node("gelu", 1), 0);
  EXPECT_NEAR(kernel_seconds(both, std::vector{square, square, bias}, out, cluster),
              1e-3 + 400 / 1e9 + (240e-6 - 80000 / 1e9), 1e-12);
  add_post_op(keeps, node("gelu", 1), 0, true);
  EXPECT_NEAR(kernel_seconds(keeps, std::vector{square, square, bias}, kept, cluster),
              1e-3 + 400 / 1e9 + (240e-6 - 80000 / 1e9) + 40000 / 1e9, 1e-12);
}

/// Ten multiprocessors of 1e9 FLOP/s each, and tiles of 100 x 100, whose step along k takes 20 us.
Cluster tiled_cluster() {
  Cluster cluster;
  cluster.flops = {{DType::f32, {1e10}}};
  cluster.memory_bandwidth = {1e12};
  cluster.kernel_latency = 0;
  cluster.tiles = {10, {{100, 100}}, {1e12}, 0};
  return cluster;
}

MatmulWork product(double m, double n, double k, double batch = 1) {
  return {.layout = "nn", .batch = batch, .m = m, .n = n, .k = k};
}

TEST(TileCost, ProductsComeInWavesOfTiles) {
  Cluster cluster = tiled_cluster();
  const auto steps = [&](const MatmulWork& work) {  // of tiles, one after the other
    return product_seconds(work, DType::f32, cluster) / 20e-6;
  };
  // Writing a tile takes 4e-7 s of its multiprocessor's 1e11 bytes/s: as 0.02 steps.
  EXPECT_NEAR(steps(product(1000, 1000, 1000)), 10 * (1000 + 0.02), 1e-6);
  EXPECT_NEAR(steps(product(1000, 100, 1000)), 1000 + 0.02, 1e-6);
  EXPECT_NEAR(steps(product(910, 91, 1000)), 1000 + 0.02, 1e-6);       // as if it were whole
  EXPECT_NEAR(steps(product(1001, 1000, 1000)), 11 * 1000.02, 1e-6);   // 110 tiles
  EXPECT_NEAR(steps(product(100, 1000, 1000, 5)), 5 * 1000.02, 1e-6);  // of five products
  EXPECT_EQ(product_seconds(product(100, 0, 100), DType::f32, cluster), 0);
  // 11 tiles leave nine multiprocessors idle in the second wave; 22 of half of k, eight in the
  // third. Adding up the halves moves 12 bytes an element. No more than four waves are of parts.
  EXPECT_NEAR(steps(product(1100, 100, 1000)), 3 * 500 + 3 * 0.02 + 1.1e5 * 12 / 1e12 / 20e-6,
              1e-6);
  // Without tiles, all FLOPs at the rate of large products.
  Cluster without = cluster;
  without.tiles = {};
  EXPECT_DOUBLE_EQ(product_seconds(product(1100, 100, 1000), DType::f32, without), 0.022);
}

/// What was measured of products has their tiles in it. Without a measurement tiles count.
TEST(TileCost, MeasuredProductsGoBeforeTiles) {
  Cluster cluster = tiled_cluster();
  const std::vector<TensorType> in = {{DType::f32, {1000, 1000}}, {DType::f32, {1000, 1000}}};
  const std::vector<TensorType> out = {{DType::f32, {1000, 1000}}};
  EXPECT_NEAR(kernel_seconds(matmul("mk,kn->mn"), in, out, cluster), 0.2, 1e-4);
  MeasuredKernels k;
  k.grids[{"matmul", "nn", DType::f32}] = {{{{1000}, {1000}, {1000}}}, {0.3}};
  cluster.measured.kernels = {k};
  EXPECT_DOUBLE_EQ(kernel_seconds(matmul("mk,kn->mn"), in, out, cluster), 0.3);
  // Operands that lie otherwise, of which nothing was measured.
  EXPECT_DOUBLE_EQ(kernel_seconds(matmul("km,kn->mn"), in, out, cluster), 0.3);
}

/// A large product reaches what is published, a small one does not, and more is never quicker.
TEST(TileCost, OfAnA100) {
  const Cluster a100 = builtin_cluster("a100-80");
  const auto seconds = [&](const MatmulWork& work) {
    return product_seconds(work, DType::bf16, a100);
  };
  EXPECT_NEAR(2 * std::pow(8192.0, 3) / seconds(product(8192, 8192, 8192)), 271e12, 5e12);
  EXPECT_NEAR(seconds(product(1024, 1024, 1024)), 14.6e-6, 0.1e-6);
  for (const double other : {128.0, 1000.0}) {
    double before[3] = {};
    for (double size = 1; size < 5000; size = std::ceil(size * 1.1)) {
      const double now[] = {seconds(product(size, other, 512)), seconds(product(other, size, 512)),
                            seconds(product(other, other, size))};
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_GE(now[i], before[i] * (1 - 1e-12)) << size;
        before[i] = now[i];
      }
    }
  }
}

/// Queries and keys of 2, values of 126: a pair costs as one of 64 and 64. The gradient has three
/// products over 2 and two over 157, which are five over 64.
TEST(KernelCost, AttentionCostsByBothItsWidths) {
  Cluster cluster;
  MeasuredKernels measured;
  measured.grids[{"attention", "", DType::f32}] = {{{{1}, {1024}, {2, 64}}}, {1, 10}};
  measured.grids[{"attention_grad", "", DType::f32}] = {{{{1}, {1024}, {2, 64}}}, {3, 30}};
  cluster.measured.kernels = {measured};
  const TensorType narrow{DType::f32, {1, 1, 1024, 2}}, wide{DType::f32, {1, 1, 1024, 126}},
      lse{DType::f32, {1, 1, 1024}};
  Node node;
  node.op = "attention";
  node.attrs = {{"scale", 1.0}, {"causal", int64_t{1}}};
  const std::vector<TensorType> in = {narrow, narrow, wide}, out = {wide, lse};
  EXPECT_DOUBLE_EQ(kernel_seconds(node, in, out, cluster), 10);
  node.op = "attention_grad";
  const TensorType wider{DType::f32, {1, 1, 1024, 157}};
  const std::vector<TensorType> with = {wider, narrow, narrow, wider, wider, lse},
                                grads = {narrow, narrow, wider};
  EXPECT_DOUBLE_EQ(kernel_seconds(node, with, grads, cluster), 30);
}

TEST(KernelCost, CallsOfAnOpThatGoThroughMemoryOtherwiseAreRecognised) {
  const auto variant = [](const std::string& op, Attrs attrs, Shape in, Shape out) {
    Node node;
    node.op = op;
    node.attrs = std::move(attrs);
    const std::vector<TensorType> i = {{DType::f32, std::move(in)}},
                                  o = {{DType::f32, std::move(out)}};
    return work_of(node, i, o).variant;
  };
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(variant("transpose", {{"perm", Ints{1, 0}}}, {64, 64}, {64, 64}), "elements");
  EXPECT_EQ(variant("transpose", {{"perm", Ints{1, 0, 2}}}, {4, 8, 64}, {8, 4, 64}), "rows");
  EXPECT_EQ(variant("transpose", {{"perm", Ints{1, 0, 2}}}, {4, 8, 16}, {8, 4, 16}), "short rows");
  EXPECT_EQ(variant("reduce_sum", {{"axes", Ints{0}}}, {4, 8}, {8}), "rows");
  EXPECT_EQ(variant("reduce_sum", {{"axes", Ints{1}}}, {4, 8}, {4}), "columns");
  EXPECT_EQ(variant("reduce_sum", {{"axes", Ints{0, 1}}}, {4, 8}, {}), "all");
  EXPECT_EQ(variant("add", {}, {4, 8}, {4, 8}), "");
}

TEST(KernelCost, ConvolutionsThatSaveMultiplicationsAreRecognised) {
  using Ints = std::vector<int64_t>;
  const auto variant = [](const std::string& op, Shape first, Shape second, Shape result,
                          int64_t stride = 1) {
    Node node;
    node.op = op;
    node.attrs = {{"strides", Ints{stride, stride}},
                  {"dilations", Ints{1, 1}},
                  {"channels_last", int64_t{1}}};
    const std::vector<TensorType> in = {{DType::f32, std::move(first)},
                                        {DType::f32, std::move(second)}},
                                  out = {{DType::f32, std::move(result)}};
    return work_of(node, in, out).variant;
  };
  const Shape x = {2, 8, 8, 32}, y = {2, 8, 8, 48}, w = {48, 32, 3, 3};
  EXPECT_EQ(variant("conv", x, w, y), "3 x 3");
  EXPECT_EQ(variant("conv_data_grad", y, w, x), "3 x 3");
  EXPECT_EQ(variant("conv_weight_grad", x, y, w), "3 x 3");
  EXPECT_EQ(variant("conv", x, w, {2, 4, 4, 48}, 2), "");
  EXPECT_EQ(variant("conv", x, {48, 32, 1, 1}, y), "");
  EXPECT_EQ(variant("conv", {2, 8, 8, 24}, {48, 24, 3, 3}, y), "");
}

TEST(KernelCost, OfATableOnlyTheRowsAreCharged) {
  const TensorType table{DType::f32, {1000, 10}}, rows{DType::f32, {3, 10}}, which{DType::i64, {3}};
  Node node;
  node.op = "gather";
  const std::vector<TensorType> taken = {table, which}, of_them = {rows};
  EXPECT_EQ(work_of(node, taken, of_them).bytes, 120 + 24 + 120);
  node.op = "add_rows";  // rows and their numbers, and rows of the table before and after
  const std::vector<TensorType> added = {table, rows, which}, sum = {table};
  EXPECT_EQ(work_of(node, added, sum).bytes, 120 + 120 + 24 + 120);
}

}  // namespace
}  // namespace shardrun
