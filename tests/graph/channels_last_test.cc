// Images with their channels last, and batch normalisation with what stands behind it: the same
// numbers, forward and of all gradients, and no transposes but at the ends.
#include "graph/passes/channels_last.h"

#include <gtest/gtest.h>

#include <set>

#include "graph/autodiff.h"
#include "graph/passes/recognise/recognise.h"
#include "tests/graph/graph_build.h"

namespace shardrun {
namespace {

using test::Build;
using test::count_op;
using test::expect_same_outputs;
using test::find_op;
using Ints = std::vector<int64_t>;

struct Images : Build {
  ValueId conv(ValueId x, const std::string& weights, Shape shape, int64_t stride = 1) {
    constexpr size_t dims = 2;
    const int64_t pad = shape.back() / 2;
    return op("conv", {x, param(weights, std::move(shape))},
              {{"strides", Ints(dims, stride)},
               {"dilations", Ints(dims, 1)},
               {"pads_low", Ints(dims, pad)},
               {"pads_high", Ints(dims, pad)}});
  }
  ValueId norm(ValueId x, const std::string& name) {
    const Shape& shape = g.type(x).shape;
    const Shape channels{shape[1]};
    const std::vector<ValueId> s =
        g.add_node("batch_statistics", {op("batch_moments", {x})},
                   {{"count", element_count(shape) / shape[1]}, {"dtype", std::string("f64")}});
    return op("batch_norm",
              {x, s[0], s[1], param(name + ".weight", channels), param(name + ".bias", channels)},
              {{"eps", 1e-5}});
  }
  ValueId relu(ValueId x) { return op("relu", {x}); }
  std::vector<ValueId> pool(ValueId x, const std::string& kind) {
    return g.add_node(kind, {x},
                      {{"kernel", Ints{3, 3}},
                       {"strides", Ints{2, 2}},
                       {"dilations", Ints{1, 1}},
                       {"pads_low", Ints{1, 1}},
                       {"pads_high", Ints{1, 1}}});
  }
};

/// What an image model has: a stem, a pool, a block with a residual, a gate for each channel,
/// groups, branches joined, a bias, a border, a crop, rows looked up, a mean and a product.
Graph network() {
  Images b;
  const ValueId x = b.in("images", {2, 3, 9, 8});
  ValueId y = b.relu(b.norm(b.conv(x, "stem", {4, 3, 3, 3}), "bn1"));
  y = b.pool(y, "max_pool")[0];  // [2, 4, 5, 4]
  y = b.relu(b.add(b.norm(b.conv(y, "block", {4, 4, 3, 3}), "bn2"), y));
  y = b.mul(y, b.op("sigmoid", {b.conv(b.mean(y, {2, 3}), "gate", {4, 4, 1, 1})}));
  const ValueId groups = b.conv(b.reshape(y, {2, 2, 2, 5, 4}), "groups", {2, 3, 2, 3, 3});
  y = b.op("concat", {b.reshape(groups, {2, 6, 5, 4}), y}, {{"axis", int64_t{1}}});
  y = b.add(y, b.reshape(b.param("shift", {10}), {10, 1, 1}));
  y = b.op("pad", {y}, {{"before", Ints{0, 0, 1, 0}}, {"after", Ints{0, 0, 0, 2}}});
  y = b.op(
      "slice", {y},
      {{"starts", Ints{0, 1, 0, 0}}, {"ends", Ints{2, 10, 6, 5}}, {"steps", Ints{1, 2, 1, 1}}});
  y = b.op("gather", {y, b.array({3}, {0, 2, 5}, DType::i64)}, {{"axis", int64_t{2}}});
  y = b.pool(b.conv(y, "last", {4, 5, 3, 3}, 2), "sum_pool")[0];
  const ValueId flat = b.reshape(b.mean(y, {2, 3}), {2, 4});
  b.g.outputs = {b.matmul(flat, b.param("head", {4, 3}), "nc,ck->nk"), y,
                 b.op("reduce_max", {y}, {{"axes", Ints{0, 2, 3}}, {"keepdims", int64_t{0}}})};
  return b.g;
}

/// The outputs and the gradients of all parameters of their sum.
Graph with_gradients(Graph g) {
  const ValueId y = g.outputs[0];
  const ValueId loss =
      g.add("reduce_sum", {g.add("mul", {y, y})}, {{"axes", Ints{0, 1}}, {"keepdims", int64_t{0}}});
  std::vector<ValueId> parameters;
  for (const auto& [id, trains] : g.trainable) parameters.push_back(id);
  for (ValueId gradient : differentiate(g, loss, parameters)) g.outputs.push_back(gradient);
  return g;
}

TEST(ChannelsLast, SameNumbersAndGradients) {
  const Graph before = network();
  Graph after = before;
  EXPECT_EQ(put_channels_last(after), 5);
  check_graph(after);
  for (const char* op : {"conv", "batch_norm", "batch_moments", "max_pool", "sum_pool"}) {
    for (const Node& node : after.nodes()) {
      if (node.op == op) {
        EXPECT_EQ(node.attrs.i("channels_last", 0), 1) << to_string(after);
      }
    }
  }
  // The batch, the second output, and the bias; what is pooled to one position is reshaped.
  EXPECT_EQ(count_op(after, "transpose"), 2) << to_string(after);
  expect_same_outputs(with_gradients(before), with_gradients(after), 1e-9);
}

TEST(ChannelsLast, NothingWithoutAConvolution) {
  Images b;
  const ValueId x = b.in("x", {2, 3, 9, 8});
  b.g.outputs = {b.pool(b.relu(x), "max_pool")[0]};
  Graph after = b.g;
  EXPECT_EQ(put_channels_last(after), 0);
  EXPECT_EQ(to_string(after), to_string(b.g));
}

TEST(ChannelsLast, SaysWhichDimsMoved) {
  Graph g = network();
  put_channels_last(g);
  const Graph step = with_gradients(g);
  const std::vector<Ints> moved = moved_channels(step);
  for (const Node& node : step.nodes()) {
    const Ints& perm = moved[static_cast<size_t>(node.outputs[0])];
    const size_t rank = step.type(node.outputs[0]).shape.size();
    static const std::set<std::string> images = {"batch_norm", "batch_norm_grad", "max_pool_grad",
                                                 "sigmoid"};
    static const std::set<std::string> others = {"conv_weight_grad", "matmul", "batch_moments"};
    if (images.count(node.op)) {
      EXPECT_EQ(perm, (Ints{0, 2, 3, 1})) << node.name;
    } else if (node.op == "conv_data_grad" && rank == 5) {
      EXPECT_EQ(perm, (Ints{0, 3, 4, 1, 2})) << node.name;
    } else if (others.count(node.op)) {
      EXPECT_EQ(perm, Ints{}) << node.name;
    }
  }
}

TEST(FuseBatchNorm, WithReluAndResidual) {
  Graph g = network();
  EXPECT_EQ(recognise_batch_norm(g), 2);
  check_graph(g);
  EXPECT_EQ(count_op(g, "relu"), 0);
  EXPECT_EQ(count_op(g, "batch_norm"), 2);
  expect_same_outputs(with_gradients(network()), with_gradients(g), 1e-9);
  put_channels_last(g);
  expect_same_outputs(with_gradients(network()), with_gradients(g), 1e-9);
}

TEST(FuseBatchNorm, LeavesWhatIsUsedElsewhere) {
  Images b;
  const ValueId x = b.in("x", {2, 3, 4, 4});
  const ValueId used = b.norm(x, "a");
  const ValueId wide = b.add(b.norm(x, "b"), b.param("p", {2, 2, 3, 4, 4}));
  const ValueId twice = b.norm(x, "c");
  b.g.outputs = {b.relu(used), used, b.relu(wide), b.relu(b.add(twice, twice)),
                 b.relu(b.relu(b.norm(x, "d")))};
  Graph after = b.g;
  EXPECT_EQ(recognise_batch_norm(after), 1);  // the last one's inner
  check_graph(after);
  expect_same_outputs(b.g, after, 0);
}

}  // namespace
}  // namespace shardrun
