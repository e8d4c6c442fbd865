// Rules of nodes with many operands or results alike are those that discovery finds, for less.
#include "planner/rules/alike_values.h"

#include <gtest/gtest.h>

namespace shardrun {
namespace {

TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }

Node concat(int64_t axis) {
  Node n;
  n.op = "concat";
  n.name = "test";
  n.attrs = {{"axis", axis}};
  return n;
}

/// What a layer of a dense block reads: what the block began with, and an image of each layer.
std::vector<TensorType> images(size_t layers, int64_t channels = 4, int64_t size = 16) {
  std::vector<TensorType> out(layers + 1, f32({8, size, size, channels}));
  out[0] = f32({8, size, size, 24});
  return out;
}

/// The gradient of that.
Node split(int64_t axis, std::vector<int64_t> sizes) {
  Node n;
  n.op = "split";
  n.name = "test";
  n.attrs = {{"axis", axis}, {"sizes", std::move(sizes)}};
  return n;
}
std::vector<int64_t> sizes(size_t layers, int64_t channels = 4) {
  std::vector<int64_t> out(layers + 1, channels);
  out[0] = 24;
  return out;
}
std::vector<TensorType> joined(size_t layers, int64_t channels = 4, int64_t size = 16) {
  return {f32({8, size, size, 24 + channels * static_cast<int64_t>(layers)})};
}

TEST(AlikeValues, ResultsHaveTheRuleThatDiscoveryFinds) {
  RuleCache cache;
  const auto expect_same = [&](const Node& node, const std::vector<TensorType>& in) {
    const SpmdRule& rule = cache.rule(node, in);
    const SpmdRule found = discover(node, in);
    EXPECT_EQ(rule.options, found.options) << to_string(node.attrs);
    EXPECT_TRUE(rule.by_sizes || !found.by_sizes);  // a longer split's small rows show no windows
  };
  for (size_t layers : {4, 5, 6, 8, 9, 12, 24, 48}) {
    expect_same(split(3, sizes(layers)), joined(layers));
    expect_same(split(3, sizes(layers, 8)), joined(layers, 8));
    expect_same(split(3, sizes(layers)), joined(layers, 4, 4));
    expect_same(split(3, sizes(layers, 24)), joined(layers, 24));
  }
  std::vector<int64_t> mixed = sizes(7);
  mixed.insert(mixed.end(), {3, 4});
  expect_same(split(3, mixed), {f32({8, 16, 16, 24 + 28 + 7})});
  expect_same(split(0, std::vector<int64_t>(10, 1)), {f32({10, 8, 64})});
  expect_same(split(1, std::vector<int64_t>(6, 2)), {f32({5, 12})});
}

TEST(AlikeValues, ResultsTakeFewKernelRuns) {
  RuleCache cache;
  int searches = 0;
  cache.on_search = [&](const std::string&) { ++searches; };
  for (size_t layers = 1; layers <= 24; ++layers)
    cache.rule(split(3, sizes(layers)), joined(layers));
  EXPECT_EQ(searches, 4);  // of up to four alike
  const int before = cache.kernel_runs();
  cache.rule(split(3, sizes(25)), joined(25));
  EXPECT_LT(cache.kernel_runs() - before, 100);
  EXPECT_LT(before, 3000);  // a search for each takes 9,344
}

TEST(AlikeValues, ResultsAreLeftOutWithTheirSizes) {
  const std::optional<ShorterNode> shorter = shorter_node(split(3, sizes(9)), joined(9));
  ASSERT_TRUE(shorter);
  EXPECT_TRUE(shorter->results);
  EXPECT_EQ(shorter->node.attrs.ints("sizes"), sizes(4));
  EXPECT_EQ(shorter->in, joined(4));
  EXPECT_EQ(shorter->first, 1u);
  EXPECT_EQ(shorter->all, 9u);
  EXPECT_FALSE(shorter_node(split(3, sizes(4)), joined(4)));
  EXPECT_FALSE(shorter_node(split(3, {4, 5, 4, 5, 4, 5, 4, 5}), std::vector{f32({8, 16, 16, 36})}));
}

TEST(AlikeValues, OptionsOfResultsThatDoNotHoldOrTreatThemDifferentlyCountAsNone) {
  const Node node = split(3, sizes(9));
  const std::optional<ShorterNode> shorter = shorter_node(node, joined(9));
  ASSERT_TRUE(shorter);
  const SpmdRule right = discover(shorter->node, shorter->in);
  ASSERT_TRUE(lengthened_rule(right, *shorter, node, joined(9)));
  const auto with = [&](std::vector<Placement> in, std::vector<Placement> out) {
    SpmdRule rule = right;
    rule.options.push_back({std::move(in), std::move(out)});
    return lengthened_rule(rule, *shorter, node, joined(9));
  };
  const Placement rows = Placement::shard(0), columns = Placement::shard(1), none;
  EXPECT_TRUE(with({rows}, std::vector(5, rows)));
  EXPECT_FALSE(with({rows}, std::vector(5, columns)));            // another dim of the results
  EXPECT_FALSE(with({rows}, {rows, rows, columns, rows, rows}));  // they differ
  EXPECT_FALSE(with({none}, std::vector(5, rows)));               // no rank has such shards
}

TEST(AlikeValues, HaveTheRuleThatDiscoveryFinds) {
  RuleCache cache;
  const auto expect_same = [&](int64_t axis, const std::vector<TensorType>& in) {
    const SpmdRule& rule = cache.rule(concat(axis), in);
    const SpmdRule found = discover(concat(axis), in);
    EXPECT_EQ(rule.options, found.options) << "axis " << axis << " of " << in.size();
    EXPECT_EQ(rule.by_sizes, found.by_sizes);
  };
  for (size_t layers : {4, 5, 6, 8, 9, 12, 24}) {
    expect_same(3, images(layers));
    expect_same(3, images(layers, 8));     // as many channels as images
    expect_same(3, images(layers, 4, 4));  // as many channels as rows
    expect_same(3, images(layers, 24));    // all alike
  }
  std::vector<TensorType> mixed = images(7);  // those alike in the middle, and what follows them
  mixed.push_back(f32({8, 16, 16, 3}));
  mixed.push_back(f32({8, 16, 16, 4}));
  expect_same(3, mixed);
  expect_same(0, std::vector(10, f32({1, 8, 64})));
  expect_same(1, std::vector(6, f32({5, 2})));
}

/// The concatenations of a dense block of 24 layers: a search for each would take 18,000 runs.
TEST(AlikeValues, TakeFewKernelRuns) {
  RuleCache cache;
  int searches = 0;
  cache.on_search = [&](const std::string&) { ++searches; };
  for (size_t layers = 1; layers <= 24; ++layers) cache.rule(concat(3), images(layers));
  EXPECT_EQ(searches, 4);  // of up to four alike
  const int before = cache.kernel_runs();
  cache.rule(concat(3), images(25));
  EXPECT_LT(cache.kernel_runs() - before, 100);
  EXPECT_LT(before, 4500);
}

TEST(AlikeValues, AreLeftOutWhereTheShapeRuleTakesFewer) {
  const std::optional<ShorterNode> shorter = shorter_node(concat(3), images(9));
  ASSERT_TRUE(shorter);
  EXPECT_EQ(shorter->in, images(4));
  EXPECT_EQ(shorter->first, 1u);
  EXPECT_EQ(shorter->all, 9u);
  EXPECT_FALSE(shorter_node(concat(3), images(4)));
  Node sum = concat(0);
  sum.op = "add";  // takes two
  EXPECT_FALSE(shorter_node(sum, std::vector(8, f32({4, 4}))));
}

TEST(AlikeValues, OptionsThatDoNotHoldOrTreatThemDifferentlyCountAsNone) {
  const std::vector<TensorType> in = images(9);
  const std::optional<ShorterNode> shorter = shorter_node(concat(3), in);
  ASSERT_TRUE(shorter);
  const SpmdRule right = discover(shorter->node, shorter->in);
  ASSERT_TRUE(lengthened_rule(right, *shorter, concat(3), in));
  const auto with = [&](SpmdRule::Option option) {
    SpmdRule rule = right;
    rule.options.push_back(std::move(option));
    return lengthened_rule(rule, *shorter, concat(3), in);
  };
  const Placement rows = Placement::shard(0), none;
  EXPECT_TRUE(with({std::vector(5, rows), {rows}}));
  EXPECT_FALSE(with({std::vector(5, rows), {Placement::shard(1)}}));  // another dim of the result
  EXPECT_FALSE(with({{none, rows, none, rows, none}, {rows}}));       // they differ
  const Placement channels = Placement::shard(3);
  const std::vector<Placement> cut(5, channels);
  EXPECT_TRUE(with({cut, {Placement::in_blocks(3, {0, 1, 2, 3, 4})}}));
  EXPECT_FALSE(with({cut, {Placement::in_blocks(3, {0, 2, 1, 3, 4})}}));  // not in order
  EXPECT_FALSE(with({cut, {Placement::in_blocks(3, {1, 2, 0, 3, 4})}}));  // with another between
  EXPECT_FALSE(with({cut, {Placement::in_blocks(3, {1, 2, 3, 4, 0})}}));  // in another place
}

}  // namespace
}  // namespace shardrun
