// Simplification, projections taken apart, and the passes that make a training step of a forward
// Graph.
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/fusion/fuse.h"
#include "graph/passes/movement.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/training.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using testing::Build;
using testing::count_op;
using testing::expect_same_outputs;
using testing::find_op;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input);
    return e.what();
  }
  return "nothing was thrown";
}

void expect_mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

// ------------------------------------------------------------------ losses in parts

/// Two losses, one of them of ignored labels, with their gradients: the parts compute the same and
/// keep the names.
TEST(SplitLosses, ComputesTheSameUnderTheSameNames) {
  Build b;
  const ValueId x = b.param("x", {4, 3, 7}),
                labels = b.g.add_input("labels", {DType::i64, {4, 3}}, Role::batch);
  const std::vector<ValueId> one = b.g.add_node("cross_entropy", {x, labels},
                                                {{"ignore_index", int64_t{2}}}, "one"),
                             two = b.g.add_node("cross_entropy", {b.op("neg", {x}), labels}, {},
                                                "two");
  const ValueId both = b.op("add", {one[0], two[0]});
  b.g.loss =
      b.op("reduce_sum", {both}, {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}});
  b.g.trainable[x] = true;
  const std::vector<ValueId> dx = differentiate(b.g, b.g.loss, std::vector{x});
  b.g.outputs = {b.g.loss, one[0], two[1], dx[0]};
  Graph parts = b.g;
  split_losses(parts);
  check_graph(parts);
  EXPECT_EQ(count_op(parts, "cross_entropy"), 0);
  for (const char* op : {"reduce_max", "cross_entropy_sums", "cross_entropy_join"})
    EXPECT_EQ(count_op(parts, op), 2) << op;
  EXPECT_EQ(find_op(parts, "cross_entropy_sums")->attrs.i("classes"), 7);
  EXPECT_EQ(find_op(parts, "cross_entropy_join")->name, "one");
  ASSERT_EQ(parts.outputs, b.g.outputs);
  for (ValueId id : parts.outputs) EXPECT_EQ(parts.value(id).name, b.g.value(id).name);
  expect_same_outputs(b.g, parts, 1e-12);
}

/// With a mask, a dropout and a slope, and one without; keys that are more than queries.
TEST(SplitAttention, ComputesTheSameUnderTheSameNames) {
  Build b;
  const ValueId q = b.param("q", {2, 3, 4, 5}), k = b.param("k", {2, 3, 6, 5}),
                v = b.param("v", {2, 3, 6, 2}), mask = b.in("mask", {1, 3, 4, 6}),
                step = b.g.add_input("step", {DType::i64, {}}, Role::scalar);
  const ValueId one = b.g.add_node("attention", {q, k, v}, {{"scale", 0.5}}, "one")[0];
  const ValueId two = b.g.add_node("attention", {q, k, v, mask, step},
                                   {{"scale", 0.5},
                                    {"slope", 0.2},
                                    {"has_mask", int64_t{1}},
                                    {"dropout", 0.3},
                                    {"seed", int64_t{5}},
                                    {"key", int64_t{77}},
                                    {"global_shape", std::vector<int64_t>{2, 3, 4, 6}},
                                    {"start", std::vector<int64_t>(4, 0)}},
                                   "two")[0];
  b.g.loss = b.op("reduce_sum", {b.op("mul", {one, two})},
                  {{"axes", std::vector<int64_t>{0, 1, 2, 3}}, {"keepdims", int64_t{0}}});
  const std::vector<ValueId> grads = differentiate(b.g, b.g.loss, std::vector{q, k, v});
  b.g.outputs = {b.g.loss, one, two, grads[0], grads[1], grads[2]};
  Graph parts = b.g;
  split_attention(parts);
  check_graph(parts);
  EXPECT_EQ(count_op(parts, "attention"), 0);
  for (const char* op : {"attention_top", "attention_sums", "attention_join"})
    EXPECT_EQ(count_op(parts, op), 2) << op;
  EXPECT_EQ(find_op(parts, "attention_sums")->attrs.i("keys"), 6);
  EXPECT_EQ(find_op(parts, "attention_join")->name, "one");
  ASSERT_EQ(parts.outputs, b.g.outputs);
  expect_same_outputs(b.g, parts, 1e-12);
}

