// Reference batch normalisation, channel by channel in f64.
#include <cmath>

#include "graph/ops/window.h"
#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// Calls f(channel, element) for every element of x [N, C, …] or [N, …, C].
template <class F>
void each(const Node& node, const Shape& x, F&& f) {
  const size_t dim = channels_last(node) ? x.size() - 1 : 1;
  const auto at = x.begin() + static_cast<std::ptrdiff_t>(dim);
  const int64_t outer = element_count(Shape(x.begin(), at));
  const int64_t inner = element_count(Shape(at + 1, x.end()));
  size_t element = 0;
  for (int64_t n = 0; n < outer; ++n) {
    for (int64_t c = 0; c < *at; ++c) {
      for (int64_t i = 0; i < inner; ++i) f(static_cast<size_t>(c), element++);
    }
  }
}

bool has_relu(const Node& node) { return node.attrs.i("relu", 0) != 0; }

Doubles inverse_deviations(const Doubles& variance, double eps) {
  Doubles out;
  for (double v : variance) out.push_back(1 / std::sqrt(v + eps));
  return out;
}

void moments(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]);
  const auto channels = static_cast<size_t>(args.out[0].type.shape[1]);
  Doubles sums(2 * channels);
  each(node, args.in[0].type.shape, [&](size_t c, size_t i) {
    sums[c] += x[i];
    sums[channels + c] += x[i] * x[i];
  });
  store(sums, args.out[0]);
}

void statistics(const Node& node, const KernelArgs& args) {
  const Doubles sums = load(args.in[0]);
  const size_t channels = sums.size() / 2;
  const auto count = static_cast<double>(node.attrs.i("count"));
  Doubles mean, variance;
  for (size_t c = 0; c < channels; ++c) {
    mean.push_back(sums[c] / count);
    variance.push_back(std::max(0.0, sums[channels + c] / count - mean[c] * mean[c]));
  }
  store(mean, args.out[0]);
  store(variance, args.out[1]);
}

void batch_norm(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[0]), mean = load(args.in[1]), scale = load(args.in[3]),
                bias = load(args.in[4]);
  const Doubles inv = inverse_deviations(load(args.in[2]), node.attrs.f("eps"));
  const Doubles residual = args.in.size() > 5 ? load(args.in[5]) : Doubles();
  Doubles y(x.size());
  each(node, args.in[0].type.shape,
       [&](size_t c, size_t i) { y[i] = (x[i] - mean[c]) * inv[c] * scale[c] + bias[c]; });
  if (!residual.empty()) {  // of what the result's type holds, as an addition behind it would be
    store(y, args.out[0]);
    y = load(args.out[0]);
    for (size_t i = 0; i < y.size(); ++i) y[i] += residual[i];
  }
  if (has_relu(node)) {
    for (double& value : y) value = value < 0 ? 0 : value;
  }
  store(y, args.out[0]);
}

void running(const Node& node, const KernelArgs& args) {
  const double momentum = node.attrs.f("momentum");
  for (size_t r = 0; r < 2; ++r) {
    const double unbias = r == 0 ? 1 : node.attrs.f("unbias");
    Doubles old = load(args.in[r]);
    const Doubles now = load(args.in[r + 2]);
    for (size_t c = 0; c < old.size(); ++c) {
      if (std::isfinite(now[c])) old[c] = (1 - momentum) * old[c] + momentum * unbias * now[c];
    }
    store(old, args.out[r]);
  }
}

/// dy, with a relu 0 where the result was not above 0.
Doubles gradient_behind_relu(const Node& node, const KernelArgs& args, const Doubles& inv,
                             size_t scale_at, size_t bias_at) {
  Doubles dy = load(args.in[0]);
  if (!has_relu(node)) return dy;
  const Doubles x = load(args.in[1]), mean = load(args.in[2]), scale = load(args.in[scale_at]),
                bias = load(args.in[bias_at]);
  each(node, args.in[1].type.shape, [&](size_t c, size_t i) {
    if (!((x[i] - mean[c]) * inv[c] * scale[c] + bias[c] > 0)) dy[i] = 0;
  });
  return dy;
}

void reduce_grad(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[1]), mean = load(args.in[2]);
  const Doubles inv = inverse_deviations(load(args.in[3]), node.attrs.f("eps"));
  const Doubles dy = gradient_behind_relu(node, args, inv, 4, 5);
  const size_t channels = mean.size();
  Doubles sums(2 * channels);
  each(node, args.in[1].type.shape, [&](size_t c, size_t i) {
    sums[c] += dy[i];
    sums[channels + c] += dy[i] * (x[i] - mean[c]) * inv[c];
  });
  store(sums, args.out[0]);
}

// dx = scale inv (dy - Σdy / n - h Σ(dy h) / n), or scale inv dy for given statistics.
void grad(const Node& node, const KernelArgs& args) {
  const Doubles x = load(args.in[1]), mean = load(args.in[2]), scale = load(args.in[4]),
                sums = load(args.in[5]);
  const Doubles inv = inverse_deviations(load(args.in[3]), node.attrs.f("eps"));
  const Doubles dy = gradient_behind_relu(node, args, inv, 4, 6);
  const size_t channels = mean.size();
  const int64_t count = node.attrs.i("count");
  const double inverse_count = count > 0 ? 1 / static_cast<double>(count) : 0;
  Doubles dx(x.size());
  each(node, args.in[1].type.shape, [&](size_t c, size_t i) {
    const double h = (x[i] - mean[c]) * inv[c];
    dx[i] = scale[c] * inv[c] * (dy[i] - inverse_count * (sums[c] + h * sums[channels + c]));
  });
  const auto middle = sums.begin() + static_cast<std::ptrdiff_t>(channels);
  store(dx, args.out[0]);
  store(Doubles(middle, sums.end()), args.out[1]);
  store(Doubles(sums.begin(), middle), args.out[2]);
}

}  // namespace

KernelList batch_norm_kernels() {
  return {plain("batch_moments", moments),
          plain("batch_statistics", statistics),
          plain("batch_norm", batch_norm),
          plain("running_statistics", running),
          plain("batch_norm_reduce_grad", reduce_grad),
          plain("batch_norm_grad", grad)};
}

}  // namespace shardrun::reference
