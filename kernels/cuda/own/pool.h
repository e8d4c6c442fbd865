// Pools and their gradients: a thread for each element of the result, or for as many channels of it
// as 16 bytes hold, which gathers what it needs, so that the order of sums is fixed.
#pragma once

#include <cmath>

#include "graph/ops/window.h"
#include "kernels/cuda/own/team.h"
#include "kernels/cuda/refusals.h"

namespace shardrun::cuda {

/// x [planes, …in, channels] and y [planes, …out, channels]; window.h says which positions meet.
/// Where fewer dims are pooled the first are of size 1, so that loops over dims can be unrolled.
struct PoolWindows {
  static constexpr int kMostDims = 3;
  int64_t planes = 1, channels = 1, offsets = 1;
  int64_t in[kMostDims] = {1, 1, 1}, out[kMostDims] = {1, 1, 1}, kernel[kMostDims] = {1, 1, 1};
  int64_t stride[kMostDims] = {1, 1, 1}, dilation[kMostDims] = {1, 1, 1}, low[kMostDims] = {};

  static PoolWindows of(const Node& node, const Shape& x, const Shape& y) {
    const Shape& kernel = node.attrs.ints("kernel");
    const std::vector<Window> windows = windows_of(node, kernel);
    PoolWindows p;
    const size_t first = kMostDims - kernel.size();
    const size_t behind = channels_last(node) ? 1 : 0, lead = x.size() - kernel.size() - behind;
    p.planes = element_count(Shape(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(lead)));
    if (behind > 0) p.channels = x.back();
    for (size_t d = 0; d < kernel.size(); ++d) {
      const size_t to = first + d;
      p.in[to] = x[lead + d], p.out[to] = y[lead + d], p.kernel[to] = kernel[d];
      p.stride[to] = windows[d].stride, p.dilation[to] = windows[d].dilation;
      p.low[to] = windows[d].low;
      p.offsets *= kernel[d];
    }
    return p;
  }

  /// i % size, and i / size left in i.
  SR_HOST_DEVICE static int64_t split(int64_t& i, int64_t size) {
    if (size == 1) return 0;
    const int64_t rest = i % size;
    i /= size;
    return rest;
  }

  /// An element of x or y: its plane, its position in `sizes`, its channel.
  struct Place {
    int64_t plane, at[kMostDims], channel;
  };
  SR_HOST_DEVICE Place place(int64_t i, const int64_t (&sizes)[kMostDims]) const {
    Place p{};
    p.channel = split(i, channels);
    for (int d = kMostDims - 1; d >= 0; --d) p.at[d] = split(i, sizes[d]);
    p.plane = i;
    return p;
  }
  SR_HOST_DEVICE int64_t element(const Place& p, const int64_t (&sizes)[kMostDims]) const {
    int64_t i = p.plane;
    for (int d = 0; d < kMostDims; ++d) i = i * sizes[d] + p.at[d];
    return i * channels + p.channel;
  }

  /// Calls f(offset, element of x) for the offsets of y's window that lie in the image, in order.
  template <class F>
  SR_HOST_DEVICE void window_of(int64_t y, const F& f) const {
    const Place at = place(y, out);
    for (int64_t offset = 0; offset < offsets; ++offset) {
      Place from = at;
      bool inside = true;
      int64_t rest = offset;
      for (int d = kMostDims - 1; d >= 0; --d) {
        const int64_t k = split(rest, kernel[d]);
        from.at[d] = at.at[d] * stride[d] + k * dilation[d] - low[d];
        inside = inside && from.at[d] >= 0 && from.at[d] < in[d];
      }
      if (inside) f(offset, element(from, in));
    }
  }

  /// The other way round: calls f(offset, element of y) for the windows that x lies in.
  template <class F>
  SR_HOST_DEVICE void windows_with(int64_t x, const F& f) const {
    const Place at = place(x, in);
    for (int64_t offset = 0; offset < offsets; ++offset) {
      Place to = at;
      bool inside = true;
      int64_t rest = offset;
      for (int d = kMostDims - 1; d >= 0; --d) {
        const int64_t k = split(rest, kernel[d]);
        const int64_t steps = at.at[d] + low[d] - k * dilation[d];
        to.at[d] = stride[d] == 1 ? steps : steps / stride[d];
        inside = inside && steps >= 0 && to.at[d] * stride[d] == steps && to.at[d] < out[d];
      }
      if (inside) f(offset, element(to, out));
    }
  }
};

// Each body does N channels that lie side by side, which the windows count as one.

template <class T, class W, int N>
struct MaxPool {
  PoolWindows windows;
  const T* x;
  T* y;
  W* which;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    float best[N];
    int64_t found[N];
    for (int n = 0; n < N; ++n) best[n] = -INFINITY, found[n] = -1;
    windows.window_of(i, [&](int64_t offset, int64_t from) {
      float value[N];
      read(x + from * N, value);
      for (int n = 0; n < N; ++n) {
        if (found[n] >= 0 && !(value[n] > best[n]) && value[n] == value[n]) continue;  // NaN wins
        best[n] = value[n];
        found[n] = offset;
      }
    });
    for (int64_t& offset : found) offset = offset < 0 ? 0 : offset;
    write(y + i * N, best);
    write(which + i * N, found);
  }
};

