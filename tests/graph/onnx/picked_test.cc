// Rows that a mask picks: what is computed of all rows and what of those that count, whatever the
// others hold; and the refusal of what cannot be done so.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "graph/autodiff.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::kFloat;
using test::kInt64;
using test::ModelBuilder;
using test::set_int;

constexpr int kBool = 9;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class Picked : public test::ImportTest {
 protected:
  /// "rows", those of x [4, 2] where mask [4] holds.
  static ModelBuilder picking(int64_t opset = 18) {
    ModelBuilder b(opset);
    b.input("x", {4, 2});
    b.input("mask", {4}, kBool);
    b.node("NonZero", {"mask"}, {"positions"});
    b.node("Transpose", {"positions"}, {"tuples"});
    b.node("GatherND", {"x", "tuples"}, {"rows"});
    return b;
  }
  static NamedTensors feeds(const std::vector<float>& x, const std::vector<uint8_t>& mask) {
    Tensor picked({DType::boolean, {4}});
    std::copy(mask.begin(), mask.end(), picked.as<uint8_t>());
    return {{"x", Tensor::from(Shape{4, 2}, x, DType::f32)}, {"mask", picked}};
  }
  double value(const ModelBuilder& b, const NamedTensors& feeds) {
    return evaluate_graph(import(b), feeds).at(0).at(0);
  }
};

TEST_F(Picked, ReductionsLeaveOutTheOthers) {
  const NamedTensors some = feeds({1, -2, kNaN, kNaN, 3, 4, kNaN, 7}, {1, 0, 1, 0});
  const std::vector<std::pair<std::string, double>> wanted = {
      {"ReduceSum", 6},
      {"ReduceMean", 1.5},
      {"ReduceMax", 4},
      {"ReduceMin", -2},
      {"ReduceProd", -24},
      {"ReduceSumSquare", 30},
      {"ReduceL1", 10},
      {"ReduceL2", std::sqrt(30.0)},
      {"ReduceLogSumExp", std::log(std::exp(1) + std::exp(-2) + std::exp(3) + std::exp(4))}};
  for (const auto& [op, want] : wanted) {
    ModelBuilder b = picking();
    set_int(b.node(op, {"rows"}, {"y"}), "keepdims", 0);
    b.output("y");
    EXPECT_NEAR(value(b, some), want, 1e-5) << op;
  }
}

/// The other rows are NaN in the data, and log and sqrt of 0 have no gradient: neither may reach
/// the weights of the picked rows.
TEST_F(Picked, GradientsAreThoseOfThePickedRows) {
  ModelBuilder b = picking();
  b.floats("w", {2}, {2, 3});
  b.node("Mul", {"rows", "w"}, {"scaled"});
  b.node("Log", {"scaled"}, {"logs"});
  b.node("Sqrt", {"scaled"}, {"roots"});
  b.node("Add", {"logs", "roots"}, {"sum"});
  set_int(b.node("ReduceMean", {"sum"}, {"loss"}), "keepdims", 0);
  b.output("loss");
  Graph graph = import(b);
  const std::vector<ValueId> w = graph.with_role(Role::parameter);
  ASSERT_EQ(w.size(), 1U);
  const std::vector<ValueId> wanted = differentiate(graph, graph.loss, w);
  const Tensor dw = evaluate_graph(graph, feeds({0, 0, 1, 4, kNaN, -1, 4, 9}, {0, 1, 0, 1}),
                                   std::vector{wanted[0]})[0];
  // d/dw of the mean of log(x w) + sqrt(x w): (1 / w + sqrt(x / w) / 2) / 4 for each element.
  EXPECT_NEAR(dw.at(0), (2 / 2.0 + (std::sqrt(1 / 2.0) + std::sqrt(4 / 2.0)) / 2) / 4, 1e-6);
  EXPECT_NEAR(dw.at(1), (2 / 3.0 + (std::sqrt(4 / 3.0) + std::sqrt(9 / 3.0)) / 2) / 4, 1e-6);
}

