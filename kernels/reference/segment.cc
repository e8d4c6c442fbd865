// Reference kernels of softmax over segments. A number outside of the table names no segment.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

using Doubles = std::vector<double>;

/// x as rows of `inner` elements, each with its segment or -1, among `extent` segments.
struct Segments {
  std::vector<int64_t> of;
  int64_t extent, inner;

  Segments(const Node& node, const TensorView& x, const TensorView& rows, int64_t size)
      : of(load_ints(rows)), extent(size), inner(1) {
    for (size_t d = 1; d < x.type.shape.size(); ++d) inner *= x.type.shape[d];
    const int64_t offset = node.attrs.i("offset", 0);
    for (int64_t& row : of) row = row >= offset && row - offset < extent ? row - offset : -1;
  }
  Doubles table(double value) const { return Doubles(static_cast<size_t>(extent * inner), value); }
  /// f(element of x, element of a table) for all that have a segment.
  template <class F>
  void each(F&& f) const {
    for (size_t e = 0; e < of.size(); ++e) {
      if (of[e] < 0) continue;
      for (int64_t k = 0; k < inner; ++k) {
        f(e * static_cast<size_t>(inner) + static_cast<size_t>(k),
          static_cast<size_t>(of[e] * inner + k));
      }
    }
  }
  Doubles top(const Doubles& x) const {
    Doubles top = table(-std::numeric_limits<double>::infinity());
    each([&](size_t i, size_t at) { top[at] = std::max(top[at], x[i]); });
    return top;
  }
  Doubles exp_sum(const Doubles& x, const Doubles& top) const {
    Doubles total = table(0);
    each([&](size_t i, size_t at) { total[at] += std::exp(x[i] - top[at]); });
    return total;
  }
  Doubles dots(const Doubles& dy, const Doubles& y) const {
    Doubles sums = table(0);
    each([&](size_t i, size_t at) { sums[at] += dy[i] * y[i]; });
    return sums;
  }
};

int64_t size_of_table(const Node& node, const KernelArgs& args, size_t table) {
  return node.attrs.has("size") ? node.attrs.i("size") : args.in[table].type.shape[0];
}

void run_max(const Node& node, const KernelArgs& args) {
  const Segments s(node, args.in[0], args.in[1], node.attrs.i("size"));
  store_all(args.out[0], s.top(load_doubles(args.in[0])));
}

void run_exp_sum(const Node& node, const KernelArgs& args) {
  const Segments s(node, args.in[0], args.in[2], size_of_table(node, args, 1));
  store_all(args.out[0], s.exp_sum(load_doubles(args.in[0]), load_doubles(args.in[1])));
}

void run_softmax(const Node& node, const KernelArgs& args) {
  const bool whole = node.attrs.has("size");
  const Segments s(node, args.in[0], args.in[whole ? 1 : 3], size_of_table(node, args, 1));
  const Doubles x = load_doubles(args.in[0]);
  const Doubles top = whole ? s.top(x) : load_doubles(args.in[1]);
  const Doubles total = whole ? s.exp_sum(x, top) : load_doubles(args.in[2]);
  Doubles y(x.size(), 0);
  s.each([&](size_t i, size_t at) { y[i] = std::exp(x[i] - top[at]) / total[at]; });
  store_all(args.out[0], y);
}

void run_reduce_grad(const Node& node, const KernelArgs& args) {
  const Segments s(node, args.in[0], args.in[2], node.attrs.i("size"));
  store_all(args.out[0], s.dots(load_doubles(args.in[0]), load_doubles(args.in[1])));
}

void run_grad(const Node& node, const KernelArgs& args) {
  const bool whole = node.attrs.has("size");
  const Segments s(node, args.in[0], args.in[whole ? 2 : 3], size_of_table(node, args, 2));
  const Doubles dy = load_doubles(args.in[0]), y = load_doubles(args.in[1]);
  const Doubles sums = whole ? s.dots(dy, y) : load_doubles(args.in[2]);
  Doubles dx(y.size(), 0);
  s.each([&](size_t i, size_t at) { dx[i] = y[i] * (dy[i] - sums[at]); });
  store_all(args.out[0], dx);
}

}  // namespace

KernelList segment_kernels() {
  return {kernel("segment_max", run_max), kernel("segment_exp_sum", run_exp_sum),
          kernel("segment_softmax", run_softmax),
          kernel("segment_softmax_reduce_grad", run_reduce_grad),
          kernel("segment_softmax_grad", run_grad)};
}

}  // namespace shardrun::reference
