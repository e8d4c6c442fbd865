// Reference updates of AdamW, Adam and SGD; the formulas stand in graph/ops/optimizer.cc.
#include <algorithm>
#include <cmath>

#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// What is wanted beside the new parameter and its `moments`.
void store_extras(const Node& node, const Doubles& grad, const KernelArgs& args, size_t moments) {
  size_t next = 1 + moments;
  if (node.attrs.i("squares", 0) != 0) {
    double total = 0;
    for (double g : grad) total += g * g;
    store({total}, args.out[next++]);
  }
  if (!node.attrs.has("copy")) return;
  const TensorView &param = args.out[0], &copy = args.out[next];
  convert(param.data, param.type.dtype, copy.data, copy.type.dtype, param.count());
}

void adamw(const Node& node, const KernelArgs& args) {
  const double beta1 = node.attrs.f("beta1"), beta2 = node.attrs.f("beta2"),
               eps = node.attrs.f("eps");
  const double decay = node.attrs.f("weight_decay", 0.0);
  const bool decoupled = node.attrs.i("decoupled", 1) != 0;
  Doubles param = load(args.in[0]), m = load(args.in[2]), v = load(args.in[3]);
  const Doubles grad = load(args.in[1]);
  const double lr = load(args.in[4])[0], clip = load(args.in[6])[0];
  const auto step = static_cast<double>(std::max<int64_t>(1, *args.in[5].as<int64_t>()));
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < param.size(); ++i) {
    double g = clip * grad[i];
    if (decoupled) {
      param[i] *= 1 - lr * decay;
    } else if (decay != 0) {  // a parameter may be infinite: a rank's part of a maximum
      g += decay * param[i];
    }
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    // v is never negative in a real run; the clamp keeps arbitrary test data finite.
    const double denominator = std::sqrt(std::max(v[i], 0.0)) / std::sqrt(correction2) + eps;
    param[i] -= lr / correction1 * m[i] / denominator;
  }
  store(param, args.out[0]);
  store(m, args.out[1]);
  store(v, args.out[2]);
  store_extras(node, grad, args, 2);
}

void sgd(const Node& node, const KernelArgs& args) {
  const double momentum = node.attrs.f("momentum"), decay = node.attrs.f("weight_decay", 0.0);
  const bool nesterov = node.attrs.i("nesterov", 0) != 0;
  Doubles param = load(args.in[0]), buffer = load(args.in[2]);
  const Doubles grad = load(args.in[1]);
  const double lr = load(args.in[3])[0], clip = load(args.in[5])[0];
  for (size_t i = 0; i < param.size(); ++i) {
    const double g = clip * grad[i] + (decay == 0 ? 0 : decay * param[i]);
    buffer[i] = momentum * buffer[i] + g;
    param[i] -= lr * (nesterov ? g + momentum * buffer[i] : buffer[i]);
  }
  store(param, args.out[0]);
  store(buffer, args.out[1]);
  store_extras(node, grad, args, 1);
}

}  // namespace

KernelList optimizer_kernels() { return {plain("adamw", adamw), plain("sgd", sgd)}; }

}  // namespace shardrun::reference
