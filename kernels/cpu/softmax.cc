// softmax and log_softmax along the last dim, cross_entropy, and their gradients: rows over
// threads.
#include <atomic>

#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

struct TopAndSum {
  float top;
  double sum;  // of exp(x - top)
};

float top_of_row(const TensorView& x, int64_t at, int64_t cols) {
  alignas(64) float buffer[kBlock];
  float top = kNever;
  for_blocks(cols, [&](int64_t c, int64_t n) {
    const float* v = floats(x, at + c, n, buffer);
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; ++i) top = v[i] > top ? v[i] : top;
  });
  return top;
}

// The sum of exp(x - top); NaN in a row makes it NaN.
double sum_of_row(const TensorView& x, int64_t at, int64_t cols, float top) {
  alignas(64) float buffer[kBlock];
  double total = 0;
  for_blocks(cols, [&](int64_t c, int64_t n) {
    const float* v = floats(x, at + c, n, buffer);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += exp(v[i] - top);
    total += static_cast<double>(sum);
  });
  return total;
}

TopAndSum scan_row(const TensorView& x, int64_t at, int64_t cols) {
  const float top = top_of_row(x, at, cols);
  return {top, sum_of_row(x, at, cols, top)};
}

// `row`, which may be x's, holds the exponentials until their sum is known.
void softmax_row(const TensorView& x, int64_t at, int64_t cols, float* row) {
  alignas(64) float buffer[kBlock];
  const float top = top_of_row(x, at, cols);
  double total = 0;
  for_blocks(cols, [&](int64_t c, int64_t n) {
    const float* v = floats(x, at + c, n, buffer);
    float* out = row + c;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      out[i] = exp(v[i] - top);
      sum += out[i];
    }
    total += static_cast<double>(sum);
  });
  const auto inv = static_cast<float>(1 / total);
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) row[i] *= inv;
}

void softmax_tiles(bool log_of, int64_t cols, const KernelArgs& args, int64_t begin, int64_t end) {
  RowTile x(cols);
  for_tiles(begin, end, [&](int64_t row, int64_t n) {
    x.load(args.in[0], row, n);
    const Lanes top = top_of(x);
    if (log_of) {
      const Lanes lse = log(x.sum_of_exponentials(top));
      for (int64_t c = 0; c < cols; ++c) x[c] = x[c] - top - lse;
    } else {
      x.exponentiate(top);
      Lanes sum{};
      for (int64_t c = 0; c < cols; ++c) sum += x[c];
      const Lanes inverse = 1.0f / sum;
      for (int64_t c = 0; c < cols; ++c) x[c] *= inverse;
    }
    x.store(args.out[0], row, n);
  });
}

/// Columns of which the exponentials are kept where the result is not f32 itself.
constexpr int64_t kKeptColumns = 8192;

void softmax(bool log_of, int64_t cols, const KernelArgs& args, int64_t begin, int64_t end) {
  if (in_tiles(cols, args.in[0].type.dtype)) return softmax_tiles(log_of, cols, args, begin, end);
  const TensorView &x = args.in[0], &y = args.out[0];
  alignas(64) float xb[kBlock], yb[kBlock], kept[kKeptColumns];
  for (int64_t r = begin; r < end; ++r) {
    const bool f32 = y.type.dtype == DType::f32;
    if (!log_of && (f32 || cols <= kKeptColumns)) {
      float* row = f32 ? y.as<float>() + r * cols : kept;
      softmax_row(x, r * cols, cols, row);
      put(y, r * cols, cols, row);
      continue;
    }
    const auto [top, sum] = scan_row(x, r * cols, cols);
    const auto inv = static_cast<float>(1 / sum), lse = static_cast<float>(std::log(sum));
    for_blocks(cols, [&, top = top](int64_t c, int64_t n) {
      const float* v = floats(x, r * cols + c, n, xb);
      float* out = place(y, r * cols + c, yb);
      if (log_of) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = v[i] - top - lse;
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = exp(v[i] - top) * inv;
      }
      put(y, r * cols + c, n, out);
    });
  }
}

void softmax_grad_tiles(bool log_of, int64_t cols, const KernelArgs& args, int64_t begin,
                        int64_t end) {
  RowTile d(cols), y(cols);
  for_tiles(begin, end, [&](int64_t row, int64_t n) {
    d.load(args.in[0], row, n);
    y.load(args.in[1], row, n);
    if (log_of) y.exponentiate(Lanes{});
    Lanes dot{};
    for (int64_t c = 0; c < cols; ++c) dot += log_of ? d[c] : d[c] * y[c];
    for (int64_t c = 0; c < cols; ++c) d[c] = log_of ? d[c] - y[c] * dot : y[c] * (d[c] - dot);
    d.store(args.out[0], row, n);
  });
}

