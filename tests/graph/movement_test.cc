// Passes that move transposes, expands and pads to where they cost least.
#include "graph/passes/movement.h"

#include <gtest/gtest.h>

#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;

TEST(ReshapeTransposes, OnlyThoseOfDimsOfOne) {
  Build b;
  const ValueId x = b.in("x", {8, 1, 4});
  const ValueId rows = b.transpose(x, {1, 0, 2});  // [1, 8, 4]
  const ValueId turned = b.transpose(x, {2, 1, 0});
  // There and back again, by way of another shape: nothing is left of it.
  const ValueId same =
      b.reshape(b.transpose(b.reshape(rows, {8, 1, 1, 4}), {2, 0, 1, 3}), {8, 1, 4});
  b.g.outputs = {rows, turned, same};
  Graph out = b.g;
  EXPECT_EQ(reshape_transposes(out), 2);
  check_graph(out);
  EXPECT_EQ(count_op(out, "transpose"), 1);
  expect_same_outputs(b.g, out, 0);
  remove_movement(out);
  EXPECT_EQ(out.outputs[2], x) << to_string(out);
  EXPECT_EQ(out.nodes().size(), 2u);
}

TEST(ReshapeTransposes, OfTheGradientToo) {
  Build b;
  const ValueId w = b.param("w", {5, 1, 4});
  const ValueId y = b.transpose(w, {1, 0, 2});
  b.g.loss = b.sum(b.mul(y, y), {0, 1, 2}, false);
  attach_optimizer(b.g, {});
  EXPECT_EQ(count_op(b.g, "transpose"), 2);
  remove_movement(b.g);
  check_graph(b.g);
  EXPECT_EQ(count_op(b.g, "transpose"), 0);
}

/// "concat[6, 3] pad[8, 3]": of each node, in order.
std::string ops_and_shapes(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes())
    text += (text.empty() ? "" : " ") + node.op + to_string(graph.type(node.outputs[0]).shape);
  return text;
}

/// What expands of x [4, 1] become where `use` makes the outputs of them and of y [4, 6].
std::string after_sinking(
    const std::function<std::vector<ValueId>(Build&, ValueId, ValueId)>& use) {
  Build b(DType::f32);
  const ValueId x = b.in("x", {4, 1}), y = b.in("y", {4, 6});
  b.g.outputs = use(b, b.op("expand", {x}, {{"shape", Shape{4, 6}}}), y);
  Graph out = b.g;
  sink_expands(out);
  check_graph(out);
  expect_same_outputs(b.g, out, 0);
  return ops_and_shapes(out);
}

TEST(SinkExpands, WhatBroadcastsTakesTheOperand) {
  EXPECT_EQ(
      after_sinking([](Build& b, ValueId wide, ValueId y) -> std::vector<ValueId> {
        return {b.mul(wide, y), b.sub(y, wide), b.op("where", {b.op("less", {y, wide}), y, wide})};
      }),
      "mul[4, 6] sub[4, 6] less[4, 6] where[4, 6]");
  // Neither a column nor a row needs to be spread for their product.
  EXPECT_EQ(after_sinking([](Build& b, ValueId wide, ValueId) -> std::vector<ValueId> {
              return {b.mul(wide, b.in("row", {6}))};
            }),
            "mul[4, 6]");
}

TEST(SinkExpands, BehindWhatIsOfItsOperandAlone) {
  const auto narrow = [](Build& b, ValueId wide) {
    const ValueId cast = b.op("cast", {wide}, {{"to", std::string("f64")}});
    return b.op("exp", {b.op("mul", {cast, cast})});
  };
  EXPECT_EQ(after_sinking([&](Build& b, ValueId wide, ValueId y) -> std::vector<ValueId> {
              return {b.mul(narrow(b, wide), b.op("cast", {y}, {{"to", std::string("f64")}}))};
            }),
            "cast[4, 6] cast[4, 1] mul[4, 1] exp[4, 1] mul[4, 6]");
  EXPECT_EQ(after_sinking([&](Build& b, ValueId wide, ValueId) -> std::vector<ValueId> {
              return {narrow(b, wide)};
            }),
            "cast[4, 1] mul[4, 1] exp[4, 1] expand[4, 6]");
}

TEST(SinkExpands, LeavesWhatOthersRead) {
  // A product wants all of it, and so does who asked for it; what is drawn depends on places.
  EXPECT_EQ(after_sinking([](Build& b, ValueId wide, ValueId y) -> std::vector<ValueId> {
              return {b.matmul(wide, y, "ab,cb->ac"), b.mul(wide, y)};
            }),
            "expand[4, 6] matmul[4, 4] mul[4, 6]");
  EXPECT_EQ(after_sinking([](Build& b, ValueId wide, ValueId y) -> std::vector<ValueId> {
              return {wide, b.op("gelu_grad", {y, wide}, {{"approximate", std::string("none")}})};
            }),
            "expand[4, 6] gelu_grad[4, 6]");
  EXPECT_EQ(after_sinking([](Build& b, ValueId wide, ValueId) -> std::vector<ValueId> {
              const ValueId step = b.g.add_input("random_step", {DType::i64, {}}, Role::scalar);
              return {b.op("dropout", {wide, step},
                           {{"p", 0.5},
                            {"key", int64_t{1}},
                            {"seed", int64_t{1}},
                            {"global_shape", Shape{4, 6}},
                            {"start", Shape{0, 0}}})};
            }),
            "expand[4, 6] dropout[4, 6]");
}

