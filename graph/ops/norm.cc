// layer_norm and rms_norm over the trailing dims, and their gradients.
//
// layer_norm(x, scale, bias?){axis, eps}: over dims [axis, rank): y = (x - mean) * inv_std * scale
// + bias, inv_std = 1 / sqrt(variance + eps), population variance (Ba et al., "Layer
// Normalization", 2016).
//
// layer_norm_grad(dy, x, scale, mean, inv_std, residual?) -> dx + residual, dscale, dbias. The
// residual is the gradient of what passes x on unchanged around the norm; Graphs add it behind.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

// Checks x and scale (and bias) and returns the statistics' type: x.shape[:axis].
TensorType check_norm(const Node& node, const TensorType& x, const TensorType& scale) {
  const int64_t axis = node.attrs.i("axis"), rank = static_cast<int64_t>(x.shape.size());
  SR_REQUIRE(is_float(x.dtype), invalid_input, node.op, " wants a floating x, got ", x);
  SR_REQUIRE(axis >= 0 && axis < rank, invalid_input, node.op, " has axis ", axis, " for x of ", x);
  const Shape tail(x.shape.begin() + axis, x.shape.end());
  SR_REQUIRE(scale.shape == tail, invalid_input, node.op, " wants a scale of ", to_string(tail),
             ", got ", scale);
  SR_REQUIRE(scale.dtype == x.dtype || (scale.dtype == DType::f32 && x.dtype == DType::bf16),
             invalid_input, node.op, " wants a scale of ", x.dtype, " (or f32 for a bf16 x), got ",
             scale);
  return {statistics_type(x.dtype), Shape(x.shape.begin(), x.shape.begin() + axis)};
}

void check_same(const Node& node, const char* who, const TensorType& got, const TensorType& want) {
  SR_REQUIRE(got == want, invalid_input, node.op, " wants ", who, " of ", want, ", got ", got);
}

std::vector<TensorType> layer_norm_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2 || in.size() == 3, invalid_input,
             "layer_norm takes 2 or 3 operands, got ", in.size());
  const TensorType statistics = check_norm(node, in[0], in[1]);
  if (in.size() == 3) check_same(node, "a bias", in[2], in[1]);
  return {in[0], statistics, statistics};
}

std::vector<TensorType> layer_norm_grad_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 5 || in.size() == 6, invalid_input,
             "layer_norm_grad takes 5 or 6 operands, got ", in.size());
  const TensorType statistics = check_norm(node, in[1], in[2]);
  check_same(node, "dy", in[0], in[1]);
  check_same(node, "mean", in[3], statistics);
  check_same(node, "inv_std", in[4], statistics);
  if (in.size() == 6) check_same(node, "what is added to dx", in[5], in[1]);
  return {in[1], in[2], in[2]};
}

std::vector<TensorType> rms_norm_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 2, invalid_input, "rms_norm takes 2 operands, got ", in.size());
  return {in[0], check_norm(node, in[0], in[1])};
}

std::vector<TensorType> rms_norm_grad_infer(const Node& node, std::span<const TensorType> in) {
  SR_REQUIRE(in.size() == 4 || in.size() == 5, invalid_input,
             "rms_norm_grad takes 4 or 5 operands, got ", in.size());
  const TensorType statistics = check_norm(node, in[1], in[2]);
  check_same(node, "dy", in[0], in[1]);
  check_same(node, "inv_std", in[3], statistics);
  if (in.size() == 5) check_same(node, "what is added to dx", in[4], in[1]);
  return {in[1], in[2]};
}

void require_first_result_only(const GradientContext& c) {
  for (size_t i = 1; i < c.out_grads.size(); ++i) {
    SR_REQUIRE(c.out_grads[i] == kNoValue, unsupported, c.node.op, " '", c.node.name,
               "' has no gradient through its statistics (result ", i, ")");
  }
}

std::vector<ValueId> layer_norm_gradient(GradientContext& c) {
  require_first_result_only(c);
  if (c.out_grads[0] == kNoValue) return std::vector<ValueId>(c.node.inputs.size(), kNoValue);
  std::vector<ValueId> grads = c.graph.add_node(
      "layer_norm_grad",
      {c.out_grads[0], c.node.inputs[0], c.node.inputs[1], c.node.outputs[1], c.node.outputs[2]},
      {{"axis", c.node.attrs.i("axis")}});
  grads.resize(c.node.inputs.size());
  return grads;
}

std::vector<ValueId> rms_norm_gradient(GradientContext& c) {
  require_first_result_only(c);
  if (c.out_grads[0] == kNoValue) return {kNoValue, kNoValue};
  return c.graph.add_node("rms_norm_grad",
                          {c.out_grads[0], c.node.inputs[0], c.node.inputs[1], c.node.outputs[1]},
                          {{"axis", c.node.attrs.i("axis")}});
}

template <int kPerElement>
double norm_flops(const Node&, std::span<const TensorType> in, std::span<const TensorType>) {
  return kPerElement * static_cast<double>(element_count(in[0].shape));
}

// Samples of one norm for several shapes; `operands` lists, in order, x, scale or statistics
// operands.
std::vector<OpDef::Sample> samples(const std::string& operands, bool eps) {
  const std::vector<std::pair<Shape, int64_t>> shapes = {
      {{4, 6}, 1}, {{2, 3, 8}, 2}, {{3, 5, 7}, 2}, {{2, 4, 3, 5}, 2}, {{5}, 0}};
  std::vector<OpDef::Sample> out;
  for (const auto& [shape, axis] : shapes) {
    OpDef::Sample s;
    for (char kind : operands) {
      const Shape head(shape.begin(), shape.begin() + axis),
          tail(shape.begin() + axis, shape.end());
      s.in.push_back({DType::f32, kind == 'x' ? shape : kind == 's' ? tail : head});
    }
    s.attrs.set("axis", axis);
    if (eps) s.attrs.set("eps", 1e-5);
    out.push_back(s);
  }
  return out;
}

std::vector<OpDef::Sample> joined(std::vector<OpDef::Sample> a,
                                  const std::vector<OpDef::Sample>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::vector<OpDef> norm_ops() {
  return {
      {.name = "layer_norm",
       .infer = layer_norm_infer,
       .gradient = layer_norm_gradient,
       .flops = norm_flops<8>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .model_body = true,
       .in_place = {{0, 0}},
       .samples = joined(samples("xss", true), samples("xs", true))},
      {.name = "layer_norm_grad",
       .infer = layer_norm_grad_infer,
       .flops = norm_flops<14>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {0, 1}, {0, 5}},
       .samples = joined(samples("xxshh", false), samples("xxshhx", false))},
      {.name = "rms_norm",
       .infer = rms_norm_infer,
       .gradient = rms_norm_gradient,
       .flops = norm_flops<5>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .model_body = true,
       .in_place = {{0, 0}},
       .samples = samples("xs", true)},
      {.name = "rms_norm_grad",
       .infer = rms_norm_grad_infer,
       .flops = norm_flops<11>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {0, 1}, {0, 4}},
       .samples = joined(samples("xxsh", false), samples("xxshx", false))},
  };
}

}  // namespace shardrun
