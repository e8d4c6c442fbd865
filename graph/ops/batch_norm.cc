// Batch normalisation in the steps that a mesh needs: sums over a rank's shard of the batch, which
// add up over ranks, and what follows from the sums.
//
//   batch_moments(x [N, C, …]) -> [2, C] f64: the sums of x and of x² over all dims but C. In f64
//       the variance that is computed from them is exact to f32's last digit, however large the
//       mean; one reduction over the ranks serves both.
//   batch_statistics(moments){count} -> mean [C], variance [C] (population), f32 (f64 where
//       `dtype` says so); count = N · … of the whole batch
//   batch_norm(x, mean, variance, scale, bias[, residual]){eps, relu} ->
//       (x - mean) / sqrt(variance + eps) * scale + bias [+ residual], with relu=1 at least 0
//   running_statistics(mean, variance, new_mean, new_variance){momentum, unbias} -> the averages
//       after the step: old + momentum * (new - old); the new variance is multiplied by `unbias`
//       first (count / (count - 1) for PyTorch's, 1 for ONNX's); old where new is not finite
//   batch_norm_reduce_grad(dy, x, mean, variance[, scale, bias]){eps, relu} -> [2, C] f64: the sums
//   of dy and of dy * h,
//       h the normalised x; these are the gradients of bias and scale. In f64 because dx of every
//       element follows from them: what is lost in adding the ranks' sums would be in all of them.
//   batch_norm_grad(dy, x, mean, variance, scale, sums[, bias]){eps, count, relu} -> dx, dscale
//   [C],
//       dbias [C]. count > 0: mean and variance are those of x itself and dx holds what goes
//       through them (Ioffe and Szegedy, "Batch Normalization", 2015, section 3); 0: they are
//       given.
//
// The gradients with relu=1 take dy as 0 where the result was not above 0, which they find out from
// x; behind a residual dy is made so beforehand. With channels_last=1 x is [N, …, C]. Scale, bias
// and statistics are f32 where x is bf16.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"
#include "graph/ops/window.h"

namespace shardrun {
namespace {

size_t channel_dim(const Node& node, const Shape& x) {
  return channels_last(node) ? x.size() - 1 : 1;
}

/// [C] in the type of statistics.
TensorType channels_of(const Node& node, const TensorType& x) {
  require_float(x, "x");
  SR_REQUIRE(x.shape.size() >= 2, invalid_input, "x is ", x, ", wanted ",
             channels_last(node) ? "[N, …, C]" : "[N, C, …]");
  return {statistics_type(x.dtype), {x.shape[channel_dim(node, x.shape)]}};
}

bool has_relu(const Node& node) { return node.attrs.i("relu", 0) != 0; }

void require_type(const TensorType& got, const TensorType& want, const char* who) {
  SR_REQUIRE(got == want, invalid_input, who, " is ", got, ", wanted ", want);
}

Types infer_moments(const Node& node, InTypes in) {
  require_operands(in, 1);
  return {{DType::f64, {2, channels_of(node, in[0]).shape[0]}}};
}

Types infer_statistics(const Node& node, InTypes in) {
  require_operands(in, 1);
  SR_REQUIRE(in[0].dtype == DType::f64 && in[0].shape.size() == 2 && in[0].shape[0] == 2,
             invalid_input, "moments are ", in[0], ", wanted f64[2, C]");
  SR_REQUIRE(node.attrs.i("count") >= 1, invalid_input, "count is ", node.attrs.i("count"),
             ", wanted 1 or more");
  const TensorType type{parse_dtype(node.attrs.s("dtype", "f32")), {in[0].shape[1]}};
  return {type, type};
}

Types infer_batch_norm(const Node& node, InTypes in) {
  require_operands(in, 5, 6);
  const TensorType channels = channels_of(node, in[0]);
  const char* names[] = {"x", "mean", "variance", "scale", "bias"};
  for (size_t i = 1; i < 5; ++i) require_type(in[i], channels, names[i]);
  if (in.size() > 5) require_type(in[5], in[0], "residual");
  return {in[0]};
}

Types infer_running(const Node&, InTypes in) {
  require_operands(in, 4);
  require_float(in[0], "mean");
  for (size_t i = 1; i < 4; ++i) require_type(in[i], in[0], "statistic");
  return {in[0], in[0]};
}

/// dy, x, mean, variance: [2, C] f64.
TensorType gradient_sums(const Node& node, InTypes in) {
  const TensorType channels = channels_of(node, in[1]);
  require_type(in[0], in[1], "dy");
  require_type(in[2], channels, "mean");
  require_type(in[3], channels, "variance");
  return {DType::f64, {2, channels.shape[0]}};
}

Types infer_gradient_sums(const Node& node, InTypes in) {
  require_operands(in, has_relu(node) ? 6 : 4);
  const TensorType sums = gradient_sums(node, in);
  for (size_t i = 4; i < in.size(); ++i) require_type(in[i], in[2], i == 4 ? "scale" : "bias");
  return {sums};
}

Types infer_batch_norm_grad(const Node& node, InTypes in) {
  require_operands(in, has_relu(node) ? 7 : 6);
  require_type(in[5], gradient_sums(node, in), "sums");
  require_type(in[4], in[2], "scale");
  if (has_relu(node)) require_type(in[6], in[2], "bias");
  return {in[1], in[2], in[2]};
}

// ---- gradients ----

ValueId row(Graph& g, ValueId rows, int64_t index) {
  const Shape shape = g.type(rows).shape;
  const ValueId one = g.add("slice", {rows},
                            {{"starts", std::vector<int64_t>{index, 0}},
                             {"ends", std::vector<int64_t>{index + 1, shape[1]}},
                             {"steps", std::vector<int64_t>{1, 1}}});
  return g.add("reshape", {one}, {{"shape", Shape{shape[1]}}});
}

/// dx = d0 + 2 x d1, per channel.
Grads moments_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId x = c.node.inputs[0];
  const size_t dim = channel_dim(c.node, c.in_shape(0));
  Shape per_channel(c.in_shape(0).size() - 1, 1);
  per_channel[dim - 1] = c.in_shape(0)[dim];
  auto channel = [&](int64_t index) {
    return g.add("reshape", {cast_to(g, row(g, c.out_grads[0], index), c.in_type(0).dtype)},
                 {{"shape", per_channel}});
  };
  const ValueId slope = g.add("mul", {x, scale(g, channel(1), 2)});
  return {g.add("add", {slope, channel(0)})};
}

/// mean = m0 / n, variance = m1 / n - mean².
Grads statistics_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const double inverse_count = 1 / static_cast<double>(c.node.attrs.i("count"));
  const TensorType channels = g.type(c.node.outputs[0]);
  ValueId first = c.out_grads[0], second = c.out_grads[1];
  if (second == kNoValue) {
    second = fill(g, channels, 0);
  } else {
    const ValueId through_mean = scale(g, g.add("mul", {second, c.node.outputs[0]}), -2);
    first = first == kNoValue ? through_mean : g.add("add", {first, through_mean});
  }
  std::vector<ValueId> rows;
  for (ValueId part : {first, second}) {
    rows.push_back(g.add("reshape", {scale(g, cast_to(g, part, DType::f64), inverse_count)},
                         {{"shape", Shape{1, channels.shape[0]}}}));
  }
  return {g.add("concat", rows, {{"axis", int64_t{0}}})};
}

