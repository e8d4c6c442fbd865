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
// Nothing that is not finite gets into parameters and moments: where g is not, the element keeps
// all it has; a result that overflows becomes the largest finite number. With an lr or clip_scale
// that is not finite all elements keep theirs: nothing is updated.
//
// With the attribute copy, a floating dtype, both have one result more: param' cast to that dtype.
//
// Both also update several parameters at once: param, grad and moments of the first, of the second
// and so on, then lr, step and clip_scale; results likewise. weight_decays then has one for each,
// and copies says for which parameters there is a copy (without: of all).
#include "graph/ops/optimizer.h"

#include <algorithm>
#include <numeric>

#include "graph/ops/families.h"

namespace shardrun {

bool is_update(const std::string& op) { return op == "adamw" || op == "sgd"; }

size_t UpdateForm::results() const {
  const auto copies = std::count_if(copy.begin(), copy.end(), [](const auto& c) { return !!c; });
  return result(count, 0) + static_cast<size_t>(copies);
}

UpdateForm UpdateForm::of(const Node& node, size_t operands) {
  UpdateForm form;
  form.moments = node.op == "adamw" ? 2 : 1;
  const size_t each = 2 + form.moments;
  SR_REQUIRE(operands > 3 && (operands - 3) % each == 0, invalid_input, node.op, " takes ", each,
             " operands for each parameter and 3 more, got ", operands);
  form.count = (operands - 3) / each;
  const Attrs& attrs = node.attrs;
  if (const auto decays = attrs.all().find("weight_decays"); decays != attrs.all().end()) {
    form.decay = std::get<std::vector<double>>(decays->second);
    SR_REQUIRE(form.decay.size() == form.count, invalid_input, node.op, " has ", form.decay.size(),
               " weight_decays for ", form.count, " parameters");
  } else {
    form.decay.assign(form.count, attrs.f("weight_decay", 0.0));
  }
  size_t next = form.result(form.count, 0);
  form.copy.resize(form.count);
  if (attrs.has("copy")) {
    std::vector<int64_t> copied(form.count);
    std::iota(copied.begin(), copied.end(), 0);
    if (attrs.has("copies")) copied = attrs.ints("copies");
    for (int64_t p : copied) {
      SR_REQUIRE(p >= 0 && static_cast<size_t>(p) < form.count, invalid_input, node.op,
                 " wants a copy of parameter ", p, " of ", form.count);
      form.copy[static_cast<size_t>(p)] = next++;
    }
  }
  return form;
}

namespace {

std::vector<TensorType> infer(const Node& node, std::span<const TensorType> in) {
  const UpdateForm form = UpdateForm::of(node, in.size());
  std::vector<TensorType> out(form.results());
  for (size_t p = 0; p < form.count; ++p) {
    const TensorType &param = in[form.operand(p, 0)], &grad = in[form.operand(p, 1)];
    SR_REQUIRE(param.dtype == DType::f32 || param.dtype == DType::f64, invalid_input, node.op,
               " wants an f32 (or f64) parameter, got ", param);
    SR_REQUIRE(is_float(grad.dtype) && grad.shape == param.shape, invalid_input, node.op,
               " wants a floating gradient of ", to_string(param.shape), ", got ", grad);
    out[form.result(p, 0)] = param;
    for (size_t i = 0; i < form.moments; ++i) {
      const TensorType& moment = in[form.operand(p, 2 + i)];
      SR_REQUIRE(moment == param, invalid_input, node.op, " wants moments of ", param, ", got ",
                 moment);
      out[form.result(p, 1 + i)] = param;
    }
    if (!form.copy[p]) continue;
    TensorType& copy = out[*form.copy[p]];
    copy = {parse_dtype(node.attrs.s("copy")), param.shape};
    SR_REQUIRE(is_float(copy.dtype), invalid_input, node.op,
               " copies the parameter in a floating dtype, got ", copy);
  }
  const TensorType &lr = in[form.lr()], &step = in[form.step()], &clip = in[form.clip_scale()];
  for (const TensorType& t : {lr, clip}) {
    SR_REQUIRE(t.shape.empty() && (t.dtype == DType::f32 || t.dtype == DType::f64), invalid_input,
               node.op, " wants lr and clip_scale as f32[], got ", t);
  }
  SR_REQUIRE((step == TensorType{DType::i64, {}}), invalid_input, node.op,
             " wants step as i64[], got ", step);
  return out;
}

template <int kPerElement>
double update_flops(const Node& node, std::span<const TensorType> in, std::span<const TensorType>) {
  const UpdateForm form = UpdateForm::of(node, in.size());
  double elements = 0;
  for (size_t p = 0; p < form.count; ++p)
    elements += static_cast<double>(element_count(in[form.operand(p, 0)].shape));
  return kPerElement * elements;
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
    }
  }
  // Two at once, the second without a copy.
  OpDef::Sample s;
  for (const Shape& shape : {Shape{4, 6}, Shape{7}})
    s.in.insert(s.in.end(), 2 + moments, {DType::f32, shape});
  s.in[1].dtype = DType::bf16;
  s.in.insert(s.in.end(), {{DType::f32, {}}, {DType::i64, {}}, {DType::f32, {}}});
  s.attrs = attrs[0];
  s.attrs.set("weight_decays", std::vector<double>{0.1, 0.2});
  s.attrs.set("copy", std::string("bf16"));
  s.attrs.set("copies", std::vector<int64_t>{0});
  s.low = 0.05;
  out.push_back(s);
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

Node fused_update(const std::vector<const Node*>& nodes) {
  Node out = *nodes.front();
  std::vector<double> decays;
  std::vector<int64_t> copies;
  std::string copy;
  for (const Node* node : nodes) {
    if (node->attrs.has("copy")) {
      copy = node->attrs.s("copy");
      copies.push_back(static_cast<int64_t>(decays.size()));
    }
    decays.push_back(node->attrs.f("weight_decay", 0.0));
  }
  out.attrs = {};
  for (const auto& [name, attr] : nodes.front()->attrs.all()) {
    if (name != "weight_decay" && name != "copy") out.attrs.set(name, attr);
  }
  out.attrs.set("weight_decays", decays);
  if (!copies.empty()) {
    out.attrs.set("copy", copy);
    out.attrs.set("copies", copies);
  }
  return out;
}

std::vector<OpDef> optimizer_ops() {
  return {
      {.name = "adamw",
       .infer = infer,
       .flops = update_flops<16>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {1, 2}, {2, 3}},
       .samples = samples(2, {adam(0.1, 1), adam(0.1, 0), adam(0.0, 1)})},
      {.name = "sgd",
       .infer = infer,
       .flops = update_flops<8>,
       .cost = CostClass::streamed,
       .precision = Precision::follows,
       .in_place = {{0, 0}, {1, 2}},
       .samples = samples(1, {sgd(0.9, 0.0, 0), sgd(0.9, 0.1, 1), sgd(0.0, 0.0, 0)})},
  };
}

}  // namespace shardrun
