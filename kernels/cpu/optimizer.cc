// Fused updates of AdamW, Adam and SGD: one pass over memory, with the sum of the gradient's
// squares and the parameter's bf16 copy where they are wanted. Formulas: graph/ops/optimizer.cc.
#include "graph/ops/optimizer.h"

#include <cmath>

#include "kernels/cpu/families.h"
#include "kernels/cpu/reduce_run.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

std::optional<std::string> refuses(const KernelCall& call) {
  if (UpdateForm::of(call.node, call.in.size()).count > 1) return "updates one parameter at a time";
  if (call.in[0].dtype != DType::f32) return str("updates f32 parameters, not ", call.in[0].dtype);
  if (call.node.attrs.has("copy") && call.out.back().dtype != DType::bf16)
    return str("copies parameters in bf16, not ", call.out.back().dtype);
  return refuse_other_floats(call);
}

/// What an update leaves beside the new parameter and moments.
struct Extras {
  int squares = -1, copy = -1;  // results; -1: not wanted
  int64_t workspace_bytes = 0;

  Extras(const KernelCall& call, int moments) {
    int next = 1 + moments;
    if (call.node.attrs.i("squares", 0) != 0) {
      squares = next++;
      workspace_bytes = partials_bytes(element_count(call.in[1].shape));
    }
    if (call.node.attrs.has("copy")) copy = next;
  }
};

/// Calls update(begin, count, gradient) for blocks of all elements, and leaves the extras.
template <class F>
void for_gradient(const Extras& extras, const KernelArgs& args, F&& update) {
  const TensorView& grad = args.in[1];
  const int64_t count = grad.count(), chunks = chunks_of(count);
  auto* partial = static_cast<double*>(args.workspace);
  parallel_ranges(chunks, 1, [&](int64_t first, int64_t last) {
    alignas(64) float buffer[kBlock];
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * kChunk, end = std::min(begin + kChunk, count);
      if (extras.squares >= 0) partial[chunk] = reduce_run<Sum, true>(grad, begin, end - begin);
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t n = std::min(kBlock, end - i);
        update(i, n, floats(grad, i, n, buffer));
        if (extras.copy >= 0)
          put(args.out[static_cast<size_t>(extras.copy)], i, n, args.out[0].as<float>() + i);
      }
    }
  });
  if (extras.squares < 0) return;
  double total = 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += partial[chunk];
  set(args.out[static_cast<size_t>(extras.squares)], 0, static_cast<float>(total));
}

struct Adam {
  float beta1, beta2, eps, decay;
  bool decoupled;
};

/// Without decay it is not 0 * p: a parameter may be infinite, as a rank's part of a maximum is.
template <bool kDecay>
void adamw(const Adam& a, double beta1, double beta2, const Extras& extras,
           const KernelArgs& args) {
  const float lr = get(args.in[4], 0), clip = get(args.in[6], 0);
  const auto step = static_cast<double>(std::max<int64_t>(1, *args.in[5].as<int64_t>()));
  const auto step_size = static_cast<float>(static_cast<double>(lr) / (1 - std::pow(beta1, step)));
  const auto inv_root = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step)));
  const float keep = a.decoupled ? 1.0f - lr * a.decay : 1.0f, l2 = a.decoupled ? 0.0f : a.decay;
  const auto one_minus1 = static_cast<float>(1 - beta1), one_minus2 = static_cast<float>(1 - beta2);
  const float b1 = a.beta1, b2 = a.beta2, eps = a.eps;
  const float *p_in = args.in[0].as<float>(), *m_in = args.in[2].as<float>(),
              *v_in = args.in[3].as<float>();
  float *p_out = args.out[0].as<float>(), *m_out = args.out[1].as<float>(),
        *v_out = args.out[2].as<float>();
  for_gradient(extras, args, [&](int64_t i, int64_t n, const float* grad) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float p = p_in[i + j], g = clip * grad[j] + (kDecay ? l2 * p : 0.0f);
      const float m = b1 * m_in[i + j] + one_minus1 * g,
                  v = b2 * v_in[i + j] + one_minus2 * (g * g);
      const float positive = v < 0.0f ? 0.0f : v;
      p_out[i + j] = p * keep - step_size * m / (std::sqrt(positive) * inv_root + eps);
      m_out[i + j] = m;
      v_out[i + j] = v;
    }
  });
}

template <bool kDecay>
void sgd(float momentum, float decay, bool nesterov, const Extras& extras, const KernelArgs& args) {
  const float lr = get(args.in[3], 0), clip = get(args.in[5], 0);
  const float *p_in = args.in[0].as<float>(), *b_in = args.in[2].as<float>();
  float *p_out = args.out[0].as<float>(), *b_out = args.out[1].as<float>();
  const float from_g = nesterov ? 1.0f : 0.0f, from_buffer = nesterov ? momentum : 1.0f;
  for_gradient(extras, args, [&](int64_t i, int64_t n, const float* grad) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float p = p_in[i + j], g = clip * grad[j] + (kDecay ? decay * p : 0.0f);
      const float b = momentum * b_in[i + j] + g;
      p_out[i + j] = p - lr * (from_g * g + from_buffer * b);
      b_out[i + j] = b;
    }
  });
}

}  // namespace

KernelList optimizer_kernels() {
  return {{"adamw", "cpu:fused", refuses,
           [](const KernelCall& call) {
             const Attrs& n = call.node.attrs;
             const double beta1 = n.f("beta1"), beta2 = n.f("beta2");
             const Adam a{static_cast<float>(beta1), static_cast<float>(beta2),
                          static_cast<float>(n.f("eps")),
                          static_cast<float>(n.f("weight_decay", 0.0)), n.i("decoupled", 1) != 0};
             const auto run = !a.decoupled && a.decay != 0 ? adamw<true> : adamw<false>;
             const Extras extras(call, 2);
             return PreparedKernel{
                 [=](const KernelArgs& args) { run(a, beta1, beta2, extras, args); },
                 extras.workspace_bytes, "cpu:fused"};
           }},
          {"sgd", "cpu:fused", refuses, [](const KernelCall& call) {
             const Attrs& n = call.node.attrs;
             const auto momentum = static_cast<float>(n.f("momentum"));
             const auto decay = static_cast<float>(n.f("weight_decay", 0.0));
             const bool nesterov = n.i("nesterov", 0) != 0;
             const auto run = decay != 0 ? sgd<true> : sgd<false>;
             const Extras extras(call, 1);
             return PreparedKernel{
                 [=](const KernelArgs& args) { run(momentum, decay, nesterov, extras, args); },
                 extras.workspace_bytes, "cpu:fused"};
           }}};
}

}  // namespace shardrun::cpu