template <class T, class W, int N>
struct MaxPoolGrad {
  PoolWindows windows;
  const T* dy;
  const W* which;
  T* dx;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    float sum[N] = {};
    windows.windows_with(i, [&](int64_t offset, int64_t from) {
      float d[N];
      int64_t of[N];
      read(dy + from * N, d);
      read(which + from * N, of);
      for (int n = 0; n < N; ++n) sum[n] += of[n] == offset ? d[n] : 0.0f;
    });
    write(dx + i * N, sum);
  }
};

template <class T, int N>
struct SumPool {
  PoolWindows windows;
  const T* x;
  T* y;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    float sum[N] = {};
    windows.window_of(i, [&](int64_t, int64_t from) { add(x + from * N, sum); });
    write(y + i * N, sum);
  }
  SR_HOST_DEVICE static void add(const T* from, float (&sum)[N]) {
    float value[N];
    read(from, value);
    for (int n = 0; n < N; ++n) sum[n] += value[n];
  }
};

template <class T, int N>
struct SumPoolGrad {
  PoolWindows windows;
  const T* dy;
  T* dx;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    float sum[N] = {};
    windows.windows_with(i, [&](int64_t, int64_t from) { SumPool<T, N>::add(dy + from * N, sum); });
    write(dx + i * N, sum);
  }
};

template <class On>
PreparedKernel prepare_pool(const KernelCall& call) {
  const bool grad = call.node.op.ends_with("_grad"), max = call.node.op.starts_with("max");
  const TensorType &x = grad ? call.out[0] : call.in[0], &y = grad ? call.in[0] : call.out[0];
  const PoolWindows whole = PoolWindows::of(call.node, x.shape, y.shape);
  const bool narrow = max && (grad ? call.in[1] : call.out[1]).dtype == DType::u8;
  const auto run = [=, dtype = x.dtype](const KernelArgs& args) {
    const auto run_packs = [&](auto element, auto width) {
      using T = decltype(element);
      constexpr int kN = width();
      PoolWindows windows = whole;
      windows.channels /= kN;
      const int64_t count = args.out[0].count() / kN;
      const T* from = args.in[0].as<T>();
      T* to = args.out[0].as<T>();
      const auto run_max = [&](auto offset) {
        using W = decltype(offset);
        if (grad) {
          On::each(args, count, MaxPoolGrad<T, W, kN>{windows, from, args.in[1].as<W>(), to},
                   "max_pool_grad");
        } else {
          On::each(args, count, MaxPool<T, W, kN>{windows, from, to, args.out[1].as<W>()},
                   "max_pool");
        }
      };
      if (max && narrow) {
        run_max(uint8_t{});
      } else if (max) {
        run_max(int32_t{});
      } else if (grad) {
        On::each(args, count, SumPoolGrad<T, kN>{windows, from, to}, "sum_pool_grad");
      } else {
        On::each(args, count, SumPool<T, kN>{windows, from, to}, "sum_pool");
      }
    };
    with_element(dtype, [&](auto element) {
      constexpr int kN = kWide<decltype(element)>;
      if (whole.channels % kN == 0) return run_packs(element, Width<kN>{});
      run_packs(element, Width<1>{});
    });
  };
  return {run, 0, "cuda:own"};
}

template <class On>
KernelList pool_kernels_on() {
  const auto refuses = [](const KernelCall& call) -> Refusal {
    if (auto reason = refuse_other_floats(call)) return reason;
    if (call.node.attrs.ints("kernel").size() > PoolWindows::kMostDims)
      return str("pools over at most ", PoolWindows::kMostDims, " dims");
    return refuse_more(
        call, 2, 2,
        {"kernel", "strides", "dilations", "pads_low", "pads_high", "size", "channels_last"});
  };
  KernelList list;
  for (const char* op : {"max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad"})
    list.push_back({op, "cuda:own", refuses, prepare_pool<On>});
  return list;
}

}  // namespace shardrun::cuda