void softmax_grad(bool log_of, int64_t cols, const KernelArgs& args, int64_t begin, int64_t end) {
  if (args.in[0].type.dtype == DType::bf16 && cols < 4 * kLanes)
    return softmax_grad_tiles(log_of, cols, args, begin, end);
  const TensorView &dy = args.in[0], &y = args.in[1], &dx = args.out[0];
  alignas(64) float db[kBlock], yb[kBlock], ob[kBlock];
  for (int64_t r = begin; r < end; ++r) {
    double total = 0;
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* d = floats(dy, r * cols + c, n, db);
      const float* p = floats(y, r * cols + c, n, yb);
      float sum = 0;
      if (log_of) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) sum += d[i];
      } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; ++i) sum += d[i] * p[i];
      }
      total += static_cast<double>(sum);
    });
    const auto dot = static_cast<float>(total);
    for_blocks(cols, [&](int64_t c, int64_t n) {
      const float* d = floats(dy, r * cols + c, n, db);
      const float* p = floats(y, r * cols + c, n, yb);
      float* out = place(dx, r * cols + c, ob);
      if (log_of) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = d[i] - exp(p[i]) * dot;
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = p[i] * (d[i] - dot);
      }
      put(dx, r * cols + c, n, out);
    });
  }
}

int64_t label_at(const TensorView& labels, int64_t i) {
  return labels.type.dtype == DType::i64 ? labels.as<int64_t>()[i] : labels.as<int32_t>()[i];
}

/// Of token t; sets `bad` if its label is out of range.
struct Entropy {
  float loss = 0, lse = 0;
};
Entropy entropy(const TensorView& logits, int64_t t, int64_t label, int64_t ignore,
                std::atomic<int64_t>& bad) {
  const int64_t classes = logits.type.shape.back();
  const auto [top, sum] = scan_row(logits, t * classes, classes);
  const double lse =
      top == kNever ? static_cast<double>(kNever) : static_cast<double>(top) + std::log(sum);
  Entropy out{0, static_cast<float>(lse)};
  if (label == ignore) return out;
  if (label < 0 || label >= classes) {
    bad = t;
  } else {
    out.loss = static_cast<float>(lse - static_cast<double>(get(logits, t * classes + label)));
  }
  return out;
}

/// The same of tokens [token, token + n), n <= 16, whose logits are in `x`.
struct Entropies {
  Lanes loss{}, lse{};
};
Entropies entropies(RowTile& x, const TensorView& labels, int64_t token, int64_t n, int64_t ignore,
                    std::atomic<int64_t>& bad) {
  const Lanes top = top_of(x), sum = log(x.sum_of_exponentials(top));
  Entropies out{{}, top == kNever ? top : top + sum};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = label_at(labels, token + i);
    if (label == ignore) continue;
    if (label < 0 || label >= x.columns()) {
      bad = token + i;
    } else {
      out.loss[i] = sum[i] - (x[label][i] - top[i]);
    }
  }
  return out;
}

/// Classes of which gradients are faster 16 tokens at a time: all of these are in_tiles.
bool are_few(int64_t classes) { return classes < 2 * kLanes; }

/// Their logits become the gradient. `offset`: the label of the first class.
void make_gradients(RowTile& x, const TensorView& labels, int64_t token, int64_t n, int64_t ignore,
                    int64_t offset, const float* dloss, const Lanes& lse) {
  const Lanes scale = get_each(dloss + token, n);
  Lanes ignored{};
  x.exponentiate(lse);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t label = label_at(labels, token + i), hit = label - offset;
    ignored[i] = label == ignore ? 1.0f : 0.0f;
    if (hit >= 0 && hit < x.columns()) x[hit][i] -= 1.0f;
  }
  for (int64_t c = 0; c < x.columns(); ++c) x[c] = ignored != 0.0f ? Lanes{} : scale * x[c];
}

void require_no_bad(int64_t token, const TensorView& labels, int64_t classes) {
  SR_REQUIRE(token < 0, invalid_input, "label ", label_at(labels, token), " of token ", token,
             " is outside [0, ", classes, ")");
}

