// OnnxWriter: protobuf building, and weights streamed to a file next to the model where they are
// large.
#include "models/onnx_writer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/files/output_file.h"
#include "onnx-ml.pb.h"

namespace shardrun {
namespace {

constexpr int64_t kIrVersion = 10;        // the first with metadata on nodes; of opset 21
constexpr int64_t kIrVersion23 = 11;      // of opset 23
constexpr int64_t kDataAlignment = 4096;  // so that external weights can be mapped

void set_attribute(::onnx::AttributeProto* out, const std::string& name, const Attr& value) {
  using Proto = ::onnx::AttributeProto;
  out->set_name(name);
  if (const auto* i = std::get_if<int64_t>(&value)) {
    out->set_type(Proto::INT);
    out->set_i(*i);
  } else if (const auto* f = std::get_if<double>(&value)) {
    out->set_type(Proto::FLOAT);
    out->set_f(static_cast<float>(*f));
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    out->set_type(Proto::STRING);
    out->set_s(*s);
  } else if (const auto* is = std::get_if<std::vector<int64_t>>(&value)) {
    out->set_type(Proto::INTS);
    out->mutable_ints()->Assign(is->begin(), is->end());
  } else if (const auto* fs = std::get_if<std::vector<double>>(&value)) {
    out->set_type(Proto::FLOATS);
    for (double f : *fs) out->add_floats(static_cast<float>(f));
  }
}

void set_value_info(::onnx::ValueInfoProto* out, const std::string& name, int type,
                    const std::vector<std::string>& dims) {
  out->set_name(name);
  auto* tensor = out->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (const std::string& dim : dims) {
    auto* d = tensor->mutable_shape()->add_dim();
    const bool number = !dim.empty() && std::all_of(dim.begin(), dim.end(),
                                                    [](char c) { return c >= '0' && c <= '9'; });
    if (number)
      d->set_dim_value(std::stoll(dim));
    else
      d->set_dim_param(dim);
  }
}

}  // namespace

struct OnnxWriter::State {
  Options options;
  ::onnx::ModelProto model;
  std::map<std::string, int> used;
  std::map<std::string, std::string> constants;  // by contents
  struct Stored {
    std::string name;
    TensorType type;
    Source source;
  };
  std::vector<Stored> stored;
  int64_t parameters = 0;

