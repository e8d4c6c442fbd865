// What draws random numbers: their distribution, other ones for each node and micro-batch, and
// dropout that is written in pieces.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "tests/graph/graph_build.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::count_op;
using test::ModelBuilder;
using test::set_float;

constexpr int64_t kRows = 200, kColumns = 100;

std::vector<Tensor> drawn(const Graph& graph, int64_t step, const Tensor& x) {
  return evaluate_graph(graph, {{"x", x}, {kRandomStep, Tensor::scalar_i64(step)}});
}

struct Moments {
  double mean = 0, deviation = 0, least = 1e9, most = -1e9;
  explicit Moments(const Tensor& values) {
    for (int64_t i = 0; i < values.count(); ++i) {
      mean += values.at(i) / static_cast<double>(values.count());
      least = std::min(least, values.at(i)), most = std::max(most, values.at(i));
    }
    for (int64_t i = 0; i < values.count(); ++i)
      deviation += std::pow(values.at(i) - mean, 2) / static_cast<double>(values.count());
    deviation = std::sqrt(deviation);
  }
};

bool equal(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.count(); ++i) {
    if (a.at(i) != b.at(i)) return false;
  }
  return a.type() == b.type();
}

class Random : public test::ImportTest {
 protected:
  /// Its result is "y" of 200 x 100; "x", all 0.25, has that shape.
  static ModelBuilder model(const std::string& op, bool takes_x) {
    ModelBuilder b;
    b.input("x", {kRows, kColumns});
    auto& node =
        b.node(op, takes_x ? std::vector<std::string>{"x"} : std::vector<std::string>{}, {"y"});
    if (!takes_x) test::set_ints(node, "shape", {kRows, kColumns});
    b.output("y", {kRows, kColumns});
    return b;
  }
  static Tensor quarters() {
    return Tensor::from<float>({kRows, kColumns}, std::vector<float>(kRows * kColumns, 0.25F),
                               DType::f32);
  }
};

TEST_F(Random, NumbersAreDistributedAsTheNodeSays) {
  const double error = 5 / std::sqrt(static_cast<double>(kRows * kColumns));
  for (const bool like : {false, true}) {
    const std::string suffix = like ? "Like" : "";
    ModelBuilder b = model("RandomNormal" + suffix, like);
    set_float(*b.graph().mutable_node(0), "mean", 3);
    set_float(*b.graph().mutable_node(0), "scale", 2);
    const Moments normal(drawn(import(b), 1, quarters())[0]);
    EXPECT_NEAR(normal.mean, 3, 2 * error);
    EXPECT_NEAR(normal.deviation, 2, 2 * error);
    EXPECT_GT(normal.most, 3 + 2 * 3);  // tails
    EXPECT_LT(normal.least, 3 - 2 * 3);

    b = model("RandomUniform" + suffix, like);
    set_float(*b.graph().mutable_node(0), "low", -1);
    set_float(*b.graph().mutable_node(0), "high", 5);
    const Moments uniform(drawn(import(b), 1, quarters())[0]);
    EXPECT_NEAR(uniform.mean, 2, 6 * error);
    EXPECT_NEAR(uniform.deviation, 6 / std::sqrt(12.0), 6 * error);
    EXPECT_GE(uniform.least, -1);
    EXPECT_LT(uniform.most, 5);
  }
  const Moments bernoulli(drawn(import(model("Bernoulli", true)), 1, quarters())[0]);
  EXPECT_NEAR(bernoulli.mean, 0.25, error);
  EXPECT_EQ(bernoulli.least, 0);
  EXPECT_EQ(bernoulli.most, 1);
}