// ------------------------------------------------------------------ simplification

TEST(RemoveNoOps, LeavesWhatDoesSomething) {
  Build b;
  const ValueId x = b.in("x", {2, 3});
  const ValueId same =
      b.reshape(b.transpose(b.transpose(b.op("identity", {x}), {1, 0}), {1, 0}), {2, 3});
  const ValueId other =
      b.reshape(b.reshape(b.op("cast", {same}, {{"to", std::string("f64")}}), {6}), {3, 2});
  const ValueId rounded = b.op("cast", {b.op("cast", {same}, {{"to", std::string("f32")}})},
                               {{"to", std::string("f64")}});
  b.g.outputs = {same, other, rounded};
  Graph out = b.g;
  EXPECT_GT(remove_no_ops(out), 0);
  check_graph(out);
  EXPECT_EQ(out.outputs[0], x);
  EXPECT_EQ(out.nodes().size(), 3u) << to_string(out);  // one reshape, two casts that round
  expect_same_outputs(b.g, out, 0);
}

/// What holds a gradient back stays until the step has its gradients.
TEST(RemoveNoOps, KeepsWhatHoldsGradientsBack) {
  Build b;
  const ValueId x = b.in("x", {2, 3});
  b.g.outputs = {b.op("identity", {x}, {{"detach", int64_t{1}}})};
  remove_no_ops(b.g);
  ASSERT_EQ(b.g.nodes().size(), 1u);
  remove_movement(b.g);
  EXPECT_EQ(b.g.outputs[0], x);
}

TEST(MergeEqualNodes, ComparesAttributesToTheLastDigit) {
  Build b;
  const ValueId x = b.in("x", {4});
  const ValueId a = b.op("leaky_relu", {x}, {{"alpha", 0.1}}),
                same = b.op("leaky_relu", {x}, {{"alpha", 0.1}});
  const ValueId other = b.op("leaky_relu", {x}, {{"alpha", 0.1 + 1e-12}});
  // Equal numbers in two constants are one; so are nodes that use them.
  const ValueId p = b.mul(a, 2.0), q = b.mul(same, 2.0), r = b.mul(a, 3.0);
  b.g.outputs = {p, q, r, other};
  Graph out = b.g;
  EXPECT_EQ(merge_equal_nodes(out), 2);
  check_graph(out);
  EXPECT_EQ(out.outputs[0], out.outputs[1]);
  EXPECT_NE(out.outputs[0], out.outputs[2]);
  EXPECT_EQ(count_op(out, "leaky_relu"), 2);
  expect_same_outputs(b.g, out, 0);
}

TEST(MergeEqualNodes, DropoutsOfTwoKeysStayTwo) {
  Build b;
  const ValueId x = b.in("x", {4}),
                step = b.g.add_input("random_step", {DType::i64, {}}, Role::scalar);
  auto drop = [&](int64_t key) {
    return b.op("dropout", {x, step},
                {{"p", 0.5},
                 {"key", key},
                 {"seed", int64_t{1}},
                 {"global_shape", Shape{4}},
                 {"start", Shape{0}}});
  };
  b.g.outputs = {drop(1), drop(2)};
  EXPECT_EQ(merge_equal_nodes(b.g), 0);
}

