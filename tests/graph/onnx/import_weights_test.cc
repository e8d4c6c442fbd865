// What import takes for a model's weights: which train, which are one, and how they are stored.
#include <gtest/gtest.h>

#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "kernels/reference/interpreter.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::add_metadata;
using test::kInt64;
using test::ModelBuilder;

constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";

class OnnxImportWeights : public test::ImportTest {
 protected:
  const ImportReport::Parameter* parameter(const std::string& name) const {
    for (const auto& p : report.parameters) {
      if (p.name == name) return &p;
    }
    return nullptr;
  }
};

/// mean over everything of x w * gain + b.
ModelBuilder weights_model() {
  ModelBuilder b;
  b.input("x", {2, 2});
  b.floats("w", {2, 2}, {1, 2, 3, 4});
  b.floats("gain", {}, {3});
  b.floats("b", {2}, {0.5f, 0.25f});
  b.floats("unused", {2}, {0, 1});
  b.floats("limit", {2}, {0, 1});
  b.node("MatMul", {"x", "w"}, {"a"});
  b.node("Mul", {"a", "gain"}, {"c"});
  b.node("Add", {"c", "b"}, {"d"});
  b.node("Greater", {"d", "limit"}, {"mask"});
  b.node("Where", {"mask", "d", "c"}, {"e"});
  test::set_int(b.node("ReduceMean", {"e"}, {"loss"}), "keepdims", 0);
  b.output("loss");
  return b;
}

TEST_F(OnnxImportWeights, WhatTrainsIsWhatTheGradientReaches) {
  Graph graph = import(weights_model());
  ASSERT_EQ(report.parameters.size(), 2u);
  EXPECT_TRUE(parameter("w")->trainable && parameter("b")->trainable);
  EXPECT_EQ(graph.find("gain"), kNoValue);   // a single number
  EXPECT_EQ(graph.find("limit"), kNoValue);  // behind a comparison
  EXPECT_TRUE(noted("'unused' is used by nothing"));
  ASSERT_NE(graph.loss, kNoValue);
  EXPECT_EQ(graph.type(graph.loss), (TensorType{DType::f32, {}}));
  attach_optimizer(graph, {});  // throws if one that should train is not reached
  EXPECT_EQ(graph.sources.at(graph.find("w")).kind, Source::Kind::data);

  options.freeze = {"^w$"};
  import(weights_model());
  EXPECT_FALSE(parameter("w")->trainable);
  EXPECT_EQ(parameter("w")->why, "matches --freeze '^w$'");
  options.freeze = {};
  options.train = {"gain"};
  import(weights_model());
  ASSERT_NE(parameter("gain"), nullptr);
  options.train = {"("};
  EXPECT_NE(refusal(weights_model()).find("is not a regular expression"), std::string::npos);
}

