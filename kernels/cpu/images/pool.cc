// Pools and their gradients: planes over threads, a row of results at a time; where the channels
// are last, positions over threads, and all channels of one at a time.
#include <cstring>
#include <limits>

#include "base/lanes.h"
#include "base/round_up.h"
#include "base/short_array.h"
#include "graph/ops/window.h"
#include "kernels/cpu/attention/exp_row.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

/// A pool with everything fixed: x [planes, …in], y [planes, …out].
struct Pool {
  std::vector<Window> windows;
  Shape in, out, kernel;
  Shape in_strides, kernel_strides;
  int64_t planes = 1;

  Pool(const Node& node, const Shape& x, const Shape& y) {
    kernel = node.attrs.ints("kernel");
    windows = windows_of(node, kernel);
    const auto lead = static_cast<std::ptrdiff_t>(x.size() - kernel.size());
    planes = element_count(Shape(x.begin(), x.begin() + lead));
    in.assign(x.begin() + lead, x.end());
    out.assign(y.begin() + lead, y.end());
    in_strides = row_major_strides(in);
    kernel_strides = row_major_strides(kernel);
  }

  int64_t in_count() const { return element_count(in); }
  int64_t out_count() const { return element_count(out); }
  int64_t offsets() const { return element_count(kernel); }
  int64_t row() const { return out.back(); }

  /// Calls f(offset, x, y, n) for the n results y … y + n - 1 of one row that kernel offset
  /// `offset` meets at x, x + stride, …; positions are in one plane. For each result the offsets
  /// come in row-major order.
  template <class F>
  void each_row(F&& f) const {
    const size_t dims = kernel.size(), last = dims - 1;
    const int64_t count = offsets(), rows = out_count() / std::max<int64_t>(row(), 1);
    ShortArray<int64_t> at(dims), k(dims);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = static_cast<int64_t>(last), rest = r; d-- > 0;) {
        const auto dim = static_cast<size_t>(d);
        at[dim] = rest % out[dim];
        rest /= out[dim];
      }
      for (int64_t offset = 0; offset < count; ++offset) {
        int64_t x = 0;
        bool inside = true;
        for (size_t d = dims, rest = static_cast<size_t>(offset); d-- > 0;) {
          k[d] = static_cast<int64_t>(rest) % kernel[d];
          rest /= static_cast<size_t>(kernel[d]);
          if (d == last) continue;
          const int64_t i = at[d] * windows[d].stride + k[d] * windows[d].dilation - windows[d].low;
          inside = inside && i >= 0 && i < in[d];
          x += i * in_strides[d];
        }
        const Window& w = windows[last];
        const Range span = w.inside(k[last], in[last], out[last]);
        if (!inside || span.size == 0) continue;
        x += span.begin * w.stride + k[last] * w.dilation - w.low;
        f(offset, x, r * row() + span.begin, span.size);
      }
    }
  }
};

// ---- max_pool ----

template <class T, class Which>
void max_pool(const Pool& p, const KernelArgs& args) {
  const int64_t in = p.in_count(), out = p.out_count(), stride = p.windows.back().stride;
  constexpr Which kNone = std::numeric_limits<Which>::max();  // no offset was inside so far
  parallel_ranges(p.planes, row_grain(out * p.offsets()), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* x = args.in[0].as<T>() + plane * in;
      T* y = args.out[0].as<T>() + plane * out;
      Which* which = args.out[1].as<Which>() + plane * out;
      std::fill_n(y, out, T(-std::numeric_limits<float>::infinity()));
      std::fill_n(which, out, kNone);
      p.each_row([&](int64_t offset, int64_t xi, int64_t yi, int64_t n) {
        const T* from = x + xi;
        T* to = y + yi;
        Which* w = which + yi;
        const auto mine = static_cast<Which>(offset);
        auto step = [&](int64_t i, T value) {
          const float v = value, best = to[i];
          const bool takes = w[i] == kNone || v > best || v != v;
          to[i] = takes ? value : to[i];
          w[i] = takes ? mine : w[i];
        };
        if (stride == 1) {
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) step(i, from[i]);
        } else {
          for (int64_t i = 0; i < n; ++i) step(i, from[i * stride]);
        }
      });
      for (int64_t i = 0; i < out; ++i) which[i] = which[i] == kNone ? Which{0} : which[i];
    }
  });
}

// ---- the others: sums into a plane of floats, which is the result itself where that is f32 ----