TEST(MaskBeforeDropout, KeepsWhatIsDrawn) {
  Build b;
  const ValueId x = b.in("x", {6, 5}),
                step = b.g.add_input("random_step", {DType::i64, {}}, Role::scalar);
  auto drop = [&](ValueId of, int64_t key) {
    return b.op("dropout", {of, step},
                {{"p", 0.5},
                 {"key", key},
                 {"seed", int64_t{1}},
                 {"global_shape", Shape{6, 5}},
                 {"start", Shape{0, 0}}});
  };
  const ValueId zero = b.number(0), one = b.number(1);
  const ValueId early = drop(x, 1), kept = drop(x, 2), other = drop(x, 3);
  const ValueId positive = b.op("greater", {b.mul(x, 2.0), zero});  // made behind the dropouts
  const ValueId first = b.op("where", {positive, early, zero}),
                second = b.op("where", {positive, zero, drop(x, 4)}),
                twice = b.op("where", {positive, kept, zero}),  // kept has another use
      ones = b.op("where", {positive, other, one});             // not a zero
  b.g.outputs = {first, second, twice, kept, ones};
  Graph out = b.g;
  EXPECT_EQ(mask_before_dropout(out), 2);
  check_graph(out);
  for (size_t i = 0; i < 5; ++i) {
    const Node& node = out.node(out.value(out.outputs[i]).producer);
    EXPECT_EQ(node.op, i < 2 || i == 3 ? "dropout" : "where") << i;
  }
  expect_same_outputs(b.g, out, 0);
}

/// One pass gives what two do, one with each of the targets; what no target reaches is there once.
TEST(MeasureTestToo, BothInOnePass) {
  Build b;
  const ValueId x = b.op("tanh", {b.in("x", {6, 5})});
  const ValueId target = b.in("target", {6, 5});
  const ValueId difference = b.sub(x, target);
  b.g.metrics["loss"] = b.op("reduce_sum", {b.mul(difference, difference)},
                             {{"axes", Shape{0, 1}}, {"keepdims", int64_t{0}}});
  b.g.metrics["size"] = b.op("reduce_sum", {x}, {{"axes", Shape{0, 1}}, {"keepdims", int64_t{0}}});
  Graph both = b.g;
  measure_test_too(both, {"target"});
  check_graph(both);
  EXPECT_EQ(count_op(both, "tanh"), 1);
  EXPECT_EQ(count_op(both, "sub"), 2);
  EXPECT_EQ(both.metrics.count("test/size"), 0u);
  both.outputs = {both.metrics.at("loss"), both.metrics.at("test/loss")};
  b.g.outputs = {b.g.metrics.at("loss")};
  NamedTensors feeds = testing::feeds_for(both);
  const std::vector<Tensor> at_once = evaluate_graph(both, feeds);
  EXPECT_EQ(evaluate_graph(b.g, feeds)[0].at(0), at_once[0].at(0));
  feeds.at("target") = feeds.at("test/target");
  EXPECT_EQ(evaluate_graph(b.g, feeds)[0].at(0), at_once[1].at(0));
  EXPECT_NE(at_once[0].at(0), at_once[1].at(0));
}

TEST(FoldTransposes, IntoOperandsAndResult) {
  Build b;
  const ValueId x = b.transpose(b.in("x", {3, 2, 4}), {1, 0, 2});
  const ValueId w = b.transpose(b.param("w", {5, 4}), {1, 0});
  const ValueId y = b.matmul(x, w, "bij,jk->bik");
  b.g.outputs = {b.transpose(y, {2, 0, 1}), b.mul(w, 1.5)};  // w's transpose has another use
  Graph out = b.g;
  EXPECT_EQ(fold_transposes(out), 3);
  check_graph(out);
  EXPECT_EQ(find_op(out, "matmul")->attrs.s("equation"), "ibj,kj->kbi");
  EXPECT_EQ(count_op(out, "transpose"), 1);
  expect_same_outputs(b.g, out, 1e-12);
  // A result that is also wanted as it is keeps its transpose.
  Build c;
  const ValueId z = c.matmul(c.in("x", {2, 3}), c.in("y", {3, 4}), "ij,jk->ik");
  c.g.outputs = {z, c.transpose(z, {1, 0})};
  EXPECT_EQ(fold_transposes(c.g), 0);
}

// ------------------------------------------------------------------ movement

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

// ------------------------------------------------------------------ projections

