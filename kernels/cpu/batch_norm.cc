// Batch normalisation: planes or channels over threads. Sums are f64 throughout, so that they do
// not depend on how many threads there are and variances keep f32's digits.
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

/// x as [batch, channels, inner].
struct Planes {
  int64_t batch, channels, inner;

  explicit Planes(const Shape& x)
      : batch(x[0]), channels(x[1]), inner(element_count(Shape(x.begin() + 2, x.end()))) {}
};

// Calls f(offset, count) for blocks of one plane.
template <class F>
void for_blocks(int64_t inner, F&& f) {
  for (int64_t i = 0; i < inner; i += kBlock) f(i, std::min(kBlock, inner - i));
}

/// Calls f(plane, its channel) for every plane, in parallel.
template <class F>
void each_plane(const Planes& p, F&& f) {
  parallel_ranges(p.batch * p.channels, row_grain(p.inner), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) f(plane, plane % p.channels);
  });
}

/// Calls f(c) for every channel, in parallel: a channel's sum is one thread's.
template <class F>
void each_channel(const Planes& p, F&& f) {
  parallel_ranges(p.channels, row_grain(p.batch * p.inner), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

void moments(const Planes& p, const KernelArgs& args) {
  auto* out = args.out[0].as<double>();
  each_channel(p, [&](int64_t c) {
    alignas(64) float buffer[kBlock];
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < p.batch; ++n) {
      for_blocks(p.inner, [&](int64_t i, int64_t count) {
        const float* x = floats(args.in[0], (n * p.channels + c) * p.inner + i, count, buffer);
#pragma omp simd reduction(+ : sum, squares)
        for (int64_t j = 0; j < count; ++j) {
          const double v = x[j];
          sum += v;
          squares += v * v;
        }
      });
    }
    out[c] = sum;
    out[p.channels + c] = squares;
  });
}

void statistics(double share, const KernelArgs& args) {
  const auto* sums = args.in[0].as<double>();
  const int64_t channels = args.out[0].count();
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = sums[c] * share;
    set(args.out[0], c, static_cast<float>(mean));
    set(args.out[1], c,
        static_cast<float>(std::max(0.0, sums[channels + c] * share - mean * mean)));
  }
}

float inverse_deviation(const TensorView& variance, int64_t c, double eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(get(variance, c)) + eps));
}

void batch_norm(const Planes& p, double eps, const KernelArgs& args) {
  each_plane(p, [&](int64_t plane, int64_t c) {
    alignas(64) float xb[kBlock], yb[kBlock];
    const float mean = get(args.in[1], c), bias = get(args.in[4], c);
    const float slope = get(args.in[3], c) * inverse_deviation(args.in[2], c, eps);
    for_blocks(p.inner, [&](int64_t i, int64_t count) {
      const float* x = floats(args.in[0], plane * p.inner + i, count, xb);
      float* y = place(args.out[0], plane * p.inner + i, yb);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) y[j] = (x[j] - mean) * slope + bias;
      put(args.out[0], plane * p.inner + i, count, y);
    });
  });
}

void running(double momentum, double unbias, const KernelArgs& args) {
  for (size_t r = 0; r < 2; ++r) {
    const double gain = momentum * (r == 0 ? 1 : unbias);
    for (int64_t c = 0; c < args.out[r].count(); ++c) {
      set(args.out[r], c,
          static_cast<float>((1 - momentum) * static_cast<double>(get(args.in[r], c)) +
                             gain * static_cast<double>(get(args.in[r + 2], c))));
    }
  }
}