/// clamp(min=2) as the newer exporter writes it: the number is cast to the rows' type.
TEST_F(Picked, ANumberThatIsCastForRowsStaysOne) {
  ModelBuilder b = picking();
  b.floats("least", {}, {2});
  b.node("CastLike", {"least", "rows"}, {"low"});
  b.node("Clip", {"rows", "low"}, {"clamped"});
  b.node("CastLike", {"clamped", "least"}, {"cast"});
  set_int(b.node("ReduceSum", {"cast"}, {"y"}), "keepdims", 0);
  b.output("y");
  EXPECT_EQ(value(b, feeds({1, 5, kNaN, kNaN, 3, -4, kNaN, 7}, {1, 0, 1, 0})), 2 + 5 + 3 + 2);
}

TEST_F(Picked, MeansOfNothingAreNaNAsInPyTorch) {
  ModelBuilder b = picking();
  set_int(b.node("ReduceMean", {"rows"}, {"y"}), "keepdims", 0);
  b.output("y");
  EXPECT_TRUE(std::isnan(value(b, feeds({1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 0, 0}))));
}

/// x[mask] twice, by masks that are computed twice: one count.
TEST_F(Picked, EqualMasksAreOne) {
  ModelBuilder b(18);
  b.input("x", {4, 2});
  b.input("mask", {4}, kBool);
  for (const std::string n : {"0", "1"}) {
    b.node("Not", {"mask"}, {"others" + n});
    b.node("NonZero", {"others" + n}, {"positions" + n});
    b.node("Transpose", {"positions" + n}, {"tuples" + n});
    b.node("GatherND", {"x", "tuples" + n}, {"rows" + n});
  }
  b.node("Mul", {"rows0", "rows1"}, {"product"});
  set_int(b.node("ReduceMean", {"product"}, {"y"}), "keepdims", 0);
  b.output("y");
  EXPECT_NEAR(value(b, feeds({1, 2, 3, 4, 5, 6, 7, 8}, {1, 1, 0, 1})), 61 / 2.0, 1e-5);
}

/// A shape with the number of rows in it is as good as the rows, and as a number is the count.
TEST_F(Picked, ShapesCountRows) {
  ModelBuilder b = picking();
  b.node("Shape", {"rows"}, {"shape"});
  b.floats("one", {1}, {10});
  b.node("Expand", {"one", "shape"}, {"tens"});
  b.node("Add", {"rows", "tens"}, {"moved"});
  set_int(b.node("ReduceSum", {"moved"}, {"sum"}), "keepdims", 0);
  b.ints("first", {0}, true);
  b.node("Gather", {"shape", "first"}, {"count"});
  set_int(b.node("Cast", {"count"}, {"number"}), "to", kFloat);
  b.node("Div", {"sum", "number"}, {"y"});
  b.output("y");
  EXPECT_NEAR(value(b, feeds({1, 2, 3, 4, 5, 6, 7, 8}, {1, 1, 0, 1})), (25 + 60) / 3.0, 1e-5);
}

TEST_F(Picked, CompressPicksAlongAnAxis) {
  ModelBuilder b(18);
  b.input("x", {4, 2});
  b.input("mask", {4}, kBool);
  set_int(b.node("Compress", {"x", "mask"}, {"rows"}), "axis", 0);
  b.ints("axes", {1});
  b.node("ReduceMax", {"rows", "axes"}, {"most"});
  set_int(b.node("ReduceSum", {"most"}, {"y"}), "keepdims", 0);
  b.output("y");
  EXPECT_NEAR(value(b, feeds({1, 2, kNaN, 4, 6, 5, 7, 8}, {1, 0, 1, 1})), 16, 1e-5);
}

/// y = x; y[mask] = 10 x[mask], and y added up twice.
TEST_F(Picked, RowsGoBackToWhereTheyWere) {
  for (const bool adds : {false, true}) {
    ModelBuilder b = picking();
    b.floats("ten", {1}, {10});
    b.node("Mul", {"rows", "ten"}, {"tens"});
    auto& node = b.node("ScatterND", {"x", "tuples", "tens"}, {"y"});
    if (adds) test::set_string(node, "reduction", "add");
    b.output("y", {4, 2});
    const Tensor y = evaluate_graph(import(b), feeds({1, 2, 3, 4, 5, 6, 7, 8}, {1, 0, 0, 1})).at(0);
    const std::vector<double> wanted = {10, 20, 3, 4, 5, 6, 70, 80};
    for (int64_t i = 0; i < 8; ++i) {
      const bool picked = i < 2 || i > 5;
      const double before = adds && picked ? static_cast<double>(i) + 1 : 0;
      EXPECT_EQ(y.at(i), wanted[static_cast<size_t>(i)] + before) << i;
    }
  }
}

