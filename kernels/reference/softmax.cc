// Reference softmax, log_softmax, cross_entropy and their gradients in f64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/doubles.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

// Calls f(position of a line's first element, stride, length) for every line along `axis`.
template <class F>
void for_each_line(const Node& node, const Shape& shape, F&& f) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  if (element_count(shape) == 0) return;
  const auto length = static_cast<size_t>(shape[axis]);
  const auto stride = static_cast<size_t>(row_major_strides(shape)[axis]);
  const size_t outer = static_cast<size_t>(element_count(shape)) / (stride * length);
  for (size_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < stride; ++i) f(o * length * stride + i, stride, length);
  }
}

// max + log(sum(exp(x - max))); -inf for a line of -inf.
double log_sum_exp(const double* x, size_t stride, size_t length) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t i = 0; i < length; ++i) top = std::max(top, x[i * stride]);
  if (std::isinf(top) && top < 0) return top;
  for (size_t i = 0; i < length; ++i) sum += std::exp(x[i * stride] - top);
  return top + std::log(sum);
}

void softmax(const Node& node, const KernelArgs& args) {
  Doubles x = load(args.in[0]);
  for_each_line(node, args.in[0].type.shape, [&](size_t at, size_t stride, size_t length) {
    double top = x[at], sum = 0;
    for (size_t i = 0; i < length; ++i) top = std::max(top, x[at + i * stride]);
    for (size_t i = 0; i < length; ++i)
      sum += x[at + i * stride] = std::exp(x[at + i * stride] - top);
    for (size_t i = 0; i < length; ++i) x[at + i * stride] /= sum;
  });
  store(x, args.out[0]);
}

void log_softmax(const Node& node, const KernelArgs& args) {
  Doubles x = load(args.in[0]);
  for_each_line(node, args.in[0].type.shape, [&](size_t at, size_t stride, size_t length) {
    const double lse = log_sum_exp(&x[at], stride, length);
    for (size_t i = 0; i < length; ++i) x[at + i * stride] -= lse;
  });
  store(x, args.out[0]);
}

// dx = y * (dy - sum(dy y)).
void softmax_grad(const Node& node, const KernelArgs& args) {
  Doubles dy = load(args.in[0]);
  const Doubles y = load(args.in[1]);
  for_each_line(node, args.in[0].type.shape, [&](size_t at, size_t stride, size_t length) {
    double dot = 0;
    for (size_t i = 0; i < length; ++i) dot += dy[at + i * stride] * y[at + i * stride];
    for (size_t i = 0; i < length; ++i)
      dy[at + i * stride] = y[at + i * stride] * (dy[at + i * stride] - dot);
  });
  store(dy, args.out[0]);
}

// dx = dy - exp(y) * sum(dy).
void log_softmax_grad(const Node& node, const KernelArgs& args) {
  Doubles dy = load(args.in[0]);
  const Doubles y = load(args.in[1]);
  for_each_line(node, args.in[0].type.shape, [&](size_t at, size_t stride, size_t length) {
    double sum = 0;
    for (size_t i = 0; i < length; ++i) sum += dy[at + i * stride];
    for (size_t i = 0; i < length; ++i) dy[at + i * stride] -= std::exp(y[at + i * stride]) * sum;
  });
  store(dy, args.out[0]);
}

std::vector<int64_t> load_labels(const TensorView& view) {
  std::vector<int64_t> out(static_cast<size_t>(view.count()));
  convert(view.data, view.type.dtype, out.data(), DType::i64, view.count());
  return out;
}

void cross_entropy(const Node& node, const KernelArgs& args) {
  const Doubles logits = load(args.in[0]);
  const std::vector<int64_t> labels = load_labels(args.in[1]);
  const int64_t ignore = node.attrs.i("ignore_index", -100);
  const auto classes = static_cast<size_t>(args.in[0].type.shape.back());
  Doubles loss(labels.size()), lse(labels.size());
  for (size_t t = 0; t < labels.size(); ++t) {
    lse[t] = log_sum_exp(logits.data() + t * classes, 1, classes);
    if (labels[t] == ignore) continue;
    SR_REQUIRE(labels[t] >= 0 && labels[t] < static_cast<int64_t>(classes), invalid_input, "label ",
               labels[t], " of token ", t, " is outside [0, ", classes, ")");
    loss[t] = lse[t] - logits[t * classes + static_cast<size_t>(labels[t])];
  }
  store(loss, args.out[0]);
  store(lse, args.out[1]);
}