enum class Parts { split, slices, uneven, backwards, kept, shared };

Graph projection(Parts how, bool with_bias) {
  Build b;
  const ValueId x = b.in("x", {2, 3, 4}),
                w = b.param("w", {6, 4});  // rows are outputs, as PyTorch stores them
  ValueId y = b.matmul(x, w, "btc,oc->bto");
  if (with_bias) y = b.add(b.param("bias", {6}), y);
  std::vector<ValueId> parts;
  auto slice = [&](int64_t begin, int64_t end, int64_t token_step = 1) {
    const Shape starts = {0, token_step > 0 ? 0 : 2, begin},
                ends = {2, token_step > 0 ? 3 : -1, end};
    return b.op("slice", {y},
                {{"starts", starts}, {"ends", ends}, {"steps", Shape{1, token_step, 1}}});
  };
  if (how == Parts::split || how == Parts::kept || how == Parts::shared) {
    parts = b.g.add_node("split", {y}, {{"axis", int64_t{2}}, {"sizes", Shape{2, 2, 2}}});
  } else if (how == Parts::uneven) {
    parts = {slice(0, 3), slice(3, 5), slice(5, 6)};
  } else {
    const int64_t step = how == Parts::backwards ? -1 : 1;
    parts = {slice(2, 4), slice(0, 2, step), slice(4, 6)};
  }
  b.g.outputs = {b.mul(parts[0], 2.0), b.op("exp", {parts[1]}), b.mul(parts[2], parts[0])};
  if (how == Parts::kept) b.g.outputs.push_back(y);
  if (how == Parts::shared) b.g.outputs.push_back(b.mul(w, 2.0));
  return b.g;
}

TEST(SplitProjections, KeepsElementsAndGradients) {
  for (const Parts how : {Parts::split, Parts::slices}) {
    for (const bool with_bias : {false, true}) {
      const Graph before = projection(how, with_bias);
      Graph after = before;
      EXPECT_EQ(split_projections(after), 1);
      check_graph(after);
      EXPECT_EQ(after.type(after.find("w")).shape, (Shape{3, 2, 4}));
      EXPECT_EQ(after.file_shape(after.find("w")), (Shape{6, 4}));
      if (with_bias) {
        EXPECT_EQ(after.type(after.find("bias")).shape, (Shape{3, 2}));
      }
      expect_same_outputs(before, after, 1e-12);

      auto gradient = [](Graph g) {
        ValueId total = kNoValue;
        for (ValueId out : g.outputs) {
          const ValueId sum =
              g.add("reduce_sum", {out}, {{"axes", Shape{0, 1, 2}}, {"keepdims", int64_t{0}}});
          total = total == kNoValue ? sum : g.add("add", {total, sum});
        }
        const std::vector<ValueId> wrt = {g.find("w")};
        return evaluate_graph(g, testing::feeds_for(g), differentiate(g, total, wrt))[0];
      };
      const Tensor a = gradient(before), c = gradient(after);
      ASSERT_EQ(a.count(), c.count());
      for (int64_t i = 0; i < a.count(); ++i) EXPECT_NEAR(a.at(i), c.at(i), 1e-12);
    }
  }
}

/// What checkpoints keep has the file's shape, whatever other passes and the optimizer add.
TEST(SplitProjections, FileShapesOfParametersAndTheirState) {
  Graph g = projection(Parts::split, true);
  ASSERT_EQ(split_projections(g), 1);
  g.loss = kNoValue;
  for (ValueId out : std::vector<ValueId>(g.outputs)) {
    const ValueId sum =
        g.add("reduce_sum", {out}, {{"axes", Shape{0, 1, 2}}, {"keepdims", int64_t{0}}});
    g.loss = g.loss == kNoValue ? sum : g.add("add", {g.loss, sum});
  }
  for (const char* name : {"w", "bias"}) g.trainable[g.find(name)] = true;
  attach_optimizer(g, {});
  const Graph copy = rebuild(g, [](Rebuild& r, const Node& node) { r.copy(node); });
  for (const Graph* graph : std::initializer_list<const Graph*>{&g, &copy}) {
    for (const char* name : {"w", "adam_m/w", "adam_v/w"}) {
      EXPECT_EQ(graph->type(graph->find(name)).shape, (Shape{3, 2, 4})) << name;
      EXPECT_EQ(graph->file_shape(graph->find(name)), (Shape{6, 4})) << name;
    }
    EXPECT_EQ(graph->file_shape(graph->find("adam_m/bias")), (Shape{6}));
  }
}