TEST_F(Random, EachNodeStepAndSeedHasItsOwn) {
  for (const char* op : {"RandomNormalLike", "RandomUniformLike", "Bernoulli"}) {
    SCOPED_TRACE(op);
    ModelBuilder b = model(op, true);
    b.node(op, {"x"}, {"z"});
    b.output("z", {kRows, kColumns});
    const Graph graph = import(b);
    const auto first = drawn(graph, 1, quarters()), again = drawn(graph, 1, quarters()),
               next = drawn(graph, 2, quarters());
    EXPECT_FALSE(equal(first[0], first[1]));
    EXPECT_TRUE(equal(first[0], again[0]));
    EXPECT_FALSE(equal(first[0], next[0]));
    options.seed = 7;
    EXPECT_FALSE(equal(first[0], drawn(import(b), 1, quarters())[0]));
    options.seed = 0;
  }
}

TEST_F(Random, IntegersAndNegativeDimsAreRefused) {
  ModelBuilder b = model("RandomUniformLike", true);
  test::set_int(*b.graph().mutable_node(0), "dtype", test::kInt64);
  EXPECT_NE(refusal(b).find("dtype is i64, wanted a floating one"), std::string::npos)
      << refusal(b);
  b = model("RandomNormal", false);
  b.graph().mutable_node(0)->mutable_attribute(0)->set_ints(0, -3);
  EXPECT_NE(refusal(b).find("shape [-3, 100] has a negative dim"), std::string::npos) << refusal(b);
}

// ---- dropout in pieces ----

constexpr double kKeep = 0.75;

/// x [200, 100] times a mask of whole rows, which are kept with a probability of 0.75.
struct Pieces {
  const char* name;
  std::vector<std::array<std::string, 4>> nodes;  // op, operands, result
  bool is_dropout = true;
};

const Pieces kPieces[] = {
    {"u < keep, divided",
     {{"Less", "u", "keep", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "keep", "s"},
      {"Mul", "x", "s", "y"}}},
    {"u < keep, times a reciprocal",
     {{"Less", "u", "keep", "m"},
      {"Cast", "m", "", "f"},
      {"Mul", "inverse", "f", "s"},
      {"Mul", "s", "x", "y"}}},
    {"u >= drop",
     {{"GreaterOrEqual", "u", "drop", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "keep", "s"},
      {"Mul", "x", "s", "y"}}},
    {"floor(keep + u), and x divided",
     {{"Add", "keep", "u", "a"},
      {"Floor", "a", "", "f"},
      {"Div", "x", "keep", "s"},
      {"Mul", "s", "f", "y"}}},
    {"not divided",
     {{"Less", "u", "keep", "m"}, {"Cast", "m", "", "f"}, {"Mul", "x", "f", "y"}},
     false},
    {"divided by something else",
     {{"Less", "u", "keep", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "drop", "s"},
      {"Mul", "x", "s", "y"}},
     false},
    {"a mask that something else uses, too",
     {{"Less", "u", "keep", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "keep", "s"},
      {"Mul", "x", "s", "kept"},
      {"Sub", "kept", "f", "y"}},
     false},
    {"numbers that something else uses, too",
     {{"Less", "u", "keep", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "keep", "s"},
      {"Mul", "x", "s", "kept"},
      {"Sub", "kept", "u", "y"}},
     false},
    {"the dropped ones are kept",
     {{"Less", "u", "drop", "m"},
      {"Cast", "m", "", "f"},
      {"Div", "f", "keep", "s"},
      {"Mul", "x", "s", "y"}},
     false},
};

