// Softmax over segments: rows are grouped by their segment as in indexing.h, then one kernel does a
// segment's N neighbouring columns by a team, or by a thread where segments are short. With maxima
// and sums given, a thread does N columns of a row, and nothing is sorted.
#pragma once

#include <cmath>

#include "kernels/cuda/indexing.h"

namespace shardrun::cuda {

/// x [count, inner] of `extent` segments.
struct Segments {
  int64_t count = 0, extent = 0, inner = 1;

  Segments(const KernelCall& call, int64_t extent)
      : count(call.in[0].shape[0]),
        extent(extent),
        inner(element_count(Shape(call.in[0].shape.begin() + 1, call.in[0].shape.end()))) {}
};

/// N columns of a segment; `item` counts them over all segments.
template <int N>
struct PartOfSegment {
  const Groups& rows;
  int64_t inner, segment, column;

  SR_HOST_DEVICE PartOfSegment(const Groups& rows, int64_t inner, int64_t item)
      : rows(rows), inner(inner), segment(item / (inner / N)), column(item % (inner / N) * N) {}
  SR_HOST_DEVICE int64_t in_table() const { return segment * inner + column; }

  /// Calls f(at) for the team's share of its rows: its columns begin at element `at` of x.
  template <class Team, class F>
  SR_HOST_DEVICE void each(const Team& team, const F& f) const {
    for (int64_t k = rows.first[segment] + team.rank(); k < rows.first[segment + 1];
         k += team.size())
      f(rows.order[k] * inner + column);
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
  Groups rows;
  int64_t inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, inner, item);
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
  Groups rows;
  int64_t inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, inner, item);
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
  Groups rows;
  int64_t inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, inner, item);
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
  Groups rows;
  int64_t inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, inner, item);
    if (part.segment == rows.size) return part.each(team, [&](int64_t at) { zero<T, N>(y + at); });
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
  Groups rows;
  int64_t inner;

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<N> part(rows, inner, item);
    if (part.segment == rows.size) return part.each(team, [&](int64_t at) { zero<T, N>(dx + at); });
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

/// `make(element, width, rows)` makes the body for parts of segments: of a table's, or of all and
/// the rows that have none.
template <class On, class Make>
PreparedKernel prepare_segments(const KernelCall& call, bool table, Make make) {
  const Grouping grouping(call);
  const Segments s(call, grouping.wanted.size);
  const DType dtype = call.in[0].dtype;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    const Groups rows = grouping.of<On>(args);
    with_element(dtype, [&](auto element) {
      with_width<decltype(element)>(s.inner, [&](auto width) {
        const auto body = make(args, element, width, rows, s.inner);
        const int64_t segments = table ? s.extent : s.extent + 1;
        const int64_t items = segments * (s.inner / width()),
                      each = s.count / std::max<int64_t>(1, s.extent);
        constexpr int64_t kShort = 8;  // rows of a segment: fewer leave most of a team idle
        if (each < kShort) {
          On::each(args, items, DoneAlone<decltype(body)>{body}, "segments");
        } else {
          On::rows(args, items, each, body, "segments");
        }
      });
    });
  };
  prepared.workspace_bytes = grouping.workspace_bytes();
  prepared.impl = "cuda:sort";
  return prepared;
}

template <class On>
PreparedKernel prepare_segment_max(const KernelCall& call) {
  return prepare_segments<On>(
      call, true,
      [](const KernelArgs& args, auto element, auto width, const Groups& rows, int64_t inner) {
        using T = decltype(element);
        return SegmentMax<T, width()>{args.in[0].as<T>(), args.out[0].as<float>(), rows, inner};
      });
}

template <class On>
PreparedKernel prepare_segment_exp_sum(const KernelCall& call) {
  return prepare_segments<On>(
      call, true,
      [](const KernelArgs& args, auto element, auto width, const Groups& rows, int64_t inner) {
        using T = decltype(element);
        return SegmentExpSum<T, width()>{args.in[0].as<T>(), args.in[1].as<float>(),
                                         args.out[0].as<float>(), rows, inner};
      });
}