Grads running_gradient(GradientContext& c) {
  const double momentum = c.node.attrs.f("momentum"), unbias = c.node.attrs.f("unbias");
  auto scaled = [&](size_t result, double factor) {
    const ValueId dy = c.out_grads[result];
    return dy == kNoValue ? kNoValue : scale(c.graph, dy, factor);
  };
  return {scaled(0, 1 - momentum), scaled(1, 1 - momentum), scaled(0, momentum),
          scaled(1, momentum * unbias)};
}

/// The count behind `mean` and `variance` if they are the statistics of x itself, else 0.
int64_t own_count(const GradientContext& c) {
  const Graph& g = c.graph;
  const NodeId statistics = g.value(c.node.inputs[1]).producer;
  if (statistics < 0 || g.node(statistics).op != "batch_statistics" ||
      g.node(statistics).outputs != std::vector<ValueId>{c.node.inputs[1], c.node.inputs[2]})
    return 0;
  const NodeId moments = g.value(g.node(statistics).inputs[0]).producer;
  if (moments < 0 || g.node(moments).op != "batch_moments" ||
      g.node(moments).inputs[0] != c.node.inputs[0])
    return 0;
  return g.node(statistics).attrs.i("count");
}

/// Through the statistics of x itself the gradient goes at once: statistics and moments get none
/// from here.
Grads batch_norm_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId x = c.node.inputs[0], mean = c.node.inputs[1], variance = c.node.inputs[2];
  const ValueId gain = c.node.inputs[3], bias = c.node.inputs[4], y = c.node.outputs[0];
  const bool adds = c.node.inputs.size() > 5, relu = has_relu(c.node);
  ValueId dy = c.out_grads[0];
  if (relu && adds) {
    const ValueId zero = scalar(g, c.in_type(0).dtype, 0);
    dy = g.add("where", {g.add("greater", {y, zero}), dy, zero});
  }
  Attrs attrs{{"eps", c.node.attrs.f("eps")}};
  if (channels_last(c.node)) attrs.set("channels_last", int64_t{1});
  std::vector<ValueId> to_sum = {dy, x, mean, variance};
  if (relu && !adds) {
    attrs.set("relu", int64_t{1});
    to_sum.insert(to_sum.end(), {gain, bias});
  }
  const ValueId sums = g.add("batch_norm_reduce_grad", to_sum, attrs);
  const int64_t count = own_count(c);
  attrs.set("count", count);
  std::vector<ValueId> from = {dy, x, mean, variance, gain, sums};
  if (relu && !adds) from.push_back(bias);
  const std::vector<ValueId> made = g.add_node("batch_norm_grad", from, attrs);
  Grads grads = {made[0], kNoValue, kNoValue, made[1], made[2]};
  if (adds) grads.push_back(dy);
  if (count > 0 || !(c.needs[1] || c.needs[2])) return grads;
  // dmean = -scale inv Σdy, dvariance = -scale inv² Σ(dy h) / 2.
  const ValueId inv2 = g.add("reciprocal", {shift(g, variance, c.node.attrs.f("eps"))});
  if (c.needs[1])
    grads[1] = g.add("neg", {g.add("mul", {g.add("mul", {gain, g.add("sqrt", {inv2})}), made[2]})});
  if (c.needs[2]) grads[2] = scale(g, g.add("mul", {g.add("mul", {gain, inv2}), made[1]}), -0.5);
  return grads;
}