/// y[mask] = 10 x[mask] as PyTorch's newer exporter writes it: the rows' shape has the sum of the
/// mask in it, and positions are those of elements.
ModelBuilder assigned(const std::string& value) {
  ModelBuilder b(18);
  b.input("x", {4, 2});
  b.input("mask", {4}, kBool);
  b.floats("ten", {1}, {10});
  b.ints("back", {-1});
  b.ints("width", {2});
  b.ints("wide", {4, 2});
  b.node("NonZero", {"mask"}, {"positions"});
  b.node("Transpose", {"positions"}, {"tuples"});
  b.node("GatherND", {"x", "tuples"}, {"rows"});
  b.node("Mul", {"rows", "ten"}, {"tens"});
  b.node("Unsqueeze", {"mask", "back"}, {"column"});
  b.node("Expand", {"column", "wide"}, {"elements"});
  b.node("NonZero", {"elements"}, {"places"});
  b.node("Transpose", {"places"}, {"pairs"});
  set_int(b.node("Cast", {"mask"}, {"ones"}), "to", kInt64);
  b.ints("first", {0});
  b.node("ReduceSum", {"ones", "first"}, {"count"});
  set_int(b.node("Concat", {"count", "width"}, {"shape"}), "axis", 0);
  b.node("Expand", {value, "shape"}, {"values"});
  b.node("Reshape", {"values", "back"}, {"flat"});
  b.node("ScatterND", {"x", "pairs", "flat"}, {"y"});
  b.output("y", {4, 2});
  return b;
}

TEST_F(Picked, TheSumOfAMaskCountsItsRows) {
  const NamedTensors some = feeds({1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 1, 0});
  EXPECT_EQ(evaluate_graph(import(assigned("tens")), some).at(0).to_ints(),
            (std::vector<int64_t>{1, 2, 30, 40, 50, 60, 7, 8}));
  EXPECT_EQ(evaluate_graph(import(assigned("ten")), some).at(0).to_ints(),
            (std::vector<int64_t>{1, 2, 10, 10, 10, 10, 7, 8}));
}

/// The positions of elements, where the mask is of dims before them, are those of its rows, each
/// repeated along two dims.
TEST_F(Picked, RowsOfSeveralDimsGoBack) {
  ModelBuilder b(18);
  b.input("x", {3, 2, 2});
  b.input("mask", {3}, kBool);
  b.floats("ten", {1}, {10});
  b.ints("back", {-1});
  b.ints("trailing", {1, 2});
  b.ints("whole", {3, 2, 2});
  b.node("NonZero", {"mask"}, {"positions"});
  b.node("Transpose", {"positions"}, {"tuples"});
  b.node("GatherND", {"x", "tuples"}, {"rows"});
  b.node("Mul", {"rows", "ten"}, {"tens"});
  b.node("Unsqueeze", {"mask", "trailing"}, {"column"});
  b.node("Expand", {"column", "whole"}, {"elements"});
  b.node("NonZero", {"elements"}, {"places"});
  b.node("Transpose", {"places"}, {"triples"});
  b.node("Reshape", {"tens", "back"}, {"flat"});
  b.node("ScatterND", {"x", "triples", "flat"}, {"y"});
  b.output("y", {3, 2, 2});
  Tensor mask({DType::boolean, {3}});
  mask.as<uint8_t>()[0] = 0, mask.as<uint8_t>()[1] = 1, mask.as<uint8_t>()[2] = 0;
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const NamedTensors some = {{"x", Tensor::from(Shape{3, 2, 2}, x, DType::f32)}, {"mask", mask}};
  EXPECT_EQ(evaluate_graph(import(b), some).at(0).to_ints(),
            (std::vector<int64_t>{1, 2, 3, 4, 50, 60, 70, 80, 9, 10, 11, 12}));
}

