// Softmax over segments: rows are sorted by their segment as in indexing.h, then one kernel does a
// segment's N neighbouring columns by a team, or by a thread where segments are short. With maxima
// and sums given, a thread does N columns of a row, and nothing is sorted.
#pragma once

#include <cmath>

#include "kernels/cuda/indexing.h"

namespace shardrun::cuda {

/// x [count, inner] of `extent` segments, whose numbers begin at `offset`.
struct Segments {
  int64_t count = 0, extent = 0, inner = 1, offset = 0;

  /// `table`: an operand or result with a row for each segment, if any.
  Segments(const KernelCall& call, const TensorType* table)
      : extent(table != nullptr ? table->shape[0] : call.node.attrs.i("size")),
        offset(call.node.attrs.i("offset", 0)) {
    const Shape& x = call.in[0].shape;
    count = x[0];
    inner = element_count(Shape(x.begin() + 1, x.end()));
  }
  Indices indices(const KernelArgs& args) const { return {args.in.back(), offset, extent}; }
  int64_t workspace_bytes() const { return sort_bytes(count) + (extent + 2) * 4; }
};

/// Rows of segment r are numbers in keys [first[r], first[r + 1]); of segment `extent`, those that
/// are outside.
struct Sorted {
  const uint64_t* keys;
  const int32_t* first;
  int64_t extent, inner;

  template <class On>
  static Sorted of(const KernelArgs& args, const Segments& s) {
    const uint64_t* keys =
        sorted_keys<On>(args, args.workspace, s.count, RowKey<Indices>{s.indices(args), nullptr});
    auto* first =
        reinterpret_cast<int32_t*>(static_cast<char*>(args.workspace) + sort_bytes(s.count));
    On::each(args, s.extent + 2, FirstOfRow{keys, first, s.count}, "rows");
    return {keys, first, s.extent, s.inner};
  }
};

/// N columns of a segment; `item` counts them over all segments.
template <int N>
struct PartOfSegment {
  const Sorted& rows;
  int64_t segment, column;

  SR_HOST_DEVICE PartOfSegment(const Sorted& rows, int64_t item)
      : rows(rows), segment(item / (rows.inner / N)), column(item % (rows.inner / N) * N) {}
  SR_HOST_DEVICE int64_t in_table() const { return segment * rows.inner + column; }

  /// Calls f(at) for the team's share of its rows: its columns begin at element `at` of x.
  template <class Team, class F>
  SR_HOST_DEVICE void each(const Team& team, const F& f) const {
    for (int64_t k = rows.first[segment] + team.rank(); k < rows.first[segment + 1];
         k += team.size())
      f(number_in(rows.keys[k]) * rows.inner + column);
  }

  template <class T, class Team>
  SR_HOST_DEVICE void max(const Team& team, const T* x, float (&top)[N]) const {
    for (float& value : top) value = -INFINITY;
    each(team, [&](int64_t at) {
      float v[N];
      read(x + at, v);
      for (int n = 0; n < N; ++n) top[n] = v[n] > top[n] ? v[n] : top[n];
    });
    for (float& value : top) value = team.max(value);
  }

  template <class T, class Team>
  SR_HOST_DEVICE void exp_sum(const Team& team, const T* x, const float (&top)[N],
                              float (&total)[N]) const {
    for (float& value : total) value = 0;
    each(team, [&](int64_t at) {
      float v[N];
      read(x + at, v);
      for (int n = 0; n < N; ++n) total[n] += expf(v[n] - top[n]);
    });
    for (float& value : total) value = team.sum(value);
  }

  template <class T, class Team>
  SR_HOST_DEVICE void dots(const Team& team, const T* dy, const T* y, float (&sums)[N]) const {
    for (float& value : sums) value = 0;
    each(team, [&](int64_t at) {
      float d[N], p[N];
      read(dy + at, d);
      read(y + at, p);
      for (int n = 0; n < N; ++n) sums[n] += d[n] * p[n];
    });
    for (float& value : sums) value = team.sum(value);
  }
};

/// y = exp(x - top) / total, dx = y (dy - sums): of N columns.
template <class T, int N>
SR_HOST_DEVICE void divide(const T* x, T* y, const float (&top)[N], const float (&total)[N]) {
  float v[N];
  read(x, v);
  for (int n = 0; n < N; ++n) v[n] = expf(v[n] - top[n]) / total[n];
  write(y, v);
}
template <class T, int N>
SR_HOST_DEVICE void subtract(const T* dy, const T* y, T* dx, const float (&sums)[N]) {
  float d[N], p[N];
  read(dy, d);
  read(y, p);
  for (int n = 0; n < N; ++n) d[n] = p[n] * (d[n] - sums[n]);
  write(dx, d);
}
template <class T, int N>
SR_HOST_DEVICE void zero(T* to) {
  const float none[N] = {};
  write(to, none);
}

// ---- tables

template <class T, int N>
struct SegmentMax {
  const T* x;
  float* top;
  Sorted rows;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, item);
    float most[N];
    part.max(team, x, most);
    if (team.rank() == 0) write(top + part.in_table(), most);
  }
};

