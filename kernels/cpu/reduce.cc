// Reductions over any dims, accumulated in f64 in an order that does not depend on the thread
// count.
#include <limits>

#include "kernels/cpu/families.h"
#include "kernels/cpu/reduce_run.h"
#include "kernels/cpu/row_tile.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

struct Product {
  static constexpr double kStart = 1;
  static double join(double a, double b) { return a * b; }
};
struct Max {
  static constexpr double kStart = -std::numeric_limits<double>::infinity();
  static double join(double a, double b) { return b > a || b != b ? b : a; }  // NaN stays
};
struct Min {
  static constexpr double kStart = std::numeric_limits<double>::infinity();
  static double join(double a, double b) { return b < a || b != b ? b : a; }
};

// Everything to one number.
template <class Op, bool kSquare>
void reduce_all(const KernelArgs& args) {
  const int64_t count = args.in[0].count(), chunks = chunks_of(count);
  auto* partial = static_cast<double*>(args.workspace);
  parallel_ranges(chunks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      partial[c] =
          reduce_run<Op, kSquare>(args.in[0], c * kChunk, std::min(kChunk, count - c * kChunk));
    }
  });
  double total = Op::kStart;
  for (int64_t c = 0; c < chunks; ++c) total = Op::join(total, partial[c]);
  set(args.out[0], 0, static_cast<float>(total));
}

// Dims merged into alternating kept and reduced groups, of the latter one at least. Example:
// [B,T,C] over {0,1} -> [B*T] reduced, [C] kept.
struct Groups {
  struct Group {
    int64_t size, stride;
  };
  std::vector<Group> kept, reduced;
  bool last_kept = false;
  int64_t kept_count = 1, reduced_count = 1;

  Groups(const Shape& shape, const std::vector<int64_t>& axes) {
    const Shape strides = row_major_strides(shape);
    bool before = false, first = true;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const bool is_reduced =
          std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
      std::vector<Group>& list = is_reduced ? reduced : kept;
      if (!first && before == is_reduced) {
        list.back().size *= shape[d];
        list.back().stride = strides[d];
      } else {
        list.push_back({shape[d], strides[d]});
      }
      (is_reduced ? reduced_count : kept_count) *= shape[d];
      before = is_reduced, first = false;
    }
    last_kept = !first && !before;
    if (reduced.empty()) reduced.push_back({1, 0});
  }
};

int64_t offset_of(int64_t index, const std::vector<Groups::Group>& groups, size_t count) {
  int64_t offset = 0;
  for (size_t g = count; g-- > 0;) {
    offset += index % groups[g].size * groups[g].stride;
    index /= groups[g].size;
  }
  return offset;
}

// Columns that are reduced together: their sums stay in the first cache.
constexpr int64_t kColumns = 128;

// y's n elements from the at-th on: columns of x, joined over all reduced rows in order.
template <class Op, class T>
void reduce_columns(const T* x, int64_t n, const Groups& g, const TensorView& y, int64_t at) {
  alignas(64) double sum[kColumns];
  std::fill_n(sum, n, Op::kStart);
  const Groups::Group inner = g.reduced.back();  // rows at one distance
  for (int64_t first = 0; first < g.reduced_count; first += inner.size) {
    const T* rows = x + offset_of(first / inner.size, g.reduced, g.reduced.size() - 1);
    int64_t r = 0;
    for (; r + 4 <= inner.size; r += 4) {  // sums are loaded and stored once for four rows
      const T *a = rows + r * inner.stride, *b = a + inner.stride, *c = b + inner.stride,
              *d = c + inner.stride;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        double joined = Op::join(sum[i], static_cast<double>(as_float(a[i])));
        joined = Op::join(joined, static_cast<double>(as_float(b[i])));
        joined = Op::join(joined, static_cast<double>(as_float(c[i])));
        sum[i] = Op::join(joined, static_cast<double>(as_float(d[i])));
      }
    }
    for (; r < inner.size; ++r) {
      const T* row = rows + r * inner.stride;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        sum[i] = Op::join(sum[i], static_cast<double>(as_float(row[i])));
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) set(y, at + i, static_cast<float>(sum[i]));
}