template <int kPerElement, size_t kOperand>
double batch_norm_flops(const Node&, InTypes in, InTypes) {
  return kPerElement * static_cast<double>(element_count(in[kOperand].shape));
}

// ---- samples ----

/// Operands by letter: x, c [C], M [2, C] f64. In both places of the channels.
std::vector<OpDef::Sample> samples(const std::string& operands, const Attrs& attrs) {
  std::vector<OpDef::Sample> out;
  for (const Shape& shape : {Shape{4, 3, 2, 5}, {3, 4, 5}, {6, 2}, {4, 3, 2, 5}}) {
    OpDef::Sample s;
    const bool last = out.size() == 3;
    if (last && operands.find('x') == std::string::npos) break;
    const int64_t channels = last ? shape.back() : shape[1];
    for (char kind : operands) {
      s.in.push_back({kind == 'M' ? DType::f64 : DType::f32, kind == 'x'   ? shape
                                                             : kind == 'c' ? Shape{channels}
                                                                           : Shape{2, channels}});
    }
    s.attrs = attrs;
    if (last) s.attrs.set("channels_last", int64_t{1});
    // A variance that batch_statistics makes of these with count 4 is well above 0.
    s.low = 0.4, s.high = 1;
    out.push_back(std::move(s));
  }
  return out;
}

void append(std::vector<OpDef::Sample>& to, std::vector<OpDef::Sample> more) {
  for (OpDef::Sample& s : more) to.push_back(std::move(s));
}

/// What f32 becomes of statistics where a test widens samples.
Attrs f32_statistics(int64_t count) { return {{"count", count}, {"dtype", std::string("f32")}}; }

}  // namespace

std::vector<OpDef> batch_norm_ops() {
  const Attrs eps{{"eps", 1e-5}}, relu{{"eps", 1e-5}, {"relu", int64_t{1}}};
  Attrs fixed = eps, own = eps, own_relu = relu;
  fixed.set("count", int64_t{0});
  own.set("count", int64_t{12});
  own_relu.set("count", int64_t{12});
  std::vector<OpDef::Sample> norm_samples = samples("xcccc", eps);
  append(norm_samples, samples("xcccc", relu));
  append(norm_samples, samples("xccccx", relu));
  append(norm_samples, samples("xccccx", eps));
  std::vector<OpDef::Sample> sum_samples = samples("xxcc", eps);
  append(sum_samples, samples("xxcccc", relu));
  std::vector<OpDef::Sample> grad_samples = samples("xxcccM", own);
  append(grad_samples, samples("xxcccM", fixed));
  append(grad_samples, samples("xxcccMc", own_relu));
  return {
      {.name = "batch_moments",
       .infer = infer_moments,
       .gradient = moments_gradient,
       .flops = batch_norm_flops<3, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .samples = samples("x", {})},
      {.name = "batch_statistics",
       .infer = infer_statistics,
       .gradient = statistics_gradient,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .samples = samples("M", f32_statistics(4))},
      {.name = "batch_norm",
       .infer = infer_batch_norm,
       .gradient = batch_norm_gradient,
       .flops = batch_norm_flops<4, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .model_body = true,
       .typed_like = {{5, 0}},
       .evaluation = {.statistics = {1, 2}},
       .in_place = {{0, 0}, {0, 5}},
       .samples = norm_samples},
      {.name = "running_statistics",
       .infer = infer_running,
       .gradient = running_gradient,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       // A module that is called twice reads what its first call made.
       .evaluation = {.passes = {{0, 0}, {1, 1}}, .averages = {{2, 0}, {3, 1}}},
       .in_place = {{0, 0}, {1, 1}},
       .samples = samples("cccc", {{"momentum", 0.3}, {"unbias", 1.25}})},
      {.name = "batch_norm_reduce_grad",
       .infer = infer_gradient_sums,
       .flops = batch_norm_flops<5, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .samples = sum_samples},
      {.name = "batch_norm_grad",
       .infer = infer_batch_norm_grad,
       .flops = batch_norm_flops<8, 0>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {0, 1}},
       .samples = grad_samples},
  };
}

}  // namespace shardrun
