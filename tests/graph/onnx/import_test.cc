// What import makes of well-formed models: opsets, dims, dropout, functions, sequences, einsums.
#include "graph/onnx/import.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "graph/autodiff.h"
#include "graph/optimizer.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::ModelBuilder;

class OnnxImport : public test::ImportTest {};

/// One model that every opset from 13 on can say, written as that opset wants it.
ModelBuilder sweep_model(int64_t opset) {
  ModelBuilder b(opset);
  b.input("x", {2, 4});
  b.ints("axis1", {1});
  b.ints("shape", {0, 2, -1});
  b.ints("pads", {0, 1, 0, 0, 1, 0});
  b.ints("sizes", {2, 1, 1});
  b.ints("starts", {1});
  b.ints("ends", {1000});
  b.node("Softmax", {"x"}, {"s"});  // [2, 4]
  auto& reduce = b.node(
      "ReduceMean",
      opset >= 18 ? std::vector<std::string>{"s", "axis1"} : std::vector<std::string>{"s"}, {"m"});
  if (opset < 18) test::set_ints(reduce, "axes", {1});
  b.node("Sub", {"x", "m"}, {"d"});
  b.node("Reshape", {"d", "shape"}, {"r"});  // [2, 2, 2]
  b.node("Pad", {"r", "pads"}, {"p"});       // [2, 4, 2]
  test::set_int(b.node("Split", {"p", "sizes"}, {"p0", "p1", "p2"}), "axis", 1);
  b.node("Unsqueeze", {"x", "axis1"}, {"u"});  // [2, 1, 4]
  b.node("Squeeze", {"u", "axis1"}, {"q"});
  b.node("Slice", {"q", "starts", "ends", "axis1"}, {"l"});  // [2, 3]
  b.node("ReduceSum", {"l", "axis1"}, {"t"});
  b.node("Shape", {"p0"}, {"dims"});
  b.node("Expand", {"t", "shape3"}, {"e"});
  b.ints("shape3", {2, 2, 2});
  test::set_int(b.node("Concat", {"p0", "e"}, {"y"}), "axis", 1);
  b.node("Cast", {"dims"}, {"c"}).add_attribute()->set_name("to");
  auto* to = b.graph().mutable_node(b.graph().node_size() - 1)->mutable_attribute(0);
  to->set_type(::onnx::AttributeProto::INT);
  to->set_i(1);
  b.output("y", {2, 4, 2});
  b.output("c", {3});
  return b;
}

TEST_F(OnnxImport, TheSameModelInEveryOpset) {
  const Tensor x = floats({2, 4}, {0.5f, -1, 2, 0.25f, 1, 3, -2, 0});
  std::vector<double> first;
  for (int64_t opset = 13; opset <= 27; ++opset) {
    const Graph graph = import(sweep_model(opset));
    const std::vector<Tensor> out = evaluate_graph(graph, {{"x", x}});
    ASSERT_EQ(out[0].shape(), (Shape{2, 4, 2})) << "opset " << opset;
    EXPECT_EQ(out[1].to_ints(), (std::vector<int64_t>{2, 2, 2}));
    std::vector<double> values;
    for (int64_t i = 0; i < out[0].count(); ++i) values.push_back(out[0].at(i));
    if (first.empty()) first = values;
    EXPECT_EQ(values, first) << "opset " << opset;
  }
  // Rows sum to 1, so the softmax's mean is 0.25: y[0] = padding, x - 0.25, then the slice's sum.
  EXPECT_EQ(first[0], 0);
  EXPECT_NEAR(first[2], 0.25, 1e-6);
  EXPECT_NEAR(first[4], 1.25, 1e-6);
}

