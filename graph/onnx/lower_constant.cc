// Lowering of what makes values of nothing: Constant, ConstantOfShape, Range, and the weights
// that a node describes.
#include <cmath>

#include "graph/onnx/lowering.h"
#include "graph/onnx/model_file.h"

namespace shardrun::importer {
namespace {

/// Of a node whose result is a weight, described instead of stored (models/onnx_writer.h):
/// parameter, which is trained, or buffer, which is not. Empty for any other node.
std::string described_weight(const ::onnx::NodeProto& proto) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == "shardrun.init" &&
        (entry.value() == "parameter" || entry.value() == "buffer"))
      return entry.value();
  }
  return "";
}

void constant(NodeContext& c) {
  if (const auto* value = c.find("value")) return c.out(c.b.constant(c.load_tensor(value->t())));
  if (c.has_attr("value_float")) return c.out(c.b.scalar(c.attr_f("value_float", 0), DType::f32));
  if (c.has_attr("value_int"))
    return c.out(c.b.constant(Tensor::scalar_i64(c.attr_i("value_int", 0))));
  if (c.has_attr("value_ints")) return c.out(c.b.ints(c.attr_ints("value_ints")));
  if (c.has_attr("value_floats")) {
    const std::vector<float> values = c.attr_floats("value_floats");
    return c.out(
        c.b.constant(Tensor::from(Shape{static_cast<int64_t>(values.size())}, values, DType::f32)));
  }
  for (const char* name : {"sparse_value", "value_string", "value_strings"}) {
    if (c.has_attr(name)) c.refuse_attr(name, "supported are tensors, floats and integers");
  }
  fail(ErrorKind::invalid_input, "has no value");
}

void constant_of_shape(NodeContext& c) {
  const std::vector<int64_t> shape = c.ints(0, "shape");
  Tensor value({DType::f32, {1}});
  if (const auto* given = c.find("value")) value = c.load_tensor(given->t());
  SR_REQUIRE(value.count() == 1, invalid_input, "value has ", value.count(), " elements, wanted 1");
  for (int64_t dim : shape)
    SR_REQUIRE(dim >= 0, invalid_input, "shape ", to_string(shape), " has a negative dim");
  if (const std::string weight = described_weight(c.proto); !weight.empty()) {
    Source source;
    source.kind = Source::Kind::constant;
    source.a = value.at(0);
    return c.out(c.add_parameter(source, {value.dtype(), shape}, weight == "parameter"));
  }
  c.out(c.b.fill(value.at(0), value.dtype(), shape));
}

void random(NodeContext& c) {
  c.ignore("seed");
  const bool normal = c.op() == "RandomNormal";
  Source source;
  source.kind = normal ? Source::Kind::normal : Source::Kind::uniform;
  source.a = normal ? c.attr_f("mean", 0) : c.attr_f("low", 0);
  source.b = normal ? c.attr_f("scale", 1) : c.attr_f("high", 1);
  source.stream = c.proto.output(0);
  const DType dtype = graph_dtype(static_cast<int>(c.attr_i("dtype", 1)));
  SR_REQUIRE(described_weight(c.proto) == "parameter", unsupported,
             "random values are supported only as a weight's description (metadata "
             "shardrun.init=parameter)");
  c.out(c.add_parameter(source, {dtype, c.attr_ints("shape")}, true));
}

/// start, start + delta, … before limit. Integers of any length; floats are computed now.
void range(NodeContext& c) {
  c.ignore("stash_type");
  const Tensor &start = c.known(0, "start"), &limit = c.known(1, "limit"),
               &delta = c.known(2, "delta");
  SR_REQUIRE(start.count() == 1 && limit.count() == 1 && delta.count() == 1, invalid_input,
             "wants three scalars");
  const DType dtype = start.dtype();
  SR_REQUIRE(limit.dtype() == dtype && delta.dtype() == dtype, invalid_input, "start is ",
             start.type(), ", limit ", limit.type(), ", delta ", delta.type());
  SR_REQUIRE(delta.at(0) != 0, invalid_input, "delta is 0");
  const double steps = std::ceil((limit.at(0) - start.at(0)) / delta.at(0));
  SR_REQUIRE(std::isfinite(steps) && steps < 1e15, invalid_input, "is not finite");
  const int64_t count = std::max<int64_t>(static_cast<int64_t>(steps), 0);
  if (!is_float(dtype)) {
    return c.out(c.b.add("iota", {},
                         {{"shape", Shape{count}},
                          {"dtype", std::string(to_string(dtype))},
                          {"axis", int64_t{0}},
                          {"start", start.int_at(0)},
                          {"step", delta.int_at(0)}}));
  }
  SR_REQUIRE(count <= kFoldLimit, unsupported, "a floating range of ", count,
             " elements; use integers and Cast");
  Tensor out({dtype, {count}});
  for (int64_t i = 0; i < count; ++i) {
    const double value = start.at(0) + static_cast<double>(i) * delta.at(0);
    convert(&value, DType::f64, static_cast<char*>(out.data()) + i * size_of(dtype), dtype, 1);
  }
  c.out(c.b.constant(std::move(out)));
}

/// Only a condition known at import: the branch is inlined.
void if_known(NodeContext& c) {
  const Tensor* condition = c.b.known(c.in(0));
  SR_REQUIRE(condition != nullptr && condition->count() == 1, unsupported,
             "control flow on data is not supported; export without the branch");
  c.find("then_branch");
  const auto* branch = c.find(condition->at(0) != 0 ? "then_branch" : "else_branch");
  c.find("else_branch");
  SR_REQUIRE(branch != nullptr, invalid_input, "has no branch for its condition");
  const std::vector<V> results = c.lower_subgraph(branch->g());
  SR_REQUIRE(results.size() == c.output_count(), invalid_input, "branch has ", results.size(),
             " outputs, node ", c.output_count());
  for (size_t i = 0; i < results.size(); ++i) c.out(i, results[i]);
}

constexpr Lowering kTable[] = {
    {"Constant", 1, constant},   {"ConstantOfShape", 9, constant_of_shape},
    {"RandomNormal", 1, random}, {"RandomUniform", 1, random},
    {"Range", 11, range},        {"If", 11, if_known}};

}  // namespace

std::span<const Lowering> constant_lowerings() { return kTable; }

}  // namespace shardrun::importer
