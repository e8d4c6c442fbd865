// Softmax over segments: rows are grouped by their segment as in indexing.h, then one kernel does a
// segment's N neighbouring columns by a team, or by a thread where segments are short. With maxima
// and sums given, a thread does N columns of a row, and nothing is sorted.
#pragma once

#include <cmath>

#include "kernels/cuda/own/indexing.h"

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

  /// Calls f(at) for the team's rows: its columns begin at element `at` of x.
  template <class Team, class F>
  SR_HOST_DEVICE void each(const Team& team, const F& f) const {
    for (int64_t k = rows.first[segment] + team.rank(); k < rows.first[segment + 1];
         k += team.size())
      f(rows.order[k] * inner + column);
  }
};

// ---- arithmetic: of N columns of T. For each, a segment has kTables numbers, of all its rows:
// nothing<k> is number k of no row, add<k> joins the row at element `at` to it, when those before k
// are known, and all<k> the team's. result is what a row comes to.

/// y = exp(x - top) / total
template <class T, int N>
struct Softmax {
  using Element = T;
  static constexpr int kN = N, kOperands = 1, kTables = 2;  // top, total
  using Numbers = float[kTables][N];
  const T* x;

  explicit Softmax(const KernelArgs& args) : x(args.in[0].as<T>()) {}
  template <int k>
  SR_HOST_DEVICE static float nothing() {
    return k == 0 ? -INFINITY : 0.0f;
  }
  template <int k>
  SR_HOST_DEVICE void add(int64_t at, Numbers& of) const {
    float v[N];
    read(x + at, v);
    for (int n = 0; n < N; ++n) {
      if constexpr (k == 0) {
        of[0][n] = v[n] > of[0][n] ? v[n] : of[0][n];
      } else {
        of[1][n] += expf(v[n] - of[0][n]);
      }
    }
  }
  template <int k, class Team>
  SR_HOST_DEVICE static float all(const Team& team, float value) {
    return k == 0 ? team.max(value) : team.sum(value);
  }
  SR_HOST_DEVICE void result(int64_t at, const Numbers& of, float (&y)[N]) const {
    read(x + at, y);
    for (int n = 0; n < N; ++n) y[n] = expf(y[n] - of[0][n]) / of[1][n];
  }
};

/// dx = y (dy - sum of y dy)
template <class T, int N>
struct SoftmaxGrad {
  using Element = T;
  static constexpr int kN = N, kOperands = 2, kTables = 1;
  using Numbers = float[kTables][N];
  const T *dy, *y;

  explicit SoftmaxGrad(const KernelArgs& args) : dy(args.in[0].as<T>()), y(args.in[1].as<T>()) {}
  template <int k>
  SR_HOST_DEVICE static float nothing() {
    return 0;
  }
  template <int k>
  SR_HOST_DEVICE void add(int64_t at, Numbers& of) const {
    float d[N], p[N];
    read(dy + at, d);
    read(y + at, p);
    for (int n = 0; n < N; ++n) of[0][n] += d[n] * p[n];
  }
  template <int k, class Team>
  SR_HOST_DEVICE static float all(const Team& team, float value) {
    return team.sum(value);
  }
  SR_HOST_DEVICE void result(int64_t at, const Numbers& of, float (&dx)[N]) const {
    float p[N];
    read(dy + at, dx);
    read(y + at, p);
    for (int n = 0; n < N; ++n) dx[n] = p[n] * (dx[n] - of[0][n]);
  }
};

// ---- bodies

/// Operands, the tables that are given behind them, and where results go.
template <class Op, class Out>
struct SegmentData {
  Op op;
  const float* given[Op::kTables] = {};
  Out* out;
  int64_t inner;

  SegmentData(const KernelArgs& args, int tables, int64_t inner)
      : op(args), out(args.out[0].as<Out>()), inner(inner) {
    for (int k = 0; k < tables; ++k)
      given[k] = args.in[static_cast<size_t>(Op::kOperands + k)].as<float>();
  }
};

/// Of each segment number kGiven, those before it given, as a table; or, `kRows`, all numbers and
/// what its rows come to. Those of no segment, behind all, are zeros.
template <class Op, int kGiven, bool kRows>
struct OfSegment : SegmentData<Op, std::conditional_t<kRows, typename Op::Element, float>> {
  using Data = SegmentData<Op, std::conditional_t<kRows, typename Op::Element, float>>;
  using Numbers = typename Op::Numbers;
  static constexpr int kN = Op::kN, kEnd = kRows ? Op::kTables : kGiven + 1;
  Groups rows;

