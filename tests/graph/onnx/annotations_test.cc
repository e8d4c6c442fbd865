// Sharding annotations: between numbered devices and mesh axes, and in files.
#include "graph/onnx/annotations.h"

#include <gtest/gtest.h>

#include "graph/onnx/file/device_configurations.h"
#include "graph/onnx/file/model_copy.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using test::ModelBuilder;
using test::TemporaryFolder;

std::string refusal(const std::string& mesh, const DeviceSharding& spec) {
  try {
    const Mesh on = Mesh::parse(mesh);
    return to_string(sharding_on(on, spec, {8, 12}), on);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::invalid_input) << e.what();
    return e.what();
  }
}

/// Calls f with every Sharding of `dims` dims that cuts along some of the axes, in any order.
template <class F>
void each_sharding(const Mesh& mesh, size_t dims, int axis, Sharding& sharding, const F& f) {
  if (axis == mesh.axis_count()) return f(sharding);
  each_sharding(mesh, dims, axis + 1, sharding, f);
  for (size_t d = 0; d < dims; ++d) {
    const Axes before = sharding.dims[d];
    for (size_t place = 0; place <= before.size(); ++place) {
      sharding.dims[d].insert(place, axis);
      each_sharding(mesh, dims, axis + 1, sharding, f);
      sharding.dims[d] = before;
    }
  }
}

TEST(Devices, EveryShardingThereAndBack) {
  int count = 0;
  for (const char* text : {"2", "3", "2x2", "2x3", "2x4x2", "4x2x2", "2x2x2x2"}) {
    const Mesh mesh = Mesh::parse(text);
    Sharding begin = Sharding::replicated(3);
    each_sharding(mesh, 3, 0, begin, [&](const Sharding& sharding) {
      const DeviceSharding spec = device_sharding(sharding, mesh);
      EXPECT_EQ(sharding_on(mesh, spec, {8, 8, 8}), sharding) << to_string(sharding, mesh);
      ++count;
    });
  }
  EXPECT_GT(count, 500);
}

TEST(Devices, AsTheFileCountsThem) {
  const Mesh mesh = Mesh::parse("data=2,model=2");
  const DeviceSharding rows{{{0, 2}}, {{0, 1}, {2, 3}}};
  EXPECT_EQ(device_sharding(parse_sharding("[data,-]", mesh), mesh), rows);
  EXPECT_EQ(refusal("data=2,model=2", {{{0, 2}}, {{0, 2}, {1, 3}}}), "[{model}, -]");
  EXPECT_EQ(refusal("data=2,model=2", {{{-1, 2}}, {{0, 1}, {2, 3}}}), "[-, {data}]");
  EXPECT_EQ(refusal("data=2,model=2", {{{1, 2}, {0, 2}}, {{0}, {1}, {2}, {3}}}),
            "[{data}, {model}]");
  EXPECT_EQ(refusal("data=2,model=2", {{{0, 4}}, {{0}, {2}, {1}, {3}}}), "[{model,data}, -]");
  // Not cut: devices one by one, or as a group.
  EXPECT_EQ(refusal("data=2,model=2", {{}, {{0}, {1}, {2}, {3}}}), "[-, -]");
  EXPECT_EQ(refusal("data=2,model=2", {{}, {{0, 1, 2, 3}}}), "[-, -]");
  EXPECT_EQ(refusal("data=2,model=2", {{{0, 1}}, {{0, 1, 2, 3}}}), "[-, -]");
}

TEST(Devices, ThatNoMeshHas) {
  EXPECT_EQ(refusal("4", {{{0, 4}}, {{0}, {2}, {1}, {3}}}),
            "its devices cut dim 0 as no axes of mesh a=4 do");
  EXPECT_EQ(refusal("4", {{{0, 2}}, {{0, 1}, {2, 3}}}),
            "its devices cut dim 0 as no axes of mesh a=4 do");
  // Of many axes, too, without a look at all orders of them.
  DeviceSharding mixed{{{0, 4096}}, {}};
  for (int64_t device = 0; device < 4096; ++device) mixed.devices.push_back({device});
  std::swap(mixed.devices[7], mixed.devices[8]);
  EXPECT_EQ(refusal("2x2x2x2x2x2x2x2x2x2x2x2", mixed).substr(0, 29),
            "its devices cut dim 0 as no a");
  EXPECT_EQ(refusal("2", {{{2, 2}}, {{0}, {1}}}), "dim 2 is cut, the tensor has 2 dims");
  EXPECT_EQ(refusal("2", {{{0, 0}}, {}}), "dim 0 is cut into 0 shards");
  EXPECT_EQ(refusal("4", {{{0, 2}, {-2, 2}}, {{0}, {1}, {2}, {3}}}), "dim 0 is cut twice");
  EXPECT_EQ(refusal("2", {{{0, 2}}, {{0}}}), "lists 1 devices for 2 shards");
  EXPECT_EQ(refusal("2", {{{0, 2}}, {{0}, {2}}}), "names device 2, mesh a=2 has 2");
  EXPECT_EQ(refusal("2", {{{0, 2}}, {{0}, {-1}}}), "names device -1, mesh a=2 has 2");
  EXPECT_EQ(refusal("2", {{{0, 2}}, {{0}, {0}}}), "names device 0 twice");
  EXPECT_EQ(refusal("2", {{}, {{1}}}), "device 0 holds nothing of it; here every rank takes part");
  EXPECT_EQ(refusal("2", {{{0, int64_t{1} << 40}, {1, int64_t{1} << 40}}, {}}),
            "there are more shards than the 2 ranks of mesh a=2");
  EXPECT_EQ(refusal("2", {{{0, 1, true}}, {{0}, {1}}}).substr(0, 28),
            "dim 0 fuses several, and is ");
  EXPECT_EQ(refusal("2", {{{-1, 2, false, 12}}, {{0}, {1}}}), "[-, {a}]");
  EXPECT_EQ(refusal("2", {{{-1, 2, false, 8}}, {{0}, {1}}}), "dim 1 is said to be 8, it is 12");
}