void cross_entropy(int64_t ignore, const KernelArgs& args) {
  const TensorView &logits = args.in[0], &labels = args.in[1];
  const int64_t classes = logits.type.shape.back();
  std::atomic<int64_t> bad{-1};
  float *losses = args.out[0].as<float>(), *lses = args.out[1].as<float>();
  parallel_ranges(labels.count(), row_grain(classes), [&](int64_t begin, int64_t end) {
    if (in_tiles(classes, logits.type.dtype)) {
      RowTile x(classes);
      return for_tiles(begin, end, [&](int64_t t, int64_t n) {
        x.load(logits, t, n);
        const Entropies e = entropies(x, labels, t, n, ignore, bad);
        put_each(losses + t, e.loss, n);
        put_each(lses + t, e.lse, n);
      });
    }
    for (int64_t t = begin; t < end; ++t) {
      const Entropy e = entropy(logits, t, label_at(labels, t), ignore, bad);
      losses[t] = e.loss;
      lses[t] = e.lse;
    }
  });
  require_no_bad(bad, labels, classes);
}

/// Of the classes from `offset` on, of `classes` in all.
void cross_entropy_sums(int64_t ignore, int64_t offset, int64_t classes, const KernelArgs& args) {
  const TensorView &logits = args.in[0], &labels = args.in[1], &tops = args.in[2];
  const int64_t here = logits.type.shape.back();
  std::atomic<int64_t> bad{-1};
  auto* sums = args.out[0].as<float>();
  parallel_ranges(labels.count(), row_grain(here), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float top = get(tops, t);
      const int64_t label = label_at(labels, t), hit = label - offset;
      sums[2 * t] =
          top == kNever ? 0.0f : static_cast<float>(sum_of_row(logits, t * here, here, top));
      sums[2 * t + 1] = 0;
      if (label == ignore) continue;
      if (label < 0 || label >= classes) bad = t;
      if (hit >= 0 && hit < here) sums[2 * t + 1] = get(logits, t * here + hit);
    }
  });
  require_no_bad(bad, labels, classes);
}

void cross_entropy_join(int64_t ignore, const KernelArgs& args) {
  const TensorView &labels = args.in[0], &tops = args.in[1];
  const auto* sums = args.in[2].as<float>();
  float *losses = args.out[0].as<float>(), *lses = args.out[1].as<float>();
  parallel_ranges(labels.count(), row_grain(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const double top = static_cast<double>(get(tops, t)),
                   lse = top + std::log(static_cast<double>(sums[2 * t]));
      lses[t] = static_cast<float>(lse);
      losses[t] = label_at(labels, t) == ignore
                      ? 0.0f
                      : static_cast<float>(lse - static_cast<double>(sums[2 * t + 1]));
    }
  });
}

/// Row t of the logits' gradient. `hit`: the label's place in the row, if it is in it.
void dlogits_row(const TensorView& logits, const TensorView& out, int64_t t, float dloss, float lse,
                 int64_t hit, bool ignored) {
  const int64_t classes = logits.type.shape.back();
  alignas(64) float xb[kBlock], ob[kBlock];
  for_blocks(classes, [&](int64_t c, int64_t n) {
    const float* v = floats(logits, t * classes + c, n, xb);
    float* y = place(out, t * classes + c, ob);
    if (ignored) {
      std::fill_n(y, n, 0.0f);
    } else {
      const int64_t at = hit - c;
      const float at_hit =
          at >= 0 && at < n ? dloss * (exp(v[at] - lse) - 1.0f) : 0.0f;  // before y is written
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) y[i] = dloss * exp(v[i] - lse);
      if (at >= 0 && at < n) y[at] = at_hit;
    }
    put(out, t * classes + c, n, y);
  });
}

void cross_entropy_grad(int64_t ignore, int64_t offset, const KernelArgs& args) {
  const TensorView &logits = args.in[1], &labels = args.in[2];
  const float *dloss = args.in[0].as<float>(), *lse = args.in[3].as<float>();
  const int64_t classes = logits.type.shape.back();
  parallel_ranges(labels.count(), row_grain(classes), [&](int64_t begin, int64_t end) {
    if (are_few(classes)) {
      RowTile x(classes);
      return for_tiles(begin, end, [&](int64_t t, int64_t n) {
        x.load(logits, t, n);
        make_gradients(x, labels, t, n, ignore, offset, dloss, get_each(lse + t, n));
        x.store(args.out[0], t, n);
      });
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t label = label_at(labels, t);
      dlogits_row(logits, args.out[0], t, dloss[t], lse[t], label - offset, label == ignore);
    }
  });
}