template <class On>
PreparedKernel prepare_segment_dots(const KernelCall& call) {
  return prepare_segments<On>(
      call, true,
      [](const KernelArgs& args, auto element, auto width, const Groups& rows, int64_t inner) {
        using T = decltype(element);
        return SegmentDots<T, width()>{args.in[0].as<T>(), args.in[1].as<T>(),
                                       args.out[0].as<float>(), rows, inner};
      });
}

template <class On>
PreparedKernel prepare_segment_softmax(const KernelCall& call) {
  return prepare_segments<On>(
      call, false,
      [](const KernelArgs& args, auto element, auto width, const Groups& rows, int64_t inner) {
        using T = decltype(element);
        return SegmentSoftmax<T, width()>{args.in[0].as<T>(), args.out[0].as<T>(), rows, inner};
      });
}

template <class On>
PreparedKernel prepare_segment_softmax_grad(const KernelCall& call) {
  return prepare_segments<On>(
      call, false,
      [](const KernelArgs& args, auto element, auto width, const Groups& rows, int64_t inner) {
        using T = decltype(element);
        return SegmentSoftmaxGrad<T, width()>{args.in[0].as<T>(), args.in[1].as<T>(),
                                              args.out[0].as<T>(), rows, inner};
      });
}

/// make(args, element, width, numbers, inner) makes the body for rows by tables that are given,
/// from operand `table` on.
template <class On, class Make>
PreparedKernel prepare_rows(const KernelCall& call, size_t table, Make make) {
  const Segments s(call, call.in[table].shape[0]);
  const DType dtype = call.in[0].dtype;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      with_width<decltype(element)>(s.inner, [&](auto width) {
        const Indices numbers(args.in.back(), 0, s.extent);
        On::each(args, s.count * (s.inner / width()), make(args, element, width, numbers, s.inner),
                 "segment_rows");
      });
    });
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

template <class On>
PreparedKernel prepare_divide_rows(const KernelCall& call) {
  return prepare_rows<On>(
      call, 1,
      [](const KernelArgs& args, auto element, auto width, const Indices& numbers, int64_t inner) {
        using T = decltype(element);
        return DivideRows<T, width()>{args.in[0].as<T>(),
                                      args.in[1].as<float>(),
                                      args.in[2].as<float>(),
                                      args.out[0].as<T>(),
                                      numbers,
                                      inner};
      });
}

template <class On>
PreparedKernel prepare_subtract_rows(const KernelCall& call) {
  return prepare_rows<On>(
      call, 2,
      [](const KernelArgs& args, auto element, auto width, const Indices& numbers, int64_t inner) {
        using T = decltype(element);
        return SubtractRows<T, width()>{args.in[0].as<T>(),
                                        args.in[1].as<T>(),
                                        args.in[2].as<float>(),
                                        args.out[0].as<T>(),
                                        numbers,
                                        inner};
      });
}

inline Refusal segment_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  return refuse_more(call, 4, 1, {"size", "offset", "grouped"});
}
/// With tables given there is no size.
inline Refusal given_refuses(const KernelCall& call) {
  if (call.node.attrs.has("size")) return "divides by what is given alone";
  return segment_refuses(call);
}
inline Refusal sorted_refuses(const KernelCall& call) {
  if (auto reason = segment_refuses(call)) return reason;
  const auto wanted = RowGroups::wanted_by(call.node, call.in);
  if (!wanted) return "finds sums and maxima itself";
  return keys_refuse(wanted->size, call.in[0].shape[0]);
}

template <class On>
KernelList segment_kernels_on() {
  return {{"segment_max", "cuda:sort", sorted_refuses, prepare_segment_max<On>},
          {"segment_exp_sum", "cuda:sort", sorted_refuses, prepare_segment_exp_sum<On>},
          {"segment_softmax", "cuda:rows", given_refuses, prepare_divide_rows<On>},
          {"segment_softmax", "cuda:sort", sorted_refuses, prepare_segment_softmax<On>},
          {"segment_softmax_reduce_grad", "cuda:sort", sorted_refuses, prepare_segment_dots<On>},
          {"segment_softmax_grad", "cuda:rows", given_refuses, prepare_subtract_rows<On>},
          {"segment_softmax_grad", "cuda:sort", sorted_refuses, prepare_segment_softmax_grad<On>}};
}

}  // namespace shardrun::cuda
