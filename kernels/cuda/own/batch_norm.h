// Batch normalisation, in pieces as graph/ops/batch_norm.cc has it. With channels last a thread has
// a few channels of a chunk of rows; else a team has a plane, or all planes of a channel. Sums are
// f64, as they are on the CPU.
#pragma once

#include <cfloat>
#include <cmath>

#include "graph/ops/window.h"
#include "kernels/cuda/own/chunks.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// x as [batch, channels, inner]; with channels last as [batch, channels], inner 1.
struct NormImage {
  int64_t batch = 1, channels = 1, inner = 1;
  bool last = false;
  DType dtype = DType::f32;

  NormImage(const Node& node, const TensorType& x) : last(channels_last(node)), dtype(x.dtype) {
    channels = last ? x.shape.back() : x.shape[1];
    batch = last ? element_count(Shape(x.shape.begin(), x.shape.end() - 1)) : x.shape[0];
    if (!last) inner = element_count(Shape(x.shape.begin() + 2, x.shape.end()));
  }
  int64_t groups() const {
    const int64_t wide = 16 / size_of(dtype);
    return (channels + wide - 1) / wide;
  }
  Chunks chunks() const { return Chunks::of(batch, groups()); }
  int64_t partial_bytes() const { return last ? chunks().count * 2 * channels * 8 : 0; }
};

/// y = (x - mean) slope + bias of a channel; slope = scale inv, inv = 1 / sqrt(variance + eps).
struct Channel {
  float mean, inv, slope, bias;
  SR_HOST_DEVICE float operator()(float x) const { return (x - mean) * slope + bias; }
};

/// The statistics and parameters of channels; scale and bias may be null.
struct Channels {
  const float *mean, *variance, *scale, *bias;
  float eps;

  SR_HOST_DEVICE Channel operator()(int64_t c) const {
    Channel of{};
    of.mean = mean[c];
    of.inv = 1.0f / sqrtf(variance[c] + eps);
    of.slope = scale != nullptr ? scale[c] * of.inv : of.inv;
    of.bias = bias != nullptr ? bias[c] : 0.0f;
    return of;
  }
};

/// The channel of the k-th of a few elements: with kStep 0 the same for all.
template <class C, int kStep>
struct ChannelOf {
  const C* first;
  SR_HOST_DEVICE const C& operator()(int k) const { return first[k * kStep]; }
};

// ---- what is done to N elements, of which `n` are there; channel(k): that of the k-th ----

template <class T>
struct Normalise {
  using Element = T;
  const T *x, *residual;  // residual: may be null
  T* y;
  bool relu;
  Channels channels;

  SR_HOST_DEVICE Channel channel(int64_t c) const { return channels(c); }
  template <int N, class F>
  SR_HOST_DEVICE void run(int64_t at, int64_t n, const F& channel) const {
    float v[N], r[N];
    read_some(x + at, n, v);
    for (float& each : r) each = 0;
    if (residual != nullptr) read_some(residual + at, n, r);
    for (int k = 0; k < N; ++k) {
      v[k] = channel(k)(v[k]) + r[k];
      if (relu && v[k] < 0) v[k] = 0;
    }
    write_some(y + at, n, v);
  }
};

/// dx = slope (dy - offset - (x - mean) tilt), dy 0 where a relu let nothing through.
template <class T>
struct NormaliseGrad {
  using Element = T;
  struct Tilted {
    Channel line;
    float offset, tilt;
  };
  const T *dy, *x;
  T* dx;
  bool relu;
  Channels channels;
  const double* sums;    // [2, C]
  int64_t count;         // of channels
  double inverse_count;  // one over the whole batch's elements of a channel; 0: given statistics

  SR_HOST_DEVICE Tilted channel(int64_t c) const {
    const Channel line = channels(c);
    return {line, static_cast<float>(inverse_count * sums[c]),
            static_cast<float>(inverse_count * static_cast<double>(line.inv) * sums[count + c])};
  }
  template <int N, class F>
  SR_HOST_DEVICE void run(int64_t at, int64_t n, const F& channel) const {
    float d[N], v[N];
    read_some_of_both(dy + at, x + at, n, d, v);
    for (int k = 0; k < N; ++k) {
      const Tilted& of = channel(k);
      const float g = !relu || of.line(v[k]) > 0 ? d[k] : 0.0f;
      d[k] = of.line.slope * (g - of.offset - (v[k] - of.line.mean) * of.tilt);
    }
    write_some(dx + at, n, d);
  }
};

