// Reference layer_norm, rms_norm and their gradients, row by row in f64.
#include <cmath>

#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

struct Rows {
  size_t rows, cols;
};

Rows rows_of(const Node& node, const Shape& shape) {
  const auto axis = static_cast<std::ptrdiff_t>(node.attrs.i("axis"));
  return {static_cast<size_t>(element_count(Shape(shape.begin(), shape.begin() + axis))),
          static_cast<size_t>(element_count(Shape(shape.begin() + axis, shape.end())))};
}

void layer_norm(const Node& node, const KernelArgs& args) {
  const auto [rows, cols] = rows_of(node, args.in[0].type.shape);
  const double eps = node.attrs.f("eps"), n = static_cast<double>(cols);
  const Doubles x = load(args.in[0]), scale = load(args.in[1]);
  const Doubles bias = args.in.size() == 3 ? load(args.in[2]) : Doubles(cols, 0.0);
  Doubles y(x.size()), means(rows), inv_stds(rows);
  for (size_t r = 0; r < rows; ++r) {
    const double* row = x.data() + r * cols;
    double sum = 0, squares = 0;
    for (size_t c = 0; c < cols; ++c) sum += row[c];
    const double mean = sum / n;
    for (size_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const double inv_std = 1 / std::sqrt(squares / n + eps);
    for (size_t c = 0; c < cols; ++c)
      y[r * cols + c] = (row[c] - mean) * inv_std * scale[c] + bias[c];
    means[r] = mean, inv_stds[r] = inv_std;
  }
  store(y, args.out[0]);
  store(means, args.out[1]);
  store(inv_stds, args.out[2]);
}

/// The operand behind the others, if there is one.
void add_to(Doubles& dx, const KernelArgs& args, size_t operand) {
  if (args.in.size() <= operand) return;
  const Doubles other = load(args.in[operand]);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] += other[i];
}

// With h = (x - mean) * inv_std and g = dy * scale:
//   dx = inv_std * (g - mean(g) - h * mean(g h)), dscale = sum over rows of dy h, dbias = of dy.
void layer_norm_grad(const Node& node, const KernelArgs& args) {
  const auto [rows, cols] = rows_of(node, args.in[1].type.shape);
  const double n = static_cast<double>(cols);
  const Doubles dy = load(args.in[0]), x = load(args.in[1]), scale = load(args.in[2]);
  const Doubles means = load(args.in[3]), inv_stds = load(args.in[4]);
  Doubles dx(x.size()), dscale(cols), dbias(cols), h(cols);
  for (size_t r = 0; r < rows; ++r) {
    double g_sum = 0, gh_sum = 0;
    for (size_t c = 0; c < cols; ++c) {
      const double d = dy[r * cols + c];
      h[c] = (x[r * cols + c] - means[r]) * inv_stds[r];
      dscale[c] += d * h[c];
      dbias[c] += d;
      g_sum += d * scale[c];
      gh_sum += d * scale[c] * h[c];
    }
    for (size_t c = 0; c < cols; ++c) {
      dx[r * cols + c] =
          inv_stds[r] * (dy[r * cols + c] * scale[c] - g_sum / n - h[c] * gh_sum / n);
    }
  }
  add_to(dx, args, 5);
  store(dx, args.out[0]);
  store(dscale, args.out[1]);
  store(dbias, args.out[2]);
}

void rms_norm(const Node& node, const KernelArgs& args) {
  const auto [rows, cols] = rows_of(node, args.in[0].type.shape);
  const double eps = node.attrs.f("eps");
  const Doubles x = load(args.in[0]), scale = load(args.in[1]);
  Doubles y(x.size()), inv_stds(rows);
  for (size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (size_t c = 0; c < cols; ++c) squares += x[r * cols + c] * x[r * cols + c];
    inv_stds[r] = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (size_t c = 0; c < cols; ++c) y[r * cols + c] = x[r * cols + c] * inv_stds[r] * scale[c];
  }
  store(y, args.out[0]);
  store(inv_stds, args.out[1]);
}

// With h = x * inv_std and g = dy * scale: dx = inv_std * (g - h * mean(g h)).
void rms_norm_grad(const Node& node, const KernelArgs& args) {
  const auto [rows, cols] = rows_of(node, args.in[1].type.shape);
  const Doubles dy = load(args.in[0]), x = load(args.in[1]), scale = load(args.in[2]);
  const Doubles inv_stds = load(args.in[3]);
  Doubles dx(x.size()), dscale(cols);
  for (size_t r = 0; r < rows; ++r) {
    double gh_sum = 0;
    for (size_t c = 0; c < cols; ++c) {
      const double d = dy[r * cols + c], h = x[r * cols + c] * inv_stds[r];
      dscale[c] += d * h;
      gh_sum += d * scale[c] * h;
    }
    for (size_t c = 0; c < cols; ++c) {
      const double h = x[r * cols + c] * inv_stds[r];
      dx[r * cols + c] =
          inv_stds[r] * (dy[r * cols + c] * scale[c] - h * gh_sum / static_cast<double>(cols));
    }
  }
  add_to(dx, args, 4);
  store(dx, args.out[0]);
  store(dscale, args.out[1]);
}

}  // namespace

KernelList norm_kernels() {
  return {plain("layer_norm", layer_norm), plain("layer_norm_grad", layer_norm_grad),
          plain("rms_norm", rms_norm), plain("rms_norm_grad", rms_norm_grad)};
}

}  // namespace shardrun::reference
