// softmax, log_softmax, cross_entropy and their gradients: a team for each row; a thread for each
// line where the lines do not lie dense.
#pragma once

#include <cmath>

#include "device/cuda/faults.h"
#include "kernels/cuda/own/lines.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// Calls f(n, element) for parts of a line: n() elements that lie dense.
template <class T, class Team, class F>
SR_HOST_DEVICE void elements(const Team& team, const Lines& lines, int64_t line, const F& f) {
  const int64_t at = lines.at(line);
  if (lines.stride == 1) {
    columns<T>(team, at, lines.length, [&](auto n, int64_t c) { f(n, at + c); });
  } else {
    for (int64_t i = team.rank(); i < lines.length; i += team.size())
      f(Width<1>{}, at + i * lines.stride);
  }
}

/// exp for sums and results of T: of bf16, by the GPU's own power of two, a part in 2^20 off.
template <class T>
SR_HOST_DEVICE float exp_for(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) return __expf(x);
#endif
  return expf(x);
}

/// Of a line: its maximum, and the sum of exp(x - maximum); NaN where an element is.
struct TopAndSum {
  float top, sum;
};

template <class T, class Team>
SR_HOST_DEVICE TopAndSum top_and_sum(const Team& team, const T* x, const Lines& lines,
                                     int64_t line) {
  const auto shift = [](float top) { return top == -INFINITY ? 0.0f : top; };
  float top = -INFINITY, sum = 0;
  elements<T>(team, lines, line, [&](auto n, int64_t at) {
    float v[n()];
    read(x + at, v);
    float higher = top;
    for (float each : v) higher = each > higher ? each : higher;
    if (higher > top) {
      sum *= expf(top - higher);
      top = higher;
    }
    const float from = shift(top);
    for (float each : v) sum += exp_for<T>(each - from);
  });
  const float all = team.max(top);
  return {all, team.sum(sum * expf(top - shift(all)))};
}

template <class T>
struct SoftmaxLine {
  const T* x;
  T* y;
  Lines lines;
  bool log_of;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t line) const {
    const TopAndSum of = top_and_sum(team, x, lines, line);
    const float inverse = 1.0f / of.sum, log_sum = logf(of.sum);
    elements<T>(team, lines, line, [&](auto n, int64_t at) {
      float v[n()];
      read(x + at, v);
      for (float& each : v) each = log_of ? each - of.top - log_sum : expf(each - of.top) * inverse;
      write(y + at, v);
    });
  }
};

/// dx = y (dy - sum(dy y)); of the logarithm: dy - exp(y) sum(dy).
template <class T>
struct SoftmaxGradLine {
  const T *dy, *y;
  T* dx;
  Lines lines;
  bool log_of;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t line) const {
    float sum = 0;
    elements<T>(team, lines, line, [&](auto n, int64_t at) {
      float d[n()], p[n()];
      read_both(dy + at, y + at, d, p);
      for (int i = 0; i < n(); ++i) sum += log_of ? d[i] : d[i] * p[i];
    });
    sum = team.sum(sum);
    elements<T>(team, lines, line, [&](auto n, int64_t at) {
      float d[n()], p[n()];
      read_both(dy + at, y + at, d, p);
      for (int i = 0; i < n(); ++i) d[i] = log_of ? d[i] - expf(p[i]) * sum : p[i] * (d[i] - sum);
      write(dx + at, d);
    });
  }
};

/// i32 or i64.
struct Labels {
  const void* data;
  bool wide;
  int64_t ignore;