template <class Op>
struct OverRows {  // channels last
  Op op;
  int64_t channels, groups;
  Chunks chunks;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    constexpr int kN = kWide<typename Op::Element>;
    const int64_t chunk = i / groups, c = i % groups * kN, left = channels - c;
    using Of = decltype(op.channel(0));
    Of of[kN];
    for (int k = 0; k < kN; ++k) of[k] = op.channel(k < left ? c + k : c);
    for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row)
      op.template run<kN>(row * channels + c, left, ChannelOf<Of, 1>{of});
  }
};

template <class Op>
struct OverPlanes {  // a row for each plane
  Op op;
  int64_t channels, inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t plane) const {
    using Of = decltype(op.channel(0));
    const Of of = op.channel(plane % channels);
    columns<typename Op::Element>(team, plane * inner, inner, [&](auto n, int64_t i) {
      op.template run<n()>(plane * inner + i, n(), ChannelOf<Of, 0>{&of});
    });
  }
};

template <class On, class Op>
void run_over(const KernelArgs& args, const NormImage& image, const Op& op, const char* name) {
  if (image.last) {
    constexpr int64_t kRows = 16;  // that make up for a channel's line
    const Chunks chunks{image.batch, kRows, (image.batch + kRows - 1) / kRows};
    On::each(args, chunks.count * image.groups(),
             OverRows<Op>{op, image.channels, image.groups(), chunks}, name);
  } else {
    On::rows(args, image.batch * image.channels, image.inner * size_of(image.dtype) / 16,
             OverPlanes<Op>{op, image.channels, image.inner}, name);
  }
}

// ---- sums of a channel: two numbers for each element ----

template <class T>
struct Moments {
  using Element = T;
  const T* x;

  SR_HOST_DEVICE Channel channel(int64_t) const { return {}; }
  template <int N, class F>
  SR_HOST_DEVICE void add(int64_t at, int64_t n, const F&, double (&sum)[N],
                          double (&other)[N]) const {
    float v[N];
    read_some(x + at, n, v);
    for (int k = 0; k < N; ++k) {
      const auto value = static_cast<double>(v[k]);
      sum[k] += value;
      other[k] += value * value;
    }
  }
  SR_HOST_DEVICE double finish(const Channel&, double other) const { return other; }
};

template <class T>
struct GradSums {
  using Element = T;
  const T *dy, *x;
  bool relu;
  Channels channels;

  SR_HOST_DEVICE Channel channel(int64_t c) const { return channels(c); }
  template <int N, class F>
  SR_HOST_DEVICE void add(int64_t at, int64_t n, const F& channel, double (&sum)[N],
                          double (&other)[N]) const {
    float d[N], v[N];
    read_some_of_both(dy + at, x + at, n, d, v);
    for (int k = 0; k < N; ++k) {
      const Channel& of = channel(k);
      const auto g = static_cast<double>(!relu || of(v[k]) > 0 ? d[k] : 0.0f);
      sum[k] += g;
      other[k] += g * static_cast<double>(v[k] - of.mean);
    }
  }
  SR_HOST_DEVICE double finish(const Channel& of, double other) const {
    return other * static_cast<double>(of.inv);
  }
};

template <class Op>
struct SumRows {  // channels last: sums of a chunk
  Op op;
  double* sums;  // [chunks, 2, C]
  int64_t channels, groups;
  Chunks chunks;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    constexpr int kN = kWide<typename Op::Element>;
    const int64_t chunk = i / groups, c = i % groups * kN, left = channels - c;
    Channel of[kN];
    for (int k = 0; k < kN; ++k) of[k] = op.channel(k < left ? c + k : c);
    double sum[kN] = {}, other[kN] = {};
    for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
      op.add(row * channels + c, left, ChannelOf<Channel, 1>{of}, sum, other);
    }
    double* to = sums + chunk * 2 * channels + c;
    for (int k = 0; k < kN; ++k) {
      if (k < left) to[k] = sum[k], to[channels + k] = op.finish(of[k], other[k]);
    }
  }
};

