// layer_norm, rms_norm and their gradients: a team for each row, and sums over rows in chunks.
#pragma once

#include <cmath>

#include "kernels/cuda/own/chunks.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

template <class T, class S>
struct NormRow {
  const T* x;
  const S *scale, *bias;  // bias: may be null
  T* y;
  float *means, *inv_stds;  // means: null for rms_norm
  int64_t cols;
  float eps;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t at = row * cols;
    const auto count = static_cast<float>(cols);
    float mean = 0;
    if (means != nullptr) {
      float sum = 0;
      columns<T>(team, at, cols, [&](auto n, int64_t c) {
        float v[n()];
        read(x + at + c, v);
        for (float each : v) sum += each;
      });
      mean = team.sum(sum) / count;
    }
    float squares = 0;
    columns<T>(team, at, cols, [&](auto n, int64_t c) {
      float v[n()];
      read(x + at + c, v);
      for (float each : v) squares += (each - mean) * (each - mean);
    });
    const float inv_std = 1.0f / sqrtf(team.sum(squares) / count + eps);
    columns<T>(team, at, cols, [&](auto n, int64_t c) {
      float v[n()], s[n()], b[n()];
      read(x + at + c, v);
      read(scale + c, s);
      for (float& each : b) each = 0;
      if (bias != nullptr) read(bias + c, b);
      for (int i = 0; i < n(); ++i) v[i] = (v[i] - mean) * inv_std * s[i] + b[i];
      write(y + at + c, v);
    });
    if (team.rank() == 0) {
      if (means != nullptr) means[row] = mean;
      inv_stds[row] = inv_std;
    }
  }
};

/// With h = (x - mean) inv_std and g = dy scale: dx = inv_std (g - mean(g) - h mean(g h)), for
/// rms_norm without the means; with a residual, that is added.
template <class T, class S>
struct NormGradRow {
  const T *dy, *x;
  const S* scale;
  const float *means, *inv_stds;  // means: null for rms_norm
  const T* residual;              // may be null
  T* dx;
  int64_t cols;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t at = row * cols;
    const float mean = means != nullptr ? means[row] : 0.0f, inv_std = inv_stds[row];
    float g_sum = 0, gh_sum = 0;
    columns<T>(team, at, cols, [&](auto n, int64_t c) {
      float d[n()], v[n()], s[n()];
      read_both(dy + at + c, x + at + c, d, v);
      read(scale + c, s);
      for (int i = 0; i < n(); ++i) {
        const float g = d[i] * s[i];
        g_sum += g;
        gh_sum += g * ((v[i] - mean) * inv_std);
      }
    });
    const auto count = static_cast<float>(cols);
    const float g_mean = means != nullptr ? team.sum(g_sum) / count : 0.0f;
    const float gh_mean = team.sum(gh_sum) / count;
    columns<T>(team, at, cols, [&](auto n, int64_t c) {
      float d[n()], v[n()], s[n()];
      read_both(dy + at + c, x + at + c, d, v);
      read(scale + c, s);
      for (int i = 0; i < n(); ++i)
        d[i] = inv_std * (d[i] * s[i] - g_mean - (v[i] - mean) * inv_std * gh_mean);
      if (residual != nullptr) {
        read(residual + at + c, v);
        for (int i = 0; i < n(); ++i) d[i] += v[i];
      }
      write(dx + at + c, d);
    });
  }
};

/// Sums over a chunk's rows of dy h and, with means, of dy, for kWide<T> columns.
template <class T>
struct NormGradColumns {
  const T *dy, *x;
  const float *means, *inv_stds;
  float* sums;  // [2 or 1, chunks, cols]
  int64_t cols, groups;
  Chunks chunks;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    constexpr int kN = kWide<T>;
    const int64_t chunk = i / groups, c = i % groups * kN, left = cols - c;
    float dh_sum[kN] = {}, d_sum[kN] = {};
    for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
      const float mean = means != nullptr ? means[row] : 0.0f, inv_std = inv_stds[row];
      float d[kN], v[kN];
      read_some_of_both(dy + row * cols + c, x + row * cols + c, left, d, v);
      for (int k = 0; k < kN; ++k) {
        dh_sum[k] += d[k] * ((v[k] - mean) * inv_std);
        d_sum[k] += d[k];
      }
    }
    write_some(sums + chunk * cols + c, left, dh_sum);
    if (means != nullptr) write_some(sums + (chunks.count + chunk) * cols + c, left, d_sum);
  }
};