void cross_entropy_sums(const Node& node, const KernelArgs& args) {
  const Doubles logits = load(args.in[0]), tops = load(args.in[2]);
  const std::vector<int64_t> labels = load_labels(args.in[1]);
  const int64_t ignore = node.attrs.i("ignore_index", -100), offset = node.attrs.i("offset", 0),
                all = node.attrs.i("classes");
  const auto classes = static_cast<size_t>(args.in[0].type.shape.back());
  Doubles sums(2 * labels.size());
  for (size_t t = 0; t < labels.size(); ++t) {
    const double* row = logits.data() + t * classes;
    const bool none = std::isinf(tops[t]) && tops[t] < 0;
    for (size_t v = 0; v < classes && !none; ++v) sums[2 * t] += std::exp(row[v] - tops[t]);
    if (labels[t] == ignore) continue;
    SR_REQUIRE(labels[t] >= 0 && labels[t] < all, invalid_input, "label ", labels[t], " of token ",
               t, " is outside [0, ", all, ")");
    const int64_t hit = labels[t] - offset;
    if (hit >= 0 && hit < static_cast<int64_t>(classes))
      sums[2 * t + 1] = row[static_cast<size_t>(hit)];
  }
  store(sums, args.out[0]);
}

void cross_entropy_join(const Node& node, const KernelArgs& args) {
  const std::vector<int64_t> labels = load_labels(args.in[0]);
  const Doubles tops = load(args.in[1]), sums = load(args.in[2]);
  const int64_t ignore = node.attrs.i("ignore_index", -100);
  Doubles loss(labels.size()), lse(labels.size());
  for (size_t t = 0; t < labels.size(); ++t) {
    const bool none = std::isinf(tops[t]) && tops[t] < 0;
    lse[t] = none ? tops[t] : tops[t] + std::log(sums[2 * t]);
    if (labels[t] != ignore) loss[t] = lse[t] - sums[2 * t + 1];
  }
  store(loss, args.out[0]);
  store(lse, args.out[1]);
}

void cross_entropy_grad(const Node& node, const KernelArgs& args) {
  const Doubles dloss = load(args.in[0]), lse = load(args.in[3]);
  Doubles logits = load(args.in[1]);
  const std::vector<int64_t> labels = load_labels(args.in[2]);
  const int64_t ignore = node.attrs.i("ignore_index", -100), offset = node.attrs.i("offset", 0);
  const auto classes = static_cast<size_t>(args.in[1].type.shape.back());
  for (size_t t = 0; t < labels.size(); ++t) {
    for (size_t v = 0; v < classes; ++v) {
      double& x = logits[t * classes + v];
      const double hit = labels[t] == static_cast<int64_t>(v) + offset ? 1.0 : 0.0;
      x = labels[t] == ignore ? 0.0 : dloss[t] * (std::exp(x - lse[t]) - hit);
    }
  }
  store(logits, args.out[0]);
}

void cross_entropy_and_grad(const Node& node, const KernelArgs& args) {
  Tensor lse(args.in[0].type);
  const TensorView lse_view{lse.data(), lse.type()};
  const std::vector<TensorView> read = {args.in[1], args.in[2]}, left = {args.out[0], lse_view};
  cross_entropy(node, {read, left});
  const std::vector<TensorView> all = {args.in[0], args.in[1], args.in[2], lse_view},
                                dlogits = {args.out[1]};
  cross_entropy_grad(node, {all, dlogits});
}

}  // namespace

KernelList softmax_kernels() {
  return {plain("softmax", softmax),
          plain("softmax_grad", softmax_grad),
          plain("log_softmax", log_softmax),
          plain("log_softmax_grad", log_softmax_grad),
          plain("cross_entropy", cross_entropy),
          plain("cross_entropy_sums", cross_entropy_sums),
          plain("cross_entropy_join", cross_entropy_join),
          plain("cross_entropy_grad", cross_entropy_grad),
          plain("cross_entropy_and_grad", cross_entropy_and_grad)};
}

}  // namespace shardrun::reference