template <class T, int N>
struct SegmentExpSum {
  const T* x;
  const float* top;
  float* total;
  Sorted rows;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, item);
    float most[N], sum[N];
    read(top + part.in_table(), most);
    part.exp_sum(team, x, most, sum);
    if (team.rank() == 0) write(total + part.in_table(), sum);
  }
};

template <class T, int N>
struct SegmentDots {
  const T *dy, *y;
  float* sums;
  Sorted rows;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, item);
    float sum[N];
    part.dots(team, dy, y, sum);
    if (team.rank() == 0) write(sums + part.in_table(), sum);
  }
};

// ---- whole segments

template <class T, int N>
struct SegmentSoftmax {
  const T* x;
  T* y;
  Sorted rows;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, item);
    if (part.segment == rows.extent)
      return part.each(team, [&](int64_t at) { zero<T, N>(y + at); });
    float top[N], total[N];
    part.max(team, x, top);
    part.exp_sum(team, x, top, total);
    part.each(team, [&](int64_t at) { divide(x + at, y + at, top, total); });
  }
};

template <class T, int N>
struct SegmentSoftmaxGrad {
  const T *dy, *y;
  T* dx;
  Sorted rows;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, item);
    if (part.segment == rows.extent)
      return part.each(team, [&](int64_t at) { zero<T, N>(dx + at); });
    float sums[N];
    part.dots(team, dy, y, sums);
    part.each(team, [&](int64_t at) { subtract(dy + at, y + at, dx + at, sums); });
  }
};

// ---- rows by tables that are given

template <class T, int N>
struct DivideRows {
  const T* x;
  const float *top, *total;
  T* y;
  Indices rows;
  int64_t inner;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i * N, row = rows.row(at / inner), in_table = row * inner + at % inner;
    if (row < 0) return zero<T, N>(y + at);
    float most[N], sum[N];
    read(top + in_table, most);
    read(total + in_table, sum);
    divide(x + at, y + at, most, sum);
  }
};

template <class T, int N>
struct SubtractRows {
  const T *dy, *y;
  const float* sums;
  T* dx;
  Indices rows;
  int64_t inner;

  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i * N, row = rows.row(at / inner);
    if (row < 0) return zero<T, N>(dx + at);
    float sum[N];
    read(sums + row * inner + at % inner, sum);
    subtract(dy + at, y + at, dx + at, sum);
  }
};

// ---- calls

/// body(element, width, rows) makes the body for parts of `segments` segments.
template <class On, class Make>
void run_segments(const KernelArgs& args, const Segments& s, int64_t segments, const char* name,
                  const Make& make) {
  const Sorted rows = Sorted::of<On>(args, s);
  with_element(args.in[0].type.dtype, [&](auto element) {
    with_width<decltype(element)>(s.inner, [&](auto width) {
      const auto body = make(element, width, rows);
      const int64_t items = segments * (s.inner / width()),
                    each = s.count / std::max<int64_t>(1, s.extent);
      constexpr int64_t kShort = 8;  // rows of a segment: fewer leave most of a team idle
      if (each < kShort) {
        On::each(args, items, DoneAlone<decltype(body)>{body}, name);
      } else {
        On::rows(args, items, each, body, name);
      }
    });
  });
}

/// The same for bodies of single rows.
template <class On, class Make>
void run_rows(const KernelArgs& args, const Segments& s, const char* name, const Make& make) {
  with_element(args.in[0].type.dtype, [&](auto element) {
    with_width<decltype(element)>(s.inner, [&](auto width) {
      On::each(args, s.count * (s.inner / width()), make(element, width), name);
    });
  });
}

