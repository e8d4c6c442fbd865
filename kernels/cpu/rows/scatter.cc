// Elements and slices that indices pick one by one: gather_elements, gather_nd, and the scatters
// that write to such places. A place has one thread, which takes what goes there in the order of
// the indices, and reduces it in f32.
#include <algorithm>
#include <type_traits>

#include "base/around.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/rows/row_copy.h"
#include "kernels/cpu/rows/sorted_rows.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

/// Calls f with an unsigned number of so many bytes, for elements that are only moved.
template <class F>
void with_word(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

/// Runs a scatter of elements T that are summed up as Sum, in the result itself where that is T:
/// scatter(T{}, sums, (Sum so far, T) -> Sum).
template <class Scatter>
void with_reduction(const std::string& reduction, const KernelArgs& args, Scatter&& scatter) {
  const TensorView& out = args.out[0];
  if (reduction == "none") {
    return with_word(size_of(out.type.dtype), [&](auto word) {
      using T = decltype(word);
      scatter(word, out.as<T>(), [](T, T x) { return x; });
    });
  }
  const auto reduce = [&](auto element, float* sums) {
    using T = decltype(element);
    const auto by = [&](auto&& f) {
      scatter(element, sums, [&](float sum, T x) { return f(sum, as_float(x)); });
    };
    if (reduction == "add") return by([](float a, float b) { return a + b; });
    if (reduction == "mul") return by([](float a, float b) { return a * b; });
    if (reduction == "max") return by([](float a, float b) { return std::max(a, b); });
    by([](float a, float b) { return std::min(a, b); });
  };
  if (out.type.dtype == DType::f32) return reduce(float{}, out.as<float>());
  reduce(uint16_t{}, static_cast<float*>(args.workspace));
}

/// Of the sums above.
int64_t sum_bytes(const KernelCall& call) {
  const bool in_place =
      call.node.attrs.s("reduction", "none") == "none" || call.out[0].dtype == DType::f32;
  return in_place ? 0 : element_count(call.out[0].shape) * 4;
}

/// Elements [begin, end) of data become sums, and sums results.
template <class T, class Sum>
void begin_sums(const T* data, Sum* sums, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<T, Sum>) {
    if (data != sums) std::copy(data + begin, data + end, sums + begin);
  } else {
    for (int64_t i = begin; i < end; ++i) sums[i] = as_float(data[i]);
  }
}
template <class T, class Sum>
void end_sums(const Sum* sums, T* out, int64_t begin, int64_t end) {
  if constexpr (!std::is_same_v<T, Sum>) {
    for (int64_t i = begin; i < end; ++i) assign(out[i], sums[i]);
  }
}

std::optional<std::string> reduction_refuses(const KernelCall& call) {
  if (call.node.attrs.s("reduction", "none") != "none" && !is_f32_or_bf16(call.in[0].dtype))
    return str("reduces f32 and bf16, not ", call.in[0].dtype);
  return std::nullopt;
}

// ---- gather_elements, scatter_elements: indices [outer, count, inner], data [outer, extent,
// inner]. Columns, of which there are outer * inner, know nothing of each other.

/// Columns [first, last) of the inner ones of `outer`.
struct Columns {
  int64_t outer, first, last;
};

/// Calls f(columns) for all of them, several threads' if they are many.
template <class F>
void for_columns(const Around& g, int64_t count, F&& f) {
  const int64_t grain = row_grain(g.extent + count);
  parallel_ranges(g.outer * g.inner, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t outer = begin / g.inner, first = begin % g.inner,
                    last = std::min(g.inner, first + end - begin);
      f(Columns{outer, first, last});
      begin += last - first;
    }
  });
}

/// Calls f(position in the indices, position in the data or -1) in the order of the indices.
template <class F>
void for_indices(const Around& g, const Columns& c, const TensorView& indices, int64_t count,
                 int64_t offset, F&& f) {
  for (int64_t e = 0; e < count; ++e) {
    for (int64_t k = c.first; k < c.last; ++k) {
      const int64_t i = (c.outer * count + e) * g.inner + k, row = index_at(indices, i) - offset;
      f(i, row >= 0 && row < g.extent ? (c.outer * g.extent + row) * g.inner + k : -1);
    }
  }
}

/// Calls f(begin, end) for the ranges of data that the columns consist of.
template <class F>
void for_data(const Around& g, const Columns& c, F&& f) {
  const int64_t all = c.outer * g.extent * g.inner;
  if (c.last - c.first == g.inner) return f(all, all + g.extent * g.inner);
  for (int64_t row = 0; row < g.extent; ++row)
    f(all + row * g.inner + c.first, all + row * g.inner + c.last);
}

std::optional<std::string> elements_refuse(const KernelCall& call) {
  const Shape &data = call.in[0].shape, &indices = call.in[1].shape;
  const auto axis = static_cast<size_t>(call.node.attrs.i("axis"));
  for (size_t d = 0; d < data.size(); ++d) {
    if (d != axis && data[d] != indices[d])
      return "indices as large as data along all dims but the axis";
  }
  return reduction_refuses(call);
}

PreparedKernel gather_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  return {[=](const KernelArgs& args) {
            with_word(size_of(args.out[0].type.dtype), [&](auto word) {
              using T = decltype(word);
              const T* data = args.in[0].as<T>();
              T* out = args.out[0].as<T>();
              for_columns(g, count, [&](const Columns& columns) {
                for_indices(g, columns, args.in[1], count, offset, [&](int64_t i, int64_t from) {
                  out[i] = from >= 0 ? data[from] : T{};
                });
              });
            });
          },
          0, "cpu:columns"};
}