TEST(Devices, SizesThatTheFileSays) {
  ::onnx::ModelProto model;
  auto* dim = model.mutable_graph()
                  ->add_node()
                  ->add_device_configurations()
                  ->add_sharding_spec()
                  ->add_sharded_dim();
  const auto read = [&] {
    return importer::read_annotations(model).nodes.at(0).tensors.at(0).second.cut.at(0).size;
  };
  auto* part = dim->add_simple_sharding();
  part->set_num_shards(2);
  EXPECT_EQ(read(), 0);
  part->set_dim_param("batch");
  EXPECT_EQ(read(), 0);
  part->set_dim_value(3);
  EXPECT_EQ(read(), 3);
  auto* fused = dim->add_simple_sharding();
  fused->set_num_shards(1);
  EXPECT_EQ(read(), 0);
  fused->set_dim_value(4);
  EXPECT_EQ(read(), 12);
  fused->set_dim_value(int64_t{1} << 62);
  EXPECT_EQ(read(), 0);
}

/// What a copy says of its nodes, and that nothing else changes.
TEST(AnnotationFiles, AreWrittenAndRead) {
  const TemporaryFolder folder;
  ModelBuilder b;
  b.input("x", {4, 2});
  b.floats("w", {2, 3}, {1, 2, 3, 4, 5, 6});
  b.node("MatMul", {"x", "w"}, {"h"});
  b.node("Relu", {"h"}, {"y"});
  b.output("y", {4, 3});
  const std::string path = b.write(folder);
  const Mesh two = Mesh::parse("m=2"), four = Mesh::parse("2x2");
  const DeviceSharding rows = device_sharding(parse_sharding("[m,-]", two), two),
                       whole = device_sharding(parse_sharding("[-,-]", two), two),
                       squares = device_sharding(parse_sharding("[a,b]", four), four);
  const auto annotated = [&](const std::string& from, const std::string& name,
                             const Annotations::Configuration& configuration,
                             const std::map<size_t, NodeAnnotation>& nodes) {
    importer::ModelCopy copy(from);
    // Of what was held nothing else is read here: any text.
    copy.set_configuration(configuration,
                           nodes.count(0) > 0 ? "held by " + configuration.name : "");
    for (const auto& [node, annotation] : nodes) copy.annotate(node, annotation);
    const std::string to = (folder / name).string();
    copy.write(to);
    ::onnx::ModelProto model;
    std::ifstream in(to, std::ios::binary);
    EXPECT_TRUE(model.ParseFromIstream(&in));
    return model;
  };
  NodeAnnotation product, relu;
  product.tensors = {{"x", rows}, {"w", whole}, {"h", rows}};
  relu.tensors = {{"y", squares}};
  (void)annotated(path, "two.onnx", {"two", 2}, {{0, product}});
  const std::string both_path = (folder / "two.onnx").string();
  ::onnx::ModelProto both = annotated(both_path, "both.onnx", {"four", 4}, {{1, relu}});
  EXPECT_EQ(both.ir_version(), 11);
  Annotations read = importer::read_annotations(both);
  ASSERT_EQ(read.configurations.size(), 2U);
  EXPECT_EQ(read.configurations[0].name, "two");
  EXPECT_EQ(read.configurations[1].devices, 4);
  ASSERT_EQ(read.nodes.size(), 2U);
  EXPECT_EQ(read.nodes[0].configuration, "two");
  ASSERT_EQ(read.held.size(), 1U);
  EXPECT_EQ(read.held[0].configuration, "two");
  EXPECT_EQ(read.held[0].text, "held by two");
  EXPECT_EQ(both.metadata_props(0).key(), held_key("two"));
  EXPECT_EQ(read.nodes[0].tensors, product.tensors);
  EXPECT_EQ(read.nodes[1].node, 1);
  EXPECT_EQ(read.nodes[1].label, "node 1 'Relu_1'");
  EXPECT_EQ(read.nodes[1].tensors, relu.tensors);
  // The same configuration again takes the place of what was there.
  const ::onnx::ModelProto again =
      annotated((folder / "both.onnx").string(), "again.onnx", {"two", 2}, {{1, relu}});
  read = importer::read_annotations(again);
  EXPECT_EQ(read.configurations.size(), 2U);
  EXPECT_TRUE(read.held.empty());
  ASSERT_EQ(read.nodes.size(), 2U);
  EXPECT_EQ(read.nodes[0].configuration, "four");
  EXPECT_EQ(read.nodes[1].configuration, "two");
  EXPECT_EQ(read.nodes[0].node, 1);
  // Without them it is the file that it was.
  both.clear_configuration();
  both.clear_metadata_props();
  both.set_ir_version(b.model.ir_version());
  for (auto& node : *both.mutable_graph()->mutable_node()) node.clear_device_configurations();
  EXPECT_EQ(both.SerializeAsString(), b.model.SerializeAsString());
}

}  // namespace
}  // namespace shardrun
