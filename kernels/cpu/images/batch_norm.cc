// Batch normalisation: planes or channels over threads; where the channels are last, rows of them.
// Sums are f64 throughout, and never parted by how many threads there are, so that they do not
// depend on these and variances keep f32's digits.
#include <cmath>
#include <limits>

#include "graph/ops/window.h"
#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

/// What the kernels of one call know before they run.
struct Norm {
  int64_t batch = 1, channels = 1, inner = 1;  // x [batch, channels, inner]; channels last: inner 1
  bool last = false, relu = false, residual = false;
  double eps = 0;
  int64_t count = 0;
  DType dtype = DType::f32;

  explicit Norm(const KernelCall& call) {
    const std::string& op = call.node.op;
    const Shape& x = call.in[op.ends_with("_grad") ? 1 : 0].shape;
    last = channels_last(call.node);
    relu = call.node.attrs.i("relu", 0) != 0;
    residual = op == "batch_norm" && call.in.size() > 5;
    eps = call.node.attrs.f("eps", 0);
    count = call.node.attrs.i("count", 0);
    dtype = call.in[0].dtype;
    channels = last ? x.back() : x[1];
    batch = last ? element_count(Shape(x.begin(), x.end() - 1)) : x[0];
    if (!last) inner = element_count(Shape(x.begin() + 2, x.end()));
  }

  int64_t elements() const { return batch * channels * inner; }
};

/// Calls f(plane, its channel) for every plane, in parallel.
template <class F>
void each_plane(const Norm& p, F&& f) {
  parallel_ranges(p.batch * p.channels, row_grain(p.inner), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) f(plane, plane % p.channels);
  });
}

/// Calls f(c) for every channel, in parallel: a channel's sum is one thread's.
template <class F>
void each_channel(const Norm& p, F&& f) {
  parallel_ranges(p.channels, row_grain(p.batch * p.inner), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

// ---- channels last: sums of rows ----

/// Rows are summed in parts, which are then added in order.
struct Parts {
  int64_t rows, each, count;

  explicit Parts(const Norm& p) : rows(p.batch) {
    constexpr int64_t kMost = 32, kLeast = 16384;  // parts; elements of one
    each = std::max<int64_t>(
        {1, (rows + kMost - 1) / kMost, kLeast / std::max<int64_t>(p.channels, 1)});
    count = (rows + each - 1) / each;
  }
  int64_t bytes(const Norm& p) const { return count * 2 * p.channels * 8; }
};

/// Calls add(row, sums [2, C]) for every row and leaves the sums of all in `out`; `parts` is
/// memory.
template <class F>
void sum_rows(const Norm& p, double* parts, double* out, F&& add) {
  const Parts plan(p);
  const int64_t width = 2 * p.channels;
  parallel_ranges(plan.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      double* sums = parts + part * width;
      std::fill_n(sums, width, 0.0);
      const int64_t last = std::min(plan.rows, (part + 1) * plan.each);
      for (int64_t row = part * plan.each; row < last; ++row) add(row, sums);
    }
  });
  std::fill_n(out, width, 0.0);
  for (int64_t part = 0; part < plan.count; ++part) {
    for (int64_t c = 0; c < width; ++c) out[c] += parts[part * width + c];
  }
}

template <class T>
void moments_of_rows(const Norm& p, const KernelArgs& args) {
  const int64_t channels = p.channels;
  sum_rows(p, static_cast<double*>(args.workspace), args.out[0].as<double>(),
           [&](int64_t row, double* sum) {
             const T* x = args.in[0].as<T>() + row * channels;
             double* squares = sum + channels;
#pragma omp simd
             for (int64_t c = 0; c < channels; ++c) {
               const double v = as_float(x[c]);
               sum[c] += v;
               squares[c] += v * v;
             }
           });
}

void moments(const Norm& p, const KernelArgs& args) {
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

void statistics(double inverse_count, const KernelArgs& args) {
  const auto* sums = args.in[0].as<double>();
  const int64_t channels = args.out[0].count();
  for (int64_t c = 0; c < channels; ++c) {
    const double mean = sums[c] * inverse_count;
    set(args.out[0], c, static_cast<float>(mean));
    set(args.out[1], c,
        static_cast<float>(std::max(0.0, sums[channels + c] * inverse_count - mean * mean)));
  }
}

float inverse_deviation(const TensorView& variance, int64_t c, double eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(get(variance, c)) + eps));
}