TEST_F(OnnxImport, SymbolicDimsAreBoundOrNamed) {
  ModelBuilder b;
  b.input("x", {-1, 3});
  b.node("Relu", {"x"}, {"y"});
  b.output("y", {-1, 3});
  const std::string unbound = refusal(b);
  EXPECT_NE(unbound.find("input 'x': dim 0 is symbolic ('n'); give its size with --dim n="),
            std::string::npos)
      << unbound;
  const auto dims = OnnxFile(b.write(folder)).symbolic_dims();
  ASSERT_EQ(dims.size(), 1u);
  EXPECT_EQ(dims[0].name, "n");
  options.dims = {{"n", 5}};
  EXPECT_EQ(import(b).type(import(b).outputs[0]).shape, (Shape{5, 3}));
  options.dims = {{"m", 5}};
  EXPECT_NE(refusal(b).find("no dim is named 'm'; symbolic dims are: n"), std::string::npos);
  options.dims = {};
  options.batch = 7;
  EXPECT_EQ(import(b).type(import(b).outputs[0]).shape, (Shape{7, 3}));
  ModelBuilder fixed;
  fixed.input("x", {2, 3});
  fixed.node("Relu", {"x"}, {"y"});
  fixed.output("y", {2, 3});
  EXPECT_NE(refusal(fixed).find("no input has a symbolic first dim"), std::string::npos);
}

TEST_F(OnnxImport, ShapeArithmeticFolds) {
  // reshape(x, [shape(x)[0] * 2, -1]): no shape operator is left.
  ModelBuilder b;
  b.input("x", {-1, 4});
  b.ints("zero", {0});
  b.ints("two", {2});
  b.ints("rest", {-1});
  b.node("Shape", {"x"}, {"s"});
  b.node("Gather", {"s", "zero"}, {"n"});
  b.node("Mul", {"n", "two"}, {"n2"});
  test::set_int(b.node("Concat", {"n2", "rest"}, {"to"}), "axis", 0);
  b.node("Reshape", {"x", "to"}, {"y"});
  b.output("y");
  options.batch = 3;
  const Graph graph = import(b);
  ASSERT_EQ(graph.nodes().size(), 1u) << to_string(graph);
  EXPECT_EQ(graph.type(graph.outputs[0]).shape, (Shape{6, 2}));
}

TEST_F(OnnxImport, DropoutTrainsOnlyWhereTheExportSaysSo) {
  for (const bool active : {false, true}) {
    ModelBuilder b;
    b.input("x", {64});
    b.floats("ratio", {}, {0.5f});
    auto& mode = b.ints("mode", {active}, true);
    mode.set_data_type(::onnx::TensorProto::BOOL);
    mode.clear_int64_data();
    mode.add_int32_data(active);
    b.node("Dropout", {"x", "ratio", "mode"}, {"y", "mask"});
    b.output("y", {64});
    b.output("mask", {64}, ::onnx::TensorProto::BOOL);
    const Graph graph = import(b);
    EXPECT_EQ(graph.find(kRandomStep) != kNoValue, active);
    EXPECT_EQ(noted("exported inactive"), !active);
    NamedTensors feeds = {{"x", floats({64}, std::vector<float>(64, 1))}};
    if (active) feeds[kRandomStep] = Tensor::scalar_i64(3);
    const std::vector<Tensor> out = evaluate_graph(graph, feeds);
    int kept = 0;
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(out[0].at(i), active ? 2 * out[1].at(i) : 1);
      kept += out[1].at(i) != 0;
    }
    EXPECT_EQ(kept == 64, !active);
    EXPECT_GT(kept, 10);
  }
}