/// A layer's one-element operand is a weight, whatever it is called and whoever wrote the file.
TEST_F(OnnxImportWeights, SingleNumbersThatLayersUseTrain) {
  for (const char* producer : {"", "pytorch"}) {
    SCOPED_TRACE(producer);
    ModelBuilder b;
    b.model.set_producer_name(producer);
    b.input("image", {2, 1, 3, 3});
    b.floats("kernel", {1, 1, 1, 1}, {2});
    b.floats("k/b", {1}, {0});
    b.floats("scale", {1}, {1});
    b.floats("shift", {1}, {0.5f});
    b.floats("mean", {1}, {0});
    b.floats("var", {1}, {1});
    b.floats("slope", {1, 1, 1}, {0.25f});
    b.floats("flat", {9, 3}, std::vector<float>(27, 0.5f));
    b.floats("mask", {1}, {0});
    b.floats("head", {3, 1}, {1, 2, 3});
    b.floats("mask_head", {1}, {0});
    b.floats("last", {1, 1}, {2});
    b.ints("rows", {2, 9});
    b.node("Conv", {"image", "kernel", "k/b"}, {"c"});
    b.node("BatchNormalization", {"c", "scale", "shift", "mean", "var"}, {"n"});
    b.node("PRelu", {"n", "slope"}, {"p"});
    b.node("Reshape", {"p", "rows"}, {"r"});
    b.node("MatMul", {"r", "flat"}, {"m"});
    b.node("Add", {"mask", "m"}, {"h"});
    b.node("Gemm", {"h", "head", "mask_head"}, {"g"});
    b.node("MatMul", {"g", "last"}, {"y"});
    test::set_int(b.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    b.output("loss");
    import(b);
    for (const char* name :
         {"kernel", "k/b", "scale", "shift", "slope", "mask", "mask_head", "last"}) {
      ASSERT_NE(parameter(name), nullptr) << name;
      EXPECT_TRUE(parameter(name)->trainable) << name;
    }
    EXPECT_TRUE(report.constants.empty());
  }
}

/// x / sqrt(mean(x^2) + eps), times two numbers, where a mask lets it through.
TEST_F(OnnxImportWeights, SingleNumbersThatNobodyTrainsAreToldWithTheReason) {
  for (const char* producer : {"", "pytorch"}) {
    SCOPED_TRACE(producer);
    ModelBuilder b;
    b.model.set_producer_name(producer);
    b.input("x", {2, 3});
    b.floats("two.weight", {}, {2});
    b.floats("norm.eps", {}, {1e-5f});
    b.floats("attn.masked_bias", {}, {-1e4f});
    b.floats("head.temperature", {}, {3});
    b.floats("factor", {}, {3});
    b.floats("onnx::Mul_7", {}, {3});
    b.floats("const_8", {}, {3});
    b.node("Pow", {"x", "two.weight"}, {"squares"});
    test::set_ints(b.node("ReduceMean", {"squares"}, {"m"}), "axes", {1});
    b.node("Add", {"m", "norm.eps"}, {"e"});
    b.node("Sqrt", {"e"}, {"s"});
    b.node("Div", {"x", "s"}, {"d"});
    b.node("Mul", {"d", "head.temperature"}, {"t"});
    b.node("Mul", {"t", "factor"}, {"f"});
    b.node("Mul", {"f", "onnx::Mul_7"}, {"f7"});
    b.node("Mul", {"f7", "const_8"}, {"g"});
    b.node("Greater", {"x", "m"}, {"mask"});
    b.node("Identity", {"attn.masked_bias"}, {"fill"});
    b.node("Where", {"mask", "g", "fill"}, {"y"});
    test::set_int(b.node("ReduceMean", {"y"}, {"loss"}), "keepdims", 0);
    b.output("loss");
    import(b);
    std::map<std::string, std::string> why;
    for (const auto& p : report.constants) why[p.name] = p.why;
    EXPECT_EQ(why["two.weight"], "a single number, an exponent");
    EXPECT_EQ(why["norm.eps"], "a single number, an epsilon");
    EXPECT_EQ(why["attn.masked_bias"], "a single number, what a mask fills in");
    EXPECT_EQ(why.count("onnx::Mul_7") + why.count("const_8"), 2u);
    EXPECT_TRUE(parameter("head.temperature") != nullptr &&
                parameter("head.temperature")->trainable);
    // PyTorch's legacy exporter names nothing but what a module has.
    const bool modules_own = std::string(producer) == "pytorch";
    EXPECT_EQ(parameter("factor") != nullptr, modules_own);
    EXPECT_EQ(noted("'factor'"), true);
    EXPECT_TRUE(noted("'norm.eps'") && noted("'attn.masked_bias'"));
    EXPECT_FALSE(noted("onnx::Mul_7") || noted("const_8"));
    EXPECT_TRUE(noted("taken for constants and not trained"));

    options.train = {"^factor$", "^norm"};
    options.freeze = {"temperature"};
    import(b);
    EXPECT_TRUE(parameter("factor")->trainable && parameter("norm.eps")->trainable);
    EXPECT_FALSE(parameter("head.temperature")->trainable);
    EXPECT_FALSE(noted("'norm.eps'"));
    options = {};
    options.evaluate = run_reference;
  }
}

/// An exporter may have merged them with numbers that the gradient reaches.
TEST_F(OnnxImportWeights, WhatOperatorsHaveToKnowIsConstant) {
  for (const bool shared : {false, true}) {
    ModelBuilder b(18);
    b.input("x", {1, 2, 4, 4});
    b.floats("w", {3, 2, 1, 1}, {1, 2, 3, 4, 5, 6});
    b.floats("scales", {4}, {1, 1, 2, 2});
    b.floats("pad.weight", {}, {0.5f});
    b.floats("low.weight", {}, {-1});
    b.floats("high.weight", {}, {1});
    b.ints("pads", {0, 0, 1, 1, 0, 0, 1, 1});
    b.node("Conv", {"x", "w"}, {"c"});
    test::set_string(b.node("Resize", {"c", "", "scales"}, {"r"}), "mode", "nearest");
    b.node("Pad", {"r", "pads", "pad.weight"}, {"p"});
    b.node("Clip", {"p", "low.weight", "high.weight"}, {"y"});
    if (shared) b.node("Mul", {"scales", "scales"}, {"squares"});
    b.output("y");
    if (shared) b.node("ReduceSum", {"squares"}, {"sum"});
    if (shared) b.node("Mul", {"y", "sum"}, {"product"});
    if (shared) b.graph().mutable_output(0)->set_name("product");
    const Graph graph = import(b);
    EXPECT_EQ(graph.type(graph.outputs[0]).shape, (Shape{1, 3, 10, 10}));
    ASSERT_EQ(report.parameters.size(), 1u);
    EXPECT_EQ(report.parameters[0].name, "w");
  }
}

/// Two heads of one output each, whose fresh biases an exporter made one.
TEST_F(OnnxImportWeights, SingleBiasesThatWereMergedAreTwoAgain) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {2, 2});
  b.floats("a.weight", {2, 1}, {1, 2});
  b.floats("b.weight", {2, 1}, {3, 5});
  b.floats("a.bias", {1}, {0});
  b.node("Identity", {"a.bias"}, {"b.bias"});
  b.node("Gemm", {"x", "a.weight", "a.bias"}, {"p"});
  b.node("Gemm", {"x", "b.weight", "b.bias"}, {"q"});
  b.node("Mul", {"p", "q"}, {"y"});
  b.output("y", {2, 1});
  import(b);
  EXPECT_TRUE(parameter("a.bias") != nullptr && parameter("b.bias") != nullptr);
  EXPECT_TRUE(noted("two weights again"));
}

