// argmax and argmin: the place of the largest or the smallest number along a dim. Of equal ones the
// first or the last; a NaN is neither, but what begins with one has its place there.
#include <limits>

#include "base/around.h"
#include "base/round_up.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kColumns = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ArgExtreme : Around {
  float sign;  // 1: the largest; -1: the smallest
  bool last;

  explicit ArgExtreme(const KernelCall& call)
      : Around(call.in[0].shape, call.node.attrs.i("axis")),
        sign(call.node.op == "argmax" ? 1.0f : -1.0f),
        last(call.node.attrs.i("select_last_index", 0) != 0) {}

  bool beats(float x, float best) const { return last ? x >= best : x > best; }

  /// A line of numbers side by side: the block that holds the extreme, then its place there.
  int64_t of_line(const TensorView& x, int64_t at) const {
    alignas(64) float buffer[kBlock];
    float best = sign * get(x, at);
    int64_t from = 0;
    for_blocks(extent, [&](int64_t i, int64_t n) {
      const float* block = floats(x, at + i, n, buffer);
      float most = -kInfinity;
#pragma omp simd reduction(max : most)
      for (int64_t j = 0; j < n; ++j) {
        const float v = sign * block[j];
        most = v > most ? v : most;
      }
      if (beats(most, best)) best = most, from = i;
    });
    const int64_t n = std::min(kBlock, extent - from);
    const float* block = floats(x, at + from, n, buffer);
    for (int64_t j = 0; j < n; ++j) {
      const int64_t place = last ? n - 1 - j : j;
      if (sign * block[place] == best) return from + place;
    }
    return 0;  // of NaN alone, or behind one
  }

  template <class T>
  void of_columns(const T* x, int64_t n, int64_t* places) const {
    alignas(64) float best[kColumns];
    for (int64_t c = 0; c < n; ++c) best[c] = sign * as_float(x[c]);
    std::fill_n(places, n, int64_t{0});
    for (int64_t e = 1; e < extent; ++e) {
      const T* row = x + e * inner;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        const float v = sign * as_float(row[c]);
        const bool beaten = last ? v >= best[c] : v > best[c];
        best[c] = beaten ? v : best[c];
        places[c] = beaten ? e : places[c];
      }
    }
  }

  template <class T>
  void run_columns(const KernelArgs& args) const {
    const int64_t blocks = divide_up(inner, kColumns);
    parallel_ranges(outer * blocks, row_grain(extent * std::min(inner, kColumns)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t item = begin; item < end; ++item) {
                        const int64_t o = item / blocks, first = item % blocks * kColumns;
                        of_columns(args.in[0].as<T>() + o * extent * inner + first,
                                   std::min(kColumns, inner - first),
                                   args.out[0].as<int64_t>() + o * inner + first);
                      }
                    });
  }

  void run(const KernelArgs& args) const {
    if (extent == 0) {
      std::fill_n(args.out[0].as<int64_t>(), args.out[0].count(), int64_t{0});
    } else if (inner == 1) {
      parallel_ranges(outer, row_grain(extent), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o)
          args.out[0].as<int64_t>()[o] = of_line(args.in[0], o * extent);
      });
    } else if (args.in[0].type.dtype == DType::bf16) {
      run_columns<uint16_t>(args);
    } else {
      run_columns<float>(args);
    }
  }
};

std::optional<std::string> refuses(const KernelCall& call) {
  if (!is_f32_or_bf16(call.in[0].dtype))
    return str("computes in f32 and bf16, not ", call.in[0].dtype);
  return std::nullopt;
}

}  // namespace

KernelList arg_extreme_kernels() {
  KernelList list;
  for (const char* op : {"argmax", "argmin"}) {
    list.push_back({op, "cpu:simd", refuses, [](const KernelCall& call) {
                      return PreparedKernel{
                          [arg = ArgExtreme(call)](const KernelArgs& args) { arg.run(args); }, 0,
                          "cpu:simd"};
                    }});
  }
  return list;
}

}  // namespace shardrun::cpu
