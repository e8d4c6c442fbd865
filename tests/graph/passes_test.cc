// Simplification; losses, attention and projections taken apart.
#include <gtest/gtest.h>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "graph/passes/movement.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;
using test::find_op;

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
  NamedTensors feeds = test::feeds_for(both);
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
        return evaluate_graph(g, test::feeds_for(g), differentiate(g, total, wrt))[0];
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

}  // namespace
}  // namespace shardrun