struct NormSizes {
  bool center;
  int64_t rows, cols;
  DType x, scale;

  NormSizes(const KernelCall& call, bool center, size_t operand) : center(center) {
    const Shape& shape = call.in[operand].shape;
    const auto axis = shape.begin() + static_cast<std::ptrdiff_t>(call.node.attrs.i("axis"));
    rows = element_count(Shape(shape.begin(), axis));
    cols = element_count(Shape(axis, shape.end()));
    x = call.in[operand].dtype, scale = call.in[operand + 1].dtype;
  }
  int64_t groups() const {
    const int64_t wide = 16 / size_of(x);
    return (cols + wide - 1) / wide;
  }
  Chunks chunks() const { return Chunks::of(rows, groups()); }
  int64_t partial_bytes() const { return chunks().count * (center ? 2 : 1) * cols * 4; }
};

template <class On>
PreparedKernel prepare_norm(const KernelCall& call, bool center) {
  const NormSizes size(call, center, 0);
  const auto eps = static_cast<float>(call.node.attrs.f("eps"));
  const auto run = [=](const KernelArgs& args) {
    with_element(size.x, [&](auto x) {
      with_element(size.scale, [&](auto scale) {
        using T = decltype(x);
        using S = decltype(scale);
        const NormRow<T, S> body{args.in[0].as<T>(),
                                 args.in[1].as<S>(),
                                 args.in.size() > 2 ? args.in[2].as<S>() : nullptr,
                                 args.out[0].as<T>(),
                                 size.center ? args.out[1].as<float>() : nullptr,
                                 args.out[size.center ? 2 : 1].as<float>(),
                                 size.cols,
                                 eps};
        On::rows(args, size.rows, size.groups(), body, "norm");
      });
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
PreparedKernel prepare_norm_grad(const KernelCall& call, bool center) {
  const NormSizes size(call, center, 1);
  const auto run = [=](const KernelArgs& args) {
    const auto* means = size.center ? args.in[3].as<float>() : nullptr;
    const auto* inv_stds = args.in[size.center ? 4 : 3].as<float>();
    auto* partial = static_cast<float*>(args.workspace);
    const Chunks chunks = size.chunks();
    with_element(size.x, [&](auto x) {
      with_element(size.scale, [&](auto scale) {
        using T = decltype(x);
        using S = decltype(scale);
        const T *dy = args.in[0].as<T>(), *from = args.in[1].as<T>();
        // Before the rows: dx may be dy or x.
        const NormGradColumns<T> sums{dy,      from,      means,         inv_stds,
                                      partial, size.cols, size.groups(), chunks};
        On::each(args, chunks.count * size.groups(), sums, "norm_grad");
        for (size_t r = 1; r < args.out.size(); ++r) {
          const SumChunks<float, S> add{
              partial + static_cast<int64_t>(r - 1) * chunks.count * size.cols, args.out[r].as<S>(),
              size.cols, chunks.count};
          On::rows(args, size.cols, chunks.count, add, "norm_grad");
        }
        const size_t own = size.center ? 5 : 4;
        const NormGradRow<T, S> body{dy,
                                     from,
                                     args.in[2].as<S>(),
                                     means,
                                     inv_stds,
                                     args.in.size() > own ? args.in[own].as<T>() : nullptr,
                                     args.out[0].as<T>(),
                                     size.cols};
        On::rows(args, size.rows, size.groups(), body, "norm_grad");
      });
    });
  };
  return {run, size.partial_bytes(), "cuda:own"};
}

template <class On>
KernelList norm_kernels_on() {
  const auto impl = [](const char* op, auto prepare, bool center, size_t operands, size_t results) {
    const auto refuses = [=](const KernelCall& call) -> Refusal {
      if (auto reason = refuse_other_floats(call)) return reason;
      return refuse_more(call, operands, results, {"axis", "eps"});
    };
    return KernelImpl{op, "cuda:own", refuses,
                      [=](const KernelCall& call) { return prepare(call, center); }};
  };
  return {impl("layer_norm", prepare_norm<On>, true, 3, 3),
          impl("layer_norm_grad", prepare_norm_grad<On>, true, 6, 3),
          impl("rms_norm", prepare_norm<On>, false, 2, 2),
          impl("rms_norm_grad", prepare_norm_grad<On>, false, 5, 2)};
}

}  // namespace shardrun::cuda
