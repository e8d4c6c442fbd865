// ONNX models: files that are none, and graphs that go together nowhere.
#include "graph/onnx/import.h"
#include "kernels/kernel.h"
#include "tests/graph/onnx/build.h"
#include "tests/graph/onnx/subgraph.h"
#include "tests/hostile/bad_file.h"

namespace shardrun::test {
namespace {

void read_model(const std::string& path) {
  ImportOptions options;
  options.evaluate = run_reference;
  const OnnxFile file(path);
  file.symbolic_dims();
  file.import(options);
}

/// y = x + w
ModelBuilder adder() {
  ModelBuilder b;
  b.input("x", {2});
  b.floats("w", {2}, {1, 2});
  b.node("Add", {"x", "w"}, {"y"});
  b.output("y");
  return b;
}

std::string changed(const std::function<void(ModelBuilder&)>& change) {
  ModelBuilder b = adder();
  change(b);
  return b.model.SerializeAsString();
}

::onnx::TensorProto& weight(ModelBuilder& b) { return *b.graph().mutable_initializer(0); }

/// Keeps w in a file of 16 bytes next to the model, whose text is `location`.
std::function<std::string(const std::string&)> external(const std::string& location,
                                                        const std::string& offset) {
  return [=](const std::string& folder) {
    put(folder + "/data", std::string(16, '\0'));
    std::filesystem::create_symlink("/etc/passwd", folder + "/link");
    return file_of(
        "model.onnx", changed([&](ModelBuilder& b) {
          weight(b).clear_raw_data();
          weight(b).set_data_location(::onnx::TensorProto::EXTERNAL);
          for (const auto& [key, value] : {std::pair("location", location), {"offset", offset}}) {
            auto* entry = weight(b).add_external_data();
            entry->set_key(key);
            entry->set_value(value);
          }
        }))(folder);
  };
}

void add_files(BadFiles& files) {
  const std::string good = adder().model.SerializeAsString();
  files.add("as it should be", good, {});
  files.add("nothing", "", {"is empty (0 bytes)"});
  files.add("a text", "a text that is long enough", {"not an ONNX model"});
  files.add("half a model", good.substr(0, good.size() / 2), {"not an ONNX model"});
  files.add("a field beyond the file", good + "\x3a\xff\xff\xff\x7f", {"not an ONNX model"});
  files.add("a varint without an end", good + std::string(20, '\xff'), {"not an ONNX model"});
  files.add("a Git LFS pointer", "version https://git-lfs.github.com/spec/v1\nsize 4\n",
            {"Git LFS pointer"});
  files.add("a zip archive", std::string("PK\3\4\0\0\b\b", 8) + "net/data.pkl",
            {"is a zip archive", "torch.onnx.export"});
  files.add("data of another folder", external("../data", "0"), {"'w'", "'..'"});
  files.add("data of another machine's root", external("/etc/passwd", "0"), {"'w'", "is absolute"});
  files.add("data behind a link", external("link", "0"), {"'w'", "is a link that leaves"});
  files.add("data that are not there", external("nowhere", "0"), {"cannot find 'nowhere'"});
  files.add("data beyond the end", external("data", "12"),
            {"lie past the end of 'data' (16 bytes)"});
  files.add("data from -8 on", external("data", "-8"), {"offset is '-8'"});
  files.add("data from an offset that a sentence would end at",
            external("data", std::string("1\0", 2)), {"offset is '1\\x00', wanted"});
  files.add("data beyond 64 bits", external("data", "99999999999999999999"), {"offset is"});
}

void add_graphs(BadFiles& files) {
  const auto add = [&](const std::string& name, const std::function<void(ModelBuilder&)>& change,
                       std::vector<std::string> words) {
    files.add(name, changed(change), std::move(words));
  };
  add("IR version 99", [](auto& b) { b.model.set_ir_version(99); }, {"IR version 99"});
  add("opset 999", [](auto& b) { b.model.mutable_opset_import(0)->set_version(999); }, {"999"});
  add("an operator of nobody",
      [](auto& b) { b.graph().mutable_node(0)->set_op_type("Frobnicate"); },
      {"node 0 'Add_0'", "Frobnicate"});
  add("a domain of nobody", [](auto& b) { b.graph().mutable_node(0)->set_domain("evil"); },
      {"node 0 'Add_0'", "evil::Add"});
  add("a name that a sentence would end at",
      [](auto& b) { b.graph().mutable_node(0)->set_op_type(std::string("Frob\0nicate", 11)); },
      {"name 'Frob\\x00nicate' has a byte of 0"});
  add("a configuration that a sentence would end at",
      [](auto& b) { b.model.add_configuration()->set_name(std::string("two\0x", 5)); },
      {"name 'two\\x00x' has a byte of 0"});
  add("an attribute that a sentence would end at",
      [](auto& b) {
        b.node("Einsum", {"x", "w"}, {"e"});
        set_string(*b.graph().mutable_node(1), "equation", std::string("i,\0->i", 6));
        b.output("e");
      },
      {"node 1 'Einsum_1'", "'i,\\x00->i'"});
  add("an attribute of nobody", [](auto& b) { set_int(*b.graph().mutable_node(0), "axis", 1); },
      {"node 0 'Add_0'", "'axis'"});
  add("an input that is made nowhere",
      [](auto& b) { b.graph().mutable_node(0)->set_input(1, "nowhere"); },
      {"node 0 'Add_0'", "'nowhere'"});
  add("a node of its own result", [](auto& b) { b.graph().mutable_node(0)->set_input(1, "y"); },
      {"node 0 'Add_0'", "'y'"});
  add("no outputs", [](auto& b) { b.graph().clear_output(); }, {"no outputs"});
  add("an output that is made nowhere", [](auto& b) { b.output("z"); }, {"'z' is made nowhere"});
  add("a weight twice", [](auto& b) { b.floats("w", {2}, {1, 2}); }, {"two initialisers", "'w'"});
  add("a weight of 2^62 rows", [](auto& b) { weight(b).set_dims(0, int64_t{1} << 62); }, {"'w'"});
  add("a weight of -2 rows", [](auto& b) { weight(b).set_dims(0, -2); }, {"'w'", "-2"});
  add("a weight of another type", [](auto& b) { weight(b).set_data_type(77); }, {"'w'", "77"});
  add("a weight of texts", [](auto& b) { weight(b).set_data_type(::onnx::TensorProto::STRING); },
      {"'w'", "STRING"});
  add("a weight of seven bytes", [](auto& b) { weight(b).set_raw_data("seven b"); },
      {"'w'", "7 bytes of raw_data"});
  add("an input of -3 rows",
      [](auto& b) {
        b.graph()
            .mutable_input(0)
            ->mutable_type()
            ->mutable_tensor_type()
            ->mutable_shape()
            ->mutable_dim(0)
            ->set_dim_value(-3);
      },
      {"'x'", "-3"});
  add("an input of a sequence",
      [](auto& b) { b.graph().mutable_input(0)->mutable_type()->mutable_sequence_type(); },
      {"'x'", "is not a tensor"});
  add("an attribute of another kind",
      [](auto& b) {
        b.node("Concat", {"x", "w"}, {"c"});
        set_float(*b.graph().mutable_node(1), "axis", 0);
        b.output("c");
      },
      {"node 1 'Concat_1'", "'axis'"});
}

/// y = sum(x) > 0 ? x + w : -x, in one of which something is changed.
void add_branches(BadFiles& files) {
  struct If {
    ::onnx::NodeProto& node;
    ::onnx::GraphProto &then, &otherwise;
  };
  const auto add = [&](const std::string& name,
                       const std::function<void(ModelBuilder&, If)>& change,
                       std::vector<std::string> words) {
    ModelBuilder b(18);
    b.input("x", {2});
    b.floats("w", {2}, {1, 2});
    b.floats("zero", {1}, {0});
    b.node("ReduceSum", {"x"}, {"sum"});
    b.node("Greater", {"sum", "zero"}, {"condition"});
    auto& node = b.node("If", {"condition"}, {"y"});
    auto& then = subgraph(node, "then_branch", {}, {"r"});
    add_node(then, "Add", {"x", "w"}, {"r"});
    auto& otherwise = subgraph(node, "else_branch", {}, {"s"});
    add_node(otherwise, "Neg", {"x"}, {"s"});
    b.output("y");
    change(b, {node, then, otherwise});
    if (!words.empty()) words.push_back("'If_2'");
    files.add("an If with " + name, b.model.SerializeAsString(), words);
  };
  add("both branches", [](auto&, If) {}, {});
  add("one branch", [](auto&, If i) { i.node.mutable_attribute()->RemoveLast(); },
      {"has no else_branch"});
  add("a branch that is a number",
      [](auto&, If i) {
        i.node.mutable_attribute()->RemoveLast();
        set_int(i.node, "else_branch", 1);
      },
      {"has no else_branch, which is a graph"});
  add("branches of other shapes",
      [](auto&, If i) { i.otherwise.mutable_node(0)->set_input(0, "sum"); },
      {"'y' is f32[2] of one branch and f32[1] of the other"});
  add("branches of other types",
      [](auto&, If i) {
        auto& node = *i.otherwise.mutable_node(0);
        node.set_op_type("Shape");
      },
      {"'y' is f32[2] of one branch and i64[1] of the other"});
  add("a branch without results", [](auto&, If i) { i.otherwise.clear_output(); },
      {"branch has 0 outputs, node 1"});
  add("a result of none", [](auto&, If i) { i.otherwise.mutable_output(0)->set_name("nowhere"); },
      {"'nowhere'"});
  add("a branch that reads nothing there is",
      [](auto&, If i) { i.otherwise.mutable_node(0)->set_input(0, "nowhere"); }, {"'nowhere'"});
  add("a branch that reads the other's",
      [](auto&, If i) { i.otherwise.mutable_node(0)->set_input(0, "r"); }, {"'r'"});
  add("a branch that reads the If", [](auto&, If i) { i.then.mutable_node(0)->set_input(0, "y"); },
      {"'y'"});
  add("inputs of a branch", [](auto&, If i) { i.then.add_input()->set_name("x"); },
      {"subgraph has 1 inputs"});
  add("a number for condition", [](auto&, If i) { i.node.set_input(0, "sum"); },
      {"its condition is f32[1], wanted one boolean"});
  add("two conditions", [](ModelBuilder& b, If) { b.graph().mutable_node(1)->set_input(0, "x"); },
      {"its condition is bool[2], wanted one boolean"});
  add("no condition", [](auto&, If i) { i.node.clear_input(); }, {"input"});
}

/// y = x, with w times the rows that a mask picks put back.
void add_masks(BadFiles& files) {
  const auto add = [&](const std::string& name, const std::function<void(ModelBuilder&)>& change,
                       std::vector<std::string> words) {
    ModelBuilder b(18);
    b.input("x", {3, 2});
    b.input("level", {3});
    b.floats("w", {2}, {1, 2});
    b.floats("zero", {1}, {0});
    b.node("Greater", {"level", "zero"}, {"mask"});
    b.node("NonZero", {"mask"}, {"found"});
    set_ints(b.node("Transpose", {"found"}, {"places"}), "perm", {1, 0});
    b.node("GatherND", {"x", "places"}, {"rows"});
    b.node("Mul", {"rows", "w"}, {"scaled"});
    b.node("ScatterND", {"x", "places", "scaled"}, {"y"});
    b.output("y");
    change(b);
    files.add("a mask " + name, b.model.SerializeAsString(), words);
  };
  const auto input = [](int node, int operand, const std::string& name) {
    return [=](ModelBuilder& b) { b.graph().mutable_node(node)->set_input(operand, name); };
  };
  add("of rows", [](auto&) {}, {});
  add("of more rows than there are",
      [](ModelBuilder& b) {
        b.graph()
            .mutable_input(1)
            ->mutable_type()
            ->mutable_tensor_type()
            ->mutable_shape()
            ->mutable_dim(0)
            ->set_dim_value(4);
      },
      {"'GatherND_3'"});
  add("whose rows go into fewer",
      [](ModelBuilder& b) {
        b.input("small", {2, 2});
        b.graph().mutable_node(5)->set_input(0, "small");
      },
      {"'ScatterND_5'"});
  add("whose rows go among narrower ones",
      [](ModelBuilder& b) {
        b.input("narrow", {3, 1});
        b.graph().mutable_node(5)->set_input(0, "narrow");
      },
      {"'ScatterND_5'"});
  add("whose places are not transposed", input(5, 1, "found"), {"'ScatterND_5'"});
  add("that is a number at each place", input(5, 1, "x"), {"'ScatterND_5'"});
  add("of another dtype's rows",
      [](ModelBuilder& b) {
        set_int(b.node("Cast", {"x"}, {"whole"}), "to", kInt64);
        b.graph().mutable_node(5)->set_input(0, "whole");
        b.graph().mutable_node()->SwapElements(5, 6);
      },
      {"'ScatterND_5'"});
  add("that multiplies by too many",
      [](ModelBuilder& b) {
        b.floats("three", {3}, {1, 2, 3});
        b.graph().mutable_node(4)->set_input(1, "three");
      },
      {"'Mul_4'"});
  add("whose rows are added up with others'",
      [](ModelBuilder& b) { b.graph().mutable_node(4)->set_input(1, "x"); }, {"'Mul_4'"});
  add("of which nothing is known to be put back",
      [](ModelBuilder& b) { set_string(*b.graph().mutable_node(5), "reduction", "median"); },
      {"'ScatterND_5'", "is not of each row alone"});
}

}  // namespace

std::vector<BadFile> bad_models() {
  BadFiles files("model.onnx", read_model);
  add_files(files);
  add_graphs(files);
  add_branches(files);
  add_masks(files);
  return files.take();
}

namespace {

using Attribute = std::function<void(::onnx::NodeProto&)>;

class Operators {
 public:
  explicit Operators(BadFiles& files) : files_(files) {}
  /// A node of these inputs and, behind them, of lists of whole numbers that are known. Its
  /// message has the node's name, too.
  void add(const std::string& op, const std::vector<std::vector<int64_t>>& inputs,
           const std::vector<std::vector<int64_t>>& lists, const Attribute& attributes,
           std::vector<std::string> words, int64_t opset = 17) {
    ModelBuilder b(opset);
    std::vector<std::string> names;
    for (size_t i = 0; i < inputs.size(); ++i) {
      names.push_back("x" + std::to_string(i));
      b.input(names.back(), inputs[i]);
    }
    for (size_t i = 0; i < lists.size(); ++i) {
      names.push_back("n" + std::to_string(i));
      b.ints(names.back(), lists[i]);
    }
    auto& node = b.node(op, names, {"y"});
    if (attributes) attributes(node);
    b.output("y");
    if (!words.empty()) words.push_back("node 0 '" + op + "_0'");
    files_.add(op + " " + std::to_string(count_++), b.model.SerializeAsString(), words);
  }

