// What an export does not tell, but shows signs of: each kind is one note, with the way out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/autodiff.h"
#include "graph/onnx/exporter/export_doubts.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::ModelBuilder;

class OnnxDoubts : public test::ImportTest {
 protected:
  int notes(const std::string& text) const {
    return static_cast<int>(std::count_if(
        report.notes.begin(), report.notes.end(),
        [&](const std::string& note) { return note.find(text) != std::string::npos; }));
  }
  bool trains(const std::string& name) const {
    return std::any_of(report.parameters.begin(), report.parameters.end(),
                       [&](const auto& p) { return p.name == name && p.trainable; });
  }
};

ModelBuilder pytorch() {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {3, 2});
  return b;
}

std::vector<float> numbers(size_t count, float first = 1) {
  std::vector<float> out;
  for (size_t i = 0; i < count; ++i) out.push_back(first + static_cast<float>(i));
  return out;
}

TEST(CustomFunctions, AreThoseThatAStackTraceAppliesAndThenIsInForward) {
  auto functions = [](const std::string& trace) {
    ::onnx::NodeProto node;
    test::add_metadata(&node, "pkg.torch.onnx.stack_trace", trace);
    return importer::custom_functions(node).applied;
  };
  const std::string frame = "  File \"model.py\", line 7, in ";
  EXPECT_EQ(functions(frame + "forward\n    h = quant.Round.apply(h)\n" + frame +
                      "forward\n    return x.round()"),
            std::set<std::string>{"quant.Round.apply"});
  EXPECT_EQ(functions(frame + "forward\n    h = A.apply(B.apply(h))\n" + frame +
                      "forward\n    return x.round()"),
            (std::set<std::string>{"A.apply", "B.apply"}));
  EXPECT_TRUE(functions(frame + "forward\n    h = self.layer(h)\n" + frame +
                        "forward\n    return F.linear(x, self.weight)")
                  .empty());
  EXPECT_TRUE(
      functions(frame + "forward\n    self.apply(init)\n" + frame + "init\n    m.zero_()").empty());
  for (const char* text : {"", "\n\n", ".apply(", "  File \"", ".apply(\nFile \""})
    EXPECT_TRUE(functions(text).empty()) << text;
}

TEST(CustomFunctions, MayHaveAnotherNameWhereMoreThanTheModulesAreInForward) {
  auto call = [](const std::string& scopes, const std::string& trace) {
    ::onnx::NodeProto node;
    test::add_metadata(&node, "pkg.torch.onnx.name_scopes", scopes);
    test::add_metadata(&node, "pkg.torch.onnx.stack_trace", trace);
    return importer::custom_functions(node).call;
  };
  const std::string frame = "  File \"model.py\", line 7, in ";
  const std::string torch = "  File \"site-packages/torch/nn/modules/loss.py\", line 7, in ";
  const std::string in_root = frame + "forward\n    h = f(self.layer(h))\n";
  EXPECT_EQ(call("['', 'neg']", in_root + frame + "forward\n    return -x"),
            "h = f(self.layer(h))");
  EXPECT_EQ(call("['', 'layers', 'layers.0', 'neg']",
                 frame + "forward\n    self.layers(h)\n" + torch +
                     "forward\n    input = module(input)\n" + frame + "forward\n    h = f(h)\n" +
                     frame + "forward\n    return -x"),
            "h = f(h)");
  EXPECT_EQ(call("['', 'layer', 'linear']", in_root + torch + "forward\n    F.linear(x)"), "");
  EXPECT_EQ(call("['', 'cross_entropy_loss']",  // of a module that forward() makes
                 in_root + torch + "forward\n    return F.cross_entropy(x, y)"),
            "");
  EXPECT_EQ(call("['', 'neg']",
                 frame + "forward\n    super().forward(h)\n" + frame + "forward\n    return -x"),
            "");
  EXPECT_EQ(call("['', 'neg']", frame + "forward\n    def forward(self, x): return self.f(x)\n" +
                                    frame + "forward\n    return -x"),
            "def forward(self, x): return self.f(x)");
  EXPECT_EQ(call("['', 'neg']", in_root + frame + "helper\n    return -x"), "");
  EXPECT_EQ(call("", in_root + frame + "forward\n    return -x"), "");
}

