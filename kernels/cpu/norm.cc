// layer_norm, rms_norm and their gradients: rows over threads, a row in cache for all its passes.
#include <cmath>

#include "kernels/cpu/families.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

struct Rows {
  int64_t rows, cols;

  explicit Rows(const Node& node, const Shape& shape) {
    const int64_t axis = node.attrs.i("axis");
    rows = element_count(Shape(shape.begin(), shape.begin() + axis));
    cols = element_count(Shape(shape.begin() + axis, shape.end()));
  }
};

/// Columns of which rows are faster 16 at a time, and for the gradient, which turns three of them.
bool are_few(int64_t cols, DType dtype) {
  return cols < 4 * kLanes || (dtype == DType::bf16 && cols <= kMostTileColumns);
}
bool are_few_of_gradient(int64_t cols, DType dtype) {
  return cols < (dtype == DType::bf16 ? 4 : 2) * kLanes;
}

/// A vector's reciprocal square roots.
Lanes inverse_sqrt(const Lanes& x) {
  alignas(64) float v[kLanes];
  store_lanes(v, x);
#pragma omp simd
  for (int64_t i = 0; i < kLanes; ++i) v[i] = 1.0f / std::sqrt(v[i]);
  return load_lanes(v);
}

/// Rows of few columns, 16 at a time.
void norm_tiles(bool center, int64_t cols, float eps, const KernelArgs& args, int64_t begin,
                int64_t end) {
  alignas(64) float sb[kMostTileColumns], bb[kMostTileColumns] = {};
  const float* s = floats(args.in[1], 0, cols, sb);
  const float* b = args.in.size() == 3 ? floats(args.in[2], 0, cols, bb) : bb;
  const auto count = static_cast<float>(cols);
  RowTile x(cols);
  for_tiles(begin, end, [&](int64_t row, int64_t n) {
    x.load(args.in[0], row, n);
    Lanes mean{}, squares{};
    if (center) {
      for (int64_t c = 0; c < cols; ++c) mean += x[c];
      mean /= count;
    }
    for (int64_t c = 0; c < cols; ++c) {
      x[c] -= mean;
      squares += x[c] * x[c];
    }
    const Lanes inv_std = inverse_sqrt(squares / count + eps);
    for (int64_t c = 0; c < cols; ++c) x[c] = x[c] * inv_std * s[c] + b[c];
    x.store(args.out[0], row, n);
    if (center) put_each(args.out[1].as<float>() + row, mean, n);
    put_each(args.out[center ? 2 : 1].as<float>() + row, inv_std, n);
  });
}

void norm(bool center, int64_t cols, float eps, const KernelArgs& args, int64_t begin,
          int64_t end) {
  if (are_few(cols, args.in[0].type.dtype)) return norm_tiles(center, cols, eps, args, begin, end);
  const TensorView &x = args.in[0], &scale = args.in[1], &y = args.out[0];
  const bool has_bias = args.in.size() == 3;
  const TensorView& inv_stds = args.out[center ? 2 : 1];
  alignas(64) float xb[kBlock], sb[kBlock], bb[kBlock], yb[kBlock];
  for (int64_t r = begin; r < end; ++r) {
    double total = 0;
    if (center) {
      for_blocks(cols, [&](int64_t c, int64_t n) {
        const float* v = floats(x, r * cols + c, n, xb);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) sum += v[i];
        total += static_cast<double>(sum);
      });
    }
    const float mean = static_cast<float>(total / static_cast<double>(cols));
    double squares = 0;
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* v = floats(x, r * cols + c, n, xb);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) sum += (v[i] - mean) * (v[i] - mean);
      squares += static_cast<double>(sum);
    });
    const auto inv_std = static_cast<float>(
        1 / std::sqrt(squares / static_cast<double>(cols) + static_cast<double>(eps)));
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* v = floats(x, r * cols + c, n, xb);
      const float* s = floats(scale, c, n, sb);
      float* out = place(y, r * cols + c, yb);
      if (has_bias) {
        const float* b = floats(args.in[2], c, n, bb);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = (v[i] - mean) * inv_std * s[i] + b[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = (v[i] - mean) * inv_std * s[i];
      }
      put(y, r * cols + c, n, out);
    });
    if (center) args.out[1].as<float>()[r] = mean;
    inv_stds.as<float>()[r] = inv_std;
  }
}

