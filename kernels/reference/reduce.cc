// Reference kernels of the reductions. Floats accumulate in double, integers in int64.
#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/around.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/families.h"

namespace shardrun::reference {
namespace {

/// y[result(i)] = f(y[result(i)], x[i]) over all i, from `start`.
template <class T, auto F>
void reduce_as(const Node& node, const KernelArgs& args, T start) {
  const TensorView &in = args.in[0], &out = args.out[0];
  const Shape& shape = in.type.shape;
  Shape kept = shape;
  for (int64_t axis : node.attrs.ints("axes")) kept[static_cast<size_t>(axis)] = 1;
  std::vector<T> result(static_cast<size_t>(out.count()), start);
  std::vector<T> row;
  const Walk walk(shape, {row_major_strides(shape), broadcast_strides(kept, shape)});
  row.resize(static_cast<size_t>(walk.length()));
  walk.rows([&](const int64_t* offset) {
    load(in, offset[0], walk.stride(0), walk.length(), row.data());
    T* y = result.data() + offset[1];
    for (int64_t i = 0; i < walk.length(); ++i) {
      T& slot = y[i * walk.stride(1)];
      slot = F(slot, row[static_cast<size_t>(i)]);
    }
  });
  store_all(out, result);
}

template <auto F>
void reduce(const Node& node, const KernelArgs& args, double float_start, int64_t int_start) {
  if (is_float(args.in[0].type.dtype)) {
    reduce_as<double, [](double a, double b) { return F(a, b); }>(node, args, float_start);
  } else {
    reduce_as<int64_t, [](int64_t a, int64_t b) { return F(a, b); }>(node, args, int_start);
  }
}

/// The largest and smallest value of an integer type: what an empty maximum or minimum gives.
int64_t integer_limit(DType dtype, bool largest) {
  return dispatch(dtype, [&](auto tag) -> int64_t {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(largest ? std::numeric_limits<T>::max()
                                          : std::numeric_limits<T>::lowest());
    } else {
      return 0;
    }
  });
}

constexpr double kInf = std::numeric_limits<double>::infinity();

void run_sum(const Node& node, const KernelArgs& args) {
  reduce<[](auto a, auto b) { return a + b; }>(node, args, 0, 0);
}
void run_product(const Node& node, const KernelArgs& args) {
  reduce<[](auto a, auto b) { return a * b; }>(node, args, 1, 1);
}
void run_max(const Node& node, const KernelArgs& args) {
  // a != a: a NaN stays, and b wins if it is one.
  reduce<[](auto a, auto b) { return (a != a || a > b) ? a : b; }>(
      node, args, -kInf, integer_limit(args.in[0].type.dtype, false));
}
void run_min(const Node& node, const KernelArgs& args) {
  reduce<[](auto a, auto b) { return (a != a || a < b) ? a : b; }>(
      node, args, kInf, integer_limit(args.in[0].type.dtype, true));
}

template <class T>
void run_arg_as(const Node& node, const KernelArgs& args, bool largest) {
  const bool last = node.attrs.i("select_last_index", 0) != 0;
  const Around s(args.in[0].type.shape, node.attrs.i("axis"));
  auto* out = args.out[0].as<int64_t>();
  std::vector<T> row(static_cast<size_t>(s.extent));
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) {
      load(args.in[0], o * s.extent * s.inner + i, s.inner, s.extent, row.data());
      int64_t best = 0;
      for (int64_t k = 1; k < s.extent; ++k) {
        const T x = row[static_cast<size_t>(k)], y = row[static_cast<size_t>(best)];
        if ((largest ? x > y : x < y) || (last && x == y)) best = k;
      }
      out[o * s.inner + i] = best;
    }
  }
}

template <bool kLargest>
void run_arg(const Node& node, const KernelArgs& args) {
  if (is_float(args.in[0].type.dtype)) {
    run_arg_as<double>(node, args, kLargest);
  } else {
    run_arg_as<int64_t>(node, args, kLargest);
  }
}