TEST_F(OnnxDoubts, CustomFunctionsAreNoted) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.node("MatMul", {"x", "a.weight"}, {"h"});
  test::add_metadata(&b.node("Neg", {"h"}, {"y"}), "pkg.torch.onnx.stack_trace",
                     "File \"m.py\", line 1, in forward\n    Scale.apply(h)\n  File \"m.py\", "
                     "line 5, in forward\n    return -x");
  b.output("y");
  import(b);
  EXPECT_EQ(notes("the forward() of the custom functions 'Scale.apply', not their backward()"), 1);
}

TEST_F(OnnxDoubts, CallsThatMayBeOfCustomFunctionsAreNoted) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.node("MatMul", {"x", "a.weight"}, {"h"});
  ::onnx::NodeProto& node = b.node("Neg", {"h"}, {"y"});
  test::add_metadata(&node, "pkg.torch.onnx.name_scopes", "['', 'neg']");
  test::add_metadata(&node, "pkg.torch.onnx.stack_trace",
                     "File \"m.py\", line 1, in forward\n    reverse(h)\n  File \"m.py\", "
                     "line 5, in forward\n    return -x");
  b.output("y");
  import(b);
  EXPECT_EQ(notes("'reverse(h)' calls a forward() of no module in the export"), 1);
}

TEST_F(OnnxDoubts, DetachInPlaceIsNotedWhereTheCodeShowsIt) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  test::add_metadata(&b.node("MatMul", {"x", "a.weight"}, {"y"}), "pkg.torch.onnx.stack_trace",
                     "File \"m.py\", line 1, in forward\n    h = (x @ self.a).detach_()");
  b.output("y");
  import(b);
  EXPECT_EQ(notes("'h = (x @ self.a).detach_()' calls detach_(), which the export leaves out"), 1);
}

/// h = x @ a in a region whose graph is `frame`, then tanh(h), then a layer.
ModelBuilder region(const std::string& frame, const char* between) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.floats("b.weight", {2, 2}, numbers(4, 7));
  const std::string key = "pkg.torch.onnx.stack_trace";
  test::add_metadata(&b.node("MatMul", {"x", "a.weight"}, {"h"}), key, frame);
  test::add_metadata(&b.node("Tanh", {"h"}, {"t"}), key, frame);
  ::onnx::NodeProto& node = b.node(between, {"t"}, {"u"});
  test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                     "%u : [num_users=1] = call_function[target=torch.ops.aten." +
                         std::string(node.op_type() == "Identity" ? "detach" : "neg") +
                         ".default](args = (%t,), kwargs = {})");
  b.node("MatMul", {"u", "b.weight"}, {"y"});
  b.output("y");
  return b;
}

TEST_F(OnnxDoubts, RegionsWithoutGradientsAreNotedWhereOneFlowsThrough) {
  const std::string text = "'t' comes out of a region of torch.no_grad() or torch.autocast()";
  const std::string own = "File \"<eval_with_key>.12\", line 5, in forward\n    linear = x";
  import(region(own, "Neg"));
  EXPECT_EQ(notes(text), 1);
  EXPECT_EQ(notes("come out of a region") + notes("comes out of a region"), 1);
  import(region("\n  " + own, "Neg"));
  EXPECT_EQ(notes(text), 1);
  import(region(own, "Identity"));  // detach()
  EXPECT_EQ(notes("a region"), 0);
  import(region("File \"m.py\", line 5, in forward\n    h = f(x)  # <eval_with_key>.12", "Neg"));
  EXPECT_EQ(notes("a region"), 0);
  options.freeze = {"a.weight"};
  import(region(own, "Neg"));
  EXPECT_EQ(notes("a region"), 0);
}

