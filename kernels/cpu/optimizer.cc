// Fused updates of AdamW, Adam and SGD: one pass over memory, with the parameter's bf16 copy where
// it is wanted. Formulas: graph/ops/optimizer.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/families.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/products/weight_blocks.h"
#include "kernels/cpu/simd.h"
#include "program/ops/pack.h"

namespace shardrun::cpu {
namespace {

std::optional<std::string> refuses(const KernelCall& call) {
  const PackedUpdate packed = PackedUpdate::of(call.node, call.in.size());
  const UpdateForm& form = packed.update;
  if (form.count > 1) return "updates one parameter at a time";
  if (call.in[0].dtype != DType::f32) return str("updates f32 parameters, not ", call.in[0].dtype);
  if (form.copy[0] && call.out[*form.copy[0]].dtype != DType::bf16)
    return str("copies parameters in bf16, not ", call.out[*form.copy[0]].dtype);
  for (const WeightLayout& layout : packed.layouts) {
    const TensorType& weights = call.out[packed.of_result()];
    if (!WeightBlocks::make(weights, layout))
      return str("does not lay ", weights, " out as ", layout.to_string());
  }
  return refuse_other_floats(call);
}

/// What an update leaves besides the new parameter and moments.
class Extras {
 public:
  explicit Extras(const KernelCall& call) : form_(PackedUpdate::of(call.node, call.in.size())) {
    const TensorType& copy = call.out[form_.of_result()];
    for (const WeightLayout& layout : form_.layouts)
      blocks_.push_back(*WeightBlocks::make(copy, layout));
    const int64_t count = element_count(copy.shape);
    chunk_ = blocks_.empty() ? 32 * kBlock : WeightBlocks::kPanel * (count / copy.shape[0]);
    chunks_ = (count + chunk_ - 1) / chunk_;
  }

  /// Calls update(begin, count, gradient) for blocks of all elements, and leaves the extras.
  template <class F>
  void for_gradient(const KernelArgs& args, F&& update) const {
    const TensorView& grad = args.in[1];
    const int64_t count = grad.count();
    parallel_ranges(chunks_, 1, [&](int64_t first, int64_t last) {
      alignas(64) float buffer[kBlock];
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t begin = chunk * chunk_, end = std::min(begin + chunk_, count);
        for (int64_t i = begin; i < end; i += kBlock) {
          const int64_t n = std::min(kBlock, end - i);
          update(i, n, floats(grad, i, n, buffer));
          if (form_.update.copy[0]) leave_copy(args, i, n);
        }
        for (size_t b = 0; b < blocks_.size(); ++b) {  // what was just written is in cache
          blocks_[b].run_panel(chunk, args.out[form_.of_result()].as<uint16_t>(),
                               args.out[form_.first + b].as<uint16_t>());
        }
      }
      end_stream();
    });
  }

 private:
  /// In cache where it is to be laid out.
  void leave_copy(const KernelArgs& args, int64_t at, int64_t n) const {
    const float* const made = args.out[0].as<float>() + at;
    const TensorView& copy = args.out[*form_.update.copy[0]];
    const int64_t past = blocks_.empty() ? n / kLine * kLine : 0;
    for (int64_t i = 0; i < past; i += kLine)
      stream(copy.as<uint16_t>() + at + i, narrow_line(made + i));
    put(copy, at + past, n - past, made + past);
  }