/// Floats for one plane of a bf16 result, for each thread.
int64_t sums_bytes(DType dtype, int64_t count) {
  return dtype == DType::f32 ? 0 : int64_t{omp_get_max_threads()} * count * 4;
}

/// Calls add(plane, sums) with `count` zeros for every plane of the result and stores the sums.
template <class F>
void sum_planes(const KernelArgs& args, int64_t planes, int64_t count, int64_t grain, F&& add) {
  const TensorView& result = args.out[0];
  parallel_ranges(planes, grain, [&](int64_t begin, int64_t end) {
    float* buffer = static_cast<float*>(args.workspace) + omp_get_thread_num() * count;
    for (int64_t plane = begin; plane < end; ++plane) {
      float* sums = place(result, plane * count, buffer);
      std::fill_n(sums, count, 0.0f);
      add(plane, sums);
      put(result, plane * count, count, sums);
    }
  });
}

template <class T>
void sum_pool(const Pool& p, const KernelArgs& args) {
  const int64_t in = p.in_count(), out = p.out_count(), stride = p.windows.back().stride;
  sum_planes(args, p.planes, out, row_grain(out * p.offsets()), [&](int64_t plane, float* sums) {
    const T* x = args.in[0].as<T>() + plane * in;
    p.each_row([&](int64_t, int64_t xi, int64_t yi, int64_t n) {
      const T* from = x + xi;
      float* to = sums + yi;
      for (int64_t i = 0; i < n; ++i) to[i] += static_cast<float>(from[i * stride]);
    });
  });
}

template <class T>
void sum_pool_grad(const Pool& p, const KernelArgs& args) {
  const int64_t in = p.in_count(), out = p.out_count(), stride = p.windows.back().stride;
  sum_planes(args, p.planes, in, row_grain(out * p.offsets()), [&](int64_t plane, float* sums) {
    const T* dy = args.in[0].as<T>() + plane * out;
    p.each_row([&](int64_t, int64_t xi, int64_t yi, int64_t n) {
      const T* from = dy + yi;
      float* to = sums + xi;
      for (int64_t i = 0; i < n; ++i) to[i * stride] += static_cast<float>(from[i]);
    });
  });
}

template <class T, class Which>
void max_pool_grad(const Pool& p, const KernelArgs& args) {
  const int64_t in = p.in_count(), out = p.out_count();
  const size_t dims = p.kernel.size();
  sum_planes(args, p.planes, in, row_grain(out), [&](int64_t plane, float* sums) {
    const T* dy = args.in[0].as<T>() + plane * out;
    const Which* which = args.in[1].as<Which>() + plane * out;
    ShortArray<int64_t> at(dims);
    for (int64_t y = 0; y < out; ++y) {
      int64_t x = 0, k = which[y];
      bool inside = true;
      for (size_t d = 0; d < dims; ++d) {
        const Window& w = p.windows[d];
        const int64_t i = at[d] * w.stride + k / p.kernel_strides[d] * w.dilation - w.low;
        k %= p.kernel_strides[d];
        inside = inside && i >= 0 && i < p.in[d];
        x += i * p.in_strides[d];
      }
      if (inside) sums[x] += static_cast<float>(dy[y]);
      for (size_t d = dims; d-- > 0;) {
        if (++at[d] < p.out[d]) break;
        at[d] = 0;
      }
    }
  });
}

// ---- channels last ----

/// What meets a position of the result, by dim: window offset k and the other tensor's index.
struct Meeting {
  int64_t k, at;
};

/// A pool or gradient of [lead, …from, channels] to [lead, …to, channels].
struct ChannelsLastPool {
  Shape from, to, kernel;
  int64_t lead = 1, channels = 1;
  std::vector<std::vector<std::vector<Meeting>>> meetings;  // by dim and index of the result