/// The gradient of a sum over rows that are weighted, in bf16: the expand of the sum's gradient was
/// behind a cast.
TEST(SinkExpands, OfTheGradientOfASum) {
  Build b(DType::f32);
  const ValueId w = b.param("w", {4, 6}), row = b.param("row", {1, 6});
  const ValueId narrow = b.op("cast", {w}, {{"to", std::string("bf16")}});
  const ValueId product = b.mul(narrow, b.op("cast", {row}, {{"to", std::string("bf16")}}));
  const ValueId sum = b.sum(b.op("cast", {product}, {{"to", std::string("f32")}}), {1});
  b.g.loss = b.sum(b.mul(sum, sum), {0, 1}, false);
  attach_optimizer(b.g, {});
  EXPECT_GT(count_op(b.g, "expand"), 0);
  Graph out = b.g;
  remove_movement(out);
  check_graph(out);
  EXPECT_EQ(count_op(out, "expand"), 0) << to_string(out);
  for (const auto& [persistent, next] : b.g.updates) b.g.outputs.push_back(next);
  for (const auto& [persistent, next] : out.updates) out.outputs.push_back(next);
  expect_same_outputs(b.g, out, 0);
}

/// The gradient of a value that slices take apart: no sum of as many arrays as there are slices.
TEST(JoinPieces, OfTheGradientOfSlices) {
  Build b;
  const ValueId w = b.param("w", {6, 4});
  const auto rows = [&](int64_t begin, int64_t end) {
    return b.op("slice", {w},
                {{"starts", Shape{begin, 0}}, {"ends", Shape{end, 4}}, {"steps", Shape{1, 1}}});
  };
  ValueId loss = b.sum(b.mul(w, w), {0, 1}, false);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{2, 3}, {0, 2}, {3, 6}})
    loss = b.add(loss, b.sum(b.op("exp", {rows(begin, end)}), {0, 1}, false));
  b.g.loss = loss;
  attach_optimizer(b.g, {});
  EXPECT_EQ(count_op(b.g, "pad"), 3);
  Graph out = b.g;
  EXPECT_EQ(join_pieces(out), 3);
  check_graph(out);
  EXPECT_EQ(count_op(out, "pad"), 0) << to_string(out);
  EXPECT_EQ(count_op(out, "concat"), 1) << to_string(out);
  for (const auto& [persistent, next] : b.g.updates) b.g.outputs.push_back(next);
  for (const auto& [persistent, next] : out.updates) out.outputs.push_back(next);
  expect_same_outputs(b.g, out, 0);
}

/// The sum that a parameter's gradient is added to becomes a new node, which stands before the
/// first update all the same: an update between two micro-batches would change the second.
TEST(JoinPieces, LeavesThePhasesOfSeveralMicroBatchesApart) {
  Build b;
  const ValueId v = b.param("v", {6, 4}), w = b.param("w", {6, 4});
  const auto half = [&](int64_t begin) {
    return b.op(
        "slice", {w},
        {{"starts", Shape{begin, 0}}, {"ends", Shape{begin + 3, 4}}, {"steps", Shape{1, 1}}});
  };
  b.g.loss = b.sum(b.mul(b.mul(half(0), b.op("exp", {half(3)})), b.sum(v, {0})), {0, 1}, false);
  OptimizerOptions options;
  options.accumulate = 2;
  attach_optimizer(b.g, options);
  EXPECT_GT(join_pieces(b.g), 0);
  check_graph(b.g);
  EXPECT_TRUE(std::is_sorted(b.g.nodes().begin(), b.g.nodes().end(),
                             [](const Node& x, const Node& y) { return x.phase < y.phase; }))
      << to_string(b.g);
}

/// What pads of rows of x [2, 3] to `rows` in all become, each behind `before[i]` others.
std::string after_joining(const std::vector<int64_t>& before, int64_t rows, double value = 0,
                          bool read_twice = false) {
  Build b;
  ValueId sum = kNoValue;
  for (size_t i = 0; i < before.size(); ++i) {
    const ValueId pad = b.op("pad", {b.in("x" + std::to_string(i), {2, 3})},
                             {{"before", Shape{before[i], 0}},
                              {"after", Shape{rows - 2 - before[i], 0}},
                              {"value", value}});
    if (read_twice) b.g.outputs.push_back(pad);
    sum = i == 0 ? pad : b.add(sum, pad);
  }
  b.g.outputs.push_back(sum);
  Graph out = b.g;
  join_pieces(out);
  check_graph(out);
  expect_same_outputs(b.g, out, 0);
  return ops_and_shapes(out);
}

TEST(JoinPieces, ThatLieSideBySide) {
  EXPECT_EQ(after_joining({4, 0, 2}, 6), "concat[6, 3]");
  EXPECT_EQ(after_joining({4, 2}, 8), "concat[4, 3] pad[8, 3]");
  // 0 to 4, 5 to 9: two runs.
  EXPECT_EQ(after_joining({0, 5, 2, 7}, 9),
            "concat[4, 3] pad[9, 3] concat[4, 3] pad[9, 3] add[9, 3]");
}

TEST(JoinPieces, LeavesWhatMeetsOrIsApart) {
  const std::string two = "pad[6, 3] pad[6, 3] add[6, 3]";
  EXPECT_EQ(after_joining({0, 1}, 6), two);
  EXPECT_EQ(after_joining({0, 4}, 6), two);
  EXPECT_EQ(after_joining({0, 2}, 6, 1.5), two);
  EXPECT_EQ(after_joining({0, 2}, 6, 0, true), two);
}

}  // namespace
}  // namespace shardrun