/// An operator that import does not know, what is made of its result, and one that it does not know
/// in this form, all beside the loss.
TEST_F(OnnxImport, WhatTheLossDoesNotNeedMayBeAnything) {
  ModelBuilder b(20);
  b.input("x", {2, 2});
  b.floats("w", {2, 2}, {1, 2, 3, 4});
  b.node("MatMul", {"x", "w"}, {"y"});
  test::set_int(b.node("ReduceSum", {"y"}, {"loss"}), "keepdims", 0);
  b.node("Det", {"y"}, {"d"});
  b.node("Add", {"d", "loss"}, {"e"});
  test::set_string(b.node("Gelu", {"y"}, {"g"}), "approximate", "quick");
  b.output("loss", {});
  b.output("e", {});
  b.output("g", {2, 2});
  b.output("y", {2, 2});
  const Graph graph = import(b);
  EXPECT_EQ(graph.outputs.size(), 2u);  // loss and y
  EXPECT_TRUE(
      noted("outputs 'e', 'g' are left out, for the loss does not need them: node 2 "
            "'Det_2': op Det (opset 20) is not supported"));
  options.training = false;
  EXPECT_NE(refusal(b).find("op Det (opset 20) is not supported"), std::string::npos);
}

/// A ratio of 1, which drops all.
TEST_F(OnnxImport, DropoutOfEverything) {
  ModelBuilder b;
  b.input("x", {4});
  b.floats("ratio", {}, {1});
  auto& mode = b.ints("mode", {1}, true);
  mode.set_data_type(::onnx::TensorProto::BOOL);
  mode.clear_int64_data();
  mode.add_int32_data(1);
  b.node("Dropout", {"x", "ratio", "mode"}, {"y"});
  b.output("y", {4});
  const std::vector<Tensor> out = evaluate_graph(import(b), {{"x", floats({4}, {1, -2, 3, 4})}});
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out[0].at(i), 0);
}

TEST_F(OnnxImport, FunctionsAreInlinedWithTheirAttributes) {
  // f(a){axis} = softmax(relu(a), axis); the node gives axis = 0.
  ModelBuilder b;
  b.model.add_opset_import()->set_domain("mine");
  b.model.mutable_opset_import(1)->set_version(1);
  auto* f = b.model.add_functions();
  f->set_domain("mine");
  f->set_name("f");
  f->add_input("a");
  f->add_output("b");
  f->add_attribute("axis");
  auto* import_set = f->add_opset_import();
  import_set->set_version(17);
  auto* relu = f->add_node();
  relu->set_op_type("Relu");
  relu->add_input("a");
  relu->add_output("r");
  auto* softmax = f->add_node();
  softmax->set_op_type("Softmax");
  softmax->add_input("r");
  softmax->add_output("b");
  auto* axis = softmax->add_attribute();
  axis->set_name("axis");
  axis->set_ref_attr_name("axis");
  axis->set_type(::onnx::AttributeProto::INT);
  b.input("x", {2, 2});
  auto& call = b.node("f", {"x"}, {"y"});
  call.set_domain("mine");
  test::set_int(call, "axis", 0);
  b.output("y", {2, 2});
  const Tensor y = evaluate_graph(import(b), {{"x", floats({2, 2}, {-1, 2, 0, 2})}})[0];
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(y.at(i), 0.5, 1e-6);  // columns (0, 0) and (2, 2)
}

TEST_F(OnnxImport, SequencesOfConstantPositionsDissolve) {
  ModelBuilder b;
  b.input("x", {2, 6});
  b.ints("size", {2}, true);
  b.ints("at", {-1}, true);
  test::set_int(b.node("SplitToSequence", {"x", "size"}, {"s"}), "axis", 1);
  b.node("SequenceAt", {"s", "at"}, {"y"});
  b.output("y", {2, 2});
  const Tensor y =
      evaluate_graph(import(b), {{"x", floats({2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})}})[0];
  EXPECT_EQ(y.to_ints(), (std::vector<int64_t>{4, 5, 10, 11}));
}