PreparedKernel scatter_elements(const KernelCall& call) {
  const int64_t axis = call.node.attrs.i("axis"), offset = call.node.attrs.i("offset", 0);
  const Around g(call.in[0].shape, axis);
  const int64_t count = call.in[1].shape[static_cast<size_t>(axis)];
  const std::string reduction = call.node.attrs.s("reduction", "none");
  return {[=](const KernelArgs& args) {
            with_reduction(reduction, args, [&](auto element, auto* sums, auto&& reduce) {
              using T = decltype(element);
              const T *data = args.in[0].as<T>(), *updates = args.in[2].as<T>();
              T* out = args.out[0].as<T>();
              for_columns(g, count, [&](const Columns& columns) {
                for_data(g, columns,
                         [&](int64_t begin, int64_t end) { begin_sums(data, sums, begin, end); });
                for_indices(g, columns, args.in[1], count, offset, [&](int64_t i, int64_t to) {
                  if (to >= 0) sums[to] = reduce(sums[to], updates[i]);
                });
                for_data(g, columns,
                         [&](int64_t begin, int64_t end) { end_sums(sums, out, begin, end); });
              });
            });
          },
          sum_bytes(call), "cpu:columns"};
}

// ---- gather_nd, scatter_nd: data [batches, slices, inner], of which tuples pick slices

/// What tuples of indices pick.
class Tuples {
 public:
  Tuples(const Shape& data, const TensorType& indices, int64_t batch_dims)
      : entries_(indices.shape.back()),
        from_(data.begin() + batch_dims, data.begin() + batch_dims + entries_),
        count_(element_count(Shape(indices.shape.begin(), indices.shape.end() - 1))),
        in_batch_(
            element_count(Shape(indices.shape.begin() + batch_dims, indices.shape.end() - 1))),
        slices_(element_count(from_)),
        batches_(element_count(Shape(data.begin(), data.begin() + batch_dims))),
        inner_(element_count(Shape(data.begin() + batch_dims + entries_, data.end()))) {}

  int64_t count() const { return count_; }
  /// Slices of data in all, and elements of each.
  int64_t extent() const { return batches_ * slices_; }
  int64_t inner() const { return inner_; }
  /// The slice that tuple i picks; -1: outside.
  int64_t slice(const TensorView& indices, int64_t i) const {
    int64_t slice = 0;
    for (int64_t e = 0; e < entries_; ++e) {
      const int64_t index = index_at(indices, i * entries_ + e),
                    size = from_[static_cast<size_t>(e)];
      if (index < 0 || index >= size) return -1;
      slice = slice * size + index;
    }
    return i / in_batch_ * slices_ + slice;
  }

 private:
  int64_t entries_;  // of a tuple
  Shape from_;       // the dims that they pick from
  int64_t count_, in_batch_, slices_, batches_, inner_;
};

PreparedKernel gather_nd(const KernelCall& call) {
  const Tuples tuples(call.in[0].shape, call.in[1], call.node.attrs.i("batch_dims", 0));
  const int64_t bytes = tuples.inner() * size_of(call.in[0].dtype);
  return {[=](const KernelArgs& args) {
            const char* data = args.in[0].as<char>();
            char* out = args.out[0].as<char>();
            if (bytes == 0) return;
            parallel_ranges(tuples.count(), row_grain(bytes), [&](int64_t begin, int64_t end) {
              with_row_size(bytes, [&](auto size) {
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t from = tuples.slice(args.in[1], i);
                  copy_or_zero(out + i * bytes, from >= 0 ? data + from * bytes : nullptr, size);
                }
              });
            });
          },
          0, "cpu:copy"};
}

/// Each thread has a range of data's slices and looks through all tuples for those that pick them.
PreparedKernel scatter_nd(const KernelCall& call) {
  const Tuples tuples(call.in[0].shape, call.in[1], call.node.attrs.i("batch_dims", 0));
  const std::string reduction = call.node.attrs.s("reduction", "none");
  const int64_t inner = tuples.inner(), sums_end = (sum_bytes(call) + 7) / 8 * 8;
  return {[=](const KernelArgs& args) {
            auto* picked =
                reinterpret_cast<int64_t*>(static_cast<char*>(args.workspace) + sums_end);
            parallel_ranges(tuples.count(), row_grain(1), [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) picked[i] = tuples.slice(args.in[1], i);
            });
            with_reduction(reduction, args, [&](auto element, auto* sums, auto&& reduce) {
              using T = decltype(element);
              const T *data = args.in[0].as<T>(), *updates = args.in[2].as<T>();
              T* out = args.out[0].as<T>();
              parallel_ranges(tuples.extent(), row_grain(inner), [&](int64_t begin, int64_t end) {
                begin_sums(data, sums, begin * inner, end * inner);
                for (int64_t i = 0; i < tuples.count(); ++i) {
                  if (picked[i] < begin || picked[i] >= end) continue;
                  auto* to = sums + picked[i] * inner;
                  const T* update = updates + i * inner;
#pragma omp simd
                  for (int64_t k = 0; k < inner; ++k) to[k] = reduce(to[k], update[k]);
                }
                end_sums(sums, out, begin * inner, end * inner);
              });
            });
          },
          sums_end + tuples.count() * 8, "cpu:ranges"};
}

}  // namespace

KernelList scatter_kernels() {
  const auto any = [](const KernelCall&) { return std::nullopt; };
  return {{"gather_elements", "cpu:columns", elements_refuse, gather_elements},
          {"gather_nd", "cpu:copy", any, gather_nd},
          {"scatter_elements", "cpu:columns", elements_refuse, scatter_elements},
          {"scatter_nd", "cpu:ranges", reduction_refuses, scatter_nd}};
}

}  // namespace shardrun::cpu