/// A row of logits comes from memory once, and its gradient may be written over it.
void cross_entropy_and_grad(int64_t ignore, const KernelArgs& args) {
  const TensorView &logits = args.in[1], &labels = args.in[2];
  const float* dloss = args.in[0].as<float>();
  auto* losses = args.out[0].as<float>();
  const int64_t classes = logits.type.shape.back();
  const bool tiles = in_tiles(classes, logits.type.dtype);
  std::atomic<int64_t> bad{-1};
  parallel_ranges(labels.count(), row_grain(classes), [&](int64_t begin, int64_t end) {
    RowTile x(classes);
    for (int64_t t = begin; t < end; t += tiles ? kLanes : 1) {
      const int64_t n = tiles ? std::min(kLanes, end - t) : 1;
      Entropies e;
      if (tiles) {
        x.load(logits, t, n);
        e = entropies(x, labels, t, n, ignore, bad);
      } else {
        const Entropy one = entropy(logits, t, label_at(labels, t), ignore, bad);
        e.loss[0] = one.loss, e.lse[0] = one.lse;
      }
      put_each(losses + t, e.loss, n);
      if (are_few(classes)) {
        make_gradients(x, labels, t, n, ignore, 0, dloss, e.lse);
        x.store(args.out[1], t, n);
        continue;
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t label = label_at(labels, t + i);
        dlogits_row(logits, args.out[1], t + i, dloss[t + i], e.lse[i], label, label == ignore);
      }
    }
  });
  require_no_bad(bad, labels, classes);
}

std::optional<std::string> refuses_inner_axis(const KernelCall& call) {
  const auto rank = static_cast<int64_t>(call.in[0].shape.size());
  if (call.node.attrs.i("axis") != rank - 1) {
    return str("works along the last dim, not ", call.node.attrs.i("axis"), " of ", rank);
  }
  return refuse_other_floats(call);
}

using Rows = void (*)(bool log_of, int64_t cols, const KernelArgs&, int64_t begin, int64_t end);

KernelImpl rowwise(const char* op, bool log_of, Rows run) {
  return {op, "cpu:simd", refuses_inner_axis, [=](const KernelCall& call) {
            const int64_t cols = call.in[0].shape.back();
            const auto rows = [=](const KernelArgs& args, int64_t begin, int64_t end) {
              run(log_of, cols, args, begin, end);
            };
            return PreparedKernel{
                [=](const KernelArgs& args) {
                  parallel_ranges(cols == 0 ? 0 : args.out[0].count() / cols, row_grain(cols),
                                  [&](int64_t begin, int64_t end) { rows(args, begin, end); });
                },
                0, "cpu:simd", rows};
          }};
}

}  // namespace

KernelList softmax_kernels() {
  return {rowwise("softmax", false, softmax),
          rowwise("softmax_grad", false, softmax_grad),
          rowwise("log_softmax", true, softmax),
          rowwise("log_softmax_grad", true, softmax_grad),
          {"cross_entropy", "cpu:simd", refuse_other_floats,
           [](const KernelCall& call) {
             const int64_t ignore = call.node.attrs.i("ignore_index", -100);
             return PreparedKernel{[=](const KernelArgs& args) { cross_entropy(ignore, args); }, 0,
                                   "cpu:simd"};
           }},
          {"cross_entropy_sums", "cpu:simd", refuse_other_floats,
           [](const KernelCall& call) {
             const Attrs& attrs = call.node.attrs;
             const int64_t ignore = attrs.i("ignore_index", -100), offset = attrs.i("offset", 0),
                           classes = attrs.i("classes");
             return PreparedKernel{
                 [=](const KernelArgs& args) { cross_entropy_sums(ignore, offset, classes, args); },
                 0, "cpu:simd"};
           }},
          {"cross_entropy_join", "cpu:simd", refuse_other_floats,
           [](const KernelCall& call) {
             const int64_t ignore = call.node.attrs.i("ignore_index", -100);
             return PreparedKernel{
                 [=](const KernelArgs& args) { cross_entropy_join(ignore, args); }, 0, "cpu:simd"};
           }},
          {"cross_entropy_and_grad", "cpu:simd", refuse_other_floats,
           [](const KernelCall& call) {
             const int64_t ignore = call.node.attrs.i("ignore_index", -100);
             return PreparedKernel{
                 [=](const KernelArgs& args) { cross_entropy_and_grad(ignore, args); }, 0,
                 "cpu:simd"};
           }},
          {"cross_entropy_grad", "cpu:simd", refuse_other_floats, [](const KernelCall& call) {
             const int64_t ignore = call.node.attrs.i("ignore_index", -100);
             const int64_t offset = call.node.attrs.i("offset", 0);
             return PreparedKernel{
                 [=](const KernelArgs& args) { cross_entropy_grad(ignore, offset, args); }, 0,
                 "cpu:simd"};
           }}};
}

}  // namespace shardrun::cpu