TEST(SplitProjections, LeavesAlone) {
  for (const Parts how : {Parts::uneven, Parts::backwards, Parts::kept, Parts::shared}) {
    const Graph before = projection(how, true);
    Graph after = before;
    EXPECT_EQ(split_projections(after), 0) << static_cast<int>(how);
    check_graph(after);
    expect_same_outputs(before, after, 0);
  }
}

// ------------------------------------------------------------------ loss

Graph logits_model(bool tokens = true, Shape shape = {2, 3, 5}) {
  Build b(DType::f32);
  if (tokens) b.ints("tokens", Shape(shape.begin(), shape.end() - 1));
  b.g.name = "m.onnx";
  b.g.outputs = {b.mul(b.in("x", shape), b.param("w", {shape.back()}))};
  return b.g;
}

TEST(AttachLoss, CrossEntropyByHand) {
  Graph g = logits_model();
  EXPECT_NE(attach_loss(g, "cross-entropy").find("cross-entropy"), std::string::npos);
  check_graph(g);
  NamedTensors feeds = testing::feeds_for(g);
  feeds[kTarget] = Tensor::from<int64_t>({2, 3}, {1, -100, 4, 0, -100, 2}, DType::i64);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t row = 0; row < 6; ++row) {
    const int64_t target = feeds[kTarget].int_at(row);
    if (target == -100) continue;
    double sum = 0;
    for (int64_t c = 0; c < 5; ++c) sum += std::exp(got[0].at(row * 5 + c));
    total += std::log(sum) - got[0].at(row * 5 + target);
  }
  EXPECT_NEAR(got[1].at(0), total / 4, 1e-5);
  // With every target ignored there is nothing to average, as in PyTorch.
  for (int64_t i = 0; i < 6; ++i) feeds[kTarget].as<int64_t>()[i] = -100;
  EXPECT_TRUE(std::isnan(evaluate_graph(g, feeds, std::vector{g.loss})[0].at(0)));
}

/// Keras's and scikit-learn's models end in probabilities: -log of the target's is the loss.
TEST(AttachLoss, CrossEntropyOfASoftmaxIsThatOfItsLogits) {
  Graph g = logits_model();
  g.outputs = {g.add("softmax", {g.outputs[0]}, {{"axis", int64_t{2}}}, "p")};
  expect_mentions(attach_loss(g, "cross-entropy"), {"the logits of the softmax"});
  check_graph(g);
  NamedTensors feeds = testing::feeds_for(g);
  feeds[kTarget] = Tensor::from<int64_t>({2, 3}, {1, 0, 4, 0, 3, 2}, DType::i64);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t row = 0; row < 6; ++row)
    total -= std::log(got[0].at(row * 5 + feeds[kTarget].int_at(row)));
  EXPECT_NEAR(got[1].at(0), total / 6, 1e-5);
  // Over another dim it makes no classes' probabilities.
  Graph other = logits_model();
  other.outputs = {other.add("softmax", {other.outputs[0]}, {{"axis", int64_t{1}}}, "p")};
  EXPECT_EQ(attach_loss(other, "cross-entropy").find("softmax"), std::string::npos);
}

