// The order of nodes: bytes alive by hand, peaks that get lower, results that stay.
#include "graph/passes/node_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "graph/optimizer.h"
#include "graph/passes/liveness.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;

int64_t peak(const Graph& graph) {
  const std::vector<int64_t> alive = bytes_alive(graph, whole_bytes(graph));
  return *std::max_element(alive.begin(), alive.end());
}

ValueId sum_all(Build& b, ValueId x) { return b.sum(x, {0, 1}, false); }

TEST(BytesAlive, OfAChainByHand) {
  Build b(DType::f32);
  const ValueId x = b.in("x", {4, 4}), w = b.param("w", {4, 4});  // x: 64 bytes; w persists
  const ValueId a = b.matmul(x, w, "ik,kj->ij");
  const ValueId t = b.op("tanh", {a});  // over a
  b.g.outputs = {sum_all(b, b.matmul(t, x, "ik,kj->ij"))};
  EXPECT_EQ(bytes_alive(b.g, whole_bytes(b.g)),
            (std::vector<int64_t>{64 + 64, 64 + 64, 64 + 64 + 64, 64 + 64 + 4}));
}

TEST(BytesAlive, AnUpdateTakesItsParametersPlace) {
  Build b(DType::f32);
  const ValueId w = b.param("w", {4, 4});
  const ValueId x = b.in("x", {4, 4}), next = b.add(w, x);
  b.g.updates[w] = next;
  b.g.outputs = {sum_all(b, x)};
  // w + x goes into w, where it may run in place; x is there all the time.
  EXPECT_EQ(bytes_alive(b.g, whole_bytes(b.g)), (std::vector<int64_t>{64, 64 + 4}));
  // A reader behind keeps the old w, and so the new one needs a place of its own until then.
  b.g.outputs.push_back(sum_all(b, w));
  EXPECT_EQ(bytes_alive(b.g, whole_bytes(b.g)),
            (std::vector<int64_t>{64 + 64, 64 + 64 + 4, 64 + 64 + 4 + 4}));
}

TEST(OrderForMemory, UpdatesOfSeveralMicroBatchesComeAtTheEnd) {
  Build b(DType::f32);
  ValueId x = b.in("x", {2, 32});
  for (const char* name : {"a", "b", "c"}) x = b.matmul(x, b.param(name, {32, 32}), "ik,kj->ij");
  b.g.loss = sum_all(b, b.mul(x, x));
  OptimizerOptions options;
  options.accumulate = 2;
  attach_optimizer(b.g, options);
  Graph graph = std::move(b.g);
  order_for_memory(graph);
  check_graph(graph);
  EXPECT_TRUE(std::is_sorted(graph.nodes().begin(), graph.nodes().end(),
                             [](const Node& a, const Node& b) { return a.phase < b.phase; }));
}

TEST(OrderForMemory, LargeValuesAreMadeLateAndUsedEarly) {
  // A number for all of a row, wanted at the end, while a product is there; and a product that
  // ends in a number for which nobody waits.
  Build b(DType::f32);
  const ValueId x = b.in("x", {16, 16}), w = b.param("w", {16, 16});
  const ValueId large = b.op("expand", {b.sum(w, {0})}, {{"shape", Shape{16, 16}}});
  const ValueId product = b.matmul(x, w, "ik,kj->ij");
  const ValueId second = b.matmul(product, w, "ik,kj->ij");
  const ValueId third = b.matmul(second, product, "ik,kj->ij");
  b.g.outputs = {sum_all(b, b.matmul(third, large, "ik,kj->ij")), sum_all(b, second)};
  Graph graph = b.g;
  order_for_memory(graph);
  check_graph(graph);
  // x, large, product, second, third at once; then without large.
  EXPECT_GE(peak(b.g), 5 * 1024);
  EXPECT_LT(peak(graph), 5 * 1024);
  test::expect_same_outputs(b.g, graph, 0);
}

TEST(OrderForMemory, NeverMoreAndTheSameNumbers) {
  const uint64_t seed = 20260;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int lower = 0;
  for (int trial = 0; trial < 40; ++trial) {
    Build b(DType::f32);
    std::vector<ValueId> square{b.in("x", {8, 8}), b.param("w", {8, 8})}, column;
    column.push_back(b.sum(square[0], {1}));
    const auto any = [&](const std::vector<ValueId>& of) { return of[random() % of.size()]; };
    for (int n = 0; n < 30; ++n) {
      switch (random() % 4) {
        case 0:
          square.push_back(b.op("tanh", {b.matmul(any(square), any(square), "ik,kj->ij")}));
          break;
        case 1: square.push_back(b.mul(any(square), any(column))); break;
        case 2: column.push_back(b.op("tanh", {b.sum(any(square), {1})})); break;
        default: square.push_back(b.op("tanh", {any(square)}));
      }
    }
    b.g.outputs = {any(square), any(column), square.back(), column.back()};
    remove_dead_nodes(b.g);
    Graph graph = b.g, again = b.g;
    order_for_memory(graph);
    order_for_memory(again);
    check_graph(graph);
    EXPECT_EQ(to_string(graph), to_string(again));
    EXPECT_LE(peak(graph), peak(b.g));
    lower += peak(graph) < peak(b.g);
    test::expect_same_outputs(b.g, graph, 0);
  }
  EXPECT_GT(lower, 10);
}

}  // namespace
}  // namespace shardrun