  OfSegment(const KernelArgs& args, const Groups& rows, int64_t inner)
      : Data(args, kGiven, inner), rows(rows) {}
  int64_t segments() const { return kRows ? rows.size + 1 : rows.size; }

  template <class Team>
  SR_HOST_DEVICE void operator()(const Team& team, int64_t item) const {
    const PartOfSegment<kN> part(rows, this->inner, item);
    Numbers of;
    if (!kRows || part.segment < rows.size) find<0>(team, part, of);
    if constexpr (kRows) {
      part.each(team, [&](int64_t at) {
        float v[kN] = {};
        if (part.segment < rows.size) this->op.result(at, of, v);
        write(this->out + at, v);
      });
    } else if (team.rank() == 0) {
      write(this->out + part.in_table(), of[kGiven]);
    }
  }

  /// Numbers [k, kEnd), those before k being known.
  template <int k, class Team>
  SR_HOST_DEVICE void find(const Team& team, const PartOfSegment<kN>& part, Numbers& of) const {
    if constexpr (k < kEnd) {
      if constexpr (k < kGiven) {
        read(this->given[k] + part.in_table(), of[k]);
      } else {
        for (float& value : of[k]) value = Op::template nothing<k>();
        part.each(team, [&](int64_t at) { this->op.template add<k>(at, of); });
        // Else the numbers lie in memory, to be indexed.
        SR_UNROLL for (int n = 0; n < kN; ++n) of[k][n] = Op::template all<k>(team, of[k][n]);
      }
      find<k + 1>(team, part, of);
    }
  }
};

/// Rows by tables that are given.
template <class Op>
struct OfRow : SegmentData<Op, typename Op::Element> {
  Indices rows;

  OfRow(const KernelArgs& args, const Indices& rows, int64_t inner)
      : SegmentData<Op, typename Op::Element>(args, Op::kTables, inner), rows(rows) {}
  SR_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i * Op::kN, row = rows.row(at / this->inner);
    float v[Op::kN] = {};
    if (row >= 0) {
      typename Op::Numbers of;
      for (int k = 0; k < Op::kTables; ++k)
        read(this->given[k] + row * this->inner + at % this->inner, of[k]);
      this->op.result(at, of, v);
    }
    write(this->out + at, v);
  }
};

// ---- calls

/// As OfSegment.
template <class On, template <class, int> class Op, int kGiven, bool kRows>
PreparedKernel prepare_segments(const KernelCall& call) {
  const Grouping grouping(call);
  const Segments s(call, grouping.wanted.size);
  const DType dtype = call.in[0].dtype;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    if (args.out[0].count() == 0) return;
    const Groups rows = grouping.of<On>(args);
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      with_width<T>(s.inner, [&](auto width) {
        const OfSegment<Op<T, width()>, kGiven, kRows> body(args, rows, s.inner);
        const int64_t items = body.segments() * (s.inner / width()),
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

/// As OfRow.
template <class On, template <class, int> class Op>
PreparedKernel prepare_rows(const KernelCall& call) {
  const Segments s(call, call.in[Op<float, 1>::kOperands].shape[0]);
  const DType dtype = call.in[0].dtype;
  PreparedKernel prepared;
  prepared.run = [=](const KernelArgs& args) {
    with_element(dtype, [&](auto element) {
      using T = decltype(element);
      with_width<T>(s.inner, [&](auto width) {
        const OfRow<Op<T, width()>> body(args, Indices(args.in.back(), 0, s.extent), s.inner);
        On::each(args, s.count * (s.inner / width()), body, "segment_rows");
      });
    });
  };
  prepared.impl = "cuda:rows";
  return prepared;
}

inline Refusal segment_refuses(const KernelCall& call) {
  if (auto reason = refuse_other_floats(call)) return reason;
  return refuse_more(call, 4, 1, {"size", "offset", "rearranged"});
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
  return {{"segment_max", "cuda:sort", sorted_refuses, prepare_segments<On, Softmax, 0, false>},
          {"segment_exp_sum", "cuda:sort", sorted_refuses, prepare_segments<On, Softmax, 1, false>},
          {"segment_softmax", "cuda:rows", given_refuses, prepare_rows<On, Softmax>},
          {"segment_softmax", "cuda:sort", sorted_refuses, prepare_segments<On, Softmax, 0, true>},
          {"segment_softmax_reduce_grad", "cuda:sort", sorted_refuses,
           prepare_segments<On, SoftmaxGrad, 0, false>},
          {"segment_softmax_grad", "cuda:rows", given_refuses, prepare_rows<On, SoftmaxGrad>},
          {"segment_softmax_grad", "cuda:sort", sorted_refuses,
           prepare_segments<On, SoftmaxGrad, 0, true>}};
}

}  // namespace shardrun::cuda