// Rows fall into at most kChunks chunks, however many threads there are, each with its own partial
// dscale and dbias in the workspace, so that results do not depend on the thread count.
constexpr int64_t kChunks = 32;

int64_t grad_workspace(const Rows& size, bool center) {
  return std::min(kChunks, size.rows) * (center ? 2 : 1) * size.cols * 4;
}

/// y = d + other, `d` of y's dtype: what norm_grad leaves and an add behind it makes of that.
void add_rounded(const TensorView& y, int64_t at, int64_t n, float* d, const TensorView& other) {
  alignas(64) float rounded[kBlock], ob[kBlock];
  if (y.type.dtype == DType::bf16) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) rounded[i] = as_float(round_to_bf16(d[i]));
    d = rounded;
  }
  const float* o = floats(other, at, n, ob);
  float* out = place(y, at, rounded);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = d[i] + o[i];
  put(y, at, n, out);
}

/// Rows [begin, end) of few columns, 16 at a time: dx, and sums for dscale and dbias.
void norm_grad_tiles(bool center, int64_t cols, const KernelArgs& args, int64_t begin, int64_t end,
                     float* dscale, float* dbias) {
  const TensorView& dx = args.out[0];
  const size_t added = center ? 5 : 4;
  alignas(64) float sb[kMostTileColumns];
  const float* s = floats(args.in[2], 0, cols, sb);
  Lanes scale_sums[kMostTileColumns] = {}, bias_sums[kMostTileColumns] = {};
  const auto count = static_cast<float>(cols);
  RowTile d(cols), h(cols);
  for_tiles(begin, end, [&](int64_t row, int64_t n) {
    d.load(args.in[0], row, n);
    h.load(args.in[1], row, n);
    const Lanes mean = center ? get_each(args.in[3].as<float>() + row, n) : Lanes{};
    const Lanes inv_std = get_each(args.in[center ? 4 : 3].as<float>() + row, n);
    Lanes g_mean{}, gh_mean{};
    for (int64_t c = 0; c < cols; ++c) {
      h[c] = (h[c] - mean) * inv_std;
      scale_sums[c] += d[c] * h[c];
      bias_sums[c] += d[c];
      d[c] *= s[c];
      g_mean += d[c];
      gh_mean += d[c] * h[c];
    }
    g_mean = center ? g_mean / count : Lanes{};
    gh_mean /= count;
    for (int64_t c = 0; c < cols; ++c) d[c] = inv_std * (d[c] - g_mean - h[c] * gh_mean);
    if (args.in.size() > added) {  // rounded as without it, and once more
      h.load(args.in[added], row, n);
      for (int64_t c = 0; c < cols; ++c) {
        if (dx.type.dtype == DType::bf16)
          d[c] = std::bit_cast<Lanes>(narrow(std::bit_cast<Units>(d[c])) << 16);
        d[c] += h[c];
      }
    }
    d.store(dx, row, n);
  });
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t i = 0; i < kLanes; ++i) {
      dscale[c] += scale_sums[c][i];
      if (center) dbias[c] += bias_sums[c][i];
    }
  }
}

/// Rows [begin, end): dx, and sums for dscale and dbias.
void norm_grad_rows(bool center, int64_t cols, const KernelArgs& args, int64_t begin, int64_t end,
                    float* dscale, float* dbias) {
  const TensorView &dy = args.in[0], &x = args.in[1], &scale = args.in[2], &dx = args.out[0];
  const float* means = center ? args.in[3].as<float>() : nullptr;
  const float* inv_stds = args.in[center ? 4 : 3].as<float>();
  const size_t added = center ? 5 : 4;
  const TensorView* other = args.in.size() > added ? &args.in[added] : nullptr;
  const auto n_inv = static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(cols, 1)));
  alignas(64) float db[kBlock], xb[kBlock], sb[kBlock], ob[kBlock];
  for (int64_t r = begin; r < end; ++r) {
    const float mean = center ? means[r] : 0.0f, inv_std = inv_stds[r];
    double g_total = 0, gh_total = 0;
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* d = floats(dy, r * cols + c, n, db);
      const float* v = floats(x, r * cols + c, n, xb);
      const float* s = floats(scale, c, n, sb);
      float g_sum = 0, gh_sum = 0;
      float* ds = dscale + c;
#pragma omp simd reduction(+ : g_sum, gh_sum)
      for (int64_t i = 0; i < n; ++i) {
        const float h = (v[i] - mean) * inv_std, g = d[i] * s[i];
        ds[i] += d[i] * h;
        g_sum += g;
        gh_sum += g * h;
      }
      if (center) {
        float* b = dbias + c;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) b[i] += d[i];
      }
      g_total += static_cast<double>(g_sum);
      gh_total += static_cast<double>(gh_sum);
    });
    const float g_mean = center ? static_cast<float>(g_total) * n_inv : 0.0f;
    const float gh_mean = static_cast<float>(gh_total) * n_inv;
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* d = floats(dy, r * cols + c, n, db);
      const float* v = floats(x, r * cols + c, n, xb);
      const float* s = floats(scale, c, n, sb);
      // `other` may lie where dx does.
      float* out = other ? ob : place(dx, r * cols + c, ob);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const float h = (v[i] - mean) * inv_std;
        out[i] = inv_std * (d[i] * s[i] - g_mean - h * gh_mean);
      }
      if (other) {
        add_rounded(dx, r * cols + c, n, out, *other);
      } else {
        put(dx, r * cols + c, n, out);
      }
    });
  }
}