/// NaN counts as the greatest.
template <class T>
void run_top_k_as(const Node& node, const KernelArgs& args) {
  const bool largest = node.attrs.i("largest") != 0;
  const int64_t k = node.attrs.i("k");
  const Around s(args.in[0].type.shape, node.attrs.i("axis"));
  auto* indices = args.out[1].as<int64_t>();
  std::vector<T> row(static_cast<size_t>(s.extent)), values(static_cast<size_t>(k));
  std::vector<int64_t> order(static_cast<size_t>(s.extent));
  const auto greater = [](T a, T b) { return a > b || (a != a && b == b); };
  const auto before = [&](int64_t a, int64_t b) {
    const T x = row[static_cast<size_t>(a)], y = row[static_cast<size_t>(b)];
    if (largest ? greater(x, y) : greater(y, x)) return true;
    return !(largest ? greater(y, x) : greater(x, y)) && a < b;
  };
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) {
      load(args.in[0], o * s.extent * s.inner + i, s.inner, s.extent, row.data());
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
      const int64_t to = o * k * s.inner + i;
      for (int64_t j = 0; j < k; ++j) {
        values[static_cast<size_t>(j)] = row[static_cast<size_t>(order[static_cast<size_t>(j)])];
        indices[to + j * s.inner] = order[static_cast<size_t>(j)];
      }
      store(args.out[0], to, s.inner, k, values.data());
    }
  }
}

void run_top_k(const Node& node, const KernelArgs& args) {
  if (is_float(args.in[0].type.dtype)) {
    run_top_k_as<double>(node, args);
  } else {
    run_top_k_as<int64_t>(node, args);
  }
}

template <class T>
void run_cumsum_as(const Node& node, const KernelArgs& args) {
  const bool exclusive = node.attrs.i("exclusive", 0) != 0,
             reverse = node.attrs.i("reverse", 0) != 0;
  const Around s(args.in[0].type.shape, node.attrs.i("axis"));
  std::vector<T> row(static_cast<size_t>(s.extent));
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i = 0; i < s.inner; ++i) {
      const int64_t offset = o * s.extent * s.inner + i;
      load(args.in[0], offset, s.inner, s.extent, row.data());
      if (reverse) std::reverse(row.begin(), row.end());
      T sum = 0;
      for (T& x : row) {
        const T before = sum;
        sum += x;
        x = exclusive ? before : sum;
      }
      if (reverse) std::reverse(row.begin(), row.end());
      store(args.out[0], offset, s.inner, s.extent, row.data());
    }
  }
}

void run_cumsum(const Node& node, const KernelArgs& args) {
  if (is_float(args.in[0].type.dtype)) {
    run_cumsum_as<double>(node, args);
  } else {
    run_cumsum_as<int64_t>(node, args);
  }
}

void run_sum_squares(const Node&, const KernelArgs& args) {
  double block[512], sum = 0;
  for (const TensorView& in : args.in) {
    const int64_t count = in.count();
    for (int64_t i = 0; i < count; i += 512) {
      const int64_t n = std::min<int64_t>(512, count - i);
      load(in, i, 1, n, block);
      for (int64_t j = 0; j < n; ++j) sum += block[j] * block[j];
    }
  }
  store(args.out[0], 0, 1, 1, &sum);
}

}  // namespace

KernelList reduce_kernels() {
  return {kernel("reduce_sum", run_sum),
          kernel("reduce_max", run_max),
          kernel("reduce_min", run_min),
          kernel("reduce_prod", run_product),
          kernel("argmax", run_arg<true>),
          kernel("argmin", run_arg<false>),
          kernel("top_k", run_top_k),
          kernel("cumsum", run_cumsum),
          kernel("reduce_sum_squares", run_sum_squares)};
}

}  // namespace shardrun::reference