/// A letter that one operand has twice: its diagonal.
TEST_F(OnnxImport, EinsumsOfDiagonals) {
  struct Case {
    const char* equation;
    Shape x, z;  // no z: one operand
    std::vector<int64_t> want;
  };
  for (const Case& c :
       {Case{"ii->i", {3, 3}, {}, {0, 4, 8}}, Case{"ii", {3, 3}, {}, {12}},
        Case{"iij->ji", {2, 2, 2}, {}, {0, 6, 1, 7}}, Case{"bii->b", {2, 2, 2}, {}, {3, 11}},
        Case{"iii->i", {2, 2, 2}, {}, {0, 7}}, Case{"...ii->...i", {2, 2, 2}, {}, {0, 3, 4, 7}},
        Case{"ii,ij->j", {2, 2}, {2, 2}, {6, 9}}, Case{"ijij->ij", {1, 2, 1, 2}, {}, {0, 3}}}) {
    ModelBuilder b;
    std::vector<std::string> names = {"x"};
    std::map<std::string, Tensor> feeds;
    const auto give = [&](const std::string& name, const Shape& shape) {
      std::vector<float> numbers(static_cast<size_t>(element_count(shape)));
      std::iota(numbers.begin(), numbers.end(), 0.0f);
      b.input(name, shape);
      feeds.emplace(name, floats(shape, numbers));
    };
    give("x", c.x);
    if (!c.z.empty()) give(names.emplace_back("z"), c.z);
    test::set_string(b.node("Einsum", names, {"y"}), "equation", c.equation);
    b.output("y");
    EXPECT_EQ(evaluate_graph(import(b), feeds)[0].to_ints(), c.want) << c.equation;
  }
  ModelBuilder uneven;
  uneven.input("x", {2, 3});
  test::set_string(uneven.node("Einsum", {"x"}, {"y"}), "equation", "ii->i");
  uneven.output("y");
  EXPECT_NE(refusal(uneven).find("twice, 'i', is of the sizes 2 and 3"), std::string::npos)
      << refusal(uneven);
}

/// torch.arange(1.0, 6), as the newer exporter writes it. Without its call it is no ONNX.
TEST_F(OnnxImport, RangesOfTwoTypesThatPyTorchWrote) {
  for (const bool called : {true, false}) {
    ModelBuilder b;
    b.floats("start", {}, {1.0f});
    b.ints("limit", {6}, true);
    b.ints("delta", {1}, true);
    auto& range = b.node("Range", {"start", "limit", "delta"}, {"y"});
    if (called) {
      test::add_metadata(&range, "pkg.torch.onnx.fx_node",
                         "%arange : [num_users=1] = call_function[target=torch.ops.aten.arange."
                         "start](args = (1.0, 6), kwargs = {})");
    }
    b.output("y");
    if (called) {
      const Tensor y = evaluate_graph(import(b), {})[0];
      EXPECT_EQ(y.dtype(), DType::f32);
      EXPECT_EQ(y.to_ints(), (std::vector<int64_t>{1, 2, 3, 4, 5}));
    } else {
      EXPECT_NE(refusal(b).find("start is f32[], limit i64[]"), std::string::npos);
    }
  }
}