template <class Op>
struct SumPlanes {  // a row for each channel
  Op op;
  double* sums;  // [2, C]
  int64_t batch, channels, inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t c) const {
    const Channel of = op.channel(c);
    double sum = 0, other = 0;
    for (int64_t image = 0; image < batch; ++image) {
      const int64_t at = (image * channels + c) * inner;
      columns<typename Op::Element>(team, at, inner, [&](auto n, int64_t i) {
        double some[n()] = {}, more[n()] = {};
        op.add(at + i, n(), ChannelOf<Channel, 0>{&of}, some, more);
        for (int k = 0; k < n(); ++k) sum += some[k], other += more[k];
      });
    }
    sum = team.sum(sum);
    other = team.sum(other);
    if (team.rank() == 0) sums[c] = sum, sums[channels + c] = op.finish(of, other);
  }
};

template <class On, class Op>
void run_sums(const KernelArgs& args, const NormImage& image, const Op& op, const char* name) {
  auto* to = args.out[0].as<double>();
  if (image.last) {
    auto* partial = static_cast<double*>(args.workspace);
    const Chunks chunks = image.chunks();
    On::each(args, chunks.count * image.groups(),
             SumRows<Op>{op, partial, image.channels, image.groups(), chunks}, name);
    On::rows(args, 2 * image.channels, chunks.count,
             SumChunks<double, double>{partial, to, 2 * image.channels, chunks.count}, name);
  } else {
    const int64_t bytes = image.batch * image.inner * size_of(image.dtype);
    On::rows(args, image.channels, bytes / 16,
             SumPlanes<Op>{op, to, image.batch, image.channels, image.inner}, name);
  }
}

// ---- numbers of channels alone ----

struct Statistics {
  const double* moments;
  float *mean, *variance;
  int64_t channels;
  double inverse_count;

  SR_HOST_DEVICE void operator()(int64_t c) const {
    const double of = moments[c] * inverse_count,
                 squares = moments[channels + c] * inverse_count - of * of;
    mean[c] = static_cast<float>(of);
    variance[c] = static_cast<float>(squares < 0 ? 0.0 : squares);
  }
};

template <class T>
struct RunningAverage {
  const T *old, *now;
  T* to;
  float keep, gain;

  SR_HOST_DEVICE void operator()(int64_t c) const {
    const float before = as_float(old[c]), next = keep * before + gain * as_float(now[c]);
    assign(to[c], fabsf(as_float(now[c])) <= FLT_MAX ? next : before);
  }
};

struct ParameterGrads {
  const double* sums;
  float *dscale, *dbias;
  int64_t channels;

  SR_HOST_DEVICE void operator()(int64_t c) const {
    dscale[c] = static_cast<float>(sums[channels + c]);
    dbias[c] = static_cast<float>(sums[c]);
  }
};

// ---- the ops ----

inline const float* floats_or_null(const KernelArgs& args, size_t operand) {
  return operand < args.in.size() ? args.in[operand].as<float>() : nullptr;
}

template <class On>
PreparedKernel prepare_statistics(const KernelCall& call) {
  const double inverse_count = 1 / static_cast<double>(call.node.attrs.i("count"));
  return {[=](const KernelArgs& args) {
            const int64_t channels = args.out[0].count();
            const Statistics body{args.in[0].as<double>(), args.out[0].as<float>(),
                                  args.out[1].as<float>(), channels, inverse_count};
            On::each(args, channels, body, "batch_statistics");
          },
          0, "cuda:own"};
}

template <class On>
PreparedKernel prepare_running(const KernelCall& call) {
  const double momentum = call.node.attrs.f("momentum"), unbias = call.node.attrs.f("unbias");
  return {[=, dtype = call.in[0].dtype](const KernelArgs& args) {
            with_element(dtype, [&](auto element) {
              using T = decltype(element);
              for (size_t r = 0; r < 2; ++r) {
                const RunningAverage<T> body{
                    args.in[r].as<T>(), args.in[r + 2].as<T>(), args.out[r].as<T>(),
                    static_cast<float>(1 - momentum),
                    static_cast<float>(r == 0 ? momentum : momentum * unbias)};
                On::each(args, args.out[r].count(), body, "running_statistics");
              }
            });
          },
          0, "cuda:own"};
}