void reduce_grad(const Planes& p, double eps, const KernelArgs& args) {
  auto* out = args.out[0].as<double>();
  each_channel(p, [&](int64_t c) {
    alignas(64) float db[kBlock], xb[kBlock];
    const float mean = get(args.in[2], c), inv = inverse_deviation(args.in[3], c, eps);
    double sum = 0, products = 0;
    for (int64_t n = 0; n < p.batch; ++n) {
      for_blocks(p.inner, [&](int64_t i, int64_t count) {
        const int64_t at = (n * p.channels + c) * p.inner + i;
        const float *dy = floats(args.in[0], at, count, db), *x = floats(args.in[1], at, count, xb);
#pragma omp simd reduction(+ : sum, products)
        for (int64_t j = 0; j < count; ++j) {
          const double d = dy[j];
          sum += d;
          products += d * static_cast<double>(x[j] - mean);
        }
      });
    }
    out[c] = sum;
    out[p.channels + c] = products * static_cast<double>(inv);
  });
}

void grad(const Planes& p, double eps, int64_t count, const KernelArgs& args) {
  const double share = count > 0 ? 1 / static_cast<double>(count) : 0.0;
  const auto* sums = args.in[5].as<double>();
  for (int64_t c = 0; c < p.channels; ++c) {
    set(args.out[1], c, static_cast<float>(sums[p.channels + c]));
    set(args.out[2], c, static_cast<float>(sums[c]));
  }
  each_plane(p, [&](int64_t plane, int64_t c) {
    alignas(64) float db[kBlock], xb[kBlock], ob[kBlock];
    const float mean = get(args.in[2], c), inv = inverse_deviation(args.in[3], c, eps);
    // dx = slope (dy - offset - (x - mean) tilt)
    const float slope = get(args.in[4], c) * inv, offset = static_cast<float>(share * sums[c]);
    const auto tilt = static_cast<float>(share * static_cast<double>(inv) * sums[p.channels + c]);
    for_blocks(p.inner, [&](int64_t i, int64_t n) {
      const int64_t at = plane * p.inner + i;
      const float *dy = floats(args.in[0], at, n, db), *x = floats(args.in[1], at, n, xb);
      float* dx = place(args.out[0], at, ob);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) dx[j] = slope * (dy[j] - offset - (x[j] - mean) * tilt);
      put(args.out[0], at, n, dx);
    });
  });
}

std::optional<std::string> refuses(const KernelCall& call) {
  // Sums over the batch are f64 always; everything else is computed in f32.
  const std::string& op = call.node.op;
  if (op == "batch_moments" || op == "batch_norm_reduce_grad")
    return refuse_other_floats({call.node, call.in, {}});
  if (op == "batch_statistics") return refuse_other_floats({call.node, {}, call.out});
  if (op == "batch_norm_grad") return refuse_other_floats({call.node, call.in.first(5), call.out});
  return refuse_other_floats(call);
}

template <class F>
PreparedKernel prepared(F run) {
  return {run, 0, "cpu:simd"};
}

PreparedKernel prepare(const KernelCall& call) {
  const std::string& op = call.node.op;
  const Attrs& attrs = call.node.attrs;
  if (op == "running_statistics") {
    return prepared([momentum = attrs.f("momentum"), unbias = attrs.f("unbias")](
                        const KernelArgs& args) { running(momentum, unbias, args); });
  }
  if (op == "batch_statistics") {
    return prepared([share = 1 / static_cast<double>(attrs.i("count"))](const KernelArgs& args) {
      statistics(share, args);
    });
  }
  const Planes p(call.in[op.ends_with("_grad") ? 1 : 0].shape);
  if (op == "batch_moments") return prepared([=](const KernelArgs& args) { moments(p, args); });
  const double eps = attrs.f("eps");
  if (op == "batch_norm")
    return prepared([=](const KernelArgs& args) { batch_norm(p, eps, args); });
  if (op == "batch_norm_reduce_grad")
    return prepared([=](const KernelArgs& args) { reduce_grad(p, eps, args); });
  return prepared(
      [=, count = attrs.i("count")](const KernelArgs& args) { grad(p, eps, count, args); });
}

}  // namespace

KernelList batch_norm_kernels() {
  KernelList list;
  for (const char* op : {"batch_moments", "batch_statistics", "batch_norm", "running_statistics",
                         "batch_norm_reduce_grad", "batch_norm_grad"})
    list.push_back({op, "cpu:simd", refuses, prepare});
  return list;
}

}  // namespace shardrun::cpu