  explicit Labels(const TensorView& view, int64_t ignore)
      : data(view.data), wide(view.type.dtype == DType::i64), ignore(ignore) {}
  SR_HOST_DEVICE int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

/// The log of the sum of exponentials; -inf for a line of -inf.
SR_HOST_DEVICE inline float log_sum_of(const TopAndSum& of) {
  return of.top == -INFINITY ? -INFINITY : of.top + logf(of.sum);
}

/// The gradients of a line of logits, `hit`: where its label's would be.
template <class T, class Team>
SR_HOST_DEVICE void write_slopes(const Team& team, const Lines& lines, int64_t row, const T* logits,
                                 T* dlogits, float d, float log_sum, bool ignored, int64_t hit) {
  elements<T>(team, lines, row, [&](auto n, int64_t at) {
    float v[n()];
    if (ignored) {
      for (float& each : v) each = 0;
    } else {
      read(logits + at, v);
      const int64_t from = hit - at;
      const int one = from >= 0 && from < n() ? static_cast<int>(from) : -1;
      for (int i = 0; i < n(); ++i) v[i] = d * (exp_for<T>(v[i] - log_sum) - (i == one ? 1 : 0));
    }
    write(dlogits + at, v);
  });
}

/// Of the classes from `offset` on, of `classes` in all: the sum of exp(logit - top), and the logit
/// of a label that is among them.
template <class T>
struct CrossEntropySumsRow {
  const T *logits, *tops;
  Labels labels;
  float* sums;
  Lines lines;
  int64_t offset, classes;
  Fault* unknown;  // a label of no class

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t label = labels[row], first = lines.at(row), hit = label - offset;
    const float top = as_float(tops[row]), from = top == -INFINITY ? 0.0f : top;
    float sum = 0;
    elements<T>(team, lines, row, [&](auto n, int64_t at) {
      float v[n()];
      read(logits + at, v);
      for (float each : v) sum += exp_for<T>(each - from);
    });
    sum = team.sum(sum);
    if (team.rank() != 0) return;
    const bool ignored = label == labels.ignore;
    if (!ignored && (label < 0 || label >= classes)) report(unknown, label, row);
    sums[2 * row] = sum;
    sums[2 * row + 1] =
        !ignored && hit >= 0 && hit < lines.length ? as_float(logits[first + hit]) : 0.0f;
  }
};

template <class T>
struct CrossEntropyJoin {
  const T* tops;
  Labels labels;
  const float* sums;
  float *loss, *lse;

  SR_HOST_DEVICE void operator()(int64_t row) const {
    const float log_sum = log_sum_of({as_float(tops[row]), sums[2 * row]});
    lse[row] = log_sum;
    loss[row] = labels[row] == labels.ignore ? 0.0f : log_sum - sums[2 * row + 1];
  }
};

/// Teams of a few warps, so that some sum while others read.
template <class T>
struct CrossEntropyRow {
  static constexpr int kMostTeam = 256;
  const T* logits;
  Labels labels;
  float *loss, *lse;  // lse: may be null
  Lines lines;
  const float* dloss;  // null: no gradient is wanted
  T* dlogits;          // may be logits
  Fault* unknown;      // a label of no class

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t label = labels[row], first = lines.at(row);
    const bool ignored = label == labels.ignore, known = label >= 0 && label < lines.length;
    // Read before the sums, behind which dlogits may take its place.
    const float hit = known ? as_float(logits[first + label]) : 0.0f;
    const float log_sum = log_sum_of(top_and_sum(team, logits, lines, row));
    if (team.rank() == 0) {
      if (!ignored && !known) report(unknown, label, row);
      loss[row] = ignored ? 0.0f : known ? log_sum - hit : NAN;
      if (lse != nullptr) lse[row] = log_sum;
    }
    if (dlogits == nullptr) return;
    write_slopes(team, lines, row, logits, dlogits, dloss[row], log_sum, ignored, first + label);
  }
};

template <class T>
struct CrossEntropyGradRow {
  const float *dloss, *lse;
  const T* logits;
  Labels labels;
  T* dlogits;
  Lines lines;
  int64_t offset;  // of the first class here among all

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t row) const {
    const int64_t label = labels[row], first = lines.at(row), hit = first + label - offset;
    const bool ignored = label == labels.ignore;
    write_slopes(team, lines, row, logits, dlogits, dloss[row], lse[row], ignored, hit);
  }
};

template <class On, class Body>
void run_lines(const KernelArgs& args, const Lines& lines, int64_t element_bytes, const Body& body,
               const char* name) {
  if (lines.stride == 1) {
    On::rows(args, lines.count, lines.length * element_bytes / 16, body, name);
  } else {
    On::each(args, lines.count, DoneAlone<Body>{body}, name);
  }
}