  PackedUpdate form_;
  std::vector<WeightBlocks> blocks_;
  int64_t chunk_ = 0, chunks_ = 0;  // a panel of `blocks`, or what a thread takes at once
};

constexpr float kMost = std::numeric_limits<float>::max();

/// What becomes of `old`, which may be infinite: a rank's shard of a maximum is.
inline float held(float next, float old) {
  const float most = std::max(std::abs(old), kMost);
  const float within = next > most ? most : next < -most ? -most : next;
  return within == within ? within : old;
}

struct Adam {
  float beta1, beta2, eps, decay;
  bool decoupled;
};

/// Without decay it is not 0 * p: a parameter may be infinite, as a rank's shard of a maximum is.
template <bool kDecay>
void adamw(const Adam& a, double beta1, double beta2, const Extras& extras,
           const KernelArgs& args) {
  const float lr = get(args.in[4], 0), clip = get(args.in[6], 0) + 0.0f * lr;
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
  // By value: GCC 12 does not vectorise loads through captured references.
  extras.for_gradient(args, [=](int64_t i, int64_t n, const float* grad) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float p = p_in[i + j], g = clip * grad[j] + (kDecay ? l2 * p : 0.0f);
      const float m_old = m_in[i + j], v_old = v_in[i + j];
      const float m = b1 * m_old + one_minus1 * g, v = b2 * v_old + one_minus2 * (g * g);
      const float positive = v < 0.0f ? 0.0f : v;
      const float next = p * keep - step_size * m / (std::sqrt(positive) * inv_root + eps);
      const bool finite = std::abs(g) <= kMost;
      p_out[i + j] = finite ? held(next, p) : p;
      m_out[i + j] = finite ? m : m_old;
      v_out[i + j] = finite ? std::min(v, kMost) : v_old;
    }
  });
}

template <bool kDecay>
void sgd(float momentum, float decay, bool nesterov, const Extras& extras, const KernelArgs& args) {
  const float lr = get(args.in[3], 0), clip = get(args.in[5], 0) + 0.0f * lr;
  const float *p_in = args.in[0].as<float>(), *b_in = args.in[2].as<float>();
  float *p_out = args.out[0].as<float>(), *b_out = args.out[1].as<float>();
  const float from_g = nesterov ? 1.0f : 0.0f, from_buffer = nesterov ? momentum : 1.0f;
  // By value: GCC 12 does not vectorise loads through captured references.
  extras.for_gradient(args, [=](int64_t i, int64_t n, const float* grad) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const float p = p_in[i + j], g = clip * grad[j] + (kDecay ? decay * p : 0.0f);
      const float b_old = b_in[i + j], b = momentum * b_old + g;
      const bool finite = std::abs(g) <= kMost;
      p_out[i + j] = finite ? held(p - lr * (from_g * g + from_buffer * b), p) : p;
      b_out[i + j] = finite ? held(b, b_old) : b_old;
    }
  });
}

}  // namespace

KernelList optimizer_kernels() {
  const auto prepare_adamw = [](const KernelCall& call) {
    const Attrs& n = call.node.attrs;
    const double beta1 = n.f("beta1"), beta2 = n.f("beta2");
    const Adam a{static_cast<float>(beta1), static_cast<float>(beta2),
                 static_cast<float>(n.f("eps")), static_cast<float>(n.f("weight_decay", 0.0)),
                 n.i("decoupled", 1) != 0};
    const auto run = !a.decoupled && a.decay != 0 ? adamw<true> : adamw<false>;
    const Extras extras(call);
    return PreparedKernel{[=](const KernelArgs& args) { run(a, beta1, beta2, extras, args); }, 0,
                          "cpu:fused"};
  };
  const auto prepare_sgd = [](const KernelCall& call) {
    const Attrs& n = call.node.attrs;
    const auto momentum = static_cast<float>(n.f("momentum"));
    const auto decay = static_cast<float>(n.f("weight_decay", 0.0));
    const bool nesterov = n.i("nesterov", 0) != 0;
    const auto run = decay != 0 ? sgd<true> : sgd<false>;
    const Extras extras(call);
    return PreparedKernel{
        [=](const KernelArgs& args) { run(momentum, decay, nesterov, extras, args); }, 0,
        "cpu:fused"};
  };
  return {{"adamw", "cpu:fused", refuses, prepare_adamw},
          {"adamw_packed", "cpu:fused", refuses, prepare_adamw},
          {"sgd", "cpu:fused", refuses, prepare_sgd},
          {"sgd_packed", "cpu:fused", refuses, prepare_sgd}};
}

}  // namespace shardrun::cpu