/// sigmoid(h.detach().clone()) as it is optimised: neither is left, and the call names the clone.
TEST_F(OnnxDoubts, AClonesMissingDetachIsNoted) {
  const auto reads = [&](const char* op, const char* argument) {
    ModelBuilder b = pytorch();
    b.floats("a.weight", {2, 2}, {1, 2, 3, 4});
    const auto call = [&](::onnx::NodeProto& node, const std::string& result,
                          const std::string& of) {
      test::add_metadata(&node, "pkg.torch.onnx.fx_node",
                         "%" + result + " : [num_users=1] = call_function[target=torch.ops.aten." +
                             of + ", kwargs = {})");
    };
    call(b.node("MatMul", {"x", "a.weight"}, {"mm"}), "mm", "mm.default](args = (%x, %p_a_weight)");
    call(b.node(op, {"mm"}, {"h"}), "h", "h.default](args = (%mm,)");
    call(b.node("Sigmoid", {"h"}, {"y"}), "sigmoid",
         "sigmoid.default](args = (%" + std::string(argument) + ",)");
    b.output("y");
    test::add_metadata(&b.graph(), "pkg.torch.export.ExportedProgram.graph_signature",
                       "\n# inputs\np_a_weight: PARAMETER target='a.weight'\nx: USER_INPUT\n\n# "
                       "outputs\ny: USER_OUTPUT\n");
    import(b);
    return notes("'sigmoid' was called with a clone() that the optimiser");
  };
  EXPECT_EQ(1, reads("Relu", "clone"));
  EXPECT_EQ(0, reads("Relu", "h"));
  EXPECT_EQ(0, reads("Transpose", "clone"));  // contiguous()
}

/// Two towers: what the second is called, and whether it began as the first.
ModelBuilder towers(const std::string& second, float first_number, size_t count = 4) {
  ModelBuilder b = pytorch();
  b.floats("online.layer.weight", {2, 2}, numbers(count));
  b.floats(second + ".layer.weight", {2, 2}, numbers(count, first_number));
  b.node("MatMul", {"x", "online.layer.weight"}, {"a"});
  b.node("MatMul", {"x", second + ".layer.weight"}, {"b"});
  b.node("Mul", {"a", "b"}, {"y"});
  b.output("y");
  return b;
}

TEST_F(OnnxDoubts, TowersThatMayStandStill) {
  import(towers("twin", 1));
  EXPECT_EQ(notes("'twin' (a copy of 'online') trains"), 1);
  EXPECT_EQ(notes("--freeze '^twin\\.'"), 1);
  import(towers("twin", 2));
  EXPECT_EQ(notes("no export keeps"), 0);
  import(towers("target_encoder", 2));
  EXPECT_EQ(notes("'target_encoder' trains"), 1);
  options.freeze = {"^target_encoder\\."};
  import(towers("target_encoder", 2));
  EXPECT_EQ(notes("no export keeps"), 0);
  options.freeze.clear();
  import(towers("retargeted", 2));
  EXPECT_EQ(notes("no export keeps"), 0);
}

