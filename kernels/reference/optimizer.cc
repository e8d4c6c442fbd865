// Reference updates of AdamW, Adam and SGD; the formulas stand in graph/ops/optimizer.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"
#include "program/ops/pack.h"

namespace shardrun::reference {
namespace {

double scalar(const KernelArgs& args, size_t operand) { return load(args.in[operand])[0]; }

/// What becomes of `old`, which may be infinite: a rank's shard of a maximum is. `type`: in which
/// it is stored.
double held(double next, double old, DType type) {
  const double finite = type == DType::f32 ? double{std::numeric_limits<float>::max()}
                                           : std::numeric_limits<double>::max();
  const double most = std::max(std::abs(old), finite);
  return std::isnan(next) ? old : std::clamp(next, -most, most);
}

/// Calls update(p, param, grad, moments) of each, which changes its parameter and moments, and
/// stores them and what is wanted besides them.
template <class F>
void for_each_parameter(const PackedUpdate& packed, const KernelArgs& args, const F& update) {
  const UpdateForm& form = packed.update;
  for (size_t p = 0; p < form.count; ++p) {
    Doubles param = load(args.in[form.operand(p, 0)]);
    const Doubles grad = load(args.in[form.operand(p, 1)]);
    std::vector<Doubles> moments;
    for (size_t i = 0; i < form.moments; ++i)
      moments.push_back(load(args.in[form.operand(p, 2 + i)]));
    update(p, param, grad, moments);
    store(param, args.out[form.result(p, 0)]);
    for (size_t i = 0; i < form.moments; ++i) store(moments[i], args.out[form.result(p, 1 + i)]);
    if (!form.copy[p]) continue;
    const TensorView &made = args.out[form.result(p, 0)], &copy = args.out[*form.copy[p]];
    convert(made.data, made.type.dtype, copy.data, copy.type.dtype, made.count());
  }
  for (size_t i = 0; i < packed.layouts.size(); ++i)
    lay_out(args.out[packed.of_result()], packed.layouts[i], args.out[packed.first + i]);
}

void adamw(const Node& node, const KernelArgs& args) {
  const PackedUpdate packed = PackedUpdate::of(node, args.in.size());
  const UpdateForm& form = packed.update;
  const double beta1 = node.attrs.f("beta1"), beta2 = node.attrs.f("beta2"),
               eps = node.attrs.f("eps");
  const bool decoupled = node.attrs.i("decoupled", 1) != 0;
  const double lr = scalar(args, form.lr()), clip = scalar(args, form.clip_scale());
  const auto step = static_cast<double>(std::max<int64_t>(1, *args.in[form.step()].as<int64_t>()));
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for_each_parameter(
      packed, args, [&](size_t p, Doubles& param, const Doubles& grad, auto& moments) {
        Doubles &m = moments[0], &v = moments[1];
        const double decay = form.decay[p];
        const DType type = args.in[form.operand(p, 0)].type.dtype;
        for (size_t i = 0; i < param.size(); ++i) {
          // A parameter may be infinite: 0 times it is not.
          const double g = clip * grad[i] + (decoupled || decay == 0 ? 0 : decay * param[i]);
          if (!std::isfinite(g) || !std::isfinite(lr)) continue;
          m[i] = beta1 * m[i] + (1 - beta1) * g;
          v[i] = held(beta2 * v[i] + (1 - beta2) * g * g, v[i], type);
          // v is never negative in a real run; the clamp keeps arbitrary test data finite.
          const double denominator = std::sqrt(std::max(v[i], 0.0)) / std::sqrt(correction2) + eps;
          const double keep = decoupled ? 1 - lr * decay : 1;
          param[i] = held(param[i] * keep - lr / correction1 * m[i] / denominator, param[i], type);
        }
      });
}

void sgd(const Node& node, const KernelArgs& args) {
  const PackedUpdate packed = PackedUpdate::of(node, args.in.size());
  const UpdateForm& form = packed.update;
  const double momentum = node.attrs.f("momentum");
  const bool nesterov = node.attrs.i("nesterov", 0) != 0;
  const double lr = scalar(args, form.lr()), clip = scalar(args, form.clip_scale());
  for_each_parameter(
      packed, args, [&](size_t p, Doubles& param, const Doubles& grad, auto& moments) {
        Doubles& buffer = moments[0];
        const double decay = form.decay[p];
        const DType type = args.in[form.operand(p, 0)].type.dtype;
        for (size_t i = 0; i < param.size(); ++i) {
          const double g = clip * grad[i] + (decay == 0 ? 0 : decay * param[i]);
          if (!std::isfinite(g) || !std::isfinite(lr)) continue;
          buffer[i] = held(momentum * buffer[i] + g, buffer[i], type);
          param[i] = held(param[i] - lr * (nesterov ? g + momentum * buffer[i] : buffer[i]),
                          param[i], type);
        }
      });
}

}  // namespace

KernelList optimizer_kernels() {
  return {plain("adamw", adamw), plain("adamw_packed", adamw), plain("sgd", sgd),
          plain("sgd_packed", sgd)};
}

}  // namespace shardrun::reference