// Numbers [begin, end) of y, each of a run of x of fewer than kLanes, which lie side by side: in
// the order of reduce_run, 16 at a time.
template <class Op>
void reduce_short_runs(int64_t run, const KernelArgs& args, int64_t begin, int64_t end) {
  RowTile tile(run);
  for_tiles(begin, end, [&](int64_t k, int64_t n) {
    tile.load(args.in[0], k, n);
    alignas(64) double total[kLanes];
    std::fill_n(total, kLanes, Op::kStart);
    for (int64_t c = 0; c < run; ++c) {
      alignas(64) float column[kLanes];
      store_lanes(column, tile[c]);
#pragma omp simd
      for (int64_t i = 0; i < kLanes; ++i)
        total[i] = Op::join(total[i], static_cast<double>(column[i]));
    }
    for (int64_t i = 0; i < n; ++i) set(args.out[0], k + i, static_cast<float>(total[i]));
  });
}

// Numbers [begin, end) of y where the innermost dim is reduced: each joins contiguous runs of x.
template <class Op>
void reduce_runs(const Groups& g, const KernelArgs& args, int64_t begin, int64_t end) {
  const int64_t run = g.reduced.back().size, runs = run == 0 ? 0 : g.reduced_count / run;
  if (runs == 1 && run > 1 && run < kLanes && g.kept.size() == 1 && g.kept[0].stride == run)
    return reduce_short_runs<Op>(run, args, begin, end);
  const size_t outer = g.reduced.size() - 1;
  for (int64_t k = begin; k < end; ++k) {
    const int64_t base = offset_of(k, g.kept, g.kept.size());
    double total = Op::kStart;
    for (int64_t r = 0; r < runs; ++r) {
      const int64_t at = base + offset_of(r, g.reduced, outer);
      total = Op::join(total, reduce_run<Op, false>(args.in[0], at, run));
    }
    set(args.out[0], k, static_cast<float>(total));
  }
}

template <class Op>
void reduce_groups(const Groups& g, const KernelArgs& args) {
  const TensorView &x = args.in[0], &y = args.out[0];
  if (y.count() == 0) return;
  if (!g.last_kept || g.reduced_count == 0) {
    parallel_ranges(g.kept_count, row_grain(g.reduced_count),
                    [&](int64_t begin, int64_t end) { reduce_runs<Op>(g, args, begin, end); });
    return;
  }
  // The innermost dim is kept: blocks of columns, each joined over all reduced rows in order.
  const int64_t cols = g.kept.back().size, blocks = (cols + kColumns - 1) / kColumns;
  const int64_t outer = g.kept_count / cols;
  parallel_ranges(outer * blocks, row_grain(g.reduced_count * std::min(cols, kColumns)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t k = item / blocks, from = item % blocks * kColumns,
                                    n = std::min(kColumns, cols - from);
                      const int64_t base = offset_of(k, g.kept, g.kept.size() - 1) + from;
                      if (x.type.dtype == DType::f32) {
                        reduce_columns<Op>(x.as<float>() + base, n, g, y, k * cols + from);
                      } else {
                        reduce_columns<Op>(x.as<uint16_t>() + base, n, g, y, k * cols + from);
                      }
                    }
                  });
}

std::optional<std::string> refuses(const KernelCall& call) {
  if (call.in.size() > 1) return str("reduces one operand, not ", call.in.size());
  if (!is_f32_or_bf16(call.in[0].dtype))
    return str("computes in f32 and bf16, not ", call.in[0].dtype);
  return std::nullopt;
}

template <class Op>
KernelImpl reduction(const char* op) {
  return {op, "cpu:simd", refuses, [](const KernelCall& call) {
            const Groups groups(call.in[0].shape, call.node.attrs.ints("axes"));
            const int64_t count = element_count(call.in[0].shape);
            if (groups.kept_count == 1 && count > kChunk) {
              return PreparedKernel{reduce_all<Op, false>, partials_bytes(count), "cpu:simd"};
            }
            PreparedKernel out{
                [groups](const KernelArgs& args) { reduce_groups<Op>(groups, args); }, 0,
                "cpu:simd"};
            const Shape& shape = call.in[0].shape;
            if (!groups.last_kept && !shape.empty() && groups.reduced_count == shape.back()) {
              out.run_rows = [groups](const KernelArgs& args, int64_t begin, int64_t end) {
                reduce_runs<Op>(groups, args, begin, end);
              };
              out.rows_of_operand = true;
            }
            return out;
          }};
}

}  // namespace

KernelList reduce_kernels() {
  return {reduction<Sum>("reduce_sum"),
          reduction<Max>("reduce_max"),
          reduction<Min>("reduce_min"),
          reduction<Product>("reduce_prod"),
          {"reduce_sum_squares", "cpu:simd", refuses, [](const KernelCall& call) {
             return PreparedKernel{reduce_all<Sum, true>,
                                   partials_bytes(element_count(call.in[0].shape)), "cpu:simd"};
           }}};
}

}  // namespace shardrun::cpu