/// Adds a row of each chunk, in their order: `terms` has one every `stride` numbers.
void sum_chunks(const float* terms, int64_t chunks, int64_t stride, int64_t cols,
                const TensorView& out) {
  parallel_ranges(cols, 1024, [&](int64_t begin, int64_t end) {
    alignas(64) double sums[kBlock];
    alignas(64) float buffer[kBlock];
    for_blocks(end - begin, [&](int64_t at, int64_t n) {
      std::fill_n(sums, n, 0.0);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const float* of_chunk = terms + chunk * stride + begin + at;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(of_chunk[i]);
      }
      float* rounded = place(out, begin + at, buffer);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<float>(sums[i]);
      put(out, begin + at, n, rounded);
    });
  });
}

void norm_grad(bool center, Rows size, const KernelArgs& args) {
  const int64_t rows = size.rows, cols = size.cols;
  const int64_t chunks = std::min(kChunks, rows), parts = center ? 2 : 1;
  float* partial = static_cast<float*>(args.workspace);
  const int64_t of_chunk = std::max<int64_t>(1, rows * cols / std::max<int64_t>(chunks, 1));
  parallel_ranges(chunks, std::max<int64_t>(1, 16384 / of_chunk), [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float* dscale = partial + chunk * parts * cols;
      std::fill_n(dscale, parts * cols, 0.0f);
      const auto compute =
          are_few_of_gradient(cols, args.out[0].type.dtype) ? norm_grad_tiles : norm_grad_rows;
      compute(center, cols, args, rows * chunk / chunks, rows * (chunk + 1) / chunks, dscale,
              dscale + cols);
    }
  });
  for (int64_t part = 0; part < parts; ++part)
    sum_chunks(partial + part * cols, chunks, parts * cols, cols,
               args.out[static_cast<size_t>(1 + part)]);
}

KernelImpl forward(const char* op, bool center) {
  return {op, "cpu:simd", refuse_other_floats, [center](const KernelCall& call) {
            const Rows size(call.node, call.in[0].shape);
            const auto eps = static_cast<float>(call.node.attrs.f("eps"));
            const auto rows = [=](const KernelArgs& args, int64_t begin, int64_t end) {
              norm(center, size.cols, eps, args, begin, end);
            };
            PreparedKernel out{[=](const KernelArgs& args) {
                                 parallel_ranges(
                                     size.rows, row_grain(size.cols),
                                     [&](int64_t begin, int64_t end) { rows(args, begin, end); });
                               },
                               0, "cpu:simd"};
            const auto rank = static_cast<int64_t>(call.in[0].shape.size());
            if (call.node.attrs.i("axis") == rank - 1) out.run_rows = rows;
            return out;
          }};
}

KernelImpl backward(const char* op, bool center) {
  return {op, "cpu:simd", refuse_other_floats, [center](const KernelCall& call) {
            const Rows size(call.node, call.in[1].shape);
            return PreparedKernel{[=](const KernelArgs& args) { norm_grad(center, size, args); },
                                  grad_workspace(size, center), "cpu:simd"};
          }};
}

}  // namespace

KernelList norm_kernels() {
  return {forward("layer_norm", true), backward("layer_norm_grad", true),
          forward("rms_norm", false), backward("rms_norm_grad", false)};
}

}  // namespace shardrun::cpu