TEST_F(OnnxImportWeights, MetadataDecidesWhereItExists) {
  ModelBuilder b = weights_model();
  for (const auto& [name, kind] :
       {std::pair{"w", "BUFFER"}, {"b", "PARAMETER"}, {"gain", "PARAMETER"}}) {
    auto* info = b.graph().add_value_info();
    info->set_name(name);
    add_metadata(info, kKind, kind);
  }
  import(b);
  EXPECT_EQ(parameter("w"), nullptr);
  EXPECT_TRUE(parameter("b")->trainable && parameter("gain")->trainable);
}

TEST_F(OnnxImportWeights, AnEmbeddingsPaddingIsReadFromTheCallItCameFrom) {
  auto padding = [&](const std::string& call) -> int64_t {
    ModelBuilder b;
    b.input("t", {5}, kInt64);
    b.floats("e", {4, 3}, std::vector<float>(12, 0.5F));
    add_metadata(&b.node("Gather", {"e", "t"}, {"y"}), "pkg.torch.onnx.fx_node",
                 "%embedding : [num_users=1] = call_function[target=torch.ops.aten." + call +
                     ", kwargs = {})");
    b.output("y", {5, 3});
    const Graph graph = import(b);
    for (const Node& node : graph.nodes()) {
      if (node.op == "gather") return node.attrs.i("padding", -1);
    }
    return -2;
  };
  EXPECT_EQ(padding("embedding.default](args = (%p_e, %t, 2)"), 2);
  EXPECT_EQ(padding("embedding.default](args = (%p_e, %t, 1, False, False)"), 1);
  EXPECT_EQ(padding("embedding.default](args = (%p_e, %t, -1, False)"), -1);
  EXPECT_EQ(padding("embedding.default](args = (%p_e, %t)"), -1);
  EXPECT_EQ(padding("index_select.default](args = (%p_e, 0, %t)"), -1);
  EXPECT_EQ(padding("embedding.default](args = (%p_e, %t, 4)"), -1);  // of 4 rows
  EXPECT_THROW(padding("embedding.default](args = (%p_e, %t, -1, True)"), Error);
}