// ---- y = (x - mean) slope + bias [+ residual] ----

/// A channel's line. The gradients ask it again what the relu let through.
struct Line {
  float mean, slope, bias;
  float operator()(float x) const { return (x - mean) * slope + bias; }
};

/// The lines of all channels, as arrays in memory for them: a loop over channels reads these.
struct Lines {
  float *mean, *slope, *bias;

  static int64_t bytes(const Norm& p) { return 3 * p.channels * 4; }
  Lines(const Norm& p, void* memory)
      : mean(static_cast<float*>(memory)), slope(mean + p.channels), bias(slope + p.channels) {}
  Lines(const Norm& p, void* memory, const TensorView& means, const TensorView& variances,
        const TensorView& scales, const TensorView* biases)
      : Lines(p, memory) {
    for (int64_t c = 0; c < p.channels; ++c) {
      mean[c] = get(means, c);
      slope[c] = get(scales, c) * inverse_deviation(variances, c, p.eps);
      bias[c] = biases != nullptr ? get(*biases, c) : 0.0f;
    }
  }
  float operator()(int64_t c, float x) const { return (x - mean[c]) * slope[c] + bias[c]; }
};

/// Calls f(row) for rows of channels, in parallel.
template <class F>
void each_row(const Norm& p, F&& f) {
  parallel_ranges(p.batch, row_grain(p.channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row * p.channels);
  });
}

template <class T>
void norm_rows(const Norm& p, const KernelArgs& args) {
  const Lines lines(p, args.workspace, args.in[1], args.in[2], args.in[3], &args.in[4]);
  const float floor = p.relu ? 0.0f : kNever;
  const int64_t channels = p.channels;
  each_row(p, [&](int64_t at) {
    const T* x = args.in[0].as<T>() + at;
    T* y = args.out[0].as<T>() + at;
    if (p.residual) {
      const T* residual = args.in[5].as<T>() + at;
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const float v = lines(c, as_float(x[c])) + as_float(residual[c]);
        assign(y[c], v < floor ? floor : v);
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const float v = lines(c, as_float(x[c]));
        assign(y[c], v < floor ? floor : v);
      }
    }
  });
}

void norm_planes(const Norm& p, const KernelArgs& args) {
  const float floor = p.relu ? 0.0f : kNever;
  each_plane(p, [&](int64_t plane, int64_t c) {
    alignas(64) float xb[kBlock], yb[kBlock], rb[kBlock];
    const Line line{get(args.in[1], c),
                    get(args.in[3], c) * inverse_deviation(args.in[2], c, p.eps),
                    get(args.in[4], c)};
    for_blocks(p.inner, [&](int64_t i, int64_t count) {
      const int64_t at = plane * p.inner + i;
      const float* x = floats(args.in[0], at, count, xb);
      const float* residual = p.residual ? floats(args.in[5], at, count, rb) : nullptr;
      float* y = place(args.out[0], at, yb);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        const float v = line(x[j]) + (residual != nullptr ? residual[j] : 0.0f);
        y[j] = v < floor ? floor : v;
      }
      put(args.out[0], at, count, y);
    });
  });
}

/// Of a batch that has something else than finite numbers nothing is kept.
void running(double momentum, double unbias, const KernelArgs& args) {
  for (size_t r = 0; r < 2; ++r) {
    const double keep = 1 - momentum, gain = momentum * (r == 0 ? 1 : unbias);
    parallel_ranges(args.out[r].count(), 16384, [&](int64_t begin, int64_t end) {
      alignas(64) float old_buffer[kBlock], seen_buffer[kBlock], buffer[kBlock];
      for_blocks(end - begin, [&](int64_t first, int64_t n) {
        const int64_t at = begin + first;
        const float *old = floats(args.in[r], at, n, old_buffer),
                    *seen = floats(args.in[r + 2], at, n, seen_buffer);
        float* y = place(args.out[r], at, buffer);
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) {
          const auto next = static_cast<float>(keep * static_cast<double>(old[c]) +
                                               gain * static_cast<double>(seen[c]));
          const bool finite = std::abs(seen[c]) <= std::numeric_limits<float>::max();
          y[c] = finite ? next : old[c];
        }
        put(args.out[r], at, n, y);
      });
    });
  }
}