TEST(AttachLoss, MeanSquaredErrorByHand) {
  Graph g = logits_model(false);
  attach_loss(g, "mse");
  check_graph(g);
  const NamedTensors feeds = testing::feeds_for(g);
  const std::vector<Tensor> got = evaluate_graph(g, feeds, std::vector{g.outputs[0], g.loss});
  double total = 0;
  for (int64_t i = 0; i < 30; ++i) total += std::pow(got[0].at(i) - feeds.at(kTarget).at(i), 2);
  EXPECT_NEAR(got[1].at(0), total / 30, 1e-5);
}

TEST(AttachLoss, AssumesALanguageModelByItsTokens) {
  Graph g = logits_model();
  expect_mentions(attach_loss(g, ""), {"cross-entropy", "assumed"});
  EXPECT_EQ(g.type(g.find(kTarget)), (TensorType{DType::i64, {2, 3}}));
}

TEST(AttachLoss, TakesTheModelsOwn) {
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    Build b(DType::f32);
    b.g.outputs = {b.reshape(b.sum(b.mul(b.in("x", {3}), b.param("w", {3})), {0}, false), shape)};
    EXPECT_EQ(attach_loss(b.g, ""), "");
    check_graph(b.g);
    EXPECT_TRUE(b.g.type(b.g.loss).shape.empty());
    EXPECT_EQ(b.g.find(kTarget), kNoValue);
  }
}

TEST(AttachLoss, Refusals) {
  Graph g = logits_model(false);
  expect_mentions(message_of([&] { attach_loss(g, ""); }),
                  {"f32[2, 3, 5]", "--loss cross-entropy", "mse"});
  EXPECT_EQ(message_of([&] { attach_loss(g, ""); }).find("m.onnx"), std::string::npos)
      << "who loads the model names the file";
  expect_mentions(message_of([&] { attach_loss(g, "hinge"); }), {"'hinge'", "cross-entropy, mse"});
  Build scalar(DType::f32);
  scalar.g.outputs = {scalar.sum(scalar.in("x", {3}), {0}, false)};
  expect_mentions(message_of([&] { attach_loss(scalar.g, "mse"); }),
                  {"is a scalar", "leave --loss mse out"});
  Build vector(DType::f32);
  vector.g.outputs = {vector.in("x", {3})};
  expect_mentions(message_of([&] { attach_loss(vector.g, "cross-entropy"); }),
                  {"f32[3]", "[..., classes]"});
  Build one(DType::f32);
  one.g.outputs = {one.in("x", {3, 1})};
  expect_mentions(message_of([&] { attach_loss(one.g, "cross-entropy"); }),
                  {"f32[3, 1]", "one class", "--loss mse"});
  Build ints;
  ints.g.outputs = {ints.ints("x", {3, 4})};
  expect_mentions(message_of([&] { attach_loss(ints.g, "mse"); }), {"i64[3, 4]", "floating"});
  expect_mentions(message_of([&] { attach_loss(ints.g, "cross-entropy"); }),
                  {"i64[3, 4]", "floating logits"});
  Graph empty;
  expect_mentions(message_of([&] { attach_loss(empty, ""); }), {"no output"});
}

TEST(FreezeUnreached, NamesWhatNothingTrains) {
  Build b(DType::f32);
  const ValueId w = b.param("w", {3}), through_index = b.param("ranked", {2, 3});
  b.param("unused", {3});
  const ValueId best =
      b.op("argmax", {through_index},
           {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}});
  const ValueId row = b.op("gather", {b.in("x", {4, 3}), best}, {{"axis", int64_t{0}}});
  b.g.loss = b.sum(b.mul(row, w), {0, 1}, false);
  b.g.outputs = {b.g.loss};
  EXPECT_EQ(freeze_unreached(b.g), (std::vector<std::string>{"ranked", "unused"}));
  EXPECT_TRUE(b.g.trainable.at(w));
  EXPECT_FALSE(b.g.trainable.at(b.g.find("unused")));
  EXPECT_TRUE(freeze_unreached(b.g).empty());
  OptimizerOptions options;
  attach_optimizer(b.g, options);  // and so it does not stumble over them
}

// ------------------------------------------------------------------ dropout and bf16

