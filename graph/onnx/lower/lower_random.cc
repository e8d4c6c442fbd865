// Lowering of what draws random numbers: Dropout, Bernoulli, RandomUniform, RandomNormal and their
// Like; and of the weights that such a node describes.
#include <numbers>

#include "base/philox.h"
#include "graph/onnx/file/model_file.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// What is common to all that draw; `stream` names the numbers.
Attrs draws(NodeContext& c, const std::string& stream, const Shape& shape) {
  return {{"key", static_cast<int64_t>(hash_name(stream.data(), stream.size()))},
          {"seed", static_cast<int64_t>(c.b.options.seed)},
          {"global_shape", shape},
          {"start", std::vector<int64_t>(shape.size(), 0)}};
}

/// Is a Dropout to be applied in training? Without an input `training_mode` the operator is
/// inactive, but PyTorch's exporters write it so in one place: the dropout of
/// scaled_dot_product_attention, which they are called with when the model trains.
bool is_active(NodeContext& c, double ratio) {
  if (c.has(2)) return c.known(2, "training_mode").at(0) != 0;
  if (!c.report.producer.starts_with("pytorch")) return false;
  if (ratio > 0 && c.b.options.training) c.restored(str("dropout_p=", ratio));
  return true;
}

void dropout(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("seed");
  const V x = c.in(0);
  double ratio = c.attr_f("ratio", 0.5);
  if (c.has(1)) ratio = c.known(1, "ratio").at(0);
  SR_REQUIRE(ratio >= 0 && ratio <= 1, invalid_input, "ratio is ", ratio, ", wanted 0 to 1");
  const bool active = is_active(c, ratio);
  if (!active && b.options.training && ratio > 0) c.report.inactive_dropouts.push_back(b.node_name);
  c.out(0, active ? dropped(c, x, ratio) : x);
  if (!c.wants(1)) return;
  const V ones = b.fill(1, b.dtype(x), b.shape(x));
  c.out(1, b.with("greater", active ? dropped(c, ones, ratio) : ones, 0));
}

}  // namespace

V uniform(NodeContext& c, const Shape& shape, const char* use) {
  Attrs attrs = draws(c, c.stream + use, shape);
  attrs.set("shape", shape);
  return c.b.add("random_uniform", {c.random_step()}, attrs);
}

namespace {

/// Standard normal, of two uniform numbers each (Box and Muller).
V normal(NodeContext& c, const Shape& shape) {
  Builder& b = c.b;
  const V above_0 = b.add("sub", {b.fill(1, DType::f32, shape), uniform(c, shape, ".radius")});
  const V radius = b.add("sqrt", {b.with("mul", b.add("log", {above_0}), -2)});
  const V angle = b.with("mul", uniform(c, shape, ".angle"), 2 * std::numbers::pi);
  return b.add("mul", {radius, b.add("cos", {angle})});
}

void random(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("seed");  // --seed is everything's
  const bool is_normal = c.op().starts_with("RandomNormal");
  const bool like = c.op().ends_with("Like");
  const double first = is_normal ? c.attr_f("mean", 0) : c.attr_f("low", 0);
  const double second = is_normal ? c.attr_f("scale", 1) : c.attr_f("high", 1);
  DType dtype = like ? b.dtype(c.in(0)) : DType::f32;
  if (c.has_attr("dtype")) dtype = graph_dtype(static_cast<int>(c.attr_i("dtype", 1)));
  SR_REQUIRE(is_float(dtype), invalid_input, "dtype is ", dtype, ", wanted a floating one");
  const Shape shape = like ? b.shape(c.in(0)) : c.attr_ints("shape");
  for (int64_t dim : shape)
    SR_REQUIRE(dim >= 0, invalid_input, "shape ", to_string(shape), " has a negative dim");
  if (const std::string weight = described_weight(c.proto); !weight.empty()) {
    Source source;
    source.kind = is_normal ? Source::Kind::normal : Source::Kind::uniform;
    source.a = first, source.b = second;
    source.stream = c.proto.output(0);
    return c.out(c.add_parameter(source, {dtype, shape}, weight == "parameter"));
  }
  const double scale = is_normal ? second : second - first;
  V drawn = is_normal ? normal(c, shape) : uniform(c, shape);
  if (scale != 1) drawn = b.with("mul", drawn, scale);
  if (first != 0) drawn = b.with("add", drawn, first);
  c.out(b.cast(drawn, dtype));
}

/// 1 with the probability that the operand gives, else 0.
void bernoulli(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("seed");
  const V p = c.in(0);
  SR_REQUIRE(is_float(b.dtype(p)), invalid_input, "probabilities are ", b.dtype(p),
             ", wanted a floating type");
  DType dtype = b.dtype(p);
  if (c.has_attr("dtype")) dtype = graph_dtype(static_cast<int>(c.attr_i("dtype", 1)));
  c.out(b.cast(b.add("less", {uniform(c, b.shape(p)), b.cast(p, DType::f32)}), dtype));
}

/// Classes drawn by their log-probabilities [samples, classes], which need not add up to 1: the
/// largest of them plus Gumbel noise, -log(-log(u)), drawn anew for each result.
void multinomial(NodeContext& c) {
  Builder& b = c.b;
  c.ignore("seed");
  const V scores = c.in(0);
  const int64_t draws = c.attr_i("sample_size", 1);
  SR_REQUIRE(is_float(b.dtype(scores)) && b.rank(scores) == 2, invalid_input,
             "log-probabilities are ", b.type(scores), ", wanted floats [samples, classes]");
  SR_REQUIRE(draws > 0, invalid_input, "sample_size is ", draws, ", wanted a positive number");
  const DType dtype = graph_dtype(static_cast<int>(c.attr_i("dtype", 6)));
  SR_REQUIRE(dtype == DType::i32 || dtype == DType::i64, invalid_input, "dtype is ", dtype,
             ", wanted i32 or i64");
  const int64_t samples = b.shape(scores)[0], classes = b.shape(scores)[1];
  const V drawn = uniform(c, {samples, draws, classes});
  const V noise = b.add("neg", {b.add("log", {b.add("neg", {b.add("log", {drawn})})})});
  const V total =
      b.add("add", {b.cast(b.reshape(scores, {samples, 1, classes}), DType::f32), noise});
  const Attrs last = {
      {"axis", int64_t{2}}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{0}}};
  c.out(b.cast(b.add("argmax", {total}, last), dtype));
}

constexpr Lowering kRandomLowerings[] = {
    {"Dropout", 7, dropout},         {"Bernoulli", 15, bernoulli},
    {"RandomNormal", 1, random},     {"RandomUniform", 1, random},
    {"RandomNormalLike", 1, random}, {"RandomUniformLike", 1, random},
    {"Multinomial", 7, multinomial}};

}  // namespace

V dropped(NodeContext& c, V x, double ratio) {
  if (!c.b.options.training || ratio == 0) return x;
  if (ratio == 1) return c.b.with("mul", x, 0);
  Attrs attrs = draws(c, c.stream, c.b.shape(x));
  attrs.set("p", ratio);
  return c.b.add("dropout", {x, c.random_step()}, attrs);
}

std::string described_weight(const ::onnx::NodeProto& proto) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == "shardrun.init" &&
        (entry.value() == "parameter" || entry.value() == "buffer"))
      return entry.value();
  }
  return "";
}

std::span<const Lowering> random_lowerings() { return kRandomLowerings; }

}  // namespace shardrun::importer
