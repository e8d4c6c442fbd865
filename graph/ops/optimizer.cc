// Updates of the optimizers, elementwise over a parameter, with PyTorch's formulas.
//
// adamw(param, grad, m, v, lr, step, clip_scale){beta1, beta2, eps, weight_decay, decoupled}
//     -> param', m', v'          step counts from 1
//   g = clip_scale * grad (+ weight_decay * param if not decoupled)
//   param *= 1 - lr * weight_decay if decoupled (Loshchilov and Hutter, "Decoupled Weight Decay",
//   2019) m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2 param -= lr / (1 -
//   beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// sgd(param, grad, buffer, lr, step, clip_scale){momentum, weight_decay, nesterov} -> param',
// buffer'
//   g = clip_scale * grad + weight_decay * param,  buffer = momentum * buffer + g  (buffer starts
//   at zero) param -= lr * (nesterov ? g + momentum * buffer : buffer)
//
// With the attribute squares both have one result more, the sum of grad^2 as reduce_sum_squares
// makes it; with copy, a floating dtype, one behind that: param' cast to that dtype.
#include "graph/ops/families.h"

namespace shardrun {
namespace {

// Operands: param, grad, `moments` tensors like param, then lr, step, clip_scale.
std::vector<TensorType> update_infer(const Node& node, std::span<const TensorType> in,
                                     size_t moments) {
  const size_t want = 5 + moments;
  SR_REQUIRE(in.size() == want, invalid_input, node.op, " takes ", want, " operands, got ",
             in.size());
  const TensorType& param = in[0];
  SR_REQUIRE(param.dtype == DType::f32 || param.dtype == DType::f64, invalid_input, node.op,
             " wants an f32 (or f64) parameter, got ", param);
  SR_REQUIRE(is_float(in[1].dtype) && in[1].shape == param.shape, invalid_input, node.op,
             " wants a floating gradient of ", to_string(param.shape), ", got ", in[1]);
  std::vector<TensorType> out = {param};
  for (size_t i = 0; i < moments; ++i) {
    SR_REQUIRE(in[2 + i] == param, invalid_input, node.op, " wants moments of ", param, ", got ",
               in[2 + i]);
    out.push_back(param);
  }
  const TensorType &lr = in[2 + moments], &step = in[3 + moments], &clip = in[4 + moments];
  for (const TensorType& t : {lr, clip}) {
    SR_REQUIRE(t.shape.empty() && (t.dtype == DType::f32 || t.dtype == DType::f64), invalid_input,
               node.op, " wants lr and clip_scale as f32[], got ", t);
  }
  SR_REQUIRE((step == TensorType{DType::i64, {}}), invalid_input, node.op,
             " wants step as i64[], got ", step);
  if (node.attrs.i("squares", 0) != 0)
    out.push_back({in[1].dtype == DType::f64 ? DType::f64 : DType::f32, {}});
  if (node.attrs.has("copy")) {
    out.push_back({parse_dtype(node.attrs.s("copy")), param.shape});
    SR_REQUIRE(is_float(out.back().dtype), invalid_input, node.op,
               " copies the parameter in a floating dtype, got ", out.back());
  }
  return out;
}

template <size_t kMoments>
std::vector<TensorType> infer(const Node& node, std::span<const TensorType> in) {
  return update_infer(node, in, kMoments);
}

template <int kPerElement>
double flops(const Node&, std::span<const TensorType> in, std::span<const TensorType>) {
  return kPerElement * static_cast<double>(element_count(in[0].shape));
}

std::vector<OpDef::Sample> samples(size_t moments, const std::vector<Attrs>& attrs) {
  std::vector<OpDef::Sample> out;
  for (size_t i = 0; i < attrs.size(); ++i) {
    for (const Shape& shape : {Shape{4, 6}, Shape{7}}) {
      OpDef::Sample s;
      s.in.assign(2 + moments, {DType::f32, shape});
      s.in.insert(s.in.end(), {{DType::f32, {}}, {DType::i64, {}}, {DType::f32, {}}});
      if (i == 1 && shape.size() == 1) s.in[1].dtype = DType::bf16;
      s.attrs = attrs[i];
      s.low = 0.05;  // the second moment is not negative
      out.push_back(s);
      s.attrs.set("copy", std::string("bf16"));
      out.push_back(s);
      s.attrs.set("squares", int64_t{1});
      out.push_back(s);
    }
  }
  return out;
}

Attrs adam(double weight_decay, int64_t decoupled) {
  return {{"beta1", 0.9},
          {"beta2", 0.95},
          {"eps", 1e-8},
          {"weight_decay", weight_decay},
          {"decoupled", decoupled}};
}

Attrs sgd(double momentum, double weight_decay, int64_t nesterov) {
  return {{"momentum", momentum}, {"weight_decay", weight_decay}, {"nesterov", nesterov}};
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {
      {.name = "adamw",
       .infer = infer<2>,
       .flops = flops<16>,
       .in_place = {{0, 0}, {1, 2}, {2, 3}},
       .samples = samples(2, {adam(0.1, 1), adam(0.1, 0), adam(0.0, 1)})},
      {.name = "sgd",
       .infer = infer<1>,
       .flops = flops<8>,
       .in_place = {{0, 0}, {1, 2}},
       .samples = samples(1, {sgd(0.9, 0.0, 0), sgd(0.9, 0.1, 1), sgd(0.0, 0.0, 0)})},
  };
}

}  // namespace shardrun