TEST_F(Random, DropoutInPiecesIsRecognised) {
  for (const Pieces& pieces : kPieces) {
    SCOPED_TRACE(pieces.name);
    ModelBuilder b;
    b.input("x", {kRows, kColumns});
    b.floats("keep", {}, {static_cast<float>(kKeep)});
    b.floats("drop", {}, {static_cast<float>(1 - kKeep)});
    b.floats("inverse", {}, {static_cast<float>(1 / kKeep)});
    test::set_ints(b.node("RandomUniform", {}, {"u"}), "shape", {kRows, 1});
    for (const auto& [op, first, second, result] : pieces.nodes) {
      auto& node = b.node(op,
                          second.empty() ? std::vector<std::string>{first}
                                         : std::vector<std::string>{first, second},
                          {result});
      if (op == "Cast") test::set_int(node, "to", test::kFloat);
    }
    b.output("y", {kRows, kColumns});
    Graph graph = import(b);
    EXPECT_EQ(recognise(graph).dropout, pieces.is_dropout);
    check_graph(graph);
    EXPECT_EQ(count_op(graph, "dropout"), pieces.is_dropout);
    EXPECT_EQ(count_op(graph, "random_uniform"), !pieces.is_dropout);
    if (!pieces.is_dropout) continue;
    int kept = 0;
    const Tensor y = drawn(graph, 5, quarters())[0];
    for (int64_t row = 0; row < kRows; ++row) {
      const double value = y.at(row * kColumns);
      EXPECT_TRUE(value == 0 || std::abs(value - 0.25 / kKeep) < 1e-6) << value;
      EXPECT_EQ(y.at(row * kColumns + kColumns - 1), value);
      kept += value != 0;
    }
    EXPECT_NEAR(kept, kKeep * kRows, 5 * std::sqrt(kKeep * (1 - kKeep) * kRows));
    EXPECT_TRUE(equal(drawn(evaluation_form(graph), 5, quarters())[0], quarters()));
  }
}

/// Rounded to bf16, a number drawn could be 1, or equal a probability that it is above.
TEST_F(Random, NumbersAreComparedInF32) {
  ModelBuilder b;
  b.input("x", {4, 3});
  b.floats("w", {3, 3}, std::vector<float>(9, 0.1F));
  b.node("MatMul", {"x", "w"}, {"p"});
  b.node("Bernoulli", {"p"}, {"y"});
  b.output("y", {4, 3});
  const Graph half = in_bf16(import(b));
  const Node* less = test::find_op(half, "less");
  ASSERT_NE(less, nullptr);
  EXPECT_EQ(half.type(test::find_op(half, "matmul")->outputs[0]).dtype, DType::bf16);
  for (ValueId id : less->inputs) EXPECT_EQ(half.type(id).dtype, DType::f32);
}

/// Of log-probabilities that do not add up to 1; the same for each row, other draws in each step.
TEST_F(Random, MultinomialDrawsByProbability) {
  ModelBuilder b;
  b.input("x", {kRows, 3});
  test::set_int(b.node("Multinomial", {"x"}, {"y"}), "sample_size", kColumns);
  b.output("y", {kRows, kColumns}, 6);
  const Graph graph = import(b);
  std::vector<float> scores;
  for (int64_t i = 0; i < kRows * 3; ++i)
    scores.push_back(2 +
                     std::log(std::vector<float>{0.5F, 0.2F, 0.3F}[static_cast<size_t>(i % 3)]));
  const Tensor x = Tensor::from(Shape{kRows, 3}, scores, DType::f32);
  const Tensor first = drawn(graph, 0, x)[0], second = drawn(graph, 1, x)[0];
  EXPECT_EQ(first.type(), (TensorType{DType::i32, {kRows, kColumns}}));
  EXPECT_TRUE(equal(first, drawn(graph, 0, x)[0]));
  EXPECT_FALSE(equal(first, second));
  std::vector<double> fraction(3, 0);
  for (int64_t i = 0; i < first.count(); ++i)
    fraction.at(static_cast<size_t>(first.int_at(i))) += 1.0 / static_cast<double>(first.count());
  EXPECT_NEAR(fraction[0], 0.5, 0.02);
  EXPECT_NEAR(fraction[1], 0.2, 0.02);
  test::set_int(*b.graph().mutable_node(0), "dtype", test::kFloat);
  EXPECT_NE(refusal(b).find("dtype is f32, wanted i32 or i64"), std::string::npos) << refusal(b);
}

}  // namespace
}  // namespace shardrun