/// masked_scatter: the first picked element gets the source's first, and so on. A source that is
/// too short makes NaN.
TEST_F(Picked, ASourceFillsWhatAMaskPicks) {
  for (const int64_t length : {2, 3}) {
    ModelBuilder b = picking();
    b.input("source", {length, 2});
    b.node("Shape", {"rows"}, {"shape"});
    b.ints("zero", {0});
    b.ints("one", {1});
    b.node("Slice", {"shape", "zero", "one"}, {"count"});
    b.node("Slice", {"source", "zero", "count"}, {"first"});
    b.node("ScatterND", {"x", "tuples", "first"}, {"y"});
    b.output("y", {4, 2});
    NamedTensors some = feeds({1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 1, 0});
    std::vector<float> source = {10, 20, 30, 40, 50, 60};
    source.resize(static_cast<size_t>(length) * 2);
    some.emplace("source", Tensor::from(Shape{length, 2}, source, DType::f32));
    EXPECT_EQ(evaluate_graph(import(b), some).at(0).to_ints(),
              (std::vector<int64_t>{1, 2, 10, 20, 30, 40, 7, 8}));
    some.at("mask").as<uint8_t>()[3] = 1;
    const Tensor y = evaluate_graph(import(b), some).at(0);
    EXPECT_EQ(std::isnan(y.at(7)), length == 2) << length;
    EXPECT_EQ(y.at(5), 40) << length;
  }
}

/// Whether it is of rows or not, with other rows or a shape that counts them before it.
TEST_F(Picked, OperandsBeyondAnOperatorsAreRefused) {
  const std::vector<std::vector<std::string>> uses = {{"Relu", "rows", "x"},
                                                      {"Relu", "rows", "rows"},
                                                      {"Softmax", "rows", "x"},
                                                      {"Softmax", "rows", "rows"},
                                                      {"Shape", "x", "rows"},
                                                      {"GatherND", "x", "tuples", "x"},
                                                      {"Reshape", "rows", "back", "x"},
                                                      {"ReduceSum", "rows", "zero", "x"},
                                                      {"Neg", "shape", "x"},
                                                      {"Add", "rows", "rows", "x"}};
  for (const std::vector<std::string>& use : uses) {
    ModelBuilder b = picking();
    b.ints("back", {-1, 2});
    b.ints("zero", {0});
    b.node("Shape", {"rows"}, {"shape"});
    b.node(use[0], {use.begin() + 1, use.end()}, {"made"});
    set_int(b.node("Cast", {"made"}, {"floats"}), "to", kFloat);
    set_int(b.node("ReduceSum", {"floats"}, {"y"}), "keepdims", 0);
    b.output("y");
    const std::string got = refusal(b);
    const size_t last = use.size() - 2;
    EXPECT_NE(got.find(str("input ", last, " '", use.back(), "' is one too many")),
              std::string::npos)
        << use[0] << ": " << got;
    EXPECT_NE(got.find("node 4"), std::string::npos) << got;
  }
}

/// Positions of so many elements are no constants; nothing is looked up by them where the mask is
/// of all elements, nor kept.
TEST_F(Picked, LargeMasksTakeNoConstants) {
  constexpr int64_t kMany = 80'000;
  for (const bool squeezed : {false, true}) {
    ModelBuilder b(18);
    b.input("x", {kMany});
    b.floats("zero", {1}, {0});
    b.node("Greater", {"x", "zero"}, {"mask"});
    b.node("NonZero", {"mask"}, {"positions"});
    b.node("Transpose", {"positions"}, {"tuples"});
    b.ints("axes", {1});
    b.node("Squeeze", {"tuples", "axes"}, {"places"});
    b.node(squeezed ? "Gather" : "GatherND", {"x", squeezed ? "places" : "tuples"}, {"rows"});
    set_int(b.node("ReduceMean", {"rows"}, {"y"}), "keepdims", 0);
    b.output("y");
    const Graph graph = import(b);
    for (const auto& [id, source] : graph.sources)
      EXPECT_LT(element_count(graph.type(id).shape), 100);
    for (const Node& node : graph.nodes())
      EXPECT_TRUE(squeezed || node.op.find("gather") == std::string::npos) << node.op;
    std::vector<float> x(kMany, -1);
    x[7] = 2, x[kMany - 1] = 5;
    const Tensor fed = Tensor::from(Shape{kMany}, x, DType::f32);
    EXPECT_NEAR(evaluate_graph(graph, {{"x", fed}}).at(0).at(0), 3.5, 1e-5);
  }
}