// ---- gradients ----

template <class T>
void reduce_grad_rows(const Norm& p, const KernelArgs& args) {
  const int64_t channels = p.channels;
  auto* parts = static_cast<double*>(args.workspace);
  auto* out = args.out[0].as<double>();
  void* memory = static_cast<char*>(args.workspace) + Parts(p).bytes(p);
  const Lines lines =
      p.relu ? Lines(p, memory, args.in[2], args.in[3], args.in[4], &args.in[5]) : Lines(p, memory);
  const auto* means = args.in[2].as<float>();
  sum_rows(p, parts, out, [&](int64_t row, double* sum) {
    const T *dy = args.in[0].as<T>() + row * channels, *x = args.in[1].as<T>() + row * channels;
    double* products = sum + channels;
    if (p.relu) {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const float v = as_float(x[c]), g = as_float(dy[c]);
        const float d = lines(c, v) > 0.0f ? g : 0.0f;
        sum[c] += static_cast<double>(d);
        products[c] += static_cast<double>(d) * static_cast<double>(v - lines.mean[c]);
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const double d = as_float(dy[c]);
        sum[c] += d;
        products[c] += d * static_cast<double>(as_float(x[c]) - means[c]);
      }
    }
  });
  for (int64_t c = 0; c < channels; ++c)
    out[channels + c] *= static_cast<double>(inverse_deviation(args.in[3], c, p.eps));
}

void reduce_grad_planes(const Norm& p, const KernelArgs& args) {
  auto* out = args.out[0].as<double>();
  each_channel(p, [&](int64_t c) {
    alignas(64) float db[kBlock], xb[kBlock];
    const float mean = get(args.in[2], c), inv = inverse_deviation(args.in[3], c, p.eps);
    // Without a relu everything passes.
    const Line line =
        p.relu ? Line{mean, get(args.in[4], c) * inv, get(args.in[5], c)} : Line{0.0f, 0.0f, 1.0f};
    double sum = 0, products = 0;
    for (int64_t n = 0; n < p.batch; ++n) {
      for_blocks(p.inner, [&](int64_t i, int64_t count) {
        const int64_t at = (n * p.channels + c) * p.inner + i;
        const float *dy = floats(args.in[0], at, count, db), *x = floats(args.in[1], at, count, xb);
#pragma omp simd reduction(+ : sum, products)
        for (int64_t j = 0; j < count; ++j) {
          const float g = dy[j];
          const double d = line(x[j]) > 0.0f ? g : 0.0f;
          sum += d;
          products += d * static_cast<double>(x[j] - mean);
        }
      });
    }
    out[c] = sum;
    out[p.channels + c] = products * static_cast<double>(inv);
  });
}

/// dx = slope (dy - offset - (x - mean) tilt)
struct Tilt {
  float offset, tilt;
};

Tilt tilt_of(const Norm& p, const KernelArgs& args, int64_t c) {
  const double inverse_count = p.count > 0 ? 1 / static_cast<double>(p.count) : 0.0;
  const auto* sums = args.in[5].as<double>();
  const auto inv = static_cast<double>(inverse_deviation(args.in[3], c, p.eps));
  return {static_cast<float>(inverse_count * sums[c]),
          static_cast<float>(inverse_count * inv * sums[p.channels + c])};
}

template <class T>
void grad_rows(const Norm& p, const KernelArgs& args) {
  const int64_t channels = p.channels;
  const Lines lines(p, args.workspace, args.in[2], args.in[3], args.in[4],
                    p.relu ? &args.in[6] : nullptr);
  float* offsets = lines.bias + channels;
  float* tilts = offsets + channels;
  for (int64_t c = 0; c < channels; ++c) {
    const Tilt t = tilt_of(p, args, c);
    offsets[c] = t.offset;
    tilts[c] = t.tilt;
  }
  each_row(p, [&](int64_t at) {
    const T *dy = args.in[0].as<T>() + at, *x = args.in[1].as<T>() + at;
    T* dx = args.out[0].as<T>() + at;
    if (p.relu) {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const float v = as_float(x[c]), g = as_float(dy[c]);
        const float d = lines(c, v) > 0.0f ? g : 0.0f;
        assign(dx[c], lines.slope[c] * (d - offsets[c] - (v - lines.mean[c]) * tilts[c]));
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < channels; ++c) {
        const float v = as_float(x[c]);
        assign(dx[c],
               lines.slope[c] * (as_float(dy[c]) - offsets[c] - (v - lines.mean[c]) * tilts[c]));
      }
    }
  });
}