TEST_F(OnnxImport, Einsums) {
  const Tensor x = floats({2, 3}, {1, 2, 3, 4, 5, 6}), z = floats({3, 2}, {1, 0, 2, 1, 0, 3});
  struct Case {
    const char* equation;
    std::vector<int64_t> want;
  };
  for (const Case& c : {Case{"ij,jk->ik", {5, 11, 14, 23}}, Case{"ij,jk", {5, 11, 14, 23}},
                        Case{"ij,jk->ki", {5, 14, 11, 23}}, Case{"ij,jk->", {53}},
                        Case{"...j,jk->...k", {5, 11, 14, 23}}, Case{"ij,ab->i", {42, 105}},
                        Case{"...J,JI->...I", {5, 11, 14, 23}}, Case{"...Z,Zz", {5, 11, 14, 23}}}) {
    ModelBuilder b;
    b.input("x", {2, 3});
    b.input("z", {3, 2});
    test::set_string(b.node("Einsum", {"x", "z"}, {"y"}), "equation", c.equation);
    b.output("y");
    EXPECT_EQ(evaluate_graph(import(b), {{"x", x}, {"z", z}})[0].to_ints(), c.want) << c.equation;
  }
  ModelBuilder one;
  one.input("x", {2, 3});
  test::set_string(one.node("Einsum", {"x"}, {"y"}), "equation", "ij->j");
  one.output("y");
  EXPECT_EQ(evaluate_graph(import(one), {{"x", x}})[0].to_ints(), (std::vector<int64_t>{5, 7, 9}));
  // A mixture of experts: the gate [i, e] goes in before the weights, which make a larger product.
  ModelBuilder three;
  three.input("x", {2, 3});
  three.input("w", {3, 4, 5});
  three.input("gate", {2, 3});
  test::set_string(three.node("Einsum", {"x", "w", "gate"}, {"y"}), "equation", "ie,eab,ie->ia");
  three.output("y");
  const Graph graph = import(three);
  std::vector<float> w(3 * 4 * 5);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 7);
  const Tensor gate = floats({2, 3}, {1, 0, 2, 0, 1, 1});
  const Tensor y =
      evaluate_graph(graph, {{"x", x}, {"w", floats({3, 4, 5}, w)}, {"gate", gate}})[0];
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t a = 0; a < 4; ++a) {
      double want = 0;
      for (int64_t k = 0; k < 15; ++k) {
        const int64_t e = k / 5;
        want += x.at(i * 3 + e) * gate.at(i * 3 + e) *
                static_cast<double>(w[static_cast<size_t>(e * 20 + a * 5 + k % 5)]);
      }
      EXPECT_EQ(y.at(i * 4 + a), want) << i << " " << a;
    }
  }
  for (const Node& node : graph.nodes())
    EXPECT_LE(element_count(graph.type(node.outputs[0]).shape), 12) << to_string(graph);
}

/// Of samples of several lengths, backward begins at each one's own last step.
TEST_F(OnnxImport, RecurrentLayersOverSamplesOfSeveralLengths) {
  for (const std::string direction : {"forward", "reverse", "bidirectional"}) {
    const bool both = direction == "bidirectional";
    const int64_t directions = both ? 2 : 1;
    ModelBuilder b;
    b.input("x", {3, 3, 1});
    b.input("lengths", {3}, test::kInt64);
    b.floats("w", {directions, 1, 1}, both ? std::vector<float>{1, 3} : std::vector<float>{1});
    b.floats("r", {directions, 1, 1}, both ? std::vector<float>{2, 0.5F} : std::vector<float>{2});
    auto& rnn = b.node("RNN", {"x", "w", "r", "", "lengths"}, {"y", "last"});
    test::set_string(rnn, "direction", direction);
    rnn.add_attribute()->CopyFrom([&] {
      ::onnx::AttributeProto activations;
      activations.set_name("activations");
      activations.set_type(::onnx::AttributeProto::STRINGS);
      for (int64_t d = 0; d < directions; ++d) activations.add_strings("Relu");
      return activations;
    }());
    b.output("y");
    b.output("last");
    const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8, 9};  // [step, sample]
    const Graph graph = import(b);
    const std::vector<Tensor> out =
        evaluate_graph(graph,
                       {{"x", floats({3, 3, 1}, x)},
                        {"lengths", Tensor::from<int64_t>({3}, {3, 1, 2}, DType::i64)}},
                       graph.outputs);
    for (int64_t d = 0; d < directions; ++d) {
      const bool back = direction == "reverse" || d == 1;
      for (int64_t sample = 0; sample < 3; ++sample) {
        const int64_t length = std::vector<int64_t>{3, 1, 2}[static_cast<size_t>(sample)];
        double h = 0;
        for (int64_t i = 0; i < 3; ++i) {
          const int64_t step = back ? 2 - i : i;
          const bool runs = step < length;
          if (runs)
            h = (d == 1 ? 3 : 1) * x[static_cast<size_t>(step * 3 + sample)] +
                (d == 1 ? 0.5 : 2) * h;
          EXPECT_EQ(out[0].at((step * directions + d) * 3 + sample), runs ? h : 0)
              << direction << " " << d << ", sample " << sample << ", step " << step;
        }
        EXPECT_EQ(out[1].at(d * 3 + sample), h) << direction << " " << d << ", sample " << sample;
      }
    }
  }
}