/// An embedding e [4, 3] whose transpose is stored again as the head.
ModelBuilder tied_model(const std::string& copy) {
  ModelBuilder b;
  b.input("t", {5}, kInt64);
  b.floats("e", {4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  b.floats(copy, {3, 4}, {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
  b.node("Gather", {"e", "t"}, {"h"});
  b.node("MatMul", {"h", copy}, {"y"});
  b.output("y", {5, 4});
  return b;
}

TEST_F(OnnxImportWeights, TransposedCopiesAreTiedAgain) {
  const Graph graph = import(tied_model("onnx::MatMul_278"));
  ASSERT_EQ(report.parameters.size(), 1u);
  EXPECT_EQ(report.parameters[0].name, "e");
  EXPECT_TRUE(noted("'onnx::MatMul_278' is tied to 'e' transposed"));
  const Tensor tokens = Tensor::vector_i64({3, 0, 1, 2, 3});
  const Tensor y = evaluate_graph(graph, {{"t", tokens}})[0];
  EXPECT_EQ(y.at(0), 9 * 0 + 10 * 1 + 11 * 2);  // row 3 of e times column 0: e[3] . e[0]
  ModelBuilder other = tied_model("other");
  other.graph().mutable_initializer(1)->mutable_raw_data()->at(2) ^= 1;  // one bit: no tie
  import(other);
  EXPECT_EQ(report.parameters.size(), 2u);
}

/// Two layers whose matrices are equal, as those of a fresh nn.TransformerEncoder.
ModelBuilder copied_layers(const std::string& first, const std::string& second) {
  ModelBuilder b;
  b.input("x", {5, 2});
  b.floats(first, {2, 2}, {1, 2, 3, 4});
  b.floats(second, {2, 2}, {1, 2, 3, 4});
  b.node("MatMul", {"x", first}, {"h"});
  b.node("MatMul", {"h", second}, {"y"});
  b.output("y", {5, 2});
  return b;
}

TEST_F(OnnxImportWeights, EqualLayersAreTiedOnlyWhereOneLostItsName) {
  import(copied_layers("layers.0.weight", "layers.1.weight"));
  EXPECT_EQ(report.parameters.size(), 2u);
  import(copied_layers("onnx::MatMul_7", "onnx::MatMul_9"));  // the transposes of two such layers
  EXPECT_EQ(report.parameters.size(), 2u);
  import(copied_layers("onnx::MatMul_7", "layers.1.weight"));
  ASSERT_EQ(report.parameters.size(), 1u);
  EXPECT_EQ(report.parameters[0].name, "layers.1.weight");
}

TEST_F(OnnxImportWeights, FoldedFromAWeightThatIsUsedItselfMustMatchIt) {
  ModelBuilder b = tied_model("val_7");
  auto* info = b.graph().add_value_info();
  info->set_name("val_7");
  add_metadata(info, "pkg.onnxscript.optimizer.folded_from", "['e']");
  import(b);
  EXPECT_TRUE(noted("'val_7' is tied to 'e' transposed (folded by the exporter)"));
  b.graph().mutable_initializer(1)->mutable_raw_data()->at(2) ^= 1;
  EXPECT_NE(refusal(b).find("the two would train apart"), std::string::npos);
}

TEST_F(OnnxImportWeights, WhatIsFoldedOfTheExportersOwnStepsIsNotTrained) {
  ModelBuilder b;
  b.input("x", {5, 2});
  b.floats("w", {2, 2}, {1, 2, 3, 4});
  b.floats("cos", {5, 2}, std::vector<float>(10, 0.5F));
  b.node("MatMul", {"x", "w"}, {"h"});
  b.node("Mul", {"h", "cos"}, {"y"});
  b.output("y", {5, 2});
  auto* info = b.graph().add_value_info();
  info->set_name("cos");
  add_metadata(info, "pkg.onnxscript.optimizer.folded_from",
               "['scalar_tensor_default_2', 'val_1']");
  import(b);
  ASSERT_EQ(report.parameters.size(), 1u);
  EXPECT_EQ(report.parameters[0].name, "w");
}

/// x w scaled by what an exporter computed from 'rope.table' and a user's input. The signature says
/// of the table what it was.
ModelBuilder scaled_by_folded(const std::string& signature) {
  ModelBuilder b;
  b.input("x", {5, 2});
  b.floats("w", {2, 2}, {1, 2, 3, 4});
  b.floats("slice_3", {5, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  b.node("MatMul", {"x", "w"}, {"h"});
  b.node("Mul", {"h", "slice_3"}, {"y"});
  b.output("y", {5, 2});
  auto* info = b.graph().add_value_info();
  info->set_name("slice_3");
  add_metadata(info, "pkg.onnxscript.optimizer.folded_from", "['x', 'sin', 'rope.table', 'val_1']");
  if (!signature.empty()) {
    add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature", signature);
  }
  return b;
}

TEST_F(OnnxImportWeights, TheSignatureSaysWhatAFoldedTensorWasComputedFrom) {
  const std::string undecided = "from 'rope.table', and the file does not say";
  const std::string trained = "from 'rope.table' by arithmetic";
  EXPECT_NE(refusal(scaled_by_folded("")).find(undecided), std::string::npos);
  options.freeze = {"^slice_3$"};
  import(scaled_by_folded(""));
  EXPECT_TRUE(parameter("slice_3") != nullptr && !parameter("slice_3")->trainable);
  options.freeze.clear();
  const std::string before = "\n# inputs\np_w: PARAMETER target='w'\nt: ";
  const std::string after =
      "\nx: USER_INPUT\n\n# outputs\nt: BUFFER_MUTATION target='rope.table'\n";
  const std::string parameter = before + "PARAMETER target='rope.table'" + after;
  EXPECT_NE(refusal(scaled_by_folded(parameter)).find(trained), std::string::npos);
  // As PyTorch wrote it until 2.6.
  const std::string spec =
      ": 3>, arg=TensorArgument(name='t'), target='rope.table', persistent=True)";
  const std::string older = "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.";
  EXPECT_NE(refusal(scaled_by_folded(older + "PARAMETER" + spec)).find(trained), std::string::npos);
  for (const std::string& signature :
       {before + "BUFFER target='rope.table' persistent=False" + after,
        before + "CONSTANT_TENSOR target='rope.table'" + after, older + "BUFFER" + spec}) {
    import(scaled_by_folded(signature));
    ASSERT_EQ(report.parameters.size(), 1u) << signature;
    EXPECT_EQ(report.parameters[0].name, "w");
  }
}

/// x plus what an optimiser computed ahead from the parameter 'w': name, shape, numbers, and the
/// other names that the file gives for what each was computed from.
struct Folded {
  std::string name;
  Shape shape;
  std::vector<float> numbers;
  std::string steps;
};
ModelBuilder with_folded(const std::vector<Folded>& parts) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {1, 4, 3});
  b.node("Neg", {"x"}, {"amin"});
  std::string at = "amin";
  for (const Folded& part : parts) {
    auto& stored = b.floats(part.name, part.shape, part.numbers);
    add_metadata(&stored, "pkg.onnxscript.optimizer.folded_from",
                 part.steps.empty() ? "['w']" : "['w', " + part.steps + "]");
    b.node("Add", {at, part.name}, {"plus_" + part.name});
    at = "plus_" + part.name;
  }
  b.output(at);
  add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
               "\n# inputs\np_w: PARAMETER target='w'\nx: USER_INPUT\n\n# outputs\ny: "
               "USER_OUTPUT\n");
  return b;
}

/// `count` numbers of a weight from the one at `begin` on.
std::vector<float> drawn(int begin, int count) {
  std::vector<float> out;
  for (int i = begin; i < begin + count; ++i) out.push_back(0.37F * static_cast<float>(i) - 1.3F);
  return out;
}

TEST_F(OnnxImportWeights, AFoldedLookUpIsFrozenWithItsTable) {
  ModelBuilder b = with_folded({{"embedding", {4, 3}, drawn(0, 12), "'places'"}});
  for (auto& entry : *b.graph().mutable_metadata_props())
    entry.set_value("\n# inputs\nb_places: BUFFER target='places' persistent=False\n" +
                    entry.value().substr(entry.value().find("p_w:")));
  import(b);
  ASSERT_NE(parameter("embedding"), nullptr);
  EXPECT_TRUE(parameter("embedding")->trainable);
  options.freeze = {"^w$"};
  import(b);
  EXPECT_FALSE(parameter("embedding")->trainable);
}

TEST_F(OnnxImportWeights, WhatWasComputedFromAWeightBeforeItWasMovedIsNotTrained) {
  const auto why = [&](const std::string& name, const std::string& steps) {
    return refusal(with_folded({{name, {4, 3}, drawn(0, 12), steps}}));
  };
  const auto imported = [&](const std::string& name, const std::string& steps) {
    import(with_folded({{ name, {4, 3}, drawn(0, 12), steps }}));
    return report.parameters.size() == 1;
  };
  const std::string computed = "from 'w' by arithmetic";
  for (const char* name : {"relu", "elu", "leaky_relu_1", "erf", "linear_1", "pad", "dot", "amax"})
    EXPECT_NE(why(name, "").find(computed), std::string::npos) << name;
  for (const char* steps : {"'silu', 'permute', 'val_2'", "'mul', 'scalar_tensor_default', 'val_2'",
                            "'cumsum', 'val_2'", "'flip', 'val_2'"})
    EXPECT_NE(why("unsqueeze", steps).find(computed), std::string::npos) << steps;
  EXPECT_TRUE(imported("permute", "'unsqueeze', 'clone', 'val_2'"));
  EXPECT_TRUE(imported("embedding", "'arange', 'add', 'scalar_tensor_default'"));  // w[arange + 2]
  EXPECT_TRUE(imported("val_3.h.0.weight", ""));      // one of several that were merged
  EXPECT_TRUE(imported("val_3", "'amin', 'val_2'"));  // the shape of what a node makes
}

TEST_F(OnnxImportWeights, PartsOfOneWeightThatOverlapAreRefused) {
  const auto two = [](const Shape& a, std::vector<float> first, const Shape& b,
                      std::vector<float> second) {
    return with_folded({{"slice_1", a, std::move(first), "'val_2'"},
                        {"slice_3", b, std::move(second), "'val_4'"}});
  };
  const std::string why = refusal(two({4, 3}, drawn(0, 12), {2, 1, 3}, drawn(6, 6)));
  EXPECT_NE(why.find("'slice_1', 'slice_3' were computed by the exporter from 'w' and have "
                     "numbers in common: they would train apart"),
            std::string::npos)
      << why;
  import(two({4, 3}, drawn(0, 12), {4, 3}, drawn(12, 12)));
  EXPECT_EQ(report.parameters.size(), 2u);
  import(two({4, 3}, drawn(0, 12), {1, 4, 3}, drawn(0, 12)));
  EXPECT_EQ(report.parameters.size(), 1u);
  EXPECT_TRUE(noted("'slice_3' is tied to 'slice_1'"));
}

TEST_F(OnnxImportWeights, ATableWithOneRowTwiceIsRefused) {
  std::vector<float> rows = drawn(0, 123);  // w[[0, 1, … 40, 40]]
  EXPECT_EQ(refusal(with_folded({{"index", {41, 1, 3}, rows, "'val_2'"}})), "");
  for (int i = 0; i < 3; ++i) rows.push_back(rows[static_cast<size_t>(120 + i)]);
  EXPECT_NE(refusal(with_folded({{"index", {42, 1, 3}, rows, "'val_2'"}})).find("repeats its"),
            std::string::npos);
}

/// Two layer norms that share one vector of ones.
ModelBuilder merged_model(bool optimised, bool identity) {
  ModelBuilder b;
  b.input("x", {2, 4});
  b.floats("l1.weight", {4}, {1, 1, 1, 1});
  std::string second = "l1.weight";
  if (identity) {
    second = "l2.weight";
    b.node("Identity", {"l1.weight"}, {second});
  }
  b.node("LayerNormalization", {"x", "l1.weight"}, {"a"});
  b.node("LayerNormalization", {"a", second}, {"y"});
  b.output("y", {2, 4});
  if (optimised) {
    auto* info = b.graph().add_value_info();
    info->set_name("a");
    add_metadata(info, "pkg.onnxscript.optimizer.folded_from", "['z', 'q']");
  }
  return b;
}

TEST_F(OnnxImportWeights, WeightsMergedByAnExporterAreRefusedOrSplit) {
  import(merged_model(false, false));  // no trace of an optimiser: it may be meant
  EXPECT_EQ(report.parameters.size(), 1u);
  const std::string why = refusal(merged_model(true, false));
  EXPECT_NE(why.find("initialiser 'l1.weight' (f32[4]) feeds 2 nodes"), std::string::npos) << why;
  EXPECT_NE(why.find("optimize=False"), std::string::npos);
  options.shared = ImportOptions::Shared::keep;
  import(merged_model(true, false));
  EXPECT_EQ(report.parameters.size(), 1u);
  options.shared = ImportOptions::Shared::split;
  import(merged_model(true, false));
  EXPECT_EQ(report.parameters.size(), 2u);
  options.shared = ImportOptions::Shared::refuse;
  import(merged_model(false, true));  // the Identity keeps the lost name
  ASSERT_EQ(report.parameters.size(), 2u);
  EXPECT_EQ(report.parameters[1].name, "l2.weight");
}

TEST_F(OnnxImportWeights, HalfAndDoubleWeightsBecomeSingle) {
  ModelBuilder b;
  b.input("x", {2});
  auto& half = b.floats("h", {2}, {});
  half.set_data_type(::onnx::TensorProto::FLOAT16);
  half.clear_raw_data();
  half.add_int32_data(0x3c00);  // 1
  half.add_int32_data(0xc000);  // -2
  auto& wide = b.floats("d", {2}, {});
  wide.set_data_type(::onnx::TensorProto::DOUBLE);
  wide.clear_raw_data();
  wide.add_double_data(0.5);
  wide.add_double_data(8);
  b.node("Mul", {"x", "h"}, {"a"});
  b.node("Add", {"a", "d"}, {"y"});
  b.output("y", {2});
  const Graph graph = import(b);
  EXPECT_EQ(parameter("h")->type.dtype, DType::f32);
  const Tensor y = evaluate_graph(graph, {{"x", floats({2}, {3, 5})}})[0];
  EXPECT_EQ(y.at(0), 3.5);
  EXPECT_EQ(y.at(1), -2);
}

TEST_F(OnnxImportWeights, LargeInlineWeightsStayInTheFile) {
  ModelBuilder b;
  b.input("x", {1, 1000});
  std::vector<float> values(1000 * 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17);
  b.floats("w", {1000, 3}, values);
  b.node("MatMul", {"x", "w"}, {"y"});
  b.output("y", {1, 3});
  const Graph graph = import(b);
  const ValueId w = graph.find("w");
  const Source& source = graph.sources.at(w);
  ASSERT_EQ(source.kind, Source::Kind::file);
  EXPECT_GT(source.offset, 0);
  std::vector<float> part(2);
  read_source(source, graph.type(w), {{500, 2}, {1, 1}}, 0, part.data());
  EXPECT_EQ(part, (std::vector<float>{values[500 * 3 + 1], values[501 * 3 + 1]}));
}

}  // namespace
}  // namespace shardrun
