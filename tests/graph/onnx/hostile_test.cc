// Malformed and malicious files: each is refused with one error that says what is wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "graph/onnx/import.h"
#include "kernels/kernel.h"
#include "tests/graph/onnx/build.h"

namespace shardrun {
namespace {

using test::kFloat;
using test::kInt64;
using test::ModelBuilder;
using test::TemporaryFolder;
using test::write_bytes;

class OnnxHostile : public testing::Test {
 protected:
  TemporaryFolder folder;

  void expect_refused(const std::string& path, const std::string& wanted,
                      ErrorKind kind = ErrorKind::invalid_input) {
    ImportOptions options;
    options.evaluate = run_reference;
    try {
      OnnxFile(path).import(options);
      ADD_FAILURE() << "was imported; wanted an error with '" << wanted << "'";
    } catch (const Error& e) {
      const std::string got = e.what();
      EXPECT_EQ(e.kind(), kind) << got;
      EXPECT_NE(got.find(wanted), std::string::npos)
          << "got '" << got << "', wanted '" << wanted << "'";
      EXPECT_EQ(got.rfind(path, 0), 0u) << "does not begin with the file: " << got;
    }
  }
  void expect_refused(const ModelBuilder& b, const std::string& wanted,
                      ErrorKind kind = ErrorKind::invalid_input) {
    expect_refused(b.write(folder), wanted, kind);
  }

  /// y = x + w, w a float[2] initialiser.
  static ModelBuilder adder() {
    ModelBuilder b;
    b.input("x", {2});
    b.floats("w", {2}, {1, 2});
    b.node("Add", {"x", "w"}, {"y"});
    b.output("y", {2});
    return b;
  }
  static ::onnx::TensorProto& weight(ModelBuilder& b) { return *b.graph().mutable_initializer(0); }

  /// `adder` with w in external data.
  ModelBuilder external(const std::string& location, const std::string& offset = "",
                        const std::string& length = "") {
    ModelBuilder b = adder();
    auto& w = weight(b);
    w.clear_raw_data();
    w.set_data_location(::onnx::TensorProto::EXTERNAL);
    auto add = [&](const char* key, const std::string& value) {
      if (value.empty()) return;
      auto* entry = w.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("location", location);
    add("offset", offset);
    add("length", length);
    return b;
  }
};

TEST_F(OnnxHostile, FilesThatAreNoModels) {
  const std::string path = (folder / "bad.onnx").string();
  expect_refused((folder / "absent.onnx").string(), "cannot open");
  expect_refused(folder.path().string(), "not a regular file");
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "not a regular file");
  write_bytes(path, "");
  expect_refused(path, "is empty (0 bytes)");
  write_bytes(path,
              "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497793761\n");
  expect_refused(path, "Git LFS pointer");
  write_bytes(path, "PK\x03\x04 this is a zip file, not a model");
  expect_refused(path, "not an ONNX model");
  write_bytes(path, std::string("\x80\x02}q\x00", 5));
  expect_refused(path, "not an ONNX model");
  const std::string whole = adder().model.SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {  // cut off anywhere: an error, never a crash
    write_bytes(path, whole.substr(0, size));
    EXPECT_THROW(OnnxFile(path).import({}), Error) << size << " bytes";
  }
}

/// Exporters leave a great deal there: ours is found behind it and before it.
TEST_F(OnnxHostile, LongMetadataHideNothing) {
  const std::string path = (folder / "long.onnx").string();
  const auto written = [&](const std::vector<std::pair<std::string, size_t>>& entries) {
    ModelBuilder b = adder();
    for (const auto& [key, bytes] : entries) {
      auto* entry = b.model.add_metadata_props();
      entry->set_key(key);
      entry->set_value(std::string(bytes, 'v'));
    }
    write_bytes(path, b.model.SerializeAsString());
  };
  constexpr size_t kMiB = 1 << 20;
  written({{"first", 3}, {"pkg.torch", 3 * kMiB}, {"shardrun.train", 4}, {"big", kMiB}, {"z", 5}});
  EXPECT_EQ(OnnxFile(path).metadata(),
            (std::map<std::string, std::string>{{"shardrun.train", "vvvv"}}));
}

/// In errors, and wherever else a graph's names are shown.
TEST_F(OnnxHostile, NamesThatATerminalWouldActOn) {
  ModelBuilder b;
  b.input("x\x1b[2J", {-1, 2});
  b.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_param("n\x1b[5m");
  b.floats("w\xc2\x9bm", {2}, {1, 2});
  b.node("Add", {"x\x1b[2J", "w\xc2\x9bm"}, {"y\n\r"}).set_name("add\x07");
  b.output("y\n\r", {-1, 2});
  ImportOptions options;
  options.evaluate = run_reference;
  options.batch = 3;
  const Graph g = OnnxFile(b.write(folder)).import(options);
  std::string all = to_string(g);
  EXPECT_NE(g.find("x\\x1b[2J"), kNoValue) << all;
  for (const char acts : {'\x1b', '\x9b', '\x07', '\r'})
    EXPECT_EQ(all.find(acts), std::string::npos) << all;
  b.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(3);
  b.node("No\x1b[2Jp", {"y\n\r"}, {"z"});
  b.graph().clear_output();
  b.output("z", {3, 2});
  expect_refused(b, "No\\x1b[2Jp", ErrorKind::unsupported);
}

TEST_F(OnnxHostile, EveryFlippedByteIsAnErrorOrAModel) {
  const std::string path = (folder / "flipped.onnx").string();
  const std::string whole = adder().model.SerializeAsString();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      write_bytes(path, bytes);
      try {
        OnnxFile(path).import({});
      } catch (const Error&) {
      }
    }
  }
}

