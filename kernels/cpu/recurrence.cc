// LSTM: a product of oneDNN for each step, and a pass over its gates.
#include <cmath>
#include <cstring>

#include "kernels/cpu/families.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

/// The steps of [S, B, 4, H] in the order in which they are taken.
struct Steps {
  int64_t steps, samples, hidden;
  bool reverse;

  Steps(const Node& node, const Shape& gates)
      : steps(gates[0]),
        samples(gates[1]),
        hidden(gates[3]),
        reverse(node.attrs.i("reverse", 0) != 0) {}

  int64_t step(int64_t n) const { return reverse ? steps - 1 - n : n; }
  int64_t state() const { return samples * hidden; }  // elements of a step's states
  int64_t gates() const { return 4 * state(); }
};

/// gates [B, 4 H] += h [B, H] r' or, backward, h [B, H] = gates [B, 4 H] r.
std::shared_ptr<const Gemm> product(const Steps& at, bool backward, std::string* why) {
  GemmShape shape;
  const int64_t b = at.samples, h = at.hidden;
  if (b == 0 || h == 0) {
    *why = "there are no samples or no states";
    return nullptr;
  }
  if (backward) {
    shape.a = {b, 4 * h}, shape.a_strides = {4 * h, 1};
    shape.b = {4 * h, h}, shape.b_strides = {h, 1};
    shape.c = {b, h}, shape.c_strides = {h, 1};
  } else {
    shape.a = {b, h}, shape.a_strides = {h, 1};
    shape.b = {h, 4 * h}, shape.b_strides = {1, h};
    shape.c = {b, 4 * h}, shape.c_strides = {4 * h, 1};
    shape.accumulate = true;
  }
  return Gemm::make(shape, why);
}

constexpr int64_t kPart = 1024;  // states that are worth a thread

/// f(sample, first, count) for all states of a step, by whole samples.
template <class F>
void for_samples(const Steps& at, F f) {
  const int64_t apart = std::max<int64_t>(1, kPart / std::max<int64_t>(1, at.hidden));
  parallel_ranges(at.samples, apart, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) f(b);
  });
}

void activate(const Steps& at, float* gates, const float* held, float* h, float* c) {
  const int64_t n = at.hidden;
  for_samples(at, [&](int64_t b) {
    float *i = gates + b * 4 * n, *o = i + n, *f = o + n, *g = f + n;
    const float* last = held + b * n;
    float *cell = c + b * n, *out = h + b * n;
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) {
      i[k] = sigmoid(i[k]);
      o[k] = sigmoid(o[k]);
      f[k] = sigmoid(f[k]);
      g[k] = tanh(g[k]);
      cell[k] = f[k] * last[k] + i[k] * g[k];
      out[k] = o[k] * tanh(cell[k]);
    }
  });
}

void run_lstm(const Steps& at, const Gemm& gemm, const KernelArgs& args) {
  const auto *x = args.in[0].as<float>(), *r = args.in[1].as<float>(), *h0 = args.in[2].as<float>(),
             *c0 = args.in[3].as<float>();
  auto *h = args.out[0].as<float>(), *c = args.out[1].as<float>(), *gates = args.out[2].as<float>();
  for (int64_t n = 0; n < at.steps; ++n) {
    const int64_t t = at.step(n), before = n == 0 ? 0 : at.step(n - 1);
    float* z = gates + t * at.gates();
    std::memcpy(z, x + t * at.gates(), static_cast<size_t>(at.gates()) * sizeof(float));
    gemm.run(n == 0 ? h0 : h + before * at.state(), r, z, args.workspace);
    activate(at, z, n == 0 ? c0 : c + before * at.state(), h + t * at.state(), c + t * at.state());
  }
}

void run_lstm_grad(const Steps& at, const Gemm& gemm, const KernelArgs& args) {
  const auto *dh = args.in[0].as<float>(), *dc = args.in[1].as<float>(),
             *gates = args.in[2].as<float>(), *c = args.in[3].as<float>(),
             *r = args.in[4].as<float>(), *c0 = args.in[5].as<float>();
  // The gradients of the first states are those that the steps hand on.
  auto *dx = args.out[0].as<float>(), *to_h = args.out[1].as<float>(),
       *to_c = args.out[2].as<float>();
  std::memset(to_h, 0, static_cast<size_t>(at.state()) * sizeof(float));
  std::memset(to_c, 0, static_cast<size_t>(at.state()) * sizeof(float));
  const int64_t width = at.hidden;
  for (int64_t n = at.steps - 1; n >= 0; --n) {
    const int64_t t = at.step(n);
    const float* held = n == 0 ? c0 : c + at.step(n - 1) * at.state();
    float* d = dx + t * at.gates();
    for_samples(at, [&](int64_t b) {
      const float *i = gates + t * at.gates() + b * 4 * width, *o = i + width, *f = o + width,
                  *g = f + width;
      float *di = d + b * 4 * width, *d_o = di + width, *df = d_o + width, *dg = df + width;
      const int64_t first = b * width;
      const float *of_h = dh + t * at.state() + first, *of_c = dc + t * at.state() + first,
                  *cells = c + t * at.state() + first;
      float *th = to_h + first, *tc = to_c + first;
#pragma omp simd
      for (int64_t k = 0; k < width; ++k) {
        const float cell = tanh(cells[k]), d_h = of_h[k] + th[k];
        const float d_c = of_c[k] + tc[k] + d_h * o[k] * (1 - cell * cell);
        di[k] = d_c * g[k] * i[k] * (1 - i[k]);
        d_o[k] = d_h * cell * o[k] * (1 - o[k]);
        df[k] = d_c * held[first + k] * f[k] * (1 - f[k]);
        dg[k] = d_c * i[k] * (1 - g[k] * g[k]);
        tc[k] = d_c * f[k];
      }
    });
    gemm.run(d, r, to_h, args.workspace);
  }
}

template <bool kBackward>
KernelImpl impl() {
  constexpr size_t kOfGates = kBackward ? 2 : 0;
  const auto make = [](const KernelCall& call, std::string* why) {
    return product(Steps(call.node, call.in[kOfGates].shape), kBackward, why);
  };
  return {kBackward ? "lstm_grad" : "lstm", "cpu:onednn",
          [make](const KernelCall& call) -> std::optional<std::string> {
            if (call.in[0].dtype != DType::f32) return "only f32";
            std::string why;
            if (make(call, &why)) return std::nullopt;
            return why;
          },
          [make](const KernelCall& call) {
            std::string why;
            const std::shared_ptr<const Gemm> gemm = make(call, &why);
            const Steps at(call.node, call.in[kOfGates].shape);
            return PreparedKernel{[=](const KernelArgs& args) {
                                    kBackward ? run_lstm_grad(at, *gemm, args)
                                              : run_lstm(at, *gemm, args);
                                  },
                                  gemm->scratch_bytes(), "cpu:onednn"};
          }};
}

}  // namespace

KernelList recurrence_kernels() { return {impl<false>(), impl<true>()}; }

}  // namespace shardrun::cpu
