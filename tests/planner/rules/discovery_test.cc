// ShardCombine's rules against those that a person would write, and the fakes that weaker evidence
// takes.
#include "planner/rules/discovery.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <set>

#include "kernels/kernel.h"
#include "planner/rules/trial.h"

namespace shardrun {
namespace {

using Rules = std::set<std::string>;
using Ints = std::vector<int64_t>;
using Data = Evidence::Data;

TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }
TensorType i64(Shape shape) { return {DType::i64, std::move(shape)}; }

Node node(const std::string& op, Attrs attrs = {}) {
  Node n;
  n.op = op;
  n.name = "test";
  n.attrs = std::move(attrs);
  return n;
}

Rules all_rules(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
                const Evidence& evidence = {}) {
  Rules rules;
  for (const auto& option : discover(node(op, attrs), in, evidence).options)
    rules.insert(to_string(option));
  return rules;
}

/// Cuts only: no operand is partial.
Rules cuts(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
           const Evidence& evidence = {}) {
  Rules rules;
  for (const std::string& r : all_rules(op, attrs, std::move(in), evidence)) {
    if (r.substr(0, r.find("->")).find('P') == std::string::npos) rules.insert(r);
  }
  return rules;
}

/// Options with operands that are partial sums.
Rules sums(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
           const Evidence& evidence = {}) {
  Rules rules;
  for (const std::string& r : all_rules(op, attrs, std::move(in), evidence)) {
    if (r.substr(0, r.find("->")).find("P(sum)") != std::string::npos) rules.insert(r);
  }
  return rules;
}

Attrs equation(const char* e) { return {{"equation", std::string(e)}}; }

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