/// Embedding, layer norm, attention, gelu, head, all with dropout; tied when asked.
Graph small_gpt(double dropout) {
  Build b(DType::f32);
  const ValueId tokens = b.ints("tokens", {2, 4}), table = b.param("table", {5, 6});
  const ValueId step =
      dropout > 0 ? b.g.add_input(kRandomStep, {DType::i64, {}}, Role::scalar) : kNoValue;
  int64_t key = 0;
  auto drop = [&](ValueId x) {
    if (dropout == 0) return x;
    const Shape shape = b.g.type(x).shape;
    return b.op("dropout", {x, step},
                {{"p", dropout},
                 {"key", ++key},
                 {"seed", int64_t{2}},
                 {"global_shape", shape},
                 {"start", std::vector<int64_t>(shape.size(), 0)}});
  };
  ValueId x = drop(b.op("gather", {table, tokens}, {{"axis", int64_t{0}}}));
  x = b.g.add_node("layer_norm", {x, b.param("scale", {6}), b.param("shift", {6})},
                   {{"axis", int64_t{2}}, {"eps", 1e-5}})[0];
  auto heads = [&](const char* name) {
    const ValueId w =
        b.mul(b.param(name, {6, 6}), 0.3);  // scores so large that they saturate say little
    return b.transpose(b.reshape(b.matmul(x, w, "btc,cd->btd"), {2, 4, 2, 3}), {0, 2, 1, 3});
  };
  const ValueId scores = b.mul(b.matmul(heads("q"), heads("k"), "bhtd,bhsd->bhts"), 0.5);
  const ValueId y = b.matmul(drop(b.op("softmax", {scores}, {{"axis", int64_t{3}}})), heads("v"),
                             "bhts,bhsd->bhtd");
  x = b.add(b.reshape(b.transpose(y, {0, 2, 1, 3}), {2, 4, 6}), b.param("bias", {6}));
  x = b.op("gelu", {x}, {{"approximate", std::string("none")}});
  b.g.outputs = {b.matmul(drop(x), table, "btc,vc->btv")};
  return b.g;
}

TEST(WithoutDropout, IsTheModelWithoutIt) {
  Graph trained = small_gpt(0.4);
  EXPECT_EQ(fuse(trained).attention, 1);
  const Graph plain = evaluation_form(trained);
  check_graph(plain);
  EXPECT_EQ(count_op(plain, "dropout"), 0);
  EXPECT_EQ(find_op(plain, "attention")->attrs.f("dropout"), 0);
  expect_same_outputs(plain, small_gpt(0), 1e-5);
}

TEST(InBf16, KeepsWeightsLossAndReductionsInF32) {
  Graph g = small_gpt(0.2);
  fuse(g);
  attach_loss(g, "");
  g.outputs.clear();
  Graph half = in_bf16(g);
  attach_optimizer(half, {});
  fold_casts(half);
  merge_equal_nodes(half);
  check_graph(half);
  EXPECT_EQ(half.type(half.loss), (TensorType{DType::f32, {}}));
  for (ValueId id : half.with_role(Role::parameter)) EXPECT_EQ(half.type(id).dtype, DType::f32);
  for (ValueId id : half.with_role(Role::state)) EXPECT_EQ(half.type(id).dtype, DType::f32);
  int products = 0, in_f32 = 0;
  for (const Node& node : half.nodes()) {
    if (node.op == "matmul" || node.op == "attention" || node.op == "attention_grad" ||
        node.op == "gelu") {
      EXPECT_EQ(half.type(node.inputs[0]).dtype, DType::bf16) << node.name;
    }
    if (node.op == "reduce_sum") {
      EXPECT_EQ(half.type(node.outputs[0]).dtype, DType::f32) << node.name;
    }
    if (node.op == "adamw") {
      EXPECT_EQ(half.type(node.inputs[1]).dtype, DType::f32) << node.name;
    }
    if (node.op != "matmul") continue;
    ++products;
    in_f32 += half.type(node.outputs[0]).dtype == DType::f32;
  }
  // Query, key, value and head: each a product, and two more for its gradients, of which the
  // weight's is f32.
  EXPECT_EQ(products, 12);
  EXPECT_EQ(in_f32, 4);
}

