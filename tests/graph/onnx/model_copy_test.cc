// Copies of ONNX files: other numbers where they are wanted, and no other byte.
#include "graph/onnx/file/model_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>

#include "base/tensor.h"
#include "graph/onnx/file/model_file.h"
#include "tests/graph/onnx/build.h"

namespace shardrun::importer {
namespace {

using shardrun::test::ModelBuilder;
using shardrun::test::TemporaryFolder;
using shardrun::test::write_bytes;
using Proto = ::onnx::TensorProto;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

/// first, first + step, …
Numbers counting(const Shape& shape, float first = 0, float step = 1) {
  return {{DType::f32, shape}, [first, step](int64_t begin, int64_t count, void* out) {
            for (int64_t i = 0; i < count; ++i)
              static_cast<float*>(out)[i] = first + step * static_cast<float>(begin + i);
          }};
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

/// A model of one tensor `w` [2, 3], written by `fill`, among others, with fields that no message
/// has: 100 of the model, the graph and the tensor.
struct Model {
  ModelBuilder b;
  Proto* w = nullptr;

  explicit Model(int type) {
    b.input("x", {-1, 2});
    b.floats("before", {1}, {7});
    w = b.graph().add_initializer();
    w->set_name("w");
    w->add_dims(2);
    w->add_dims(3);
    w->set_data_type(type);
    b.node("MatMul", {"x", "w"}, {"y"});
    b.output("y", {-1, 3});
    auto* entry = b.model.add_metadata_props();
    entry->set_key("author");
    entry->set_value("somebody");
    b.model.add_functions()->set_name("F");
    for (std::string* unknown : {b.model.mutable_unknown_fields(),
                                 b.graph().mutable_unknown_fields(), w->mutable_unknown_fields()})
      *unknown = std::string("\xa2\x06\x03", 3) + "abc";
  }
  std::string bytes() const { return b.model.SerializeAsString(); }
};

void set_raw(Proto* tensor, const std::vector<float>& values) {
  std::string raw(values.size() * sizeof(float), '\0');
  std::memcpy(raw.data(), values.data(), raw.size());
  tensor->set_raw_data(raw);
}

const std::vector<float> kOld = {9, 8, 7, 6, 5, 4}, kNew = {0, 1, 2, 3, 4, 5};

TEST(ModelCopy, WithoutChangesIsTheFile) {
  const TemporaryFolder folder;
  Model model(Proto::FLOAT);
  set_raw(model.w, kOld);
  write_bytes(folder / "a.onnx", model.bytes());
  ModelCopy((folder / "a.onnx").string()).write((folder / "b.onnx").string());
  EXPECT_EQ(bytes_of(folder / "b.onnx"), model.bytes());
}

/// What `fill` writes of old and of new numbers differs in these numbers alone.
void expect_replaced(int type, const std::function<void(Proto*, const std::vector<float>&)>& fill) {
  const TemporaryFolder folder;
  Model before(type), after(type);
  fill(before.w, kOld);
  fill(after.w, kNew);
  write_bytes(folder / "a.onnx", before.bytes());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_numbers("w", counting({2, 3}));
  copy.write((folder / "b.onnx").string());
  EXPECT_EQ(bytes_of(folder / "b.onnx"), after.bytes()) << type;
}

TEST(ModelCopy, NumbersStayInTheirTypeAndField) {
  expect_replaced(Proto::FLOAT, set_raw);
  expect_replaced(Proto::FLOAT, [](Proto* w, const std::vector<float>& values) {
    for (const float v : values) w->add_float_data(v);
  });
  expect_replaced(Proto::DOUBLE, [](Proto* w, const std::vector<float>& values) {
    for (const float v : values) w->add_double_data(v);
  });
  for (const int type : {Proto::FLOAT16, Proto::BFLOAT16}) {
    const auto bits = [type](float v) {
      return type == Proto::BFLOAT16 ? bfloat16(v).bits : float_to_half(v);
    };
    expect_replaced(type, [&](Proto* w, const std::vector<float>& values) {
      for (const float v : values) w->add_int32_data(bits(v));  // of one to three bytes
    });
    expect_replaced(type, [&](Proto* w, const std::vector<float>& values) {
      std::string raw;
      for (const float v : values)
        raw += {static_cast<char>(bits(v)), static_cast<char>(bits(v) >> 8)};
      w->set_raw_data(raw);
    });
  }
  expect_replaced(Proto::INT64, [](Proto* w, const std::vector<float>& values) {
    for (const float v : values) w->add_int64_data(static_cast<int64_t>(v));
  });
}

TEST(ModelCopy, NegativeIntegersAndLongTensors) {
  const TemporaryFolder folder;
  Model model(Proto::INT32);
  model.w->set_dims(0, 200000);
  for (int i = 0; i < 600000; ++i) model.w->add_int32_data(1);
  write_bytes(folder / "a.onnx", model.bytes());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_numbers("w", counting({200000, 3}, 1000, -1));
  copy.write((folder / "b.onnx").string());
  for (int i = 0; i < 600000; ++i) model.w->set_int32_data(i, 1000 - i);
  EXPECT_EQ(bytes_of(folder / "b.onnx"), model.bytes());
}

/// The format packs numbers; a writer that does not is read all the same.
TEST(ModelCopy, NumbersInSeveralFieldsBecomeOne) {
  const TemporaryFolder folder;
  Model model(Proto::FLOAT);
  std::string& unknown = *model.w->mutable_unknown_fields();
  for (const float v : kOld) {
    unknown += '\x25';  // field 4, four bytes
    unknown.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  write_bytes(folder / "a.onnx", model.bytes());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_numbers("w", counting({2, 3}));
  copy.write((folder / "b.onnx").string());
  ::onnx::ModelProto read;
  ASSERT_TRUE(read.ParseFromString(bytes_of(folder / "b.onnx")));
  const Proto& w = read.graph().initializer(1);
  EXPECT_EQ(std::vector<float>(w.float_data().begin(), w.float_data().end()), kNew);
}

TEST(ModelCopy, HalvesThatOverflowAreRefused) {
  const TemporaryFolder folder;
  Model model(Proto::FLOAT16);
  model.w->set_raw_data(std::string(12, '\0'));
  write_bytes(folder / "a.onnx", model.bytes());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_numbers("w", counting({2, 3}, 65519, 1));
  EXPECT_EQ(refusal([&] { copy.write((folder / "b.onnx").string()); }),
            "'w' is stored as float16, which does not hold its 65520; export the model in float32 "
            "or bfloat16");
  EXPECT_FALSE(std::filesystem::exists(folder / "b.onnx"));
}

// ---- nodes and new initialisers

TEST(ModelCopy, NodesGetInputsAndGo) {
  const TemporaryFolder folder;
  ModelBuilder b;
  b.input("x", {1, 1, 4});
  b.floats("w", {1, 1, 3}, {1, 2, 3});
  b.node("Conv", {"x", "w"}, {"c"});
  b.node("Identity", {"w"}, {"v"});
  b.node("Clip", {"c"}, {"y"});
  b.output("y");
  write_bytes(folder / "a.onnx", b.model.SerializeAsString());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_input(0, 1, "another.weight");
  copy.set_input(0, 2, "bias");
  copy.set_input(2, 2, "most");  // and an empty one before it
  copy.remove_node(1);
  copy.add_initialiser("bias", DType::f32, counting({1}, 5));
  copy.add_initialiser("another.weight", DType::f32, counting({1, 1, 3}));
  copy.write((folder / "b.onnx").string());

  auto& graph = b.graph();
  graph.mutable_node(0)->set_input(1, "another.weight");
  graph.mutable_node(0)->add_input("bias");
  graph.mutable_node(2)->add_input("");
  graph.mutable_node(2)->add_input("most");
  graph.mutable_node()->DeleteSubrange(1, 1);
  for (const auto& [name, dims, values] :
       {std::tuple<std::string, std::vector<int64_t>, std::vector<float>>{"bias", {1}, {5}},
        {"another.weight", {1, 1, 3}, {0, 1, 2}}}) {
    auto* tensor = graph.add_initializer();
    tensor->set_name(name);
    for (const int64_t dim : dims) tensor->add_dims(dim);
    tensor->set_data_type(Proto::FLOAT);
    set_raw(tensor, values);
  }
  ::onnx::ModelProto read;
  ASSERT_TRUE(read.ParseFromString(bytes_of(folder / "b.onnx")));
  EXPECT_EQ(read.SerializeAsString(), b.model.SerializeAsString());
}

TEST(ModelCopy, WhatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  Model model(Proto::FLOAT);
  set_raw(model.w, kOld);
  const std::string path = (folder / "a.onnx").string();
  write_bytes(path, model.bytes());
  ModelCopy copy(path);
  EXPECT_EQ(refusal([&] {
              copy.set_numbers("v", counting({2, 3}));
            }),
            path + ": has no initialiser 'v'");
  EXPECT_EQ(refusal([&] { copy.set_input(1, 0, "v"); }), path + ": has no node 1");
  write_bytes(path, model.bytes().substr(0, 40));
  EXPECT_EQ(refusal([&] { ModelCopy cut(path); }),
            path + ": is not an ONNX model (cut off, damaged, or another format)");
}

// ---- external data

/// `names` are tensors [2, 3] that count from 100, 200, …, one after the other in the files.
std::string external_model(const TemporaryFolder& folder, const std::vector<std::string>& names,
                           const std::vector<std::string>& files, int64_t apart = 24) {
  ModelBuilder b(21, 10);
  b.input("x", {-1, 2});
  std::map<std::string, std::string> data;
  float first = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    first += 100;
    std::string& bytes = data[files[i]];
    const int64_t offset = bytes.empty() ? 0 : static_cast<int64_t>(bytes.size()) - 24 + apart;
    bytes.resize(static_cast<size_t>(offset + 24), '#');
    counting({2, 3}, first).read(0, 6, bytes.data() + offset);
    bytes += std::string(
        static_cast<size_t>(std::max<int64_t>(0, offset + 24) - static_cast<int64_t>(bytes.size())),
        '#');
    auto* tensor = b.graph().add_initializer();
    tensor->set_name(names[i]);
    tensor->add_dims(2);
    tensor->add_dims(3);
    tensor->set_data_type(Proto::FLOAT);
    tensor->set_data_location(Proto::EXTERNAL);
    for (const auto& [key, value] : std::map<std::string, std::string>{
             {"location", files[i]}, {"offset", std::to_string(offset)}, {"length", "24"}}) {
      auto* entry = tensor->add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    b.node("MatMul", {"x", names[i]}, {"y" + std::to_string(i)});
  }
  b.output("y0", {-1, 3});
  for (const auto& [file, bytes] : data) write_bytes(folder / file, bytes + "the end");
  return b.model.SerializeAsString();
}

TEST(ModelCopy, ExternalDataKeepTheirNameWithAModelOfTheSame) {
  const TemporaryFolder folder, other;
  const std::string model = external_model(folder, {"a", "b"}, {"m.onnx.data", "m.onnx.data"}, 64);
  write_bytes(folder / "m.onnx", model);
  ModelCopy copy((folder / "m.onnx").string());
  copy.set_numbers("b", counting({2, 3}));
  copy.write((other / "m.onnx").string());
  EXPECT_EQ(bytes_of(other / "m.onnx"), model);
  std::string data = bytes_of(folder / "m.onnx.data");
  counting({2, 3}).read(0, 6, data.data() + 64);
  EXPECT_EQ(bytes_of(other / "m.onnx.data"), data);
}

TEST(ModelCopy, ExternalDataAreNamedAfterAnotherModel) {
  const TemporaryFolder folder;
  write_bytes(folder / "m.onnx", external_model(folder, {"a"}, {"weights.bin"}));
  const std::string old = bytes_of(folder / "weights.bin"), out = (folder / "new.onnx").string();
  ModelCopy copy((folder / "m.onnx").string());
  copy.set_numbers("a", counting({2, 3}));
  EXPECT_EQ(copy.outputs(out), (std::vector<std::string>{out, out + ".data"}));
  copy.write(out);
  EXPECT_EQ(bytes_of(folder / "weights.bin"), old);
  std::string data = old;
  counting({2, 3}).read(0, 6, data.data());
  EXPECT_EQ(bytes_of(out + ".data"), data);
  ::onnx::ModelProto expected, got;
  ASSERT_TRUE(expected.ParseFromString(bytes_of(folder / "m.onnx")));
  ASSERT_TRUE(got.ParseFromString(bytes_of(out)));
  auto* entries = expected.mutable_graph()->mutable_initializer(0);
  for (auto& entry : *entries->mutable_external_data())
    if (entry.key() == "location") entry.set_value("new.onnx.data");
  EXPECT_EQ(got.SerializeAsString(), expected.SerializeAsString());
}

TEST(ModelCopy, SeveralExternalFilesGoBelowAFolder) {
  const TemporaryFolder folder;
  write_bytes(folder / "m.onnx", external_model(folder, {"a", "b"}, {"a", "b"}));
  const std::string out = (folder / "sub/new.onnx").string();
  ModelCopy copy((folder / "m.onnx").string());
  copy.set_numbers("b", counting({2, 3}));
  copy.write(out);
  EXPECT_EQ(bytes_of(out + ".data/a"), bytes_of(folder / "a"));
  EXPECT_NE(bytes_of(out + ".data/b"), bytes_of(folder / "b"));
  ::onnx::ModelProto got;
  ASSERT_TRUE(got.ParseFromString(bytes_of(out)));
  EXPECT_EQ(got.graph().initializer(1).external_data(1).value(), "new.onnx.data/b");
}

TEST(ModelCopy, BytesThatTensorsShareAreNotChangedForOneOfThem) {
  const TemporaryFolder folder;
  write_bytes(folder / "m.onnx", external_model(folder, {"a", "b"}, {"d", "d"}, 8));
  ModelCopy copy((folder / "m.onnx").string());
  copy.write((folder / "same.onnx").string());
  copy.set_numbers("a", counting({2, 3}));
  EXPECT_EQ(
      refusal([&] { copy.write((folder / "n.onnx").string()); }),
      (folder / "m.onnx").string() +
          ": initialisers 'a' and 'b' share bytes of d, so that training cannot give each its "
          "own");
}

TEST(ModelCopy, LargeNewInitialisersAreExternal) {
  const TemporaryFolder folder;
  write_bytes(folder / "m.onnx", external_model(folder, {"a"}, {"m.onnx.data"}));
  ModelCopy copy((folder / "m.onnx").string());
  const std::string out = (folder / "new.onnx").string();
  copy.add_initialiser("u", DType::f32, counting({3}));
  copy.add_initialiser("v", DType::f32, counting({1000, 3}));
  EXPECT_EQ(copy.outputs(out).size(), 2U);
  copy.most_inline = 12011;
  EXPECT_EQ(copy.outputs(out), (std::vector<std::string>{out, out + ".data", out + ".data.new"}));
  copy.write(out);
  ModelFile model = parse_model(std::make_shared<const InputFile>(out),
                                std::make_shared<ExternalData>(folder.path().string()));
  check_model(model);
  ASSERT_EQ(model.initialisers.size(), 3U);
  EXPECT_EQ(model.initialisers[0].load().at(5), 105);
  for (const int i : {1, 2}) {
    const StoredTensor& tensor = model.initialisers[static_cast<size_t>(i)];
    EXPECT_EQ(tensor.file->path(), std::filesystem::canonical(out + ".data.new").string());
    EXPECT_EQ(tensor.offset, i == 1 ? 0 : 4096);
    EXPECT_EQ(tensor.type.shape, i == 1 ? Shape{3} : (Shape{1000, 3}));
    EXPECT_EQ(tensor.load().at(2), 2);
  }
}

TEST(ModelCopy, AFullDiskLeavesWhatWasThere) {
  const TemporaryFolder folder;
  Model model(Proto::FLOAT);
  set_raw(model.w, kOld);
  write_bytes(folder / "a.onnx", model.bytes());
  ModelCopy copy((folder / "a.onnx").string());
  copy.set_numbers("w", counting({2, 3}));
  EXPECT_NE(refusal([&] { copy.write("/dev/full"); }).find("/dev/full: cannot be written"),
            std::string::npos);
}

}  // namespace
}  // namespace shardrun::importer