TEST_F(OnnxImport, ASumAlongABooleanCounts) {
  ModelBuilder b;
  b.input("x", {4});
  b.ints("axis", {0}, true);
  b.floats("zero", {1}, {0});
  b.node("Greater", {"x", "zero"}, {"mask"});
  b.node("CumSum", {"mask", "axis"}, {"y"});
  b.output("y", {4}, test::kInt64);
  const Tensor y = evaluate_graph(import(b), {{"x", floats({4}, {1, -1, 2, 3})}})[0];
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(y.int_at(i), (std::vector<int64_t>{1, 1, 2, 3})[static_cast<size_t>(i)]);
}

/// What came with opset 28 and IR version 14, of which no test of ONNX's own is at hand.
TEST_F(OnnxImport, TheNewestOpset) {
  ModelBuilder b(28);
  b.model.set_ir_version(14);
  b.input("x", {1, 2, 2, 2});
  b.floats("two", {1}, {2.0F});
  b.node("SwiGLU", {"x", "x"}, {"swiglu"});
  for (const char* mode : {"CRD", "DCR"}) {
    auto& node = b.node("SpaceToDepth", {"x"}, {mode});
    test::set_int(node, "blocksize", 2);
    test::set_string(node, "mode", mode);
  }
  b.node("Mod", {"x", "two"}, {"mod"});
  b.output("swiglu", {1, 2, 2, 2});
  b.output("mod", {1, 2, 2, 2});
  b.output("CRD", {1, 8, 1, 1});
  b.output("DCR", {1, 8, 1, 1});
  const std::vector<float> x = {-3, -2, -1, 0, 1, 2.5F, 3, 4};
  const std::vector<Tensor> got = evaluate_graph(import(b), {{"x", floats({1, 2, 2, 2}, x)}});
  const std::vector<double> remainders = {1, 0, 1, 0, 1, 0.5, 1, 0},
                            dcr = {-3, 1, -2, 2.5, -1, 3, 0, 4};
  for (int64_t i = 0; i < 8; ++i) {
    const double v = x[static_cast<size_t>(i)];
    EXPECT_NEAR(got[0].at(i), v * v / (1 + std::exp(-v)), 1e-5) << i;
    EXPECT_EQ(got[1].at(i), remainders[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(got[2].at(i), v) << i;
    EXPECT_EQ(got[3].at(i), dcr[static_cast<size_t>(i)]) << i;
  }
}

/// The root of a sum of 0 has no gradient; PyTorch takes 0.
TEST_F(OnnxImport, NormsOfNothingHaveNoGradient) {
  ModelBuilder b(22);
  b.input("x", {1, 1, 2, 2});
  b.node("GlobalLpPool", {"x"}, {"pooled"});
  b.node("LpNormalization", {"x"}, {"rows"});
  b.node("Add", {"pooled", "rows"}, {"y"});
  b.output("y", {1, 1, 2, 2});
  Graph graph = import(b);
  const ValueId x = graph.find("x");
  const ValueId loss =
      graph.add("reduce_sum", {graph.outputs[0]},
                {{"axes", std::vector<int64_t>{0, 1, 2, 3}}, {"keepdims", int64_t{0}}});
  const std::vector<ValueId> gradient = differentiate(graph, loss, std::vector{x});
  const Tensor got =
      evaluate_graph(graph, {{"x", floats({1, 1, 2, 2}, {0, 0, 0, 0})}}, gradient)[0];
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(got.at(i), 1) << i;  // of x / 1 alone
}

}  // namespace
}  // namespace shardrun
