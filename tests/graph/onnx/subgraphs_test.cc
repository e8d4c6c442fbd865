// Loops and branches: written out where their turns and conditions are known, in the scope that
// they stand in.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/autodiff.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/import_test.h"
#include "tests/graph/onnx/subgraph.h"

namespace shardrun {
namespace {

using test::add_node;
using test::kInt64;
using test::ModelBuilder;
using test::set_int;
using test::subgraph;

using Names = std::vector<std::string>;
using Ints = std::vector<int64_t>;

using OnnxSubgraphs = test::ImportTest;

Tensor floats(const Shape& shape, const std::vector<float>& values) {
  return Tensor::from(shape, values, DType::f32);
}

void add_truth(ModelBuilder& b, const std::string& name) {
  auto& truth = b.ints(name, {}, true);
  truth.set_data_type(::onnx::TensorProto::BOOL);
  truth.add_int32_data(1);
}

/// Bags of rows, as PyTorch's older exporter writes an EmbeddingBag, with a sum that goes round.
TEST_F(OnnxSubgraphs, ALoopOfKnownTurnsIsWrittenOut) {
  const auto model = [](bool known) {
    ModelBuilder b;
    b.input("x", {3, 2});
    b.input("turns_input", {}, kInt64);
    b.ints("three", {3}, true);
    b.ints("zero_axis", {0});
    add_truth(b, "go");
    b.node("ReduceSum", {"x", "zero_axis"}, {"start"});
    auto& body =
        subgraph(b.node("Loop", {known ? "three" : "turns_input", "go", "start"}, {"last", "rows"}),
                 "body", {"i", "condition", "sum"}, {"still", "next", "row"});
    add_node(body, "Gather", {"x", "i"}, {"row"});
    add_node(body, "Add", {"sum", "row"}, {"next"});
    add_node(body, "Identity", {"condition"}, {"still"});
    b.output("last");
    b.output("rows", {3, 2});
    return b;
  };
  const auto results = evaluate_graph(
      import(model(true)),
      {{"x", floats({3, 2}, {1, 2, 3, 4, 5, 6})}, {"turns_input", Tensor::scalar_i64(2)}});
  EXPECT_EQ(results[0].to_ints(), (Ints{18, 24}));
  EXPECT_EQ(results[1].to_ints(), (Ints{1, 2, 3, 4, 5, 6}));
  const std::string why = refusal(model(false));
  EXPECT_NE(why.find("its number of turns depends on data"), std::string::npos) << why;
}

/// As PyTorch's newer exporter does: rows in a sequence, until a counter says so. Row 0 goes before
/// the last.
TEST_F(OnnxSubgraphs, ALoopMayFillASequence) {
  ModelBuilder b;
  b.input("x", {3, 2});
  for (const int64_t value : {0, 1, 3}) b.ints("n" + std::to_string(value), {value}, true);
  b.ints("last", {-1}, true);
  add_truth(b, "go");
  b.node("SequenceEmpty", {}, {"none"});
  auto& body = subgraph(b.node("Loop", {"", "go", "none", "n0"}, {"rows", "end"}), "body",
                        {"i", "condition", "before", "at"}, {"goes_on", "now", "next"});
  add_node(body, "Gather", {"x", "at"}, {"row"});
  add_node(body, "SequenceInsert", {"before", "row"}, {"now"});
  add_node(body, "Add", {"at", "n1"}, {"next"});
  add_node(body, "Less", {"next", "n3"}, {"goes_on"});
  b.node("SequenceAt", {"rows", "n0"}, {"first"});
  b.node("SequenceInsert", {"rows", "first", "last"}, {"more"});
  set_int(b.node("ConcatFromSequence", {"more"}, {"y"}), "axis", 0);
  b.output("y", {8});
  EXPECT_EQ(evaluate_graph(import(b), {{"x", floats({3, 2}, {1, 2, 3, 4, 5, 6})}})[0].to_ints(),
            (Ints{1, 2, 3, 4, 1, 2, 5, 6}));
}

/// Without a condition of its own a loop with a number of turns takes them all, whatever its body
/// says.
TEST_F(OnnxSubgraphs, ACountAloneIgnoresTheBodysCondition) {
  for (const bool counts : {true, false}) {
    ModelBuilder b;
    b.input("x", {2});
    b.ints("three", {3}, true);
    add_truth(b, "go");
    auto& body = subgraph(b.node("Loop", {"three", counts ? "" : "go", "x"}, {"y"}), "body",
                          {"i", "condition", "a"}, {"still", "b"});
    add_node(body, "ReduceSum", {"a"}, {"sum"});
    add_node(body, "Cast", {"sum"}, {"still"});
    set_int(*body.mutable_node(1), "to", ::onnx::TensorProto::BOOL);
    add_node(body, "Add", {"a", "a"}, {"b"});
    b.output("y", {2});
    if (counts) {
      EXPECT_EQ(evaluate_graph(import(b), {{"x", floats({2}, {1, -1})}})[0].to_ints(),
                (Ints{8, -8}));
    } else {
      const std::string why = refusal(b);
      EXPECT_NE(why.find("its condition depends on data"), std::string::npos) << why;
    }
  }
}

TEST_F(OnnxSubgraphs, EachTurnDropsOtherElements) {
  ModelBuilder b;
  b.input("x", {64});
  b.ints("two", {2}, true);
  b.floats("ratio", {}, {0.5f});
  add_truth(b, "go");
  auto& body = subgraph(b.node("Loop", {"two", "go"}, {"y"}), "body", {"i", "condition"},
                        {"condition", "kept"});
  add_node(body, "Dropout", {"x", "ratio", "go"}, {"kept"});
  b.output("y", {2, 64});
  const Tensor y = evaluate_graph(import(b), {{"x", floats({64}, std::vector<float>(64, 1))},
                                              {kRandomStep, Tensor::scalar_i64(0)}})[0];
  int differ = 0;
  for (int64_t i = 0; i < 64; ++i) differ += y.at(i) != y.at(64 + i);
  EXPECT_GT(differ, 10);
}

/// 4096 turns of 4096 turns: 16 million nodes.
TEST_F(OnnxSubgraphs, LoopsThatMultiplyNodes) {
  ModelBuilder b;
  b.input("x", {2});
  b.ints("turns", {4096}, true);
  add_truth(b, "go");
  auto& outer =
      subgraph(b.node("Loop", {"turns", "go", "x"}, {"y"}), "body", {"i", "c", "a"}, {"c", "b"});
  auto& inner = subgraph(add_node(outer, "Loop", {"turns", "go", "a"}, {"b"}), "body",
                         {"i2", "c2", "a2"}, {"c2", "a2"});
  inner.set_name("inner");
  b.output("y", {2});
  const std::string why = refusal(b);
  EXPECT_NE(why.find("(4 times the file and 64 MiB)"), std::string::npos) << why;
}

/// f(x){alpha}: twice z = LeakyRelu(z, alpha) + x. Its body's names are the caller's, too.
ModelBuilder with_function() {
  ModelBuilder b;
  b.model.add_opset_import()->set_domain("mine");
  b.model.mutable_opset_import(1)->set_version(1);
  auto* f = b.model.add_functions();
  f->set_domain("mine");
  f->set_name("f");
  f->add_input("x");
  f->add_output("y");
  f->add_attribute("alpha");
  const auto constant = [&](const std::string& name, int type, int value) {
    auto* node = f->add_node();
    node->set_op_type("Constant");
    node->add_output(name);
    auto* attribute = node->add_attribute();
    attribute->set_name("value");
    attribute->set_type(::onnx::AttributeProto::TENSOR);
    attribute->mutable_t()->set_data_type(type);
    type == kInt64 ? attribute->mutable_t()->add_int64_data(value)
                   : attribute->mutable_t()->add_int32_data(value);
  };
  constant("turns", kInt64, 2);
  constant("go", ::onnx::TensorProto::BOOL, 1);
  auto* loop = f->add_node();
  loop->set_op_type("Loop");
  for (const char* name : {"turns", "go", "x"}) loop->add_input(name);
  loop->add_output("y");
  auto& body = subgraph(*loop, "body", {"i", "c", "a"}, {"c", "b"});
  auto* alpha = add_node(body, "LeakyRelu", {"a"}, {"leaky"}).add_attribute();
  alpha->set_name("alpha");
  alpha->set_type(::onnx::AttributeProto::FLOAT);
  alpha->set_ref_attr_name("alpha");
  add_node(body, "Add", {"leaky", "x"}, {"b"});
  return b;
}

void call(::onnx::NodeProto& node, float alpha) {
  node.set_domain("mine");
  auto* attribute = node.add_attribute();
  attribute->set_name("alpha");
  attribute->set_type(::onnx::AttributeProto::FLOAT);
  attribute->set_f(alpha);
}

TEST_F(OnnxSubgraphs, OfAFunctionHaveNamesOfTheirOwnAndItsAttributes) {
  // -2, then leaky(-2) - 2 = -3 and -1.5 - 2 = -3.5; 2, 4, 6.
  for (const Names& names : {Names{"a", "b"}, Names{"b", "a"}, Names{"leaky", "c"}}) {
    ModelBuilder b = with_function();
    b.input("in", {2});
    b.node("Neg", {"in"}, {names[0]});
    call(b.node("f", {names[0]}, {names[1]}), 0.5f);
    b.node("Add", {names[0], names[1]}, {"out"});
    b.output("out", {2});
    const Tensor y = evaluate_graph(import(b), {{"in", floats({2}, {2, -2})}})[0];
    EXPECT_EQ(y.at(0), -5.5) << names[0];
    EXPECT_EQ(y.at(1), 8) << names[0];
  }
}

/// Inlined behind each other and within a body, under one name.
TEST_F(OnnxSubgraphs, FunctionsAreCalledInsideAndOutside) {
  ModelBuilder b = with_function();
  b.input("in", {2});
  b.ints("two", {2}, true);
  add_truth(b, "go");
  call(b.node("f", {"in"}, {"p"}), 1);
  auto& body =
      subgraph(b.node("Loop", {"two", "go", "p"}, {"out"}), "body", {"i", "c", "a"}, {"c", "b"});
  call(add_node(body, "f", {"a"}, {"b"}), 1);
  b.graph().mutable_node(0)->set_name("f");
  body.mutable_node(0)->set_name("f");
  b.output("out", {2});
  EXPECT_EQ(evaluate_graph(import(b), {{"in", floats({2}, {1, 2})}})[0].to_ints(), (Ints{27, 54}));
}

TEST_F(OnnxSubgraphs, AnIfWithAKnownConditionIsItsBranch) {
  ModelBuilder b;
  b.input("x", {2});
  b.ints("three", {3}, true);
  b.ints("rank", {1}, true);
  b.node("Equal", {"rank", "three"}, {"condition"});
  auto& node = b.node("If", {"condition"}, {"y"});
  add_node(subgraph(node, "then_branch", {}, {"r"}), "Exp", {"x"}, {"r"});
  add_node(subgraph(node, "else_branch", {}, {"r"}), "Neg", {"x"}, {"r"});
  b.output("y", {2});
  EXPECT_EQ(evaluate_graph(import(b), {{"x", floats({2}, {1, 2})}})[0].to_ints(), (Ints{-1, -2}));
}

/// y = sum(x) > 0 ? a(w x) : b(x), for `a` and `b` of one operand.
ModelBuilder chosen(const std::string& a, const std::string& b, const std::string& of = "x") {
  ModelBuilder m(18);
  m.input("x", {2});
  m.floats("w", {2}, {3, 3});
  m.floats("zero", {1}, {0});
  m.node("ReduceSum", {"x"}, {"sum"});
  m.node("Greater", {"sum", "zero"}, {"positive"});
  auto& node = m.node("If", {"positive"}, {"y"});
  auto& then = subgraph(node, "then_branch", {}, {"r"});
  add_node(then, "Mul", {"x", "w"}, {"scaled"});
  add_node(then, a, {"scaled"}, {"r"});
  add_node(subgraph(node, "else_branch", {}, {"s"}), b, {of}, {"s"});
  set_int(m.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  m.output("loss");
  return m;
}

/// The value, and the gradient of w's first number.
std::pair<double, double> value_and_gradient(Graph graph, const std::vector<float>& x) {
  const std::vector<ValueId> w = graph.with_role(Role::parameter);
  const NamedTensors fed = {{"x", floats({2}, x)}};
  const double value = evaluate_graph(graph, fed)[0].at(0);
  const std::vector<ValueId> wanted = differentiate(graph, graph.loss, w);
  return {value, evaluate_graph(graph, fed, std::vector{wanted[0]})[0].at(0)};
}

TEST_F(OnnxSubgraphs, AnIfOfDataChooses) {
  const Graph graph = import(chosen("Neg", "Exp"));
  const auto taken = value_and_gradient(graph, {1, 2});
  EXPECT_EQ(taken.first, -9);
  EXPECT_EQ(taken.second, -1);
  const auto other = value_and_gradient(graph, {-1, 0});
  EXPECT_NEAR(other.first, std::exp(-1) + 1, 1e-6);
  EXPECT_EQ(other.second, 0);
}

/// The root of w x has no gradient at 0 and no value below it: neither reaches w where the other
/// branch is taken.
TEST_F(OnnxSubgraphs, TheBranchThatIsNotTakenReachesNothing) {
  const Graph graph = import(chosen("Sqrt", "Neg"));
  const auto other = value_and_gradient(graph, {0, -4});
  EXPECT_EQ(other.first, 4);
  EXPECT_EQ(other.second, 0);
  const auto taken = value_and_gradient(graph, {3, 12});
  EXPECT_EQ(taken.first, 9);
  EXPECT_EQ(taken.second, 0.5);  // x / (2 sqrt(w x))
}

TEST_F(OnnxSubgraphs, AnIfOfDataWithOtherShapesIsRefused) {
  const std::string got = refusal(chosen("Neg", "Neg", "sum"));
  EXPECT_NE(got.find("op If (opset 18): its condition depends on data, and result 'y' is f32[2] of "
                     "one branch and f32[1] of the other; compute both branches"),
            std::string::npos)
      << got;
}

TEST_F(OnnxSubgraphs, RunningAveragesInABranchOfDataAreRefused) {
  ModelBuilder b(18);
  b.input("x", {3, 2});
  b.floats("zero", {1}, {0});
  for (const char* name : {"scale", "shift", "mean", "variance"}) b.floats(name, {2}, {1, 1});
  b.node("ReduceSum", {"x"}, {"sum"});
  b.node("Squeeze", {"sum"}, {"number"});
  b.node("Greater", {"number", "zero"}, {"positive"});
  auto& node = b.node("If", {"positive"}, {"y"});
  auto& normalised = add_node(subgraph(node, "then_branch", {}, {"r"}), "BatchNormalization",
                              {"x", "scale", "shift", "mean", "variance"}, {"r", "m", "v"});
  set_int(normalised, "training_mode", 1);
  add_node(subgraph(node, "else_branch", {}, {"s"}), "Neg", {"x"}, {"s"});
  set_int(b.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  b.output("loss");
  const std::string got = refusal(b);
  EXPECT_NE(got.find("a branch moves running averages"), std::string::npos) << got;
}

/// torch.hstack is a SequenceMap and a ConcatFromSequence: the body of each item, with what all
/// share and what each has of its own.
TEST_F(OnnxSubgraphs, ASequenceMapIsWrittenOut) {
  const auto mapped = [](bool fewer) {
    ModelBuilder b(17);
    b.input("x", {2, 2});
    b.input("z", {2, 1});
    b.input("shared", {2, 1});
    b.node("SequenceConstruct", {"x", "z"}, {"s"});
    b.node("SequenceConstruct", fewer ? Names{"z"} : Names{"z", "x"}, {"t"});
    auto& node = b.node("SequenceMap", {"s", "shared", "t"}, {"sums", "products"});
    auto& body = subgraph(node, "body", {"item", "all", "own"}, {"sum", "product"});
    add_node(body, "Add", {"item", "all"}, {"sum"});
    add_node(body, "Mul", {"item", "own"}, {"product"});
    set_int(b.node("ConcatFromSequence", {"sums"}, {"y"}), "axis", 1);
    set_int(b.node("ConcatFromSequence", {"products"}, {"p"}), "axis", 1);
    b.output("y");
    b.output("p");
    return b;
  };
  const std::vector<Tensor> out =
      evaluate_graph(import(mapped(false)), {{"x", floats({2, 2}, {1, 2, 3, 4})},
                                             {"z", floats({2, 1}, {5, 6})},
                                             {"shared", floats({2, 1}, {10, 20})}});
  EXPECT_EQ(out[0].to_ints(), (std::vector<int64_t>{11, 12, 15, 23, 24, 26}));
  EXPECT_EQ(out[1].to_ints(), (std::vector<int64_t>{5, 10, 5, 10, 18, 24, 18, 24}));
  EXPECT_NE(refusal(mapped(true)).find("input 2 has 1 items, input 0 has 2"), std::string::npos);
}

}  // namespace
}  // namespace shardrun
