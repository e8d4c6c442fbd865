// ShardCombine's rules against those that a person would write, op by op.
#include "planner/rules/discovery.h"

#include <gtest/gtest.h>

#include "tests/planner/rules/rule_texts.h"

namespace shardrun {
namespace {

using test::all_rules;
using test::cuts;
using test::equation;
using test::f32;
using test::i64;
using test::Ints;
using test::node;
using test::Rules;
using test::sums;

TEST(Discovery, Matmul) {
  const Rules linear = {"[P(sum), -] -> [P(sum)]", "[-, P(sum)] -> [P(sum)]"};
  const std::vector<TensorType> distinct = {f32({64, 48}), f32({48, 80})};
  EXPECT_EQ(cuts("matmul", equation("ij,jk->ik"), distinct),
            (Rules{"[S0, -] -> [S0]", "[-, S1] -> [S1]", "[S1, S0] -> [P(sum)]"}));
  EXPECT_EQ(sums("matmul", equation("ij,jk->ik"), distinct), linear);
  // Square: nothing is lost or won by dims that happen to be equal.
  EXPECT_EQ(cuts("matmul", equation("ij,jk->ik"), {f32({64, 64}), f32({64, 64})}),
            (Rules{"[S0, -] -> [S0]", "[-, S1] -> [S1]", "[S1, S0] -> [P(sum)]"}));
  // x w^T over batches; the gradient of w, summed over batch and rows; heads.
  EXPECT_EQ(
      cuts("matmul", equation("bij,kj->bik"), {f32({8, 32, 48}), f32({80, 48})}),
      (Rules{"[S0, -] -> [S0]", "[S1, -] -> [S1]", "[-, S0] -> [S2]", "[S2, S1] -> [P(sum)]"}));
  EXPECT_EQ(cuts("matmul", equation("bij,bik->jk"), {f32({8, 32, 48}), f32({8, 32, 80})}),
            (Rules{"[S0, S0] -> [P(sum)]", "[S1, S1] -> [P(sum)]", "[S2, -] -> [S0]",
                   "[-, S2] -> [S1]"}));
  EXPECT_EQ(cuts("matmul", equation("bhid,bhjd->bhij"), {f32({8, 4, 32, 16}), f32({8, 4, 32, 16})}),
            (Rules{"[S0, S0] -> [S0]", "[S1, S1] -> [S1]", "[S2, -] -> [S2]", "[-, S2] -> [S3]",
                   "[S3, S3] -> [P(sum)]"}));
}

TEST(Discovery, ElementwiseWithBroadcasting) {
  const Rules max_min = {"[P(max), -] -> [P(max)]", "[-, P(max)] -> [P(max)]",
                         "[P(min), -] -> [P(min)]", "[-, P(min)] -> [P(min)]"};
  Rules want = {"[S0, S0] -> [S0]", "[S1, S1] -> [S1]", "[P(sum), P(sum)] -> [P(sum)]"};
  want.insert(max_min.begin(), max_min.end());
  EXPECT_EQ(all_rules("add", {}, {f32({8, 6}), f32({8, 6})}), want);
  EXPECT_EQ(cuts("add", {}, {f32({16, 32}), f32({32})}),
            (Rules{"[S0, -] -> [S0]", "[S1, S0] -> [S1]"}));
  EXPECT_EQ(cuts("add", {}, {f32({16, 16}), f32({16})}),
            (Rules{"[S0, -] -> [S0]", "[S1, S0] -> [S1]"}));
  EXPECT_EQ(cuts("mul", {}, {f32({16, 1}), f32({16, 32})}),
            (Rules{"[S0, S0] -> [S0]", "[-, S1] -> [S1]"}));
  EXPECT_EQ(cuts("mul", {}, {f32({16, 1}), f32({1, 32})}),
            (Rules{"[S0, -] -> [S0]", "[-, S1] -> [S1]"}));
  EXPECT_EQ(sums("mul", {}, {f32({16, 32}), f32({})}),
            (Rules{"[P(sum), -] -> [P(sum)]", "[-, P(sum)] -> [P(sum)]"}));
  EXPECT_EQ(sums("div", {}, {f32({16, 32}), f32({16, 32})}), (Rules{"[P(sum), -] -> [P(sum)]"}));
  EXPECT_EQ(all_rules("neg", {}, {f32({9})}),
            (Rules{"[S0] -> [S0]", "[P(sum)] -> [P(sum)]", "[P(max)] -> [P(min)]",
                   "[P(min)] -> [P(max)]"}));
  EXPECT_EQ(all_rules("exp", {}, {f32({9})}),
            (Rules{"[S0] -> [S0]", "[P(max)] -> [P(max)]", "[P(min)] -> [P(min)]"}));
  EXPECT_EQ(all_rules("gelu", {{"approximate", std::string("tanh")}}, {f32({9})}),
            (Rules{"[S0] -> [S0]"}));
  EXPECT_EQ(all_rules("less", {}, {f32({9}), f32({9})}), (Rules{"[S0, S0] -> [S0]"}));
  EXPECT_EQ(all_rules("equal", {}, {i64({9}), i64({9})}), (Rules{"[S0, S0] -> [S0]"}));
  EXPECT_EQ(all_rules("isnan", {}, {f32({9})}), (Rules{"[S0] -> [S0]"}));
  const TensorType cond{DType::boolean, {8, 6}};
  EXPECT_EQ(cuts("where", {}, {cond, f32({8, 6}), f32({})}),
            (Rules{"[S0, S0, -] -> [S0]", "[S1, S1, -] -> [S1]"}));
  EXPECT_EQ(sums("where", {}, {cond, f32({8, 6}), f32({})}),
            (Rules{"[-, P(sum), P(sum)] -> [P(sum)]"}));
  // clip is not linear even if its bounds lie far beyond ordinary data.
  EXPECT_EQ(sums("clip", {{"min", -1000.0}, {"max", 1000.0}}, {f32({9})}), Rules{});
  // Rounding to bf16 is not linear; widening is.
  EXPECT_EQ(sums("cast", {{"to", std::string("bf16")}}, {f32({9})}), Rules{});
  EXPECT_EQ(sums("cast", {{"to", std::string("f32")}}, {{DType::bf16, {9}}}),
            (Rules{"[P(sum)] -> [P(sum)]"}));
}

TEST(Discovery, Softmax) {
  EXPECT_EQ(all_rules("softmax", {{"axis", int64_t{2}}}, {f32({4, 16, 32})}),
            (Rules{"[S0] -> [S0]", "[S1] -> [S1]"}));
  EXPECT_EQ(cuts("softmax", {{"axis", int64_t{1}}}, {f32({32, 32})}), (Rules{"[S0] -> [S0]"}));
  const std::vector<TensorType> in = {f32({4, 16, 32}), f32({4, 16, 32})};
  EXPECT_EQ(cuts("softmax_grad", {{"axis", int64_t{2}}}, in),
            (Rules{"[S0, S0] -> [S0]", "[S1, S1] -> [S1]"}));
  EXPECT_EQ(sums("softmax_grad", {{"axis", int64_t{2}}}, in), (Rules{"[P(sum), -] -> [P(sum)]"}));
}

TEST(Discovery, LayerNorm) {
  const Attrs attrs = {{"axis", int64_t{2}}, {"eps", 1e-5}};
  const TensorType x = f32({4, 16, 32}), scale = f32({32}), statistics = f32({4, 16});
  EXPECT_EQ(cuts("layer_norm", attrs, {x, scale, scale}),
            (Rules{"[S0, -, -] -> [S0, S0, S0]", "[S1, -, -] -> [S1, S1, S1]"}));
  EXPECT_EQ(cuts("layer_norm_grad", attrs, {x, x, scale, statistics, statistics}),
            (Rules{"[S0, S0, -, S0, S0] -> [S0, P(sum), P(sum)]",
                   "[S1, S1, -, S1, S1] -> [S1, P(sum), P(sum)]"}));
  EXPECT_EQ(sums("layer_norm_grad", attrs, {x, x, scale, statistics, statistics}),
            (Rules{"[P(sum), -, -, -, -] -> [P(sum), P(sum), P(sum)]",
                   "[-, -, P(sum), -, -] -> [P(sum), -, -]"}));
  EXPECT_EQ(cuts("rms_norm_grad", attrs, {x, x, scale, statistics}),
            (Rules{"[S0, S0, -, S0] -> [S0, P(sum)]", "[S1, S1, -, S1] -> [S1, P(sum)]"}));
}

TEST(Discovery, Reductions) {
  const Attrs attrs = {{"axes", Ints{1}}, {"keepdims", int64_t{0}}};
  const std::vector<TensorType> in = {f32({4, 16, 32})};
  EXPECT_EQ(all_rules("reduce_sum", attrs, in),
            (Rules{"[S0] -> [S0]", "[S1] -> [P(sum)]", "[S2] -> [S1]", "[P(sum)] -> [P(sum)]"}));
  EXPECT_EQ(all_rules("reduce_max", attrs, in),
            (Rules{"[S0] -> [S0]", "[S1] -> [P(max)]", "[S2] -> [S1]", "[P(max)] -> [P(max)]"}));
  EXPECT_EQ(all_rules("reduce_min", attrs, in),
            (Rules{"[S0] -> [S0]", "[S1] -> [P(min)]", "[S2] -> [S1]", "[P(min)] -> [P(min)]"}));
  EXPECT_EQ(all_rules("reduce_prod", attrs, in),
            (Rules{"[S0] -> [S0]", "[S1] -> [P(prod)]", "[S2] -> [S1]"}));
  EXPECT_EQ(cuts("reduce_sum", {{"axes", Ints{0, 1}}, {"keepdims", int64_t{1}}}, in),
            (Rules{"[S0] -> [P(sum)]", "[S1] -> [P(sum)]", "[S2] -> [S2]"}));
  // A mean is a sum times 1 over the global count, so it passes partial sums on.
  EXPECT_EQ(all_rules("mul", {}, {f32({4, 32}), f32({})}),
            (Rules{"[S0, -] -> [S0]", "[S1, -] -> [S1]", "[P(sum), -] -> [P(sum)]",
                   "[-, P(sum)] -> [P(sum)]"}));
  EXPECT_EQ(all_rules("reduce_sum_squares", {}, {f32({16, 32})}),
            (Rules{"[S0] -> [P(sum)]", "[S1] -> [P(sum)]"}));
  EXPECT_EQ(
      all_rules("argmax",
                {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}},
                in),
      (Rules{"[S0] -> [S0]", "[S2] -> [S1]"}));
  EXPECT_EQ(cuts("cumsum",
                 {{"axis", int64_t{1}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}}, in),
            (Rules{"[S0] -> [S0]", "[S2] -> [S2]"}));
}

TEST(Discovery, Movement) {
  EXPECT_EQ(all_rules("transpose", {{"perm", Ints{0, 2, 1}}}, {f32({4, 16, 32})}),
            (Rules{"[S0] -> [S0]", "[S1] -> [S2]", "[S2] -> [S1]", "[P(sum)] -> [P(sum)]",
                   "[P(max)] -> [P(max)]", "[P(min)] -> [P(min)]"}));
  EXPECT_EQ(cuts("concat", {{"axis", int64_t{1}}}, {f32({16, 32}), f32({16, 32})}),
            (Rules{"[S0, S0] -> [S0]", "[S1, S1] -> [S1{block 2}]"}));
  EXPECT_EQ(sums("concat", {{"axis", int64_t{1}}}, {f32({16, 32}), f32({16, 8})}),
            (Rules{"[P(sum), P(sum)] -> [P(sum)]"}));
  EXPECT_EQ(cuts("concat", {{"axis", int64_t{0}}}, std::vector<TensorType>(20, f32({16, 32})))
                .count("[S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, S1, "
                       "S1, S1] -> [S1]"),
            1u);
  const Rules slice =
      cuts("slice", {{"starts", Ints{2, 0}}, {"ends", Ints{6, 32}}, {"steps", Ints{1, 1}}},
           {f32({8, 32})});
  EXPECT_EQ(slice.count("[S1] -> [S1]"), 1u);
  EXPECT_EQ(slice.count("[S0] -> [S0]"), 0u);  // the ranks' rows of [2, 6) are not equal shards
  const Rules expand = cuts("expand", {{"shape", Ints{16, 32}}}, {f32({1, 32})});
  EXPECT_EQ(expand, (Rules{"[S1] -> [S1]", "[-] -> [S0]"}));
  EXPECT_EQ(
      cuts("iota", {{"shape", Ints{16, 32}}, {"dtype", std::string("f32")}, {"axis", int64_t{1}}},
           {}),
      (Rules{"[] -> [S0]", "[] -> [S1]"}));
}

TEST(Discovery, Reshape) {
  auto rules = [](Shape from, Shape to) {
    Rules out;
    for (const auto& option : reshape_rule(from, to).options) {
      if (option.in[0].kind == Placement::Kind::shard) out.insert(to_string(option));
    }
    return out;
  };
  EXPECT_EQ(rules({8, 16, 12}, {128, 12}),
            (Rules{"[S0] -> [S0] if parts divide 8", "[S2] -> [S1]"}));
  EXPECT_EQ(rules({8, 16, 12}, {8, 16, 3, 4}),
            (Rules{"[S0] -> [S0]", "[S1] -> [S1]", "[S2] -> [S2] if parts divide 3"}));
  EXPECT_EQ(rules({8, 16, 12}, {8, 192}),
            (Rules{"[S0] -> [S0]", "[S1] -> [S1] if parts divide 16"}));
  EXPECT_EQ(rules({8, 1, 12}, {1, 8, 12}), (Rules{"[S0] -> [S1]", "[S2] -> [S2]"}));
  EXPECT_EQ(rules({6, 4}, {4, 6}), (Rules{"[S0] -> [S0] if parts divide 2"}));
  EXPECT_EQ(rules({5, 3}, {3, 5}), Rules{});
  EXPECT_EQ(rules({1}, {}), Rules{});
  EXPECT_EQ(sums("reshape", {{"shape", Ints{48}}}, {f32({8, 6})}), (Rules{"[P(sum)] -> [P(sum)]"}));
}

TEST(Discovery, EmbeddingAndItsGradient) {
  const Attrs gather = {{"axis", int64_t{0}}};
  const std::vector<TensorType> in = {f32({256, 32}), i64({4, 16})};
  // A vocabulary cut over the ranks: each looks up its own rows, and the results sum.
  EXPECT_EQ(cuts("gather", gather, in), (Rules{"[S0, -] -> [P(sum)]", "[S1, -] -> [S2]",
                                               "[-, S0] -> [S0]", "[-, S1] -> [S1]"}));
  EXPECT_EQ(sums("gather", gather, in), (Rules{"[P(sum), -] -> [P(sum)]"}));
  const Attrs grad = {{"axis", int64_t{0}}, {"size", int64_t{256}}};
  const std::vector<TensorType> grad_in = {f32({4, 16, 32}), i64({4, 16})};
  EXPECT_EQ(
      cuts("gather_grad", grad, grad_in),
      (Rules{"[S0, S0] -> [P(sum)]", "[S1, S1] -> [P(sum)]", "[S2, -] -> [S1]", "[-, -] -> [S0]"}));
  EXPECT_EQ(sums("gather_grad", grad, grad_in), (Rules{"[P(sum), -] -> [P(sum)]"}));
}

/// Scores of 50 edges and 6 heads over the segments of 20 nodes. Tables with a row for each node
/// are reduced over ranks that have edges, and serve ranks that have nodes; whole, no segment is
/// cut.
TEST(Discovery, SoftmaxOverSegmentsIsCutByEdgesInPieces) {
  const TensorType x = f32({50, 6}), table = f32({20, 6}), rows = i64({50});
  const Attrs size = {{"size", int64_t{20}}};
  EXPECT_EQ(cuts("segment_max", size, {x, rows}),
            (Rules{"[S0, S0] -> [P(max)]", "[S1, -] -> [S1]", "[-, -] -> [S0]"}));
  EXPECT_EQ(cuts("segment_exp_sum", {}, {x, table, rows}),
            (Rules{"[S0, -, S0] -> [P(sum)]", "[S1, S1, -] -> [S1]", "[-, S0, -] -> [S0]"}));
  EXPECT_EQ(cuts("segment_softmax", {}, {x, table, table, rows}),
            (Rules{"[S0, -, -, S0] -> [S0]", "[S1, S1, S1, -] -> [S1]"}));
  EXPECT_EQ(cuts("segment_softmax_grad", {}, {x, x, table, rows}),
            (Rules{"[S0, S0, -, S0] -> [S0]", "[S1, S1, S1, -] -> [S1]"}));
  EXPECT_EQ(cuts("segment_softmax", size, {x, rows}), (Rules{"[S1, -] -> [S1]"}));
  EXPECT_EQ(cuts("segment_softmax_grad", size, {x, x, rows}), (Rules{"[S1, S1, -] -> [S1]"}));
}

/// A graph's messages: nodes [20, 6] and edges [50, 6], six heads. A rank that holds some nodes
/// writes and reads these alone; one that holds some edges reduces them.
TEST(Discovery, ElementsAreGatheredAndScatteredOverNodesEdgesAndHeads) {
  const std::vector<TensorType> in = {f32({20, 6}), i64({50, 6}), f32({50, 6})};
  for (const char* reduction : {"max", "min"}) {
    const Attrs scatter = {{"axis", int64_t{0}}, {"reduction", std::string(reduction)}};
    EXPECT_EQ(cuts("scatter_elements", scatter, in),
              (Rules{"[S0, -, -] -> [S0]", "[S1, S1, S1] -> [S1]",
                     std::string("[-, S0, S0] -> [P(") + reduction + ")]"}));
  }
  const Attrs add = {{"axis", int64_t{0}}, {"reduction", std::string("add")}};
  EXPECT_EQ(cuts("scatter_elements", add, in),
            (Rules{"[S0, -, -] -> [S0]", "[S1, S1, S1] -> [S1]"}));
  // One of the ranks that hold some edges has the data.
  EXPECT_EQ(sums("scatter_elements", add, in),
            (Rules{"[P(sum), S0, S0] -> [P(sum)]", "[P(sum), -, P(sum)] -> [P(sum)]"}));
  EXPECT_EQ(cuts("gather_elements", {{"axis", int64_t{0}}}, {f32({20, 6}), i64({50, 6})}),
            (Rules{"[S0, -] -> [P(sum)]", "[-, S0] -> [S0]", "[S1, S1] -> [S1]"}));
}

/// A rank that has nothing to say of a maximum holds -inf: x / (1 + |x|) grows with x, and is NaN
/// there.
TEST(Discovery, MaximaPassWhatTakesTheirIdentity) {
  EXPECT_EQ(all_rules("tanh", {}, {f32({9})}),
            (Rules{"[S0] -> [S0]", "[P(max)] -> [P(max)]", "[P(min)] -> [P(min)]"}));
  EXPECT_EQ(all_rules("softsign", {}, {f32({9})}), (Rules{"[S0] -> [S0]"}));
}

TEST(Discovery, CrossEntropy) {
  const TensorType logits = f32({4, 16, 256}), labels = i64({4, 16}), loss = f32({4, 16});
  EXPECT_EQ(cuts("cross_entropy", {}, {logits, labels}),
            (Rules{"[S0, S0] -> [S0, S0]", "[S1, S1] -> [S1, S1]"}));
  EXPECT_EQ(sums("cross_entropy", {}, {logits, labels}), Rules{});
  const std::vector<TensorType> in = {loss, logits, labels, loss};
  // Given the log of the sum of exponentials, the classes are independent.
  EXPECT_EQ(
      cuts("cross_entropy_grad", {}, in),
      (Rules{"[S0, S0, S0, S0] -> [S0]", "[S1, S1, S1, S1] -> [S1]", "[-, S2, -, -] -> [S2]"}));
  EXPECT_EQ(sums("cross_entropy_grad", {}, in), (Rules{"[P(sum), -, -, -] -> [P(sum)]"}));
}

/// What split_losses makes of one: ranks that have some of the classes have a maximum of maxima,
/// and a summand of the sums.
TEST(Discovery, CrossEntropyInPartsIsCutByClasses) {
  const TensorType logits = f32({4, 16, 256}), labels = i64({4, 16}), each = f32({4, 16}),
                   pair = f32({4, 16, 2});
  EXPECT_EQ(cuts("reduce_max", {{"axes", Ints{2}}, {"keepdims", int64_t{0}}}, {logits}),
            (Rules{"[S0] -> [S0]", "[S1] -> [S1]", "[S2] -> [P(max)]"}));
  EXPECT_EQ(cuts("cross_entropy_sums", {{"classes", int64_t{256}}}, {logits, labels, each}),
            (Rules{"[S0, S0, S0] -> [S0]", "[S1, S1, S1] -> [S1]", "[S2, -, -] -> [P(sum)]"}));
  EXPECT_EQ(cuts("cross_entropy_join", {}, {labels, each, pair}),
            (Rules{"[S0, S0, S0] -> [S0, S0]", "[S1, S1, S1] -> [S1, S1]"}));
  EXPECT_EQ(sums("cross_entropy_sums", {{"classes", int64_t{256}}}, {logits, labels, each}),
            Rules{});
}

TEST(Discovery, Attention) {
  const Attrs attrs = {{"scale", 0.125}, {"causal", int64_t{1}}};
  const TensorType q = f32({8, 4, 64, 16}), lse = f32({8, 4, 64});
  EXPECT_EQ(cuts("attention", attrs, {q, q, q}),
            (Rules{"[S0, S0, S0] -> [S0, S0]", "[S1, S1, S1] -> [S1, S1]", "[S2, -, -] -> [S2, S2]",
                   "[-, -, S3] -> [S3, -]"}));
  EXPECT_EQ(sums("attention", attrs, {q, q, q}), (Rules{"[-, -, P(sum)] -> [P(sum), -]"}));
  // dy, q, k, v, y, lse. With lse given, keys are independent; dq sums over them.
  EXPECT_EQ(
      cuts("attention_grad", attrs, {q, q, q, q, q, lse}),
      (Rules{"[S0, S0, S0, S0, S0, S0] -> [S0, S0, S0]", "[S1, S1, S1, S1, S1, S1] -> [S1, S1, S1]",
             "[S2, S2, -, -, S2, S2] -> [S2, P(sum), P(sum)]",
             "[-, -, S2, S2, -, -] -> [P(sum), S2, S2]",
             "[S3, -, -, S3, S3, -] -> [P(sum), P(sum), S3]"}));
  EXPECT_EQ(sums("attention_grad", attrs, {q, q, q, q, q, lse})
                .count("[P(sum), -, -, -, -, -] -> [P(sum), P(sum), P(sum)]"),
            1u);
}

/// What split_attention makes of one: ranks that have some of the keys have a maximum of maxima,
/// and summands, also behind a causal mask, one of booleans and dropout.
TEST(Discovery, AttentionInPartsIsCutByKeys) {
  const Attrs attrs = {{"scale", 0.125}, {"causal", int64_t{1}}, {"keys", int64_t{64}}};
  const TensorType q = f32({8, 4, 64, 16}), each = f32({8, 4, 64});
  EXPECT_EQ(
      cuts("attention_top", attrs, {q, q}),
      (Rules{"[S0, S0] -> [S0]", "[S1, S1] -> [S1]", "[S2, -] -> [S2]", "[-, S2] -> [P(max)]"}));
  EXPECT_EQ(cuts("attention_sums", attrs, {q, q, q, each}),
            (Rules{"[S0, S0, S0, S0] -> [S0, S0]", "[S1, S1, S1, S1] -> [S1, S1]",
                   "[S2, -, -, S2] -> [S2, S2]", "[-, S2, S2, -] -> [P(sum), P(sum)]",
                   "[-, -, S3, -] -> [S3, -]"}));
  EXPECT_EQ(cuts("attention_join", {}, {each, q, each}),
            (Rules{"[S0, S0, S0] -> [S0, S0]", "[S1, S1, S1] -> [S1, S1]",
                   "[S2, S2, S2] -> [S2, S2]", "[-, S3, -] -> [S3, -]"}));
  Attrs masked = {{"scale", 0.125},
                  {"has_mask", int64_t{1}},
                  {"dropout", 0.3},
                  {"seed", int64_t{1}},
                  {"key", int64_t{7}},
                  {"keys", int64_t{64}},
                  {"global_shape", Ints{8, 4, 32, 64}},
                  {"start", Ints(4, 0)}};
  const TensorType few = f32({8, 4, 32, 16}), top = f32({8, 4, 32}), step = i64({});
  const TensorType mask{DType::boolean, {1, 1, 32, 64}};
  EXPECT_EQ(cuts("attention_sums", masked, {few, q, q, top, mask, step})
                .count("[-, S2, S2, -, S3, -] -> [P(sum), P(sum)]"),
            1u);
}

TEST(Discovery, RandomUniformIsDrawnWhereItIsWanted) {
  const Attrs attrs = {{"shape", Ints{64, 48}},
                       {"key", int64_t{7}},
                       {"seed", int64_t{1}},
                       {"global_shape", Ints{64, 48}},
                       {"start", Ints{0, 0}}};
  EXPECT_EQ(cuts("random_uniform", attrs, {i64({})}), (Rules{"[-] -> [S0]", "[-] -> [S1]"}));
  EXPECT_EQ(sums("random_uniform", attrs, {i64({})}), Rules{});
}

TEST(Discovery, DropoutAndAdamW) {
  const Attrs dropout = {{"p", 0.3},
                         {"key", int64_t{7}},
                         {"seed", int64_t{1}},
                         {"global_shape", Ints{64, 48}},
                         {"start", Ints{0, 0}}};
  EXPECT_EQ(cuts("dropout", dropout, {f32({64, 48}), i64({})}),
            (Rules{"[S0, -] -> [S0]", "[S1, -] -> [S1]"}));
  EXPECT_EQ(sums("dropout", dropout, {f32({64, 48}), i64({})}), (Rules{"[P(sum), -] -> [P(sum)]"}));
  const Attrs adam = {{"beta1", 0.9},
                      {"beta2", 0.99},
                      {"eps", 1e-8},
                      {"weight_decay", 0.1},
                      {"decoupled", int64_t{1}}};
  const TensorType p = f32({64, 48});
  const std::vector<TensorType> in = {p, p, p, p, f32({}), i64({}), f32({})};
  EXPECT_EQ(cuts("adamw", adam, in), (Rules{"[S0, S0, S0, S0, -, -, -] -> [S0, S0, S0]",
                                            "[S1, S1, S1, S1, -, -, -] -> [S1, S1, S1]"}));
  EXPECT_EQ(sums("adamw", adam, in), Rules{});
}

}  // namespace
}  // namespace shardrun