TEST_F(OnnxHostile, Versions) {
  for (int64_t ir : {0, 2, 15, 999}) {
    ModelBuilder b = adder();
    b.model.set_ir_version(ir);
    expect_refused(b, ir == 0 ? "not an ONNX model" : "IR version",
                   ir == 0 ? ErrorKind::invalid_input : ErrorKind::unsupported);
  }
  for (int64_t opset : {0, 29, 999, -1}) {
    ModelBuilder b = adder();
    b.model.mutable_opset_import(0)->set_version(opset);
    expect_refused(b, "supported are 13 to 28", ErrorKind::unsupported);
  }
  ModelBuilder twice = adder();
  *twice.model.add_opset_import() = twice.model.opset_import(0);
  expect_refused(twice, "twice");
  ModelBuilder none = adder();
  none.model.clear_opset_import();
  expect_refused(none, "imports no version");
  ModelBuilder old(11);
  old.input("x", {2, 2});
  old.node("Softmax", {"x"}, {"y"});
  old.output("y", {2, 2});
  expect_refused(old, "op Softmax of opset 11 is not supported; it is from opset 13 on",
                 ErrorKind::unsupported);
}

TEST_F(OnnxHostile, UnsupportedOperatorsNameNodeOperatorAndOpset) {
  ModelBuilder b;
  b.input("x", {2});
  b.node("Relu", {"x"}, {"a"});
  b.node("RoiAlign", {"a", "a", "a"}, {"y"});
  b.output("y");
  expect_refused(
      b,
      "node 1 'RoiAlign_1': op RoiAlign (opset 17) is not supported\n  - write it in the "
      "module with operators that are imported",
      ErrorKind::unsupported);
  expect_refused(b, "register it as an op of your own", ErrorKind::unsupported);
  b.node("QLinearMatMul", {"y"}, {"z"});
  b.graph().clear_output();
  b.output("z");
  expect_refused(b, "RoiAlign (opset 17) is not supported; nor are QLinearMatMul (1 nodes)\n  - ",
                 ErrorKind::unsupported);
  ModelBuilder quantised;
  quantised.input("x", {2});
  quantised.node("DynamicQuantizeLinear", {"x"}, {"y", "s", "z"});
  quantised.output("y");
  expect_refused(quantised, "is not supported\n  - quantised models do not train here",
                 ErrorKind::unsupported);
  ModelBuilder foreign = adder();
  foreign.graph().mutable_node(0)->set_domain("com.microsoft");
  expect_refused(foreign, "op com.microsoft::Add is not supported", ErrorKind::unsupported);
  ModelBuilder attribute = adder();
  test::set_int(*attribute.graph().mutable_node(0), "broadcast", 1);
  expect_refused(attribute, "node 0 'Add_0': op Add (opset 17): attribute 'broadcast'",
                 ErrorKind::unsupported);
  ModelBuilder value(20);
  value.input("x", {2});
  test::set_string(value.node("Gelu", {"x"}, {"y"}), "approximate", "quick");
  value.output("y", {2});
  expect_refused(value, "attribute approximate='quick' is not supported", ErrorKind::unsupported);
  expect_refused(value, "'none' and 'tanh'\n  - write it in the module", ErrorKind::unsupported);
}