 private:
  BadFiles& files_;
  int count_ = 0;
};

Attribute ints(const char* name, std::vector<int64_t> values) {
  return [=](auto& node) { set_ints(node, name, values); };
}
Attribute number(const char* name, int64_t value) {
  return [=](auto& node) { set_int(node, name, value); };
}
Attribute text(const char* name, const std::string& value) {
  return [=](auto& node) { set_string(node, name, value); };
}

void add_movement(Operators& ops) {
  ops.add("Reshape", {{2, 3}}, {{4, 2}}, nullptr, {"[4, 2]"});
  ops.add("Reshape", {{2, 3}}, {{-1, -1}}, nullptr, {"-1"});
  ops.add("Reshape", {{2, 3}}, {{2, 3, 0}}, nullptr, {"0"});
  ops.add("Reshape", {{2, 3}}, {{-7, 2}}, nullptr, {"-7"});
  ops.add("Reshape", {{2, 3}}, {{int64_t{1} << 62, 8}}, nullptr, {"4611686018427387904"});
  ops.add("Transpose", {{2, 3}}, {}, ints("perm", {0, 0}), {"axis 0 is named twice"});
  ops.add("Transpose", {{2, 3}}, {}, ints("perm", {0, 1, 2}), {"axis 2"});
  ops.add("Transpose", {{2, 3}}, {}, ints("perm", {0, -9}), {"axis -9"});
  ops.add("Concat", {{2, 3}, {2, 3}}, {}, number("axis", 5), {"axis", "5"});
  ops.add("Concat", {{2, 3}, {4, 4}}, {}, number("axis", 0), {"[4, 4]"});
  ops.add("Squeeze", {{2, 3}}, {{1}}, nullptr, {"3"});
  ops.add("Unsqueeze", {{2, 3}}, {{0, 0}}, nullptr, {"0"});
  ops.add("Unsqueeze", {{2, 3}}, {{99}}, nullptr, {"99"});
  ops.add("Slice", {{8}}, {{0}, {4}, {0}, {0}}, nullptr, {"step"});
  ops.add("Slice", {{8}}, {{0}, {4}, {9}, {1}}, nullptr, {"9"});
  ops.add("Slice", {{8}}, {{0, 0}, {4}, {0}, {1}}, nullptr, {"2"});
  ops.add("Split", {{8}}, {{3, 3}}, nullptr, {"splits into 2 of 1 outputs"});
  ops.add("Split", {{8}}, {{3}}, nullptr, {"8"});
  ops.add("Pad", {{8}}, {{-9, 0}}, nullptr, {"pads -9 and 0 cut more than dim 0"});
  ops.add("Pad", {{8}}, {{-5, -4}}, nullptr, {"pads -5 and -4 cut more than dim 0"});
  ops.add("Pad", {{8}}, {{INT64_MIN, INT64_MIN}}, nullptr, {"-9223372036854775808"});
  ops.add("Pad", {{8}}, {{INT64_MAX, INT64_MAX}}, nullptr, {"9223372036854775807"});
  ops.add("Expand", {{2, 3}}, {{4, 3}}, nullptr, {"[4, 3]"});
  ops.add("Expand", {{2, 3}}, {{-4, 2, 3}}, nullptr, {"-4"});
  ops.add("Tile", {{2}}, {{-2}}, nullptr, {"-2"});
  ops.add("Tile", {{2}}, {{2, 2}}, nullptr, {"2"});
  ops.add("Tile", {{2}}, {{INT64_MAX}}, nullptr, {"repeats are [9223372036854775807]"});
  ops.add("Gather", {{4, 2}}, {{9}}, nullptr, {"9"});
  ops.add("Gather", {{4, 2}}, {{1}}, number("axis", -3), {"-3"});
  ops.add("Flatten", {{4, 2}}, {}, number("axis", 7), {"7"});
  ops.add("DepthToSpace", {{1, 4, 2, 2}}, {}, number("blocksize", 0), {"0"});
  ops.add("DepthToSpace", {{1, 4, 2, 2}}, {}, number("blocksize", 3), {"3"});
  ops.add("SpaceToDepth", {{1, 4, 2, 2}}, {}, number("blocksize", 3), {"blocks of 3"});
  ops.add("CenterCropPad", {{4, 2}}, {{-4, 2}}, nullptr, {"-4"}, 18);
  ops.add("CenterCropPad", {{4, 2}}, {{INT64_MAX, 2}}, nullptr, {"9223372036854775807"}, 18);
  ops.add("CenterCropPad", {{4, 2}}, {{2}}, nullptr, {"1 sizes for 2 axes"}, 18);
  ops.add("LpNormalization", {{4, 2}}, {}, number("p", 3), {"p"});
  ops.add("LRN", {{1, 4, 2, 2}}, {}, number("size", INT64_MAX), {"size is 9223372036854775807"});
  ops.add("Hardmax", {{4, 2}}, {}, number("axis", 2), {"2"});
  ops.add("ConstantOfShape", {}, {{-4}}, nullptr, {"-4"});
}

void add_products(Operators& ops) {
  ops.add("MatMul", {{2, 3}, {4, 2}}, {}, nullptr, {"3", "4"});
  ops.add("MatMul", {{}, {4, 2}}, {}, nullptr, {"operands are f32[]"});
  ops.add("Gemm", {{2, 3}, {3, 4}, {7}}, {}, nullptr, {"[7]"});
  ops.add("Gemm", {{2, 3, 4}, {3, 4}}, {}, nullptr, {"[2, 3, 4]"});
  ops.add("Einsum", {{2, 3}, {3, 4}}, {}, text("equation", "ij,jk->iz"), {"z"});
  ops.add("Einsum", {{2, 3}, {4, 4}}, {}, text("equation", "ij,jk->ik"), {"3", "4"});
  ops.add("Einsum", {{2, 3}, {3, 4}}, {}, text("equation", "((((->>"), {"((((->>"});
  ops.add("Einsum", {{2, 3}, {3, 4}}, {}, text("equation", "ij->i"), {"ij->i"});
  ops.add("Conv", {{1, 3, 8, 8}, {4, 5, 3, 3}}, {}, nullptr, {"3", "5"});
  ops.add("Conv", {{1, 4, 8, 8}, {4, 1, 3, 3}}, {}, number("group", 0), {"group"});
  ops.add("Conv", {{1, 4, 8, 8}, {3, 2, 3, 3}}, {}, number("group", 2), {"group"});
  ops.add("Conv", {{1, 1, 8, 8}, {1, 1, 3, 3}}, {}, ints("strides", {0, 1}), {"stride"});
  ops.add("Conv", {{1, 1, 8, 8}, {1, 1, 3, 3}}, {}, ints("pads", {-9, 0, 0, 0}), {"-9"});
  ops.add("Conv", {{1, 1, 8, 8}, {1, 1, 3, 3}}, {}, ints("dilations", {INT64_MAX, 1}),
          {"dilation"});
  ops.add("Conv", {{1, 1, 8, 8}, {1, 1, 9, 9}}, {}, nullptr, {"9"});
  ops.add("Conv", {{1, 1, 8, 8}, {1, 1, 3, 3}}, {}, ints("kernel_shape", {5, 5}), {"kernel_shape"});
  ops.add("MaxPool", {{1, 1, 8, 8}}, {}, ints("kernel_shape", {0, 2}), {"kernel"});
  ops.add("MaxPool", {{1, 1, 8, 8}}, {}, ints("kernel_shape", {2}), {"kernel_shape"});
  ops.add("AveragePool", {{1, 1, 8, 8}}, {}, ints("kernel_shape", {-2, 2}), {"-2"});
  ops.add("LSTM", {{5, 2, 3}, {1, 16, 2}, {1, 16, 4}}, {}, nullptr, {"[1, 16, 2]"});
}

void add_others(Operators& ops) {
  ops.add("Add", {{2, 3}, {4, 5}}, {}, nullptr, {"[2, 3]", "[4, 5]"});
  ops.add("Where", {{2}, {2}, {2}}, {}, nullptr, {"bool"});
  ops.add("Cast", {{2}}, {}, number("to", 99), {"99"});
  ops.add("Cast", {{2}}, {}, nullptr, {"to"});
  ops.add("ReduceSum", {{2, 3}}, {{5}}, nullptr, {"5"});
  ops.add("ReduceMax", {{2, 3}}, {}, ints("axes", {0, 0}), {"0"});
  ops.add("Softmax", {{2, 3}}, {}, number("axis", 4), {"4"});
  ops.add("LayerNormalization", {{2, 3}, {4}}, {}, nullptr, {"[4]"});
  ops.add("LayerNormalization", {{2, 3}, {3}}, {}, number("axis", 9), {"9"});
  ops.add("BatchNormalization", {{2, 3}, {4}, {4}, {4}, {4}}, {}, nullptr, {"4"});
  ops.add("TopK", {{2, 3}}, {{9}}, nullptr, {"9"});
  ops.add("TopK", {{2, 3}}, {{-1}}, nullptr, {"-1"});
  ops.add("CumSum", {{2, 3}}, {{7}}, nullptr, {"7"});
  ops.add("OneHot", {{2}}, {{-3}, {0, 1}}, nullptr, {"-3"});
  ops.add("GatherElements", {{2, 3}}, {{0}}, nullptr, {"[1]"});
  ops.add("ArgMax", {{2, 3}}, {}, number("axis", -9), {"-9"});
  ops.add("Resize", {{1, 1, 2, 2}}, {{}, {}, {1, 1, 0, 2}}, nullptr, {"0"});
  ops.add("Clip", {{2}, {2}, {2}}, {}, nullptr, {"min is f32[2]"});
  ops.add("Dropout", {{2}, {3}}, {}, nullptr, {"'x1' depends on data"});
  ops.add("Trilu", {{2}}, {}, nullptr, {"[2]"});
  ops.add("GridSample", {{1, 1, 4, 4}, {1, 2, 2, 3}}, {}, nullptr, {"[1, 2, 2, 3]"});
  ops.add("DFT", {{2, 8, 1}}, {}, number("axis", 2), {"axis 2"});
  ops.add("EyeLike", {{5}}, {}, nullptr, {"[5]"});
  ops.add("Multinomial", {{5, 3}}, {}, number("sample_size", 0), {"sample_size is 0"});
  ops.add("Scan", {{2}}, {}, nullptr, {"Scan"});
  ops.add("If", {{2}}, {}, nullptr, {"If"});
  ops.add("Loop", {{2}}, {}, nullptr, {"Loop"});
}

}  // namespace

std::vector<BadFile> bad_operators() {
  BadFiles files("model.onnx", read_model);
  Operators ops(files);
  ops.add("Reshape", {{2, 3}}, {{3, 2}}, nullptr, {});
  add_movement(ops);
  add_products(ops);
  add_others(ops);
  return files.take();
}

}  // namespace shardrun::test