/// Layers of a list often begin as copies of one (nn.TransformerEncoder).
TEST_F(OnnxDoubts, LayersOfAListAreNoCopies) {
  ModelBuilder b = pytorch();
  for (const char* name : {"layers.0.weight", "layers.1.weight"})
    b.floats(name, {2, 2}, numbers(4));
  b.node("MatMul", {"x", "layers.0.weight"}, {"a"});
  b.node("MatMul", {"a", "layers.1.weight"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_EQ(notes("no export keeps"), 0);
}

TEST_F(OnnxDoubts, OlderExportsBuffersAndLostDetachesAreOneNote) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.floats("final_logits_bias", {1, 2}, {0.5F, 0.25F});
  b.node("MatMul", {"x", "a.weight"}, {"z"});
  b.node("Tanh", {"z"}, {"q"});
  b.node("Sub", {"q", "z"}, {"gap"});
  b.node("Add", {"z", "gap"}, {"through"});
  b.node("Add", {"through", "final_logits_bias"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_EQ(notes("this exporter tells neither parameters from buffers nor where detach() was: all "
                  "that the loss depends on trains; 'final_logits_bias' trains; name what is a "
                  "buffer with --freeze; a gradient flows through 'Add_3', a + (b - a)"),
            1);
  EXPECT_EQ(report.notes.size(), 1u);
  EXPECT_EQ(notes("optimize=False"), 1);
  // The newer exporter tells both.
  auto* info = b.graph().add_value_info();
  ModelBuilder::set_info(info, "a.weight", {2, 2}, test::kFloat);
  test::add_metadata(info, "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  import(b);
  EXPECT_EQ(notes("this exporter"), 0);
}

/// A module's table of positions is a parameter in the file, whether PyTorch trains it or not.
TEST_F(OnnxDoubts, PositionsThatMayStandStill) {
  const auto positions = [](const std::vector<std::vector<float>>& rows) {
    ModelBuilder b = pytorch();
    std::vector<float> table;
    for (const auto& row : rows) table.insert(table.end(), row.begin(), row.end());
    const auto width = static_cast<int64_t>(rows[0].size());
    b.floats("a.weight", {2, width}, numbers(2 * rows[0].size()));
    b.floats("positions.weight", {static_cast<int64_t>(rows.size()), width}, table);
    b.node("MatMul", {"x", "a.weight"}, {"z"});
    b.node("Add", {"z", "positions.weight"}, {"y"});
    b.output("y");
    for (const char* name : {"a.weight", "positions.weight"}) {
      auto* info = b.graph().add_value_info();
      ModelBuilder::set_info(info, name, {}, test::kFloat);
      test::add_metadata(info, "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    }
    return b;
  };
  const auto angles = [](float a, float b, bool apart) {
    if (apart) return std::vector{std::sin(a), std::sin(b), std::cos(a), std::cos(b)};
    return std::vector{std::sin(a), std::cos(a), std::sin(b), std::cos(b)};
  };
  const std::string noted = "'positions.weight' holds sines or cosines of positions and trains";
  const std::vector<float> none(4, 0.0F);
  for (const bool apart : {false, true}) {
    import(positions({angles(0, 0, apart), angles(1, 0.01F, apart), angles(2, 0.02F, apart)}));
    EXPECT_EQ(notes(noted), 1) << apart;
    EXPECT_TRUE(trains("positions.weight"));
    // Of places in an image, behind a class token's.
    import(positions({none, angles(0, 0, apart), angles(0, 1, apart)}));
    EXPECT_EQ(notes(noted), 1) << apart;
  }
  import(positions({{0, 0, 1, 1}, {0.8F, 0.1F, 0.6F, 0.9F}, { 0.9F, 0.1F, -0.4F, 0.9F }}));
  EXPECT_EQ(notes(noted), 0);
  import(positions({none, none, none}));
  EXPECT_EQ(notes(noted), 0);
  options.freeze = {"^positions.weight$"};
  import(positions({angles(0, 0, true), angles(1, 0.01F, true), angles(2, 0.02F, true)}));
  EXPECT_EQ(notes(noted), 0);
}

/// index_put_((mask,), values, accumulate=True) and y[mask] = values are one in older exports.
TEST_F(OnnxDoubts, OlderExportsMayHaveLostThatAMaskAdds) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.node("MatMul", {"x", "a.weight"}, {"z"});
  b.floats("level", {1}, {0.5F});
  b.node("Greater", {"x", "level"}, {"mask"});
  b.node("NonZero", {"mask"}, {"found"});
  b.node("Transpose", {"found"}, {"places"});
  b.node("GatherND", {"z", "places"}, {"values"});
  auto& scatter = b.node("ScatterND", {"x", "places", "values"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_EQ(notes("'ScatterND_5' assigns where a mask is true, also where PyTorch adds"), 1);
  test::set_string(scatter, "reduction", "add");
  import(b);
  EXPECT_EQ(notes("where a mask is true"), 0);
}

/// The norms of a - b, each the p-th, as the older exporter writes them: `distances`.
void add_distances(ModelBuilder& b, const std::string& one, const std::string& other, float p,
                   float eps) {
  const auto constant = [&](const std::string& name, float number) {
    auto* value = b.node("Constant", {}, {name}).add_attribute();
    value->set_name("value_float");
    value->set_type(::onnx::AttributeProto::FLOAT);
    value->set_f(number);
  };
  b.ints("last", {-1});
  constant("p", p), constant("eps", eps), constant("one", 1);
  b.node("Add", {"p", "eps"}, {"near"});
  b.node("Div", {"one", "near"}, {"inverse"});
  b.node("Sub", {one, other}, {"differences"});
  b.node("Pow", {"differences", "p"}, {"powers"});
  test::set_int(b.node("ReduceSum", {"powers", "last"}, {"sum"}), "keepdims", 0);
  b.node("Pow", {"sum", "inverse"}, {"distances"});
}

/// cdist(z, z, p) as the older exporter writes it: the sum of two distances of three numbers.
TEST_F(OnnxDoubts, DistancesOfOlderExportsAreThoseOfPyTorch) {
  for (const float p : {1.0F, 2.0F, 3.0F}) {
    ModelBuilder b = pytorch();
    b.floats("w", {1, 2}, {1, 1});
    b.node("Mul", {"x", "w"}, {"z"});  // [3, 2]
    b.ints("first", {0});
    b.ints("second", {1});
    b.node("Unsqueeze", {"z", "second"}, {"rows"});
    b.node("Unsqueeze", {"z", "first"}, {"others"});
    add_distances(b, "rows", "others", p, 1e-6F);
    test::set_int(b.node("ReduceSum", {"distances"}, {"loss"}), "keepdims", 0);
    b.output("loss", {});
    Graph graph = import(b);
    EXPECT_EQ(notes("no gradient of a distance of 0"), 1);
    const std::vector<ValueId> w = graph.with_role(Role::parameter);
    ASSERT_EQ(w.size(), 1U);
    std::vector<ValueId> wanted = {graph.loss};
    wanted.push_back(differentiate(graph, graph.loss, w)[0]);
    const std::vector<Tensor> got =
        evaluate_graph(graph, {{"x", floats({3, 2}, {0, 0, 3, -4, 0, 0})}}, wanted);
    // Two of three rows are equal: the third is as far from each, there and back.
    const double distance = std::pow(std::pow(3, p) + std::pow(4, p), 1 / p);
    EXPECT_NEAR(got[0].at(0), 4 * distance, 1e-4) << p;
    EXPECT_NEAR(got[1].at(0), 4 * 3 * std::pow(3 / distance, p - 1), 1e-4) << p;
    EXPECT_NEAR(got[1].at(1), 4 * 4 * std::pow(4 / distance, p - 1), 1e-4) << p;
  }
}

/// x.unfold(axis, 2, step) of x [2, 4] or, transposed first, [4, 2], as the older exporter writes
/// it.
ModelBuilder windows(int64_t axis, int64_t step, int64_t second_begin) {
  ModelBuilder b;
  b.model.set_producer_name("pytorch");
  b.input("x", {2, 4});
  ::onnx::AttributeProto* number = b.node("Constant", {}, {"axis"}).add_attribute();
  number->set_name("value");
  number->set_type(::onnx::AttributeProto::TENSOR);
  number->mutable_t()->set_data_type(::onnx::TensorProto::INT64);
  number->mutable_t()->add_dims(1);
  number->mutable_t()->set_raw_data(&axis, sizeof(axis));
  test::set_ints(b.node("Transpose", {"x"}, {"turned"}), "perm", {1, 0});
  const std::string of = axis == -2 ? "turned" : "x";
  std::vector<std::string> parts;
  for (const int64_t begin : {int64_t{0}, second_begin, 2 * step}) {
    const std::string i = std::to_string(parts.size());
    b.ints("begin" + i, {begin});
    b.ints("end" + i, {begin + 2});
    b.node("Slice", {of, "begin" + i, "end" + i, "axis"}, {"slice" + i});
    test::set_ints(b.node("Transpose", {"slice" + i}, {"turned" + i}), "perm", {1, 0});
    const std::string part = (axis == -2 ? "turned" : "slice") + i;
    b.node("Unsqueeze", {part, "axis"}, {"one" + i});
    parts.push_back("one" + i);
  }
  test::set_int(b.node("Concat", parts, {"y"}), "axis", axis);
  b.output("y");
  return b;
}

TEST_F(OnnxDoubts, WindowsOfOlderExportsLieWhereUnfoldPutsThem) {
  const auto lie = [&](const ModelBuilder& b, const Shape& shape, const std::vector<float>& want) {
    const Tensor got =
        evaluate_graph(import(b), {{"x", floats({2, 4}, {0, 1, 2, 3, 10, 11, 12, 13})}})[0];
    ASSERT_EQ(got.shape(), shape);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(got.at(static_cast<int64_t>(i)), want[i]) << i;
  };
  lie(windows(-1, 1, 1), {2, 3, 2}, {0, 1, 1, 2, 2, 3, 10, 11, 11, 12, 12, 13});
  EXPECT_EQ(notes("unfold() along a dim counted from the end of"), 1);
  // Windows, the other dim, places in a window.
  lie(windows(-2, 1, 1), {3, 2, 2}, {0, 1, 10, 11, 1, 2, 11, 12, 2, 3, 12, 13});
  EXPECT_EQ(notes("unfold() along a dim counted from the end of"), 1);
  lie(windows(-1, 1, 2), {2, 2, 3}, {});  // no windows, for the second begins elsewhere
  EXPECT_EQ(notes("unfold()"), 0);
}

/// pairwise_distance(x, w, p=1, eps=0.5): the norms of x - w + eps.
TEST_F(OnnxDoubts, PairwiseDistancesOfOlderExportsHaveTheirEpsilon) {
  ModelBuilder b = pytorch();
  b.floats("w", {1, 2}, {1, 1});
  add_distances(b, "x", "w", 1, 0.5F);
  b.output("distances");
  const Tensor y = evaluate_graph(import(b), {{"x", floats({3, 2}, {0, 0, 3, -4, 1, 1})}})[0];
  for (const auto& [row, want] : {std::pair(0, 1.0), {1, 7.0}, {2, 1.0}})
    EXPECT_NEAR(y.at(row), want, 1e-5) << row;
}

TEST_F(OnnxDoubts, LossesOfTwoSidesAreASignOfDetach) {
  ModelBuilder b = pytorch();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.node("MatMul", {"x", "a.weight"}, {"z"});
  b.node("Tanh", {"z"}, {"q"});
  b.node("Sub", {"q", "z"}, {"one"});
  b.node("Sub", {"z", "q"}, {"other"});
  b.node("Mul", {"one", "other"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_EQ(notes("'Sub_2' and 'Sub_3', a - b and b - a"), 1);
}

/// A mask that is added to an attention's scores may well be called "bias".
TEST_F(OnnxDoubts, OfOlderExportsWhatHoldsInfinitiesDoesNotTrain) {
  ModelBuilder b = pytorch();
  const float masked = -std::numeric_limits<float>::infinity();
  b.floats("a.weight", {2, 2}, numbers(4));
  b.floats("bias", {1, 2}, {0, masked});
  b.node("MatMul", {"x", "a.weight"}, {"z"});
  b.node("Add", {"z", "bias"}, {"scores"});
  b.node("Softmax", {"scores"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_TRUE(trains("a.weight"));
  EXPECT_FALSE(trains("bias"));
}

/// A batch normalisation of buffers, as detection models have it.
TEST_F(OnnxDoubts, AFrozenNormsStatisticsDoNotTrainAndItsScaleIsDoubted) {
  ModelBuilder b = pytorch();
  for (const char* name : {"bn.weight", "bn.running_var", "layer.weight"})
    b.floats(name, {2}, numbers(2));
  b.node("Mul", {"x", "layer.weight"}, {"h"});
  b.node("Div", {"h", "bn.running_var"}, {"scaled"});
  b.node("Mul", {"scaled", "bn.weight"}, {"y"});
  b.output("y");
  import(b);
  EXPECT_FALSE(trains("bn.running_var"));
  EXPECT_TRUE(trains("bn.weight"));
  EXPECT_EQ(notes("'bn.weight' trains"), 1);
}

TEST_F(OnnxDoubts, WhatNoGradientReachesIsReportedWithWhatStopsIt) {
  ModelBuilder b = pytorch();
  for (const char* name : {"enc.weight", "dec.weight", "aux.weight"})
    b.floats(name, {2, 2}, numbers(4));
  b.node("MatMul", {"x", "enc.weight"}, {"h"});
  b.node("Round", {"h"}, {"codes"});
  b.node("MatMul", {"codes", "dec.weight"}, {"y"});
  b.node("MatMul", {"h", "aux.weight"}, {"other"});
  b.output("y");
  b.output("other");
  import(b);
  EXPECT_EQ(report.unreached, (std::vector<std::string>{"enc.weight", "aux.weight"}));
  EXPECT_EQ(report.gradient_stops, std::vector<std::string>{"Round 'Round_1'"});
  options.freeze = {"enc", "aux"};
  import(b);
  EXPECT_TRUE(report.unreached.empty());
}

/// A router whose weight begins so, with a bias of equal numbers for the choice.
ModelBuilder router(float first, float second, const char* between) {
  ModelBuilder b = pytorch();
  b.floats("router.gate.weight", {3, 2}, {first, second, second, second, second, second});
  b.floats("expert_bias", {3}, {0.5F, 0.5F, 0.5F});
  b.ints("k", {2});
  test::set_ints(b.node("Transpose", {"router.gate.weight"}, {"turned"}), "perm", {1, 0});
  b.node("MatMul", {"x", "turned"}, {"h"});
  b.node(between, {"h"}, {"scores"});
  b.node("Add", {"scores", "expert_bias"}, {"chosen_by"});
  b.node("TopK", {"chosen_by", "k"}, {"values", "places"});
  b.output("values");
  return b;
}

TEST_F(OnnxDoubts, ARouterOfZerosIsNotedAsItsScoresAreEqual) {
  const std::string note = "among equal scores while 'router.gate.weight' is zero";
  import(router(0, 0, "Sigmoid"));
  EXPECT_EQ(notes(note), 1);
  import(router(0, 1, "Sigmoid"));
  EXPECT_EQ(notes(note), 0);
  import(router(1, 1, "Sigmoid"));  // equal for now, but not at zero
  EXPECT_EQ(notes(note), 0);
}

TEST_F(OnnxDoubts, CastsTo16BitsAreNotedAsTheyDoNotRound) {
  for (const int type : {::onnx::TensorProto::FLOAT16, ::onnx::TensorProto::BFLOAT16,
                         ::onnx::TensorProto::FLOAT, ::onnx::TensorProto::INT64}) {
    ModelBuilder b = pytorch();
    b.floats("a.weight", {2, 2}, numbers(4));
    b.node("MatMul", {"x", "a.weight"}, {"h"});
    test::set_int(b.node("Cast", {"h"}, {"narrow"}), "to", type);
    test::set_int(b.node("Cast", {"narrow"}, {"y"}), "to", ::onnx::TensorProto::FLOAT);
    b.output("y");
    import(b);
    const bool narrow =
        type == ::onnx::TensorProto::FLOAT16 || type == ::onnx::TensorProto::BFLOAT16;
    EXPECT_EQ(notes("to 16-bit floats, which are f32 here"), narrow ? 1 : 0);
  }
}

/// as_strided() of the transpose of x w, and what is called in between.
ModelBuilder strided(const std::string& clone, bool newer) {
  ModelBuilder b = pytorch();
  b.floats("w", {2, 2}, numbers(4));
  b.ints("flat", {-1});
  b.node("MatMul", {"x", "w"}, {"h"});
  test::set_ints(b.node("Transpose", {"h"}, {"turned"}), "perm", {1, 0});
  auto& copy = b.node("Identity", {"turned"}, {"clone"});
  b.node("Reshape", {"clone", "flat"}, {"all"});
  auto* places = b.node("Constant", {}, {"places"}).add_attribute();
  places->set_name("value");
  places->set_type(::onnx::AttributeProto::TENSOR);
  places->mutable_t()->set_data_type(test::kInt64);
  for (int64_t at : {0, 1, 1, 2}) places->mutable_t()->add_int64_data(at);
  for (int64_t dim : {2, 2}) places->mutable_t()->add_dims(dim);
  auto& gather = b.node("Gather", {"all", "places"}, {"y"});
  b.output("y");
  if (newer) {
    test::add_metadata(&copy, "pkg.torch.onnx.fx_node",
                       "%clone : [num_users=1] = call_function[target=torch.ops.aten.clone.default]"
                       "(args = (%turned,), kwargs = {" +
                           clone + "})");
    test::add_metadata(
        &gather, "pkg.torch.onnx.fx_node",
        "%y : [num_users=1] = call_function[target=torch.ops.aten.as_strided.default]"
        "(args = (%clone, [2, 2], [1, 1]), kwargs = {})");
  }
  return b;
}

TEST_F(OnnxDoubts, AsStridedOfAViewIsRefusedOrNoted) {
  const std::string why = refusal(strided("", true));
  EXPECT_NE(why.find("as_strided() reads the memory below"), std::string::npos) << why;
  import(strided("memory_format: torch.contiguous_format", true));
  EXPECT_EQ(notes("as_strided()"), 0);
  import(strided("", false));
  EXPECT_EQ(notes("as as_strided() and take() do"), 1);
}

}  // namespace
}  // namespace shardrun
