// What files compute otherwise than the module did, at indices that come twice and where operators
// bend: read as PyTorch computes.
#include <gtest/gtest.h>

#include <limits>

#include "graph/autodiff.h"
#include "tests/graph/onnx/import_test.h"

namespace shardrun {
namespace {

using test::ModelBuilder;

class RestoredImport : public test::ImportTest {};

/// zeros.index_put((places,), values, accumulate=True) of the older exporter, places 1, 1 and 0.
TEST_F(RestoredImport, ElementsThatTheOlderExporterAddsAreAddedTwice) {
  for (const char* producer : {"pytorch", "other"}) {
    ModelBuilder b;
    b.model.set_producer_name(producer);
    b.input("x", {3});
    b.ints("places", {1, 1, 0});
    b.ints("axis", {1});
    b.node("Unsqueeze", {"places", "axis"}, {"indices"});
    b.floats("self", {3}, {5, 6, 7});
    b.node("Shape", {"self"}, {"shape"});
    b.node("ConstantOfShape", {"shape"}, {"zeros"});
    b.node("ScatterND", {"zeros", "indices", "x"}, {"scattered"});
    b.node("Add", {"self", "scattered"}, {"y"});
    b.output("y");
    const bool adds = std::string(producer) == "pytorch";
    const Tensor y = evaluate_graph(import(b), {{"x", floats({3}, {10, 20, 30})}})[0];
    EXPECT_EQ(y.at(0), 35);
    EXPECT_EQ(y.at(1), adds ? 36 : 26) << producer;
    EXPECT_EQ(y.at(2), 7);
    EXPECT_EQ(noted("accumulate=True of 'ScatterND_3'"), adds);
  }
}

/// zeros.index_add(0, places, x) of the older exporter: ScatterElements onto zeros of a Constant. A
/// bias that begins with zeros is none.
TEST_F(RestoredImport, RowsThatTheOlderExporterAddsAreAddedTwice) {
  for (const char* producer : {"pytorch", "other", "pytorch, of a bias"}) {
    ModelBuilder b;
    b.model.set_producer_name(std::string(producer).substr(0, std::string(producer).find(',')));
    b.input("x", {3, 1});
    b.ints("places", {1, 1, 0});
    b.ints("axis", {1});
    b.node("Unsqueeze", {"places", "axis"}, {"indices"});
    b.floats("self", {3, 1}, {5, 6, 7});
    const bool is_bias = std::string(producer).find("bias") != std::string::npos;
    if (is_bias) {
      b.floats("zeros", {3, 1}, {0, 0, 0});
    } else {
      auto* value = b.node("Constant", {}, {"zeros"}).add_attribute();
      value->set_name("value");
      value->set_type(::onnx::AttributeProto::TENSOR);
      value->mutable_t()->set_data_type(test::kFloat);
      for (const int64_t dim : {3, 1}) value->mutable_t()->add_dims(dim);
      for (int i = 0; i < 3; ++i) value->mutable_t()->add_float_data(0);
    }
    test::set_int(b.node("ScatterElements", {"zeros", "indices", "x"}, {"scattered"}), "axis", 0);
    b.node("Add", {"self", "scattered"}, {"y"});
    b.output("y");
    const bool adds = std::string(producer) == "pytorch";
    const Tensor y = evaluate_graph(import(b), {{"x", floats({3, 1}, {10, 20, 30})}})[0];
    EXPECT_EQ(y.at(0), 35);
    EXPECT_EQ(y.at(1), adds ? 36 : 26) << producer;
    EXPECT_EQ(y.at(2), 7);
    EXPECT_EQ(noted("index_add of equal indices of 'ScatterElements_2'"), adds) << producer;
  }
}

/// A bound that the older exporter casts is learned; one that it stores is a number.
TEST_F(RestoredImport, ALearnedBoundTrains) {
  for (const bool cast : {true, false}) {
    ModelBuilder b;
    b.model.set_producer_name("pytorch");
    b.input("x", {3});
    b.floats("low", {}, {0});
    test::set_int(b.node("Cast", {"low"}, {"bound"}), "to", test::kFloat);
    b.node("Clip", {"x", cast ? "bound" : "low"}, {"y"});
    b.output("y");
    const Graph graph = import(b);
    EXPECT_EQ(graph.with_role(Role::parameter).size(), cast ? 1u : 0u);
  }
}

/// Attention's mask of the newer exporter is the lowest number where PyTorch's is minus infinity: a
/// query that sees nothing gets nothing.
TEST_F(RestoredImport, AQueryThatSeesNothingGetsNothing) {
  for (const char* target : {"aten.scaled_dot_product_attention.default", "aten.where.self"}) {
    ModelBuilder b;
    b.input("mask", {2, 2}, 9);
    b.floats("zero", {}, {0});
    b.floats("lowest", {}, {std::numeric_limits<float>::lowest()});
    test::add_metadata(&b.node("Where", {"mask", "zero", "lowest"}, {"added"}),
                       "pkg.torch.onnx.fx_node",
                       std::string("%a : [num_users=1] = call_function[target=torch.ops.") +
                           target + "](args = (%q, %k, %v, %mask), kwargs = {})");
    b.node("Softmax", {"added"}, {"weights"});
    b.node("IsNaN", {"weights"}, {"nothing"});
    b.node("Where", {"nothing", "zero", "weights"}, {"y"});
    b.output("y");
    const Tensor mask = Tensor::from<uint8_t>({2, 2}, {1, 0, 0, 0}, DType::boolean);
    const Tensor y = evaluate_graph(import(b), {{"mask", mask}})[0];
    EXPECT_EQ(y.at(0), 1);
    EXPECT_EQ(y.at(1), 0);
    EXPECT_EQ(y.at(2), std::string(target).find("where") == std::string::npos ? 0 : 0.5);
  }
}

/// clamp() by a number gives nothing at its bound, maximum() half. The newer exporter writes both
/// as Max.
TEST_F(RestoredImport, MaxOfAClampIsToldFromAMaximum) {
  for (const bool clamps : {true, false}) {
    ModelBuilder b;
    b.input("x", {3});
    b.floats("low", {}, {0});
    test::add_metadata(
        &b.node("Max", {"x", "low"}, {"y"}), "pkg.torch.onnx.fx_node",
        clamps ? "%clamp : [num_users=1] = call_function[target=torch.ops.aten.clamp.Tensor]("
                 "args = (%x, %scalar_tensor_default), kwargs = {})"
               : "%maximum : [num_users=1] = call_function[target=torch.ops.aten.maximum.default]("
                 "args = (%x, %low), kwargs = {})");
    test::set_int(b.node("ReduceSum", {"y"}, {"sum"}), "keepdims", 0);
    b.output("sum", {});
    Graph graph = import(b);
    const std::vector<ValueId> wrt = {graph.find("x")};
    const std::vector<ValueId> gradient = differentiate(graph, graph.outputs[0], wrt);
    const Tensor got = evaluate_graph(graph, {{"x", floats({3}, {-1, 0, 1})}}, gradient)[0];
    EXPECT_EQ(got.at(0), 0);
    EXPECT_EQ(got.at(1), clamps ? 0 : 0.5);
    EXPECT_EQ(got.at(2), 1);
  }
}

}  // namespace
}  // namespace shardrun