TEST(InBf16, IsCloseToF32) {
  Graph g = small_gpt(0);
  fuse(g);
  attach_loss(g, "");
  const NamedTensors feeds = testing::feeds_for(g);
  auto loss_and_gradient = [&](Graph graph) {
    std::vector<ValueId> wanted = differentiate(graph, graph.loss, std::vector{graph.find("q")});
    wanted.push_back(graph.loss);
    check_graph(graph);
    return evaluate_graph(graph, feeds, wanted);
  };
  const std::vector<Tensor> exact = loss_and_gradient(g), rough = loss_and_gradient(in_bf16(g));
  EXPECT_NEAR(rough[1].at(0), exact[1].at(0), 0.02 * exact[1].at(0));
  EXPECT_NE(rough[1].at(0), exact[1].at(0));
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < exact[0].count(); ++i) {
    difference += std::pow(exact[0].at(i) - rough[0].at(i), 2);
    norm += std::pow(exact[0].at(i), 2);
  }
  EXPECT_LE(std::sqrt(difference / norm), 0.05);
}

TEST(InBf16, ALossOfSquaresIsF32) {
  // Targets of 1000 + noise: in bf16, whose steps are 4 there, the noise would be gone.
  Build b(DType::f32);
  b.g.outputs = {
      b.add(b.matmul(b.in("x", {2, 3}), b.param("w", {3, 4}), "ij,jk->ik"), b.param("bias", {4}))};
  attach_loss(b.g, "mse");
  const Graph half = in_bf16(b.g);
  check_graph(half);
  const Node* difference = find_op(half, "sub");
  ASSERT_NE(difference, nullptr);
  for (ValueId id : difference->inputs) EXPECT_EQ(half.type(id).dtype, DType::f32);
  EXPECT_EQ(half.type(half.find(kTarget)).dtype, DType::f32);
  EXPECT_EQ(half.type(find_op(half, "matmul")->outputs[0]).dtype, DType::bf16);
}

TEST(FoldCasts, OnlyTheSoleUserOfAProduct) {
  Build b(DType::bf16);
  const ValueId x = b.in("x", {2, 3}), y = b.in("y", {3, 4});
  const Attrs to_f32 = {{"to", std::string("f32")}};
  const ValueId a = b.matmul(x, y, "ij,jk->ik"), c = b.matmul(x, y, "ij,jk->ki");
  b.g.outputs = {b.op("cast", {a}, to_f32), b.op("cast", {c}, to_f32), b.op("neg", {c})};
  fold_casts(b.g);
  check_graph(b.g);
  EXPECT_EQ(count_op(b.g, "cast"), 1);
  EXPECT_EQ(b.g.type(b.g.outputs[0]).dtype, DType::f32);
  EXPECT_EQ(b.g.node(b.g.value(b.g.outputs[0]).producer).op, "matmul");
}

TEST(Rebuild, KeepsEverythingThatAGraphHas) {
  Graph g = small_gpt(0.1);
  attach_loss(g, "");
  OptimizerOptions options;
  options.accumulate = 2;
  attach_optimizer(g, options);
  const Graph copy = rebuild(g, [](Rebuild& r, const Node& node) { r.copy(node); });
  check_graph(copy);
  EXPECT_EQ(to_string(copy), to_string(g));
  EXPECT_EQ(copy.updates.size(), g.updates.size());
  EXPECT_EQ(copy.zeroed_each_step.size(), g.zeroed_each_step.size());
  EXPECT_EQ(copy.micro_batches, 2);
  EXPECT_EQ(copy.metrics.size(), 2u);
  EXPECT_EQ(copy.trainable.size(), g.trainable.size());
}

}  // namespace
}  // namespace shardrun