template <class On>
PreparedKernel prepare_softmax(const KernelCall& call) {
  const Lines lines = Lines::of(call.in[0].shape, static_cast<size_t>(call.node.attrs.i("axis")));
  const bool grad = call.in.size() == 2, log_of = call.node.op.starts_with("log");
  const DType dtype = call.in[0].dtype;
  const auto run = [=](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      const T* first = args.in[0].as<T>();
      T* out = args.out[0].as<T>();
      if (grad) {
        const SoftmaxGradLine<T> body{first, args.in[1].as<T>(), out, lines, log_of};
        run_lines<On>(args, lines, sizeof(T), body, "softmax_grad");
      } else {
        run_lines<On>(args, lines, sizeof(T), SoftmaxLine<T>{first, out, lines, log_of}, "softmax");
      }
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
PreparedKernel prepare_cross_entropy(const KernelCall& call) {
  const bool grad = call.in.size() == 4, both = call.in.size() == 3;
  const size_t at = grad || both ? 1 : 0;  // of the logits; labels follow
  const TensorType& logits = call.in[at];
  Lines lines = Lines::of(logits.shape, logits.shape.size() - 1);
  lines.count = element_count(call.in[at + 1].shape);  // of no classes too
  const int64_t ignore = call.node.attrs.i("ignore_index", -100),
                offset = call.node.attrs.i("offset", 0);
  const auto run = [=, dtype = logits.dtype](const KernelArgs& args) {
    const Labels labels(args.in[at + 1], ignore);
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      if (grad) {
        const CrossEntropyGradRow<T> body{args.in[0].as<float>(),
                                          args.in[3].as<float>(),
                                          args.in[1].as<T>(),
                                          labels,
                                          args.out[0].as<T>(),
                                          lines,
                                          offset};
        run_lines<On>(args, lines, sizeof(T), body, "cross_entropy_grad");
      } else {
        const CrossEntropyRow<T> body{args.in[at].as<T>(),
                                      labels,
                                      args.out[0].as<float>(),
                                      both ? nullptr : args.out[1].as<float>(),
                                      lines,
                                      both ? args.in[0].as<float>() : nullptr,
                                      both ? args.out[1].as<T>() : nullptr,
                                      fault_of(args.stream, "label", "token", lines.length)};
        run_lines<On>(args, lines, sizeof(T), body, "cross_entropy");
      }
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
PreparedKernel prepare_cross_entropy_sums(const KernelCall& call) {
  const TensorType& logits = call.in[0];
  Lines lines = Lines::of(logits.shape, logits.shape.size() - 1);
  lines.count = element_count(call.in[1].shape);  // of no classes too
  const int64_t ignore = call.node.attrs.i("ignore_index", -100),
                offset = call.node.attrs.i("offset", 0), classes = call.node.attrs.i("classes");
  const auto run = [=, dtype = logits.dtype](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      const CrossEntropySumsRow<T> body{args.in[0].as<T>(),
                                        args.in[2].as<T>(),
                                        Labels(args.in[1], ignore),
                                        args.out[0].as<float>(),
                                        lines,
                                        offset,
                                        classes,
                                        fault_of(args.stream, "label", "token", classes)};
      run_lines<On>(args, lines, sizeof(T), body, "cross_entropy_sums");
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
PreparedKernel prepare_cross_entropy_join(const KernelCall& call) {
  const int64_t ignore = call.node.attrs.i("ignore_index", -100),
                count = element_count(call.in[0].shape);
  const auto run = [=, dtype = call.in[1].dtype](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      const CrossEntropyJoin<T> body{args.in[1].as<T>(), Labels(args.in[0], ignore),
                                     args.in[2].as<float>(), args.out[0].as<float>(),
                                     args.out[1].as<float>()};
      On::each(args, count, body, "cross_entropy_join");
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
KernelList softmax_kernels_on() {
  KernelList list;
  const auto add = [&](const char* op, auto prepare, size_t operands, size_t results) {
    const auto refuses = [=](const KernelCall& call) -> Refusal {
      if (auto reason = refuse_other_floats(call)) return reason;
      return refuse_more(call, operands, results, {"axis", "ignore_index", "offset", "classes"});
    };
    list.push_back({op, "cuda:own", refuses, prepare});
  };
  add("softmax", prepare_softmax<On>, 1, 1);
  add("softmax_grad", prepare_softmax<On>, 2, 1);
  add("log_softmax", prepare_softmax<On>, 1, 1);
  add("log_softmax_grad", prepare_softmax<On>, 2, 1);
  add("cross_entropy", prepare_cross_entropy<On>, 2, 2);
  add("cross_entropy_grad", prepare_cross_entropy<On>, 4, 1);
  add("cross_entropy_and_grad", prepare_cross_entropy<On>, 3, 2);
  add("cross_entropy_sums", prepare_cross_entropy_sums<On>, 3, 1);
  add("cross_entropy_join", prepare_cross_entropy_join<On>, 3, 2);
  return list;
}

}  // namespace shardrun::cuda