/// Three lines for each kind of operator, of which the first two words are enough to know them.
TEST_F(OnnxHostile, AdviceFitsTheOperator) {
  const std::vector<std::pair<std::string, std::string>> advised = {
      {"QuantizeLinear", "quantised models do not train here"},
      {"MatMulInteger", "quantised models do not train here"},
      {"SequenceErase", "sequences are imported where their length is constant"},
      {"OptionalGetElement", "sequences are imported where their length is constant"},
      {"Unique", "how large its result is depends on data: of n known values"},
      {"BitwiseXor", "of integers: x % 2**k keeps the last k bits"},
      {"BitShift", "of integers: x % 2**k keeps the last k bits"},
      {"NonMaxSuppression", "how large its result is depends on data: train without it"},
      {"StringNormalizer", "text is made into numbers before the model"},
      {"com.acme::SequencePool", "operators of com.microsoft are made after the export"},
      {"Det", "write it in the module with operators that are imported"}};
  for (const auto& [op, first] : advised) {
    ModelBuilder b(20);
    b.input("x", {2, 2});
    const size_t colons = op.find("::");
    auto& node = b.node(colons == std::string::npos ? op : op.substr(colons + 2), {"x"}, {"y"});
    if (colons != std::string::npos) node.set_domain(op.substr(0, colons));
    b.output("y");
    std::string got;
    try {
      OnnxFile(b.write(folder)).import({});
    } catch (const Error& e) {
      got = e.what();
    }
    const size_t at = got.find("\n  - ");
    ASSERT_NE(at, std::string::npos) << got;
    EXPECT_EQ(got.compare(at + 5, first.size(), first), 0) << got;
    EXPECT_EQ(std::count(got.begin(), got.end(), '\n'), 3) << got;
  }
}

/// An LSTM of 4 hidden numbers over 3 numbers a step: operands that do not go with each other.
TEST_F(OnnxHostile, RecurrentLayersOfWrongShapes) {
  const auto refused = [&](const Shape& x, const Shape& w, const Shape& r, const Shape& bias,
                           const std::string& wanted) {
    ModelBuilder b;
    b.input("x", x);
    for (const auto& [name, shape] : {std::pair("w", w), {"r", r}, {"b", bias}})
      b.floats(name, shape, std::vector<float>(static_cast<size_t>(element_count(shape)), 0.5F));
    b.node("LSTM", {"x", "w", "r", "b"}, {"y"});
    b.output("y");
    expect_refused(b, wanted);
  };
  const Shape x = {5, 2, 3}, w = {1, 16, 3}, r = {1, 16, 4}, bias = {1, 32};
  refused({0, 2, 3}, w, r, bias, "input 0, f32[0, 2, 3], has no steps");
  refused(x, {1, 16, 2}, r, bias, "input 1 is f32[1, 16, 2], wanted f32[1, 16, 3]");
  refused(x, w, {1, 4, 4}, bias, "input 2 is f32[1, 4, 4], wanted f32[1, 16, 4]");
  refused(x, w, r, {1, 40}, "input 3 is f32[1, 40], wanted f32[1, 32]");
  refused(x, {2, 16, 3}, {2, 16, 4}, {2, 32}, "direction forward with weights for 2");
}