/// The ops over whole images.
template <class On>
PreparedKernel prepare_batch_norm(const KernelCall& call) {
  const std::string op = call.node.op;
  const NormImage image(call.node, call.in[op.ends_with("_grad") ? 1 : 0]);
  const auto eps = static_cast<float>(call.node.attrs.f("eps", 0));
  const bool relu = call.node.attrs.i("relu", 0) != 0;
  const int64_t count = call.node.attrs.i("count", 0);
  const double inverse_count = count > 0 ? 1 / static_cast<double>(count) : 0.0;
  const bool sums = op == "batch_moments" || op == "batch_norm_reduce_grad";
  const auto run = [=](const KernelArgs& args) {
    with_element(image.dtype, [&](auto element) {
      using T = decltype(element);
      const T* first = args.in[0].as<T>();
      if (op == "batch_moments") {
        run_sums<On>(args, image, Moments<T>{first}, "batch_moments");
      } else if (op == "batch_norm") {
        const Channels channels{args.in[1].as<float>(), args.in[2].as<float>(),
                                args.in[3].as<float>(), args.in[4].as<float>(), eps};
        const T* residual = args.in.size() > 5 ? args.in[5].as<T>() : nullptr;
        run_over<On>(args, image,
                     Normalise<T>{first, residual, args.out[0].as<T>(), relu, channels},
                     "batch_norm");
      } else if (op == "batch_norm_reduce_grad") {
        const Channels channels{args.in[2].as<float>(), args.in[3].as<float>(),
                                floats_or_null(args, 4), floats_or_null(args, 5), eps};
        run_sums<On>(args, image, GradSums<T>{first, args.in[1].as<T>(), relu, channels},
                     "batch_norm_reduce_grad");
      } else {
        const Channels channels{args.in[2].as<float>(), args.in[3].as<float>(),
                                args.in[4].as<float>(), floats_or_null(args, 6), eps};
        const auto* sums_of = args.in[5].as<double>();
        const NormaliseGrad<T> body{first,          args.in[1].as<T>(), args.out[0].as<T>(),
                                    relu,           channels,           sums_of,
                                    image.channels, inverse_count};
        run_over<On>(args, image, body, "batch_norm_grad");
        On::each(args, image.channels,
                 ParameterGrads{sums_of, args.out[1].as<float>(), args.out[2].as<float>(),
                                image.channels},
                 "batch_norm_grad");
      }
    });
  };
  return {run, sums ? image.partial_bytes() : 0, "cuda:own"};
}

template <class On>
KernelList batch_norm_kernels_on() {
  KernelList list;
  const auto add = [&](const char* op, auto prepare, size_t operands, size_t results,
                       std::vector<const char*> attrs) {
    const auto refuses = [=](const KernelCall& call) -> Refusal {
      const std::string& name = call.node.op;
      const bool from_sums = name == "batch_statistics",
                 sums = name == "batch_moments" || name == "batch_norm_reduce_grad";
      std::vector<TensorType> types;
      for (size_t i = 0; i < call.in.size(); ++i) {
        if (!from_sums && !(name == "batch_norm_grad" && i == 5)) types.push_back(call.in[i]);
      }
      if (!sums) types.insert(types.end(), call.out.begin(), call.out.end());
      if (auto reason = refuse_other_floats(types)) return reason;
      if (from_sums && call.out[0].dtype != DType::f32) return "statistics are f32";
      return refuse_more(call, operands, results, attrs);
    };
    list.push_back({op, "cuda:own", refuses, prepare});
  };
  add("batch_moments", prepare_batch_norm<On>, 1, 1, {"channels_last"});
  add("batch_statistics", prepare_statistics<On>, 1, 2, {"count", "dtype"});
  add("batch_norm", prepare_batch_norm<On>, 6, 1, {"eps", "relu", "channels_last"});
  add("running_statistics", prepare_running<On>, 4, 2, {"momentum", "unbias"});
  add("batch_norm_reduce_grad", prepare_batch_norm<On>, 6, 1,
      {"eps", "relu", "channels_last", "count"});
  add("batch_norm_grad", prepare_batch_norm<On>, 7, 3, {"eps", "relu", "count", "channels_last"});
  return list;
}

}  // namespace shardrun::cuda