  ChannelsLastPool(const Node& node, const Shape& in, const Shape& out) {
    kernel = node.attrs.ints("kernel");
    const bool gradient = node.op.ends_with("_grad");
    const std::vector<Window> windows = windows_of(node, kernel);
    const auto pooled = static_cast<std::ptrdiff_t>(kernel.size());
    const auto first = static_cast<std::ptrdiff_t>(in.size()) - pooled - 1;
    lead = element_count(Shape(in.begin(), in.begin() + first));
    channels = in.back();
    from.assign(in.begin() + first, in.begin() + first + pooled);
    to.assign(out.begin() + first, out.begin() + first + pooled);
    for (size_t d = 0; d < kernel.size(); ++d) {
      const Window& w = windows[d];
      const Shape& images = gradient ? to : from;
      const Shape& results = gradient ? from : to;
      meetings.emplace_back(static_cast<size_t>(to[d]));
      for (int64_t o = 0; o < results[d]; ++o) {
        for (int64_t k = 0; k < kernel[d]; ++k) {
          const int64_t i = o * w.stride + k * w.dilation - w.low;
          if (i < 0 || i >= images[d]) continue;
          meetings[d][static_cast<size_t>(gradient ? i : o)].push_back({k, gradient ? o : i});
        }
      }
    }
  }

  /// Calls f(offset, element) for what meets position `at` of the result: the window's offset and
  /// where the other tensor's channels begin. Forward the offsets come in row-major order.
  template <class F>
  void each_meeting(int64_t at, F&& f) const {
    constexpr size_t kMost = 8;  // pooled dims
    const std::vector<Meeting>* lists[kMost];
    size_t step[kMost] = {};
    const size_t dims = kernel.size();
    for (size_t d = dims; d-- > 0; at /= to[d]) {
      lists[d] = &meetings[d][static_cast<size_t>(at % to[d])];
      if (lists[d]->empty()) return;
    }
    for (bool more = true; more;) {
      int64_t offset = 0, other = at;
      for (size_t d = 0; d < dims; ++d) {
        const Meeting& m = (*lists[d])[step[d]];
        offset = offset * kernel[d] + m.k;
        other = other * from[d] + m.at;
      }
      f(offset, other * channels);
      more = false;
      for (size_t d = dims; d-- > 0 && !more;) {
        more = ++step[d] < lists[d]->size();
        if (!more) step[d] = 0;
      }
    }
  }

  /// Calls f(position, first channel, count, first element) for blocks of the result, in parallel.
  template <class F>
  void each_block(F&& f) const {
    const int64_t positions = lead * element_count(to);
    parallel_ranges(
        positions, row_grain(channels * element_count(kernel)), [&](int64_t begin, int64_t end) {
          for (int64_t at = begin; at < end; ++at) {
            for_blocks(channels, [&](int64_t c, int64_t n) { f(at, c, n, at * channels + c); });
          }
        });
  }
};

using Offsets = int32_t __attribute__((vector_size(kLanes * 4)));

Lanes sixteen(const float* from) { return load_lanes(from); }
Lanes sixteen(const bfloat16* from) { return load_lanes(reinterpret_cast<const uint16_t*>(from)); }
Offsets sixteen(const int32_t* from) { return load_vector<Offsets>(from); }
Offsets sixteen(const uint8_t* from) {
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(load_vector<Bytes>(from), Offsets);
}

/// Calls f(i, values, which) with vectors of kLanes from i on, zero behind the n-th. A loop over
/// elements would branch at each, or take 64 bytes of `which` at once and fewer one by one.
template <class T, class Which, class F>
void in_vectors(int64_t n, const T* values, const Which* which, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    f(i, sixteen(values + i), which != nullptr ? sixteen(which + i) : Offsets{});
  if (i == n) return;
  T last[kLanes] = {};
  Which last_which[kLanes] = {};
  std::copy(values + i, values + n, last);
  if (which != nullptr) std::copy(which + i, which + n, last_which);
  f(i, sixteen(last), sixteen(last_which));
}

template <class T, class Which>
void max_pool_last(const ChannelsLastPool& p, const KernelArgs& args) {
  const T* x = args.in[0].as<T>();
  p.each_block([&](int64_t at, int64_t c, int64_t n, int64_t y) {
    alignas(64) float best[kBlock];
    alignas(64) int32_t offsets[kBlock];
    std::fill_n(best, round_up(n, kLanes), kNever);
    std::fill_n(offsets, round_up(n, kLanes), -1);
    p.each_meeting(at, [&](int64_t offset, int64_t element) {
      const T* from = x + element + c;
      const auto mine = static_cast<int32_t>(offset);
      in_vectors<T, Which>(n, from, nullptr, [&](int64_t i, const Lanes& v, const Offsets&) {
        const auto top = load_lanes(best + i);
        const auto at_top = load_vector<Offsets>(offsets + i);
        const Offsets takes = (at_top < 0) | (v > top) | (v != v);
        store_lanes(best + i, takes ? v : top);
        const Offsets now = takes ? Offsets{} + mine : at_top;
        std::memcpy(offsets + i, &now, sizeof(now));
      });
    });
    T* to = args.out[0].as<T>() + y;
    Which* which = args.out[1].as<Which>() + y;
    for (int64_t i = 0; i < n; ++i) {
      to[i] = T(best[i]);
      which[i] = static_cast<Which>(std::max(offsets[i], 0));
    }
  });
}

