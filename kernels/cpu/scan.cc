// Running sums along a dim, in double as reductions are, columns side by side.
#include "base/around.h"
#include "base/round_up.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kColumns = 64;

struct Scan : Around {
  bool exclusive, reverse;

  explicit Scan(const KernelCall& call)
      : Around(call.in[0].shape, call.node.attrs.i("axis")),
        exclusive(call.node.attrs.i("exclusive", 0) != 0),
        reverse(call.node.attrs.i("reverse", 0) != 0) {}

  /// `n` adjacent columns, the first at `at`.
  template <class T>
  void run_columns(const T* x, T* y, int64_t at, int64_t n) const {
    double sums[kColumns] = {};
    for (int64_t e = 0; e < extent; ++e) {
      const int64_t place = at + (reverse ? extent - 1 - e : e) * inner;
      for (int64_t c = 0; c < n; ++c) {
        const double before = sums[c];
        sums[c] += as_float(x[place + c]);
        assign(y[place + c], static_cast<float>(exclusive ? before : sums[c]));
      }
    }
  }

  template <class T>
  void run(const KernelArgs& args) const {
    const T* x = args.in[0].as<T>();
    T* y = args.out[0].as<T>();
    const int64_t blocks = divide_up(inner, kColumns);
    parallel_ranges(outer * blocks, row_grain(extent * std::min(inner, kColumns)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t item = begin; item < end; ++item) {
                        const int64_t first = item % blocks * kColumns;
                        run_columns(x, y, item / blocks * extent * inner + first,
                                    std::min(kColumns, inner - first));
                      }
                    });
  }
};

std::optional<std::string> refuses(const KernelCall& call) {
  if (!is_f32_or_bf16(call.in[0].dtype))
    return str("computes in f32 and bf16, not ", call.in[0].dtype);
  return std::nullopt;
}

}  // namespace

KernelList scan_kernels() {
  return {{"cumsum", "cpu:simd", refuses, [](const KernelCall& call) {
             const bool bf16 = call.in[0].dtype == DType::bf16;
             return PreparedKernel{[scan = Scan(call), bf16](const KernelArgs& args) {
                                     if (bf16) return scan.run<uint16_t>(args);
                                     scan.run<float>(args);
                                   },
                                   0, "cpu:simd"};
           }}};
}

}  // namespace shardrun::cpu
