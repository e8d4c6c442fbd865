// Which of a file's numbers are which of a module's: exports of PyTorch's against the module's own
// state_dict() (tests/golden/make_weights.py).
#include "graph/onnx/weights/weight_map.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/runs.h"
#include "exec/safetensors_folder.h"
#include "graph/onnx/weights/given_weights.h"

namespace shardrun {
namespace {

const std::string kGolden = SHARDRUN_GOLDEN;

std::string path_of(const std::string& name) { return kGolden + "/weights_" + name; }

Source source_of(const FoundTensor& found) {
  Source source;
  source.kind = Source::Kind::file;
  source.file = std::make_shared<const InputFile>(found.path);
  source.offset = found.entry.begin;
  source.dtype = found.entry.type().dtype;
  source.shape = found.entry.shape;
  return source;
}

/// A tensor of a safetensors file, as f64.
Tensor stored(const FoundTensor& found) {
  const Source source = source_of(found);
  Tensor out({DType::f64, source.shape});
  read_source(source, out.type(), full_box(source.shape), 0, out.data());
  return out;
}

/// A tensor of the module, put together from what the file holds.
Tensor mapped(const WeightMap& map, const ModuleTensor& tensor) {
  Tensor out({DType::f64, tensor.type.shape});
  for (const ValueRun& run : tensor.runs) {
    const WeightMap::Value& value = map.values.at(run.value);
    const Tensor whole({DType::f64, value.type.shape});
    read_source(value.source, whole.type(), full_box(whole.shape()), 0, whole.data());
    const Shape& shape = tensor.type.shape;
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t from = run.transposed ? i % shape[1] * shape[0] + i / shape[1] : run.first + i;
      out.as<double>()[run.tensor_first + i] = whole.as<double>()[from];
    }
  }
  return out;
}

std::set<std::string> names_of(const std::vector<WeightMap::Missing>& missing) {
  std::set<std::string> out;
  for (const auto& [name, why] : missing) out.insert(name);
  return out;
}

/// The older exporter runs a module in training mode, which moves its running statistics.
bool moved_by(const std::string& exporter, const std::string& name) {
  return exporter == "legacy" && name.find(".running_") != std::string::npos;
}

/// Every tensor of the state_dict() is there with its type, shape and numbers, but for `missing`,
/// and nothing else is.
void expect_module(const std::string& module, const std::string& exporter,
                   const std::set<std::string>& missing = {}) {
  SCOPED_TRACE(module + "." + exporter);
  const WeightMap map = OnnxFile(path_of(module + "." + exporter + ".onnx")).map_weights({});
  const auto wanted = find_tensors(path_of(module + ".before.safetensors"));
  EXPECT_TRUE(map.has_module);
  EXPECT_EQ(names_of(map.missing), missing);
  std::set<std::string> found;
  for (const ModuleTensor& tensor : map.tensors) {
    ASSERT_EQ(wanted.count(tensor.name), 1U) << tensor.name;
    EXPECT_TRUE(found.insert(tensor.name).second) << tensor.name;
    const FoundTensor& golden = wanted.at(tensor.name);
    ASSERT_EQ(tensor.type, golden.entry.type()) << tensor.name;
    if (moved_by(exporter, tensor.name)) continue;
    const Tensor want = stored(golden), got = mapped(map, tensor);
    for (int64_t i = 0; i < want.count(); ++i) ASSERT_EQ(got.at(i), want.at(i)) << tensor.name;
  }
  for (const auto& count : map.batch_counts) EXPECT_TRUE(found.insert(count.name).second);
  for (const auto& [name, tensor] : wanted)
    EXPECT_EQ(found.count(name) + missing.count(name), 1U) << name;
}

TEST(WeightMap, IsTheModuleThatWasExported) {
  for (const char* exporter : {"dynamo", "default", "legacy", "legacy_eval"}) {
    expect_module("tied", exporter);
    expect_module("half", exporter);
    expect_module("fresh", exporter);
  }
  // The newer exporter has the bias by its layer's name alone, and does not say that it is tied.
  for (const char* exporter : {"dynamo", "default"})
    expect_module("predictions", exporter, {"predictions.bias"});
  for (const char* exporter : {"legacy", "legacy_eval"}) expect_module("predictions", exporter);
  expect_module("images", "dynamo");
  expect_module("images", "legacy");
  for (const char* exporter : {"legacy", "legacy_eval", "default"})
    expect_module("recurrent", exporter);
}

TEST(WeightMap, WhatAnExporterComputedIsMissing) {
  const WeightMap map = OnnxFile(path_of("images.legacy_eval.onnx")).map_weights({});
  EXPECT_EQ(names_of(map.missing), std::set<std::string>{"first.weight"});
  EXPECT_EQ(map.missing[0].why, "the exporter computed 'onnx::Conv_42' from it");
  std::set<std::string> found;
  for (const ModuleTensor& tensor : map.tensors) found.insert(tensor.name);
  EXPECT_EQ(found, (std::set<std::string>{"fc.bias", "fc.weight", "group.bias", "group.weight",
                                          "last.bias", "last.weight", "slope.weight", "up.bias",
                                          "up.weight"}));
  EXPECT_THROW(OnnxFile(path_of("images.default.onnx")).map_weights({}), Error);
}

/// The other way: the file's weights by the module's state_dict() are those that it has.
void expect_given(const std::string& module, const std::string& exporter) {
  SCOPED_TRACE(module + "." + exporter);
  const WeightMap map = OnnxFile(path_of(module + "." + exporter + ".onnx")).map_weights({});
  GivenWeights given;
  given.origin = "--weights F";
  for (const auto& [name, found] : find_tensors(path_of(module + ".before.safetensors"))) {
    given.tensors["module." + name] = {found.entry.shape, found.entry.dtype, source_of(found)};
  }
  const MatchedWeights matched = match_weights(map, given);
  EXPECT_EQ(matched.notes,
            std::vector<std::string>{"--weights F: its names have 'module.' in front"});
  for (const auto& [name, value] : map.values) {
    EXPECT_EQ(matched.sources.count(name), value.kept ? 1U : matched.sources.count(name)) << name;
  }
  for (const auto& [name, source] : matched.sources) {
    if (moved_by(exporter, name)) continue;
    const TensorType type{DType::f64, map.values.at(name).type.shape};
    const Tensor want(type), got(type);
    read_source(map.values.at(name).source, type, full_box(type.shape), 0, want.data());
    read_source(source, type, full_box(type.shape), 0, got.data());
    for (int64_t i = 0; i < want.count(); ++i) ASSERT_EQ(got.at(i), want.at(i)) << name;
  }
}

TEST(GivenWeights, AreFoundByTheModulesNames) {
  for (const char* exporter : {"dynamo", "default", "legacy", "legacy_eval"}) {
    expect_given("tied", exporter);
    expect_given("half", exporter);
    expect_given("fresh", exporter);
  }
  expect_given("images", "dynamo");
  expect_given("images", "legacy");
  expect_given("recurrent", "legacy");
  expect_given("recurrent", "default");
}

}  // namespace
}  // namespace shardrun