  std::string fresh(const std::string& base) {
    const int seen = used[base]++;
    return seen == 0 ? base : str(base, "_", seen);
  }
  std::string constant(const std::string& key, const ::onnx::TensorProto& tensor) {
    auto [it, added] = constants.try_emplace(key);
    if (added) {
      it->second = fresh("const");
      *model.mutable_graph()->add_initializer() = tensor;
      model.mutable_graph()->mutable_initializer()->rbegin()->set_name(it->second);
    }
    return it->second;
  }
};

OnnxWriter::OnnxWriter(const std::string& graph_name, const Options& options)
    : state_(std::make_unique<State>()) {
  state_->options = options;
  auto& model = state_->model;
  model.set_ir_version(options.opset >= 23 ? kIrVersion23 : kIrVersion);
  model.set_producer_name("shardrun");
  auto* opset = model.add_opset_import();
  opset->set_domain("");
  opset->set_version(options.opset);
  model.mutable_graph()->set_name(graph_name);
}

OnnxWriter::~OnnxWriter() = default;

void OnnxWriter::input(const std::string& name, int type, const std::vector<std::string>& dims) {
  state_->used[name]++;
  set_value_info(state_->model.mutable_graph()->add_input(), name, type, dims);
}

void OnnxWriter::output(const std::string& name, int type, const std::vector<std::string>& dims) {
  set_value_info(state_->model.mutable_graph()->add_output(), name, type, dims);
}

std::string OnnxWriter::persistent(const std::string& name, const Shape& shape, Source source,
                                   bool trained) {
  State& s = *state_;
  s.used[name]++;
  if (trained) s.parameters += element_count(shape);
  if (s.options.weights) {
    s.stored.push_back({name, {DType::f32, shape}, std::move(source)});
    return name;
  }
  auto* node = s.model.mutable_graph()->add_node();
  if (source.kind != Source::Kind::constant) {
    const bool normal = source.kind == Source::Kind::normal;
    node->set_op_type(normal ? "RandomNormal" : "RandomUniform");
    set_attribute(node->add_attribute(), "shape", Attr(shape));
    set_attribute(node->add_attribute(), normal ? "mean" : "low", Attr(source.a));
    set_attribute(node->add_attribute(), normal ? "scale" : "high", Attr(source.b));
    set_attribute(node->add_attribute(), "dtype", Attr(int64_t{1}));
  } else {
    node->set_op_type("ConstantOfShape");
    node->add_input(ints(shape));
    auto* value = node->add_attribute();
    value->set_name("value");
    value->set_type(::onnx::AttributeProto::TENSOR);
    value->mutable_t()->set_data_type(::onnx::TensorProto::FLOAT);
    value->mutable_t()->add_dims(1);
    value->mutable_t()->add_float_data(static_cast<float>(source.a));
  }
  node->set_name("make " + name);
  node->add_output(name);
  auto* entry = node->add_metadata_props();
  entry->set_key("shardrun.init");
  entry->set_value(trained ? "parameter" : "buffer");
  return name;
}

std::string OnnxWriter::normal(const std::string& name, const Shape& shape,
                               double standard_deviation) {
  Source source;
  source.kind = Source::Kind::normal;
  // The file holds the description in single precision; stored weights are drawn from the same
  // number.
  source.b = static_cast<double>(static_cast<float>(standard_deviation));
  source.stream = name;
  return persistent(name, shape, std::move(source), true);
}

std::string OnnxWriter::uniform(const std::string& name, const Shape& shape, double bound) {
  Source source;
  source.kind = Source::Kind::uniform;
  source.b = static_cast<double>(static_cast<float>(bound));
  source.a = -source.b;
  source.stream = name;
  return persistent(name, shape, std::move(source), true);
}

namespace {

Source constant_source(double value) {
  Source source;
  source.kind = Source::Kind::constant;
  source.a = value;
  return source;
}

}  // namespace

std::string OnnxWriter::filled(const std::string& name, const Shape& shape, double value) {
  return persistent(name, shape, constant_source(value), true);
}

std::string OnnxWriter::buffer(const std::string& name, const Shape& shape, double value) {
  return persistent(name, shape, constant_source(value), false);
}

void OnnxWriter::metadata(const std::string& key, const std::string& value) {
  auto* entry = state_->model.add_metadata_props();
  entry->set_key(key);
  entry->set_value(value);
}

std::string OnnxWriter::ints(const std::vector<int64_t>& values) {
  ::onnx::TensorProto tensor;
  tensor.set_data_type(::onnx::TensorProto::INT64);
  tensor.add_dims(static_cast<int64_t>(values.size()));
  for (int64_t v : values) tensor.add_int64_data(v);
  return state_->constant("i64" + to_string(values), tensor);
}

std::string OnnxWriter::floats(const std::vector<double>& values) {
  ::onnx::TensorProto tensor;
  tensor.set_data_type(::onnx::TensorProto::FLOAT);
  tensor.add_dims(static_cast<int64_t>(values.size()));
  for (double v : values) tensor.add_float_data(static_cast<float>(v));
  return state_->constant("f32s " + tensor.SerializeAsString(), tensor);
}

std::string OnnxWriter::integer(int64_t value) {
  ::onnx::TensorProto tensor;
  tensor.set_data_type(::onnx::TensorProto::INT64);
  tensor.add_int64_data(value);
  return state_->constant(str("i64 ", value), tensor);
}

std::string OnnxWriter::scalar(double value) {
  ::onnx::TensorProto tensor;
  tensor.set_data_type(::onnx::TensorProto::FLOAT);
  tensor.add_float_data(static_cast<float>(value));
  return state_->constant("f32 " + tensor.SerializeAsString(), tensor);
}

std::string OnnxWriter::boolean(bool value) {
  ::onnx::TensorProto tensor;
  tensor.set_data_type(::onnx::TensorProto::BOOL);
  tensor.add_int32_data(value);
  return state_->constant(str("bool ", value), tensor);
}

std::vector<std::string> OnnxWriter::node_n(const std::string& op,
                                            const std::vector<std::string>& inputs, size_t results,
                                            const Attrs& attrs) {
  auto* node = state_->model.mutable_graph()->add_node();
  node->set_op_type(op);
  node->set_name(state_->fresh(prefix + op));
  for (const std::string& name : inputs) node->add_input(name);
  std::vector<std::string> out;
  for (size_t i = 0; i < results; ++i) {
    out.push_back(results == 1 ? node->name() + ":out" : str(node->name(), ":", i));
    node->add_output(out.back());
  }
  for (const auto& [name, value] : attrs.all()) set_attribute(node->add_attribute(), name, value);
  return out;
}

std::string OnnxWriter::node(const std::string& op, const std::vector<std::string>& inputs,
                             const Attrs& attrs, const std::string& result) {
  const std::string name = node_n(op, inputs, 1, attrs)[0];
  if (result.empty()) return name;
  state_->model.mutable_graph()->mutable_node()->rbegin()->set_output(0, result);
  return result;
}

int64_t OnnxWriter::parameter_count() const { return state_->parameters; }

void OnnxWriter::write(const std::string& path) const {
  const State& s = *state_;
  int64_t bytes = 0;
  for (const auto& w : s.stored) bytes += byte_size(w.type);
  const bool external = bytes > s.options.external_above;
  ::onnx::ModelProto model = s.model;
  OutputFile file(path);
  const std::string data_path = path + ".data";
  std::optional<OutputFile> data;
  if (external) data.emplace(data_path);
  int64_t offset = 0;
  for (const auto& w : s.stored) {
    auto* tensor = model.mutable_graph()->add_initializer();
    tensor->set_name(w.name);
    tensor->set_data_type(::onnx::TensorProto::FLOAT);
    for (int64_t dim : w.type.shape) tensor->add_dims(dim);
    std::string contents(static_cast<size_t>(byte_size(w.type)), '\0');
    read_source(w.source, w.type, full_box(w.type.shape), s.options.seed, contents.data());
    if (!external) {
      tensor->set_raw_data(std::move(contents));
      continue;
    }
    tensor->set_data_location(::onnx::TensorProto::EXTERNAL);
    auto add = [&](const char* key, const std::string& value) {
      auto* entry = tensor->add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    offset = (offset + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
    add("location", std::filesystem::path(data_path).filename().string());
    add("offset", std::to_string(offset));
    add("length", std::to_string(contents.size()));
    data->stream().seekp(offset);
    data->stream().write(contents.data(), static_cast<std::streamsize>(contents.size()));
    offset += static_cast<int64_t>(contents.size());
  }
  SR_REQUIRE(model.SerializeToOstream(&file.stream()) || !file.stream().good(), unsupported, path,
             ": protobuf cannot write so large a file");
  if (external) data->finish();
  file.finish();
}

}  // namespace shardrun