void grad_planes(const Norm& p, const KernelArgs& args) {
  each_plane(p, [&](int64_t plane, int64_t c) {
    alignas(64) float db[kBlock], xb[kBlock], ob[kBlock];
    const float mean = get(args.in[2], c);
    const float slope = get(args.in[4], c) * inverse_deviation(args.in[3], c, p.eps);
    const Line line = p.relu ? Line{mean, slope, get(args.in[6], c)} : Line{0.0f, 0.0f, 1.0f};
    const Tilt t = tilt_of(p, args, c);
    for_blocks(p.inner, [&](int64_t i, int64_t n) {
      const int64_t at = plane * p.inner + i;
      const float *dy = floats(args.in[0], at, n, db), *x = floats(args.in[1], at, n, xb);
      float* dx = place(args.out[0], at, ob);
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        const float g = dy[j], d = line(x[j]) > 0.0f ? g : 0.0f;
        dx[j] = slope * (d - t.offset - (x[j] - mean) * t.tilt);
      }
      put(args.out[0], at, n, dx);
    });
  });
}

void parameter_grads(const Norm& p, const KernelArgs& args) {
  const auto* sums = args.in[5].as<double>();
  for (int64_t c = 0; c < p.channels; ++c) {
    set(args.out[1], c, static_cast<float>(sums[p.channels + c]));
    set(args.out[2], c, static_cast<float>(sums[c]));
  }
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
PreparedKernel prepared(F run, int64_t workspace = 0) {
  return {run, workspace, "cpu:simd"};
}

/// The kernel for channels first, or last with x in f32 or bf16.
PreparedKernel prepared(const Norm& p, void (*planes)(const Norm&, const KernelArgs&),
                        void (*f32)(const Norm&, const KernelArgs&),
                        void (*bf16)(const Norm&, const KernelArgs&), int64_t workspace) {
  const auto run = !p.last ? planes : p.dtype == DType::f32 ? f32 : bf16;
  return prepared([=](const KernelArgs& args) { run(p, args); }, p.last ? workspace : 0);
}

PreparedKernel prepare_grad(const Norm& p) {
  const auto run = !p.last                 ? grad_planes
                   : p.dtype == DType::f32 ? grad_rows<float>
                                           : grad_rows<uint16_t>;
  return prepared(
      [=](const KernelArgs& args) {
        parameter_grads(p, args);
        run(p, args);
      },
      p.last ? Lines::bytes(p) + 2 * p.channels * 4 : 0);
}

PreparedKernel prepare(const KernelCall& call) {
  const std::string& op = call.node.op;
  const Attrs& attrs = call.node.attrs;
  if (op == "running_statistics") {
    return prepared([momentum = attrs.f("momentum"), unbias = attrs.f("unbias")](
                        const KernelArgs& args) { running(momentum, unbias, args); });
  }
  if (op == "batch_statistics") {
    return prepared([inverse_count = 1 / static_cast<double>(attrs.i("count"))](
                        const KernelArgs& args) { statistics(inverse_count, args); });
  }
  const Norm p(call);
  if (op == "batch_moments") {
    return prepared(p, moments, moments_of_rows<float>, moments_of_rows<uint16_t>,
                    Parts(p).bytes(p));
  }
  if (op == "batch_norm")
    return prepared(p, norm_planes, norm_rows<float>, norm_rows<uint16_t>, Lines::bytes(p));
  if (op == "batch_norm_reduce_grad") {
    return prepared(p, reduce_grad_planes, reduce_grad_rows<float>, reduce_grad_rows<uint16_t>,
                    Parts(p).bytes(p) + Lines::bytes(p));
  }
  return prepare_grad(p);
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