TEST_F(OnnxHostile, NamesAndOrder) {
  ModelBuilder duplicate = adder();
  duplicate.floats("w", {2}, {1, 2});
  expect_refused(duplicate, "two initialisers are named 'w'");
  ModelBuilder inputs = adder();
  inputs.input("x", {2});
  expect_refused(inputs, "two graph inputs are named 'x'");
  ModelBuilder ssa = adder();
  ssa.node("Relu", {"x"}, {"y"});
  expect_refused(ssa, "node 1 'Relu_1': output 'y' is made twice");
  ModelBuilder shadows = adder();
  shadows.node("Relu", {"x"}, {"w"});
  expect_refused(shadows, "has the name of an input or initialiser");
  ModelBuilder missing = adder();
  missing.graph().mutable_node(0)->set_input(1, "nowhere");
  expect_refused(missing, "input 'nowhere' is made nowhere");
  ModelBuilder cycle;
  cycle.input("x", {2});
  cycle.node("Add", {"x", "b"}, {"a"});
  cycle.node("Relu", {"a"}, {"b"});
  cycle.output("b", {2});
  expect_refused(cycle, "is made later, by node 1 'Relu_1' (a cycle, or nodes out of order)");
  ModelBuilder no_output = adder();
  no_output.graph().mutable_output(0)->set_name("z");
  expect_refused(no_output, "graph output 'z' is made nowhere");
  ModelBuilder no_outputs = adder();
  no_outputs.graph().clear_output();
  expect_refused(no_outputs, "no outputs");
  ModelBuilder nul = adder();
  nul.graph().mutable_initializer(0)->set_name(std::string("w\0x", 3));
  expect_refused(nul, "name 'w\\x00x' has a byte of 0");
  const std::string name(200'000, 'w');
  const std::string wanted = " has a name of 200000 bytes, '" + name.substr(0, 40) + "…', wanted ";
  ModelBuilder input = adder();
  input.graph().mutable_input(0)->set_name(name);
  expect_refused(input, "a graph input" + wanted);
  ModelBuilder initialiser = adder();
  weight(initialiser).set_name(name);
  expect_refused(initialiser, "initialiser 0" + wanted);
  ModelBuilder node = adder();
  node.graph().mutable_node(0)->set_name(name);
  expect_refused(node, "node 0" + wanted);
  ModelBuilder output = adder();
  output.graph().mutable_node(0)->set_output(0, name);
  expect_refused(output, "node 0 'Add_0': an output" + wanted);
  ModelBuilder few = adder();
  few.graph().mutable_node(0)->mutable_input()->RemoveLast();
  expect_refused(few, "input 1 is missing");
}

TEST_F(OnnxHostile, TensorsOfWrongSizeOrType) {
  for (const std::string& raw : {std::string(7, '\0'), std::string(12, '\0'), std::string()}) {
    ModelBuilder b = adder();
    weight(b).set_raw_data(raw);
    expect_refused(b, str("has ", raw.size(), " bytes of raw_data, shape [2] of float wants 8"));
  }
  ModelBuilder large = adder();  // left out of the skeleton
  weight(large).set_raw_data(std::string(4096, '\0'));
  expect_refused(large, "has 4096 bytes of raw_data");
  ModelBuilder negative = adder();
  weight(negative).set_dims(0, -2);
  expect_refused(negative, "negative dim");
  ModelBuilder huge = adder();
  weight(huge).set_dims(0, int64_t{1} << 62);
  weight(huge).add_dims(int64_t{1} << 62);
  expect_refused(huge, "elements");
  ModelBuilder dtype = adder();
  weight(dtype).set_data_type(99);
  expect_refused(dtype, "element type number 99 is not supported", ErrorKind::unsupported);
  ModelBuilder text = adder();
  weight(text).set_data_type(::onnx::TensorProto::STRING);
  expect_refused(text, "element type STRING is not supported", ErrorKind::unsupported);
  ModelBuilder fields = adder();
  weight(fields).clear_raw_data();
  weight(fields).add_float_data(1);
  expect_refused(fields, "has 1 elements in float_data, wanted 2");
  ModelBuilder segment = adder();
  weight(segment).mutable_segment()->set_begin(0);
  expect_refused(segment, "segments", ErrorKind::unsupported);
  ModelBuilder input = adder();
  input.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(-3);
  expect_refused(input, "dim 0 is -3");
  ModelBuilder sequence = adder();
  sequence.graph().mutable_input(0)->mutable_type()->mutable_sequence_type();
  expect_refused(sequence, "is not a tensor", ErrorKind::unsupported);
  ModelBuilder rankless = adder();
  rankless.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  expect_refused(rankless, "has no shape", ErrorKind::unsupported);
}

TEST_F(OnnxHostile, HugeShapesInNodesDoNotAllocate) {
  ModelBuilder b;
  b.input("x", {1});
  b.ints("shape", {int64_t{1} << 40, int64_t{1} << 40});
  b.node("Expand", {"x", "shape"}, {"y"});
  b.output("y");
  expect_refused(b, "node 0 'Expand_0': op Expand");
  // Each of the image's rows would be looked up.
  for (const char* policy : {"stretch", "not_smaller"}) {
    const bool stretched = std::string(policy) == "stretch";
    ModelBuilder image(18);
    image.input("x", {1, 1, 1, 1 << 20});
    image.ints("sizes", {1, 1, stretched ? 1 << 30 : 1 << 24, 1});
    auto& node = image.node("Resize", {"x", "", "", "sizes"}, {"y"});
    test::set_string(node, "keep_aspect_ratio_policy", policy);
    image.output("y");
    expect_refused(image, stretched ? "size is 1073741824" : "scale is 1.67772e+07");
  }
}

TEST_F(OnnxHostile, ExternalDataStaysInTheModelsFolder) {
  std::filesystem::create_directory(folder / "model");
  std::filesystem::create_directory(folder / "model/inner");
  write_bytes(folder / "secret.bin", std::string(64, 's'));
  write_bytes(folder / "model/w.bin", std::string(64, '\0'));
  std::filesystem::create_symlink(folder / "secret.bin", folder / "model/link.bin");
  std::filesystem::create_directory_symlink(folder.path(), folder / "model/up");
  std::filesystem::create_symlink("w.bin", folder / "model/near.bin");
  auto refused = [&](const ModelBuilder& b, const std::string& wanted) {
    expect_refused(b.write(folder, "model/model.onnx"), wanted);
  };
  refused(external("../secret.bin"), "leaves the model's folder by '..'");
  refused(external("inner/../../secret.bin"), "leaves the model's folder by '..'");
  refused(external((folder / "secret.bin").string()), "is absolute");
  refused(external("link.bin"), "is a link that leaves the model's folder");
  refused(external("up/secret.bin"), "is a link that leaves the model's folder");
  refused(external(std::string("w.bin\0.txt", 10)), "holds a NUL");
  refused(external("inner"), "not a regular file");
  refused(external("absent.bin"), "cannot find 'absent.bin'");
  refused(external(""), "has no location");
  refused(external("w.bin", "60"), "lie past the end of 'w.bin' (64 bytes)");
  refused(external("w.bin", "9223372036854775807"), "lie past the end");
  refused(external("w.bin", "-8"), "offset is '-8'");
  refused(external("w.bin", "0x10"), "offset is '0x10'");
  refused(external("w.bin", "99999999999999999999"), "offset is");
  refused(external("w.bin", "0", "4"), "length is 4 bytes, shape [2] of float wants 8");
  refused(external("w.bin", "0", "16"), "length is 16 bytes");
  ModelBuilder constant;
  constant.input("x", {2});
  auto* attribute = constant.node("Constant", {}, {"c"}).add_attribute();
  attribute->set_name("value");
  attribute->set_type(::onnx::AttributeProto::TENSOR);
  *attribute->mutable_t() = external("../secret.bin").graph().initializer(0);
  constant.node("Add", {"x", "c"}, {"y"});
  constant.output("y", {2});
  refused(constant, "leaves the model's folder by '..'");
  EXPECT_NO_THROW(
      OnnxFile(external("w.bin", "8", "8").write(folder, "model/model.onnx")).import({}));
  EXPECT_NO_THROW(OnnxFile(external("near.bin").write(folder, "model/model.onnx")).import({}));
  ModelBuilder none = external("w.bin");
  weight(none).set_data_type(::onnx::TensorProto::BOOL);
  weight(none).set_dims(0, 0);
  none.graph().mutable_node(0)->set_input(1, "x");
  EXPECT_NO_THROW(OnnxFile(none.write(folder, "model/model.onnx")).import({}));
}

/// Strides are made of all dims, though there are no elements.
TEST_F(OnnxHostile, EmptyTensorsOfHugeDims) {
  ModelBuilder b = adder();
  auto& w = weight(b);
  w.clear_raw_data();
  w.clear_dims();
  for (const int64_t dim : {int64_t{0}, int64_t{1} << 40, int64_t{1} << 40}) w.add_dims(dim);
  expect_refused(b, "tensor 'w' of shape [0, 1099511627776, 1099511627776] has more elements");
}

/// f(x) = g(x), g(x) = f(x), or a chain of `length` functions.
ModelBuilder functions(int length, bool closed) {
  ModelBuilder b;
  b.model.add_opset_import()->set_domain("mine");
  b.model.mutable_opset_import(1)->set_version(1);
  for (int i = 0; i < length; ++i) {
    auto* f = b.model.add_functions();
    f->set_domain("mine");
    f->set_name("f" + std::to_string(i));
    f->add_input("a");
    f->add_output("b");
    auto* node = f->add_node();
    const bool last = i + 1 == length;
    node->set_op_type(last && !closed ? "Relu" : "f" + std::to_string((i + 1) % length));
    if (!last || closed) node->set_domain("mine");
    node->add_input("a");
    node->add_output("b");
  }
  b.input("x", {2});
  b.node("f0", {"x"}, {"y"}).set_domain("mine");
  b.output("y", {2});
  return b;
}

TEST_F(OnnxHostile, FunctionsThatCallThemselvesOrNestTooDeep) {
  expect_refused(functions(1, true), "calls itself");
  expect_refused(functions(3, true), "calls itself");
  expect_refused(functions(60, false), "nest deeper than 32", ErrorKind::unsupported);
  EXPECT_EQ(OnnxFile(functions(20, false).write(folder)).import({}).nodes().size(), 1u);
}

TEST_F(OnnxHostile, FunctionsThatMultiplyNodes) {
  // Ten functions that each call the next eight times: 8^10 nodes.
  ModelBuilder b = functions(10, false);
  for (int i = 0; i + 1 < 10; ++i) {
    auto* f = b.model.mutable_functions(i);
    const ::onnx::NodeProto call = f->node(0);
    for (int copy = 0; copy < 7; ++copy) {
      *f->add_node() = call;
      f->mutable_node(copy + 1)->set_output(0, "b" + std::to_string(copy));
    }
  }
  expect_refused(b, "(4 times the file and 64 MiB)", ErrorKind::unsupported);
}

TEST_F(OnnxHostile, DeepIf) {
  // Sixty branches, one inside the other: refused by depth, whichever check meets it first.
  ::onnx::GraphProto inner;
  inner.set_name("leaf");
  auto* leaf = inner.add_node();
  leaf->set_op_type("Relu");
  leaf->add_input("x");
  leaf->add_output("r");
  ModelBuilder::set_info(inner.add_output(), "r", {2}, kFloat);
  for (int i = 0; i < 60; ++i) {
    ::onnx::GraphProto outer;
    outer.set_name("level");
    auto* node = outer.add_node();
    node->set_op_type("If");
    node->set_name("If_" + std::to_string(i));
    node->add_input("condition");
    node->add_output("r" + std::to_string(i));
    for (const char* name : {"then_branch", "else_branch"}) {
      auto* attribute = node->add_attribute();
      attribute->set_name(name);
      attribute->set_type(::onnx::AttributeProto::GRAPH);
      if (std::string(name) == "then_branch") {
        *attribute->mutable_g() = inner;
      } else {
        attribute->mutable_g()->set_name("empty");
      }
    }
    ModelBuilder::set_info(outer.add_output(), "r" + std::to_string(i), {2}, kFloat);
    inner = outer;
  }
  ModelBuilder b;
  b.input("x", {2});
  auto& condition = b.ints("condition", {1}, true);
  condition.set_data_type(::onnx::TensorProto::BOOL);
  condition.clear_int64_data();
  condition.add_int32_data(1);
  *b.graph().add_node() = inner.node(0);
  b.output("r59", {2});
  const std::string path = b.write(folder);
  EXPECT_THROW(OnnxFile(path).import({}), Error);
}

}  // namespace
}  // namespace shardrun