template <class On>
PreparedKernel prepare_segment_table(const KernelCall& call) {
  const Segments s(call, &call.out[0]);
  const std::string op = call.node.op;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    auto* out = args.out[0].as<float>();
    if (op == "segment_max") {
      run_segments<On>(args, s, s.extent, "segment_max", [&](auto element, auto width, auto rows) {
        using T = decltype(element);
        return SegmentMax<T, width()>{args.in[0].as<T>(), out, rows};
      });
    } else if (op == "segment_exp_sum") {
      run_segments<On>(
          args, s, s.extent, "segment_exp_sum", [&](auto element, auto width, auto rows) {
            using T = decltype(element);
            return SegmentExpSum<T, width()>{args.in[0].as<T>(), args.in[1].as<float>(), out, rows};
          });
    } else {
      run_segments<On>(args, s, s.extent, "segment_dots", [&](auto element, auto width, auto rows) {
        using T = decltype(element);
        return SegmentDots<T, width()>{args.in[0].as<T>(), args.in[1].as<T>(), out, rows};
      });
    }
  };
  prepared.workspace_bytes = s.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
PreparedKernel prepare_segment_softmax(const KernelCall& call) {
  const Segments s(call, nullptr);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    run_segments<On>(
        args, s, s.extent + 1, "segment_softmax", [&](auto element, auto width, auto rows) {
          using T = decltype(element);
          return SegmentSoftmax<T, width()>{args.in[0].as<T>(), args.out[0].as<T>(), rows};
        });
  };
  prepared.workspace_bytes = s.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
PreparedKernel prepare_segment_softmax_grad(const KernelCall& call) {
  const Segments s(call, nullptr);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    run_segments<On>(args, s, s.extent + 1, "segment_softmax_grad",
                     [&](auto element, auto width, auto rows) {
                       using T = decltype(element);
                       return SegmentSoftmaxGrad<T, width()>{args.in[0].as<T>(), args.in[1].as<T>(),
                                                             args.out[0].as<T>(), rows};
                     });
  };
  prepared.workspace_bytes = s.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
PreparedKernel prepare_divide_rows(const KernelCall& call) {
  const Segments s(call, &call.in[1]);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    run_rows<On>(args, s, "segment_softmax", [&](auto element, auto width) {
      using T = decltype(element);
      return DivideRows<T, width()>{args.in[0].as<T>(),     args.in[1].as<float>(),
                                    args.in[2].as<float>(), args.out[0].as<T>(),
                                    s.indices(args),        s.inner};
    });
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

template <class On>
PreparedKernel prepare_subtract_rows(const KernelCall& call) {
  const Segments s(call, &call.in[2]);
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    run_rows<On>(args, s, "segment_softmax_grad", [&](auto element, auto width) {
      using T = decltype(element);
      return SubtractRows<T, width()>{args.in[0].as<T>(),     args.in[1].as<T>(),
                                      args.in[2].as<float>(), args.out[0].as<T>(),
                                      s.indices(args),        s.inner};
    });
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

inline Refusal segment_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  return refuse_more(call, 4, 1, {"size", "offset"});
}
/// With tables given there are four operands.
inline Refusal given_refuses(const KernelCall& call) {
  if (call.in.size() < 4) return "divides by what is given alone";
  return segment_refuses(call);
}
inline Refusal sorted_refuses(const KernelCall& call) {
  if (call.in.size() == 4) return "finds sums and maxima itself";
  if (auto reason = segment_refuses(call)) return reason;
  const int64_t extent =
      call.node.attrs.has("size") ? call.node.attrs.i("size") : call.out[0].shape[0];
  return keys_refuse(extent, call.in[0].shape[0]);
}

template <class On>
KernelList segment_kernels_on() {
  return {{"segment_max", "cuda:sort", sorted_refuses, prepare_segment_table<On>},
          {"segment_exp_sum", "cuda:sort", sorted_refuses, prepare_segment_table<On>},
          {"segment_softmax", "cuda:rows", given_refuses, prepare_divide_rows<On>},
          {"segment_softmax", "cuda:sort", sorted_refuses, prepare_segment_softmax<On>},
          {"segment_softmax_reduce_grad", "cuda:sort", sorted_refuses, prepare_segment_table<On>},
          {"segment_softmax_grad", "cuda:rows", given_refuses, prepare_subtract_rows<On>},
          {"segment_softmax_grad", "cuda:sort", sorted_refuses, prepare_segment_softmax_grad<On>}};
}

}  // namespace shardrun::cuda