/// Sums of operand 0 over what meets a position; `chosen`: where operand 1 has the offset alone.
template <class T, class Which>
void sum_last(const ChannelsLastPool& p, const KernelArgs& args, bool chosen) {
  const T* from = args.in[0].as<T>();
  const Which* which = chosen ? args.in[1].as<Which>() : nullptr;
  p.each_block([&](int64_t at, int64_t c, int64_t n, int64_t y) {
    alignas(64) float sums[kBlock];
    std::fill_n(sums, round_up(n, kLanes), 0.0f);
    p.each_meeting(at, [&](int64_t offset, int64_t element) {
      const T* values = from + element + c;
      if (!chosen) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<float>(values[i]);
        return;
      }
      const auto mine = static_cast<int32_t>(offset);
      in_vectors(n, values, which + element + c,
                 [&](int64_t i, const Lanes& v, const Offsets& taken) {
                   const Lanes some = taken == mine ? v : Lanes{};
                   store_lanes(sums + i, load_lanes(sums + i) + some);
                 });
    });
    T* to = args.out[0].as<T>() + y;
    for (int64_t i = 0; i < n; ++i) to[i] = T(sums[i]);
  });
}

/// Runs f with the C++ types of a tensor and of `which`.
template <class F>
void with_types(DType dtype, DType which, F&& f) {
  auto inner = [&](auto tag) {
    if (which == DType::u8) {
      f(tag, TypeTag<uint8_t>{});
    } else {
      f(tag, TypeTag<int32_t>{});
    }
  };
  if (dtype == DType::f32) {
    inner(TypeTag<float>{});
  } else {
    inner(TypeTag<bfloat16>{});
  }
}

PreparedKernel prepare_last(const KernelCall& call, DType which) {
  const bool gradient = call.node.op.ends_with("_grad"), max = call.node.op.starts_with("max");
  const ChannelsLastPool p(call.node, call.in[0].shape, call.out[0].shape);
  return {[=, dtype = call.in[0].dtype](const KernelArgs& args) {
            with_types(dtype, which, [&](auto tag, auto which_tag) {
              using T = typename decltype(tag)::type;
              using Which = typename decltype(which_tag)::type;
              if (max && !gradient) {
                max_pool_last<T, Which>(p, args);
              } else {
                sum_last<T, Which>(p, args, max);
              }
            });
          },
          0, "cpu:simd"};
}

PreparedKernel prepare(const KernelCall& call) {
  const std::string& op = call.node.op;
  const bool gradient = op.ends_with("_grad"), max = op.starts_with("max");
  const DType which = !max ? DType::u8 : gradient ? call.in[1].dtype : call.out[1].dtype;
  if (channels_last(call.node)) return prepare_last(call, which);
  const Pool p(call.node, (gradient ? call.out : call.in)[0].shape,
               (gradient ? call.in : call.out)[0].shape);
  const DType dtype = call.in[0].dtype;
  int64_t workspace = 0;
  if (gradient || !max) workspace = sums_bytes(dtype, gradient ? p.in_count() : p.out_count());
  return {[=](const KernelArgs& args) {
            with_types(dtype, which, [&](auto tag, auto which_tag) {
              using T = typename decltype(tag)::type;
              using Which = typename decltype(which_tag)::type;
              if (max && gradient) {
                max_pool_grad<T, Which>(p, args);
              } else if (max) {
                max_pool<T, Which>(p, args);
              } else if (gradient) {
                sum_pool_grad<T>(p, args);
              } else {
                sum_pool<T>(p, args);
              }
            });
          },
          workspace, "cpu:simd"};
}

}  // namespace

KernelList pool_kernels() {
  KernelList list;
  for (const char* op : {"max_pool", "max_pool_grad", "sum_pool", "sum_pool_grad"})
    list.push_back({op, "cpu:simd", refuse_other_floats, prepare});
  return list;
}

}  // namespace shardrun::cpu
