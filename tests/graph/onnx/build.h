// Small ONNX models for tests, as protobuf messages.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "onnx-ml.pb.h"

namespace shardrun::test {

inline constexpr int kFloat = 1, kInt64 = 7;

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "shardrun_onnx_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct ModelBuilder {
  ::onnx::ModelProto model;

  explicit ModelBuilder(int64_t opset = 17, int64_t ir = 8) {
    model.set_ir_version(ir);
    auto* import = model.add_opset_import();
    import->set_version(opset);
    model.mutable_graph()->set_name("test");
  }
  ::onnx::GraphProto& graph() { return *model.mutable_graph(); }

  /// A negative dim is written as the symbolic dim 'n'.
  static void set_info(::onnx::ValueInfoProto* info, const std::string& name,
                       const std::vector<int64_t>& dims, int type) {
    info->set_name(name);
    auto* tensor = info->mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(type);
    tensor->mutable_shape();
    for (int64_t dim : dims) {
      auto* d = tensor->mutable_shape()->add_dim();
      if (dim < 0)
        d->set_dim_param("n");
      else
        d->set_dim_value(dim);
    }
  }
  void input(const std::string& name, const std::vector<int64_t>& dims, int type = kFloat) {
    set_info(graph().add_input(), name, dims, type);
  }
  void output(const std::string& name, const std::vector<int64_t>& dims = {}, int type = kFloat) {
    set_info(graph().add_output(), name, dims, type);
  }
  ::onnx::NodeProto& node(const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs) {
    auto* node = graph().add_node();
    node->set_op_type(op);
    node->set_name(op + "_" + std::to_string(graph().node_size() - 1));
    for (const auto& name : inputs) node->add_input(name);
    for (const auto& name : outputs) node->add_output(name);
    return *node;
  }
  ::onnx::TensorProto& floats(const std::string& name, const std::vector<int64_t>& dims,
                              const std::vector<float>& values) {
    auto* tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(kFloat);
    for (int64_t dim : dims) tensor->add_dims(dim);
    tensor->set_raw_data(
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    return *tensor;
  }
  ::onnx::TensorProto& ints(const std::string& name, const std::vector<int64_t>& values,
                            bool scalar = false) {
    auto* tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(kInt64);
    if (!scalar) tensor->add_dims(static_cast<int64_t>(values.size()));
    for (int64_t v : values) tensor->add_int64_data(v);
    return *tensor;
  }
  std::string write(const TemporaryFolder& folder, const std::string& name = "model.onnx") const {
    const auto path = folder / name;
    write_bytes(path, model.SerializeAsString());
    return path.string();
  }
};

inline void set_int(::onnx::NodeProto& node, const std::string& name, int64_t value) {
  auto* attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::INT);
  attribute->set_i(value);
}

inline void set_float(::onnx::NodeProto& node, const std::string& name, float value) {
  auto* attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::FLOAT);
  attribute->set_f(value);
}
inline void set_ints(::onnx::NodeProto& node, const std::string& name,
                     const std::vector<int64_t>& values) {
  auto* attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::INTS);
  for (int64_t v : values) attribute->add_ints(v);
}

inline void set_string(::onnx::NodeProto& node, const std::string& name, const std::string& value) {
  auto* attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(::onnx::AttributeProto::STRING);
  attribute->set_s(value);
}

/// Of a ValueInfoProto or a NodeProto.
template <class Proto>
void add_metadata(Proto* info, const std::string& key, const std::string& value) {
  auto* entry = info->add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

}  // namespace shardrun::test
