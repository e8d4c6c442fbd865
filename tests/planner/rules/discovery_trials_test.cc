// What discovery tries: an op that it knows nothing of, fakes that weaker evidence takes, what the
// trials cost, and which nodes share a rule.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "kernels/kernel.h"
#include "planner/rules/discovery.h"
#include "planner/rules/trial.h"
#include "tests/planner/rules/rule_texts.h"

namespace shardrun {
namespace {

using Data = Evidence::Data;
using test::all_rules;
using test::cuts;
using test::equation;
using test::f32;
using test::i64;
using test::Ints;
using test::node;
using test::Rules;
using test::sums;

// ---- a user's own ops: a shape rule and a reference kernel, nothing else

using Function =
    std::function<void(const std::vector<Shape>&, const std::vector<const double*>&, double*)>;

/// An op that computes in f64 only.
void register_user_op(const std::string& name,
                      std::function<Shape(std::span<const TensorType>)> shape, Function f) {
  OpDef def;
  def.name = name;
  def.infer = [shape](const Node&, std::span<const TensorType> in) -> std::vector<TensorType> {
    return {{in[0].dtype, shape(in)}};
  };
  register_op(std::move(def));
  KernelImpl impl;
  impl.op = name;
  impl.name = "reference";
  impl.prepare = [f](const KernelCall& call) {
    std::vector<Shape> shapes;
    for (const TensorType& t : call.in) shapes.push_back(t.shape);
    PreparedKernel kernel;
    kernel.run = [f, shapes](const KernelArgs& args) {
      std::vector<const double*> in;
      for (const TensorView& v : args.in) in.push_back(v.as<double>());
      f(shapes, in, args.out[0].as<double>());
    };
    return kernel;
  };
  register_reference_kernel(std::move(impl));
}

Shape same_shape(std::span<const TensorType> in) { return in[0].shape; }
Shape scalar_shape(std::span<const TensorType>) { return {}; }

TEST(Discovery, FindsTheRuleOfAUsersOp) {
  // y[i, k] = sum_j relu(x[i, j]) * w[k, j]: a matmul that is linear in w only.
  register_user_op(
      "test_relu_matmul",
      [](std::span<const TensorType> in) -> Shape {
        SR_REQUIRE(in[0].shape[1] == in[1].shape[1], invalid_input, "contraction sizes differ");
        return {in[0].shape[0], in[1].shape[0]};
      },
      [](const std::vector<Shape>& s, const std::vector<const double*>& in, double* out) {
        for (int64_t i = 0; i < s[0][0]; ++i) {
          for (int64_t k = 0; k < s[1][0]; ++k) {
            double sum = 0;
            for (int64_t j = 0; j < s[0][1]; ++j)
              sum += std::max(0.0, in[0][i * s[0][1] + j]) * in[1][k * s[0][1] + j];
            out[i * s[1][0] + k] = sum;
          }
        }
      });
  EXPECT_EQ(all_rules("test_relu_matmul", {}, {f32({512, 64}), f32({128, 64})}),
            (Rules{"[S0, -] -> [S0]", "[-, S0] -> [S1]", "[S1, S1] -> [P(sum)]",
                   "[-, P(sum)] -> [P(sum)]"}));
}

// Each of these would be believed on weaker evidence, and is not a rule.

Evidence weaker(std::vector<Data> data) {
  Evidence e;
  e.data = std::move(data);
  return e;
}

TEST(DiscoveryFakes, ZerosSumToZero) {
  const std::vector<TensorType> x = {f32({9})};
  EXPECT_EQ(sums("tanh", {}, x, weaker({Data::zeros})).size(),
            0u);  // all results identical: says nothing
  const std::vector<TensorType> matrix = {f32({16, 32})};
  const Attrs axis = {{"axes", Ints{0}}, {"keepdims", int64_t{0}}};
  EXPECT_EQ(cuts("reduce_prod", axis, matrix, weaker({Data::zeros})).count("[S0] -> [-]"), 1u);
  EXPECT_EQ(cuts("reduce_prod", axis, matrix), (Rules{"[S0] -> [P(prod)]", "[S1] -> [S0]"}));
}

TEST(DiscoveryFakes, PositiveDataHidesWhatHappensBelowZero) {
  // relu is the identity on positive data; abs too. A maximum that starts at 0 is another story on
  // negative data.
  for (const char* op : {"relu", "abs"}) {
    EXPECT_EQ(sums(op, {}, {f32({9})}, weaker({Data::positive})), (Rules{"[P(sum)] -> [P(sum)]"}))
        << op;
    EXPECT_EQ(sums(op, {}, {f32({9})}), Rules{}) << op;
  }
  // y = max(x) over what a rank holds, but the first rank's kernel pads to 3 elements with zeros.
  register_user_op(
      "test_padded_max", scalar_shape,
      [](const std::vector<Shape>& s, const std::vector<const double*>& in, double* out) {
        out[0] = s[0][0] < 3 ? 0 : in[0][0];
        for (int64_t i = 0; i < s[0][0]; ++i) out[0] = std::max(out[0], in[0][i]);
      });
  EXPECT_EQ(cuts("test_padded_max", {}, {f32({64})}, weaker({Data::positive})),
            (Rules{"[S0] -> [P(max)]"}));
  EXPECT_EQ(cuts("test_padded_max", {}, {f32({64})}), Rules{});
}

TEST(DiscoveryFakes, RoundingHidesAWeakCoupling) {
  // Each element depends on all others, a little: within 1e-5, not within 1e-9.
  register_user_op(
      "test_weak_coupling", same_shape,
      [](const std::vector<Shape>& s, const std::vector<const double*>& in, double* out) {
        double sum = 0;
        for (int64_t i = 0; i < s[0][0]; ++i) sum += in[0][i];
        for (int64_t i = 0; i < s[0][0]; ++i) out[i] = in[0][i] * (1 + 1e-8 * sum * sum);
      });
  Evidence close = weaker({Data::mixed, Data::negative, Data::positive});
  close.tolerance = 1e-5;
  EXPECT_EQ(cuts("test_weak_coupling", {}, {f32({64})}, close), (Rules{"[S0] -> [S0]"}));
  EXPECT_EQ(cuts("test_weak_coupling", {}, {f32({64})}), Rules{});
}

TEST(DiscoveryFakes, OneShardCount) {
  // sum(x) where at most half is missing, else twice: right for halves, wrong for thirds.
  register_user_op(
      "test_half_sum", scalar_shape,
      [](const std::vector<Shape>& s, const std::vector<const double*>& in, double* out) {
        out[0] = 0;
        for (int64_t i = 0; i < s[0][0]; ++i) out[0] += in[0][i];
        if (s[0][0] == 2) out[0] *= 2;
      });
  Evidence halves;
  halves.shards = {2};
  halves.size_sets = {1};  // size 6: halves of 3, thirds of 2
  EXPECT_EQ(cuts("test_half_sum", {}, {f32({64})}, halves), (Rules{"[S0] -> [P(sum)]"}));
  halves.shards = {2, 3};
  EXPECT_EQ(cuts("test_half_sum", {}, {f32({64})}, halves), Rules{});
  EXPECT_EQ(cuts("test_half_sum", {}, {f32({64})}), Rules{});
}

TEST(DiscoveryFakes, OneSize) {
  // y[i] = x[i] - x[i ^ 1] within pairs: shards of 6 by 3 keep pairs together, shards of 5 by 2 do
  // not.
  register_user_op(
      "test_pairs", same_shape,
      [](const std::vector<Shape>& s, const std::vector<const double*>& in, double* out) {
        for (int64_t i = 0; i < s[0][0]; ++i) {
          const int64_t other = i ^ 1;
          out[i] = in[0][i] - (other < s[0][0] ? in[0][other] : 0);
        }
      });
  Evidence one_size;
  one_size.size_sets = {1};
  one_size.shards = {3};
  EXPECT_EQ(cuts("test_pairs", {}, {f32({64})}, one_size), (Rules{"[S0] -> [S0]"}));
  EXPECT_EQ(cuts("test_pairs", {}, {f32({64})}), Rules{});
}

/// A stride of 2 and a padding of 3 make 7 rows of 7, but 9 of 11: with small images of equal sizes
/// shards would seem to line up.
TEST(DiscoveryFakes, SmallImagesOfEqualSizes) {
  const Attrs attrs{
      {"strides", Ints{2}}, {"dilations", Ints{1}}, {"pads_low", Ints{3}}, {"kernel", Ints{1}}};
  const Rules rules = cuts("conv_weight_grad", attrs, {f32({1, 3, 1, 11}), f32({1, 3, 1, 9})});
  EXPECT_EQ(rules.count("[S3, S3] -> [P(sum)]"), 0u);
  EXPECT_EQ(rules.count("[S3{halo 3,-4 stride 2}, S3] -> [P(sum)]"), 1u);
}

/// Summed places of maxima are right where no window is cut through.
TEST(DiscoveryFakes, CutsBetweenWindows) {
  const Attrs attrs{{"kernel", Ints{2}},
                    {"strides", Ints{2}},
                    {"dilations", Ints{1}},
                    {"pads_low", Ints{2}},
                    {"pads_high", Ints{2}}};
  for (int64_t size : {5, 7, 11, 12, 24}) {
    const Rules rules = cuts("max_pool", attrs, {f32({1, 2, size})});
    EXPECT_EQ(rules.count("[S2] -> [P(max), P(sum)]"), 0u) << size;
    EXPECT_EQ(rules.count("[S2{halo 2,-2 stride 2}] -> [S2, S2]"), 1u) << size;
  }
}

TEST(DiscoveryFakes, ScalarsAreLookedAtOften) {
  // round(a) + round(b) = round(a + b) for some pairs of numbers.
  EXPECT_EQ(sums("round", {}, {f32({})}), Rules{});
  EXPECT_EQ(sums("floor", {}, {f32({})}), Rules{});
  EXPECT_EQ(sums("sign", {}, {f32({})}), Rules{});
}

// ---- cost and caching

TEST(Discovery, CostDoesNotGrowWithSizes) {
  const Node n = node("matmul", equation("bij,jk->bik"));
  const std::vector<TensorType> small = {f32({8, 32, 16}), f32({16, 64})},
                                large = {f32({64, 2048, 4096}), f32({4096, 50304})};
  const SpmdRule a = discover(n, small), b = discover(n, large);
  EXPECT_EQ(a.kernel_runs, b.kernel_runs);
  EXPECT_EQ(a.options, b.options);
  EXPECT_LT(a.kernel_runs, 1000);
}

/// The steps of an unrolled recurrent layer are joined by a concat of as many operands, and its
/// gradient is a split: neither may cost runs, or have options, by their pairs.
TEST(Discovery, OfManyOperandsAndResults) {
  constexpr int kMany = 300;
  const SpmdRule concat =
      discover(node("concat", {{"axis", int64_t{0}}}), std::vector(kMany, f32({1, 8, 64})));
  const SpmdRule split = discover(node("split", {{"axis", int64_t{0}}, {"sizes", Ints(kMany, 1)}}),
                                  std::vector{f32({kMany, 8, 64})});
  for (const SpmdRule* rule : {&concat, &split}) {
    for (const Placement& p :
         {Placement::shard(1), Placement::shard(2), Placement::partial(ReduceOp::sum)}) {
      EXPECT_EQ(std::count_if(rule->options.begin(), rule->options.end(),
                              [&](const SpmdRule::Option& o) {
                                const auto is_p = [&](const Placement& q) { return q == p; };
                                return std::all_of(o.in.begin(), o.in.end(), is_p) &&
                                       std::all_of(o.out.begin(), o.out.end(), is_p);
                              }),
                1);
    }
    EXPECT_LT(rule->options.size(), 10u);
    EXPECT_LT(rule->kernel_runs, 10 * kMany);
  }
}

/// A dense block's last concat has 25 images: trials with the sizes of an ordinary op would have
/// 95,000 numbers.
TEST(Discovery, TrialsOfManyOperandsStaySmall) {
  const Node concat = node("concat", {{"axis", int64_t{1}}});
  std::vector<TensorType> images(25, f32({8, 32, 16, 16}));
  images[0] = f32({8, 64, 16, 16});
  const std::vector<SmallNode> trials = small_nodes(concat, images, {0, 1}, true);
  ASSERT_EQ(trials.size(), 2u);
  for (const SmallNode& trial : trials) {
    int64_t numbers = 0;
    for (const TensorType& t : trial.in) numbers += element_count(t.shape);
    for (const TensorType& t : trial.out) numbers += element_count(t.shape);
    EXPECT_LT(numbers, 16'000);
  }
}

/// The first layer of a network for films. With the sizes of an ordinary op its trials would take
/// hundreds of times the arithmetic; of three windows and five, the latter tell a stride.
TEST(Discovery, TrialsOfLongRunsAreLean) {
  const Attrs attrs{{"strides", Ints{1, 2, 2}},
                    {"dilations", Ints{1, 1, 1}},
                    {"pads_low", Ints{1, 3, 3}},
                    {"pads_high", Ints{1, 3, 3}}};
  const std::vector<TensorType> in = {f32({4, 3, 16, 112, 112}), f32({64, 3, 3, 7, 7})};
  const std::vector<SmallNode> trials = small_nodes(node("conv", attrs), in, {0, 1}, true);
  ASSERT_EQ(trials.size(), 2u);
  for (const SmallNode& trial : trials) {
    EXPECT_LT(op_def("conv").flops(trial.node, trial.in, trial.out), 2e7);
    EXPECT_EQ(trial.in[1].shape[3], 7);  // halos stay as wide
  }
  EXPECT_GE(std::max(trials[0].out[0].shape[3], trials[1].out[0].shape[3]), 5);
  const Rules rules = cuts("conv", attrs, in);
  for (const char* wanted :
       {"[S0, -] -> [S0]", "[-, S0] -> [S1]", "[S1, S1] -> [P(sum)]", "[S2{halo 1,1}, -] -> [S2]",
        "[S3{halo 3,2 stride 2}, -] -> [S3]", "[S3, -] -> [S3{add 1,2 stride 1/2}]"})
    EXPECT_EQ(rules.count(wanted), 1u) << wanted;
}

/// How rows of images go with each other is looked at with two samples and two channels.
TEST(Discovery, DependenceIsSeenInThinTrials) {
  const Node conv = node("conv", {{"strides", Ints{1}},
                                  {"dilations", Ints{1}},
                                  {"pads_low", Ints{1}},
                                  {"pads_high", Ints{1}}});
  const std::vector<TensorType> in = {f32({8, 16, 100}), f32({24, 16, 3})};
  const std::vector<SpmdRule::Option> options = discover(conv, in).options;
  const Trials trials(conv, in, {});
  const int runs = trials.kernel_runs();
  const std::vector<NodeDim> images = {{false, 0, 2}, {false, 1, 2}};
  const Trials thin = trials.thinned(options, images);
  ASSERT_EQ(thin.count(), trials.count());
  for (size_t t = 0; t < thin.count(); ++t) {
    const SmallNode &small = thin.small(t), &whole = trials.small(t);
    EXPECT_EQ(small.in[0].shape, (Shape{2, 2, whole.in[0].shape[2]}));
    EXPECT_EQ(small.in[1].shape, (Shape{2, 2, 3}));
    EXPECT_EQ(small.out[0].shape, (Shape{2, 2, whole.out[0].shape[2]}));
  }
  EXPECT_GT(trials.kernel_runs(), runs);  // those of the thin ones are counted, too
  // What is to stay whole stays so in everything that is cut with it.
  const Trials with_samples = trials.thinned(options, {{false, 0, 0}});
  EXPECT_EQ(with_samples.first().in[0].shape[0], trials.first().in[0].shape[0]);
  EXPECT_EQ(with_samples.first().out[0].shape[0], trials.first().out[0].shape[0]);
}

TEST(RuleCache, KeysOnEqualitiesAndOnesOnly) {
  RuleCache cache;
  const Node add = node("add");
  const std::vector<TensorType> a = {f32({16, 32}), f32({32})}, b = {f32({512, 768}), f32({768})},
                                equal = {f32({32, 32}), f32({32})}, one = {f32({1, 32}), f32({32})};
  EXPECT_EQ(&cache.rule(add, a), &cache.rule(add, b));
  EXPECT_EQ(cache.distinct_rules(), 1);
  const int runs = cache.kernel_runs();
  EXPECT_NE(rule_key(add, a), rule_key(add, equal));
  EXPECT_NE(rule_key(add, a), rule_key(add, one));
  cache.rule(add, b);
  EXPECT_EQ(cache.kernel_runs(), runs);
  // Attributes that carry sizes or name a random stream do not make another rule; others do.
  auto dropout = [](int64_t key, int64_t rows, double p) {
    return node("dropout", {{"p", p},
                            {"key", key},
                            {"seed", int64_t{1}},
                            {"global_shape", Ints{rows, 48}},
                            {"start", Ints{0, 0}}});
  };
  EXPECT_EQ(rule_key(dropout(1, 64, 0.5), std::vector{f32({64, 48}), i64({})}),
            rule_key(dropout(2, 80, 0.5), std::vector{f32({80, 48}), i64({})}));
  EXPECT_NE(rule_key(dropout(1, 64, 0.5), std::vector{f32({64, 48}), i64({})}),
            rule_key(dropout(1, 64, 0.25), std::vector{f32({64, 48}), i64({})}));
}

TEST(Discovery, IsQuickOverTheWholeRegistry) {
  const auto start = std::chrono::steady_clock::now();
  int rules = 0, options = 0, runs = 0;
  std::pair<double, std::string> slowest;
  for (const OpDef* def : all_ops()) {
    if (def->samples.empty()) continue;
    const auto op_start = std::chrono::steady_clock::now();
    const SpmdRule rule = discover(node(def->name, def->samples[0].attrs), def->samples[0].in);
    ++rules;
    options += static_cast<int>(rule.options.size());
    runs += rule.kernel_runs;
    slowest = std::max(
        slowest,
        {std::chrono::duration<double>(std::chrono::steady_clock::now() - op_start).count(),
         def->name});
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%d rules with %d options from %d kernel runs in %.3f s; the slowest: %s, %.3f s\n",
              rules, options, runs, seconds, slowest.second.c_str(), slowest.first);
  EXPECT_LT(runs, 410 * rules);
}

}  // namespace
}  // namespace shardrun