/// flatten(), as the newer exporter writes it: to the number of rows times that of columns.
TEST_F(Picked, FlattenedToACountedProduct) {
  ModelBuilder b = picking();
  b.ints("none", {-1});
  b.ints("two", {2}, true);
  set_int(b.node("Shape", {"rows"}, {"shape"}), "end", 1);
  b.node("Squeeze", {"shape"}, {"count"});
  b.node("Mul", {"count", "two"}, {"elements"});
  b.node("Reshape", {"elements", "none"}, {"size"});
  set_int(b.node("Reshape", {"rows", "size"}, {"flat"}), "allowzero", 1);
  b.node("Abs", {"flat"}, {"positive"});
  set_int(b.node("ReduceMean", {"positive"}, {"y"}), "keepdims", 0);
  b.output("y");
  EXPECT_NEAR(value(b, feeds({1, -2, kNaN, kNaN, 3, 4, kNaN, 7}, {1, 0, 1, 0})), 2.5, 1e-6);
  // Nothing else is as large as such a product.
  b.node("ConstantOfShape", {"size"}, {"zeros"});
  b.node("Add", {"zeros", "flat"}, {"sum"});
  b.graph().clear_output();
  set_int(b.node("ReduceSum", {"sum"}, {"z"}), "keepdims", 0);
  b.output("z");
  EXPECT_NE(refusal(b).find("ConstantOfShape is not of each row alone"), std::string::npos)
      << refusal(b);
}

/// Each is refused with the node, the mask's node, and what to do.
TEST_F(Picked, OtherUsesAreRefused) {
  struct Use {
    std::string op;
    std::vector<std::string> inputs;
    std::string wanted;
  };
  const std::vector<Use> uses = {
      {"Gather", {"rows", "index"}, "Gather is not of each row alone"},
      {"MatMul", {"square", "rows"}, "MatMul is not of each row alone"},
      {"CumSum", {"rows", "index"}, "CumSum is not of each row alone"},
      {"Add", {"rows", "x"}, "Add is not of each row alone"},
      {"Add", {"rows", "others"}, "are rows that two masks pick, those of 'NonZero_0' and"},
      {"Reshape", {"rows", "fixed"}, "Reshape is not of each row alone"},
      {"ScatterND", {"x", "tuples", "x"}, "batched_mm"}};
  for (const Use& use : uses) {
    ModelBuilder b = picking();
    b.ints("index", {0}, true);
    b.ints("fixed", {3, 2});
    b.floats("square", {4, 4}, std::vector<float>(16, 1));
    b.node("Not", {"mask"}, {"no"});
    b.node("NonZero", {"no"}, {"elsewhere"});
    b.node("Transpose", {"elsewhere"}, {"pairs"});
    b.node("GatherND", {"x", "pairs"}, {"others"});
    b.node(use.op, use.inputs, {"made"});
    set_int(b.node("ReduceSum", {"made"}, {"y"}), "keepdims", 0);
    b.output("y");
    const std::string got = refusal(b);
    EXPECT_NE(got.find(use.wanted), std::string::npos) << use.op << ": " << got;
    EXPECT_NE(got.find("NonZero_0"), std::string::npos) << got;
    EXPECT_NE(got.find(str("op ", use.op, " (opset 18)")), std::string::npos) << got;
  }
  for (const auto& [op, advice] : std::map<std::string, std::string>{
           {"MatMul", "of scores of pairs: compute them of all rows"},
           {"TopK", "give it all rows, with torch.where(mask, x, -1e30)"},
           {"CumSum", "of a loss: mark targets that do not count by -100"}}) {
    ModelBuilder b = picking();
    b.ints("count", {1});
    b.ints("index", {0}, true);
    b.floats("square", {4, 4}, std::vector<float>(16, 1));
    if (op == "TopK")
      set_int(b.node(op, {"rows", "count"}, {"made", "places"}), "axis", 0);
    else if (op == "MatMul")
      b.node(op, {"square", "rows"}, {"made"});
    else
      b.node(op, {"rows", "index"}, {"made"});
    b.output("made");
    EXPECT_NE(refusal(b).find("\n  - " + advice), std::string::npos) << refusal(b);
  }
  ModelBuilder b = picking();
  b.output("rows");
  EXPECT_NE(refusal(b).find("graph output 'rows' has as many rows as a mask picks"),
            std::string::npos)
      << refusal(b);
}

}  // namespace
}  // namespace shardrun
