// Each thread has rows of the result of its own, and adds to them in the order of the sum: results
// do not depend on the number of threads.
#include "kernels/cpu/products/nonzeros.h"

#include <atomic>

#include "graph/ops/einsum.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

constexpr int64_t kProbed = 32;  // rows
constexpr int64_t kFew = 16;     // one in so many

/// Left [rows, cols], right [rows or cols, n].
struct Product {
  int64_t rows = 0, cols = 0, n = 0;
  bool of_columns = false;  // xy,xn->yn: a row of the result for each column of the left operand

  static std::optional<Product> of(const KernelCall& call, std::string* why) {
    const Einsum e = Einsum::parse(call.node.attrs.s("equation"));
    if (e.a.size() != 2 || e.b.size() != 2 || e.out.size() != 2 || e.out[1] != e.b[1]) {
      *why = "wants xy,yn->xn or xy,xn->yn";
      return std::nullopt;
    }
    const bool of_columns = e.out[0] == e.a[1];
    if (e.b[0] != e.a[of_columns ? 0 : 1] || e.out[0] != e.a[of_columns ? 1 : 0] ||
        e.a.find(e.b[1]) != std::string::npos) {
      *why = "wants xy,yn->xn or xy,xn->yn";
      return std::nullopt;
    }
    const Shape &a = call.in[0].shape, &b = call.in[1].shape;
    return Product{a[0], a[1], b[1], of_columns};
  }
};

/// Calls f(i) for each of n elements that is not zero.
template <class F>
void for_each_nonzero(const float* x, int64_t n, F&& f) {
  constexpr int64_t kTogether = 64;
  const auto bits = [](float v) { return std::bit_cast<uint32_t>(v) << 1; };  // -0 is zero
  int64_t i = 0;
  for (; i + kTogether <= n; i += kTogether) {
    uint32_t any = 0;
    for (int64_t j = i; j < i + kTogether; ++j) any |= bits(x[j]);
    if (any == 0) continue;
    for (int64_t j = i; j < i + kTogether; ++j) {
      if (bits(x[j]) != 0) f(j);
    }
  }
  for (; i < n; ++i) {
    if (bits(x[i]) != 0) f(i);
  }
}

bool few(const Product& p, const float* a) {
  const int64_t step = std::max<int64_t>(1, p.rows / kProbed);
  int64_t seen = 0, nonzero = 0;
  for (int64_t row = 0; row < p.rows; row += step, seen += p.cols) {
    for_each_nonzero(a + row * p.cols, p.cols, [&](int64_t) { ++nonzero; });
    if (nonzero * kFew > seen + p.cols) return false;
  }
  return nonzero * kFew <= seen;
}

bool finite(const float* b, int64_t count) {
  std::atomic<bool> all{true};
  parallel_ranges(count, 1 << 16, [&](int64_t begin, int64_t end) {
    uint32_t worst = 0;
    for (int64_t i = begin; i < end; ++i)
      worst = std::max(worst, std::bit_cast<uint32_t>(b[i]) & 0x7fffffffu);
    if (worst >= 0x7f800000u) all = false;
  });
  return all;
}

void add_row(float by, const float* b, int64_t n, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += by * b[i];
}

void run(const Product& p, const float* a, const float* b, float* y) {
  if (!p.of_columns) {
    parallel_ranges(p.rows, row_grain(p.cols), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* x = a + row * p.cols;
        float* out = y + row * p.n;
        std::fill_n(out, p.n, 0.0f);
        for_each_nonzero(x, p.cols, [&](int64_t i) { add_row(x[i], b + i * p.n, p.n, out); });
      }
    });
    return;
  }
  parallel_ranges(p.cols, row_grain(p.rows), [&](int64_t begin, int64_t end) {
    std::fill_n(y + begin * p.n, (end - begin) * p.n, 0.0f);
    for (int64_t row = 0; row < p.rows; ++row) {
      const float* x = a + row * p.cols + begin;
      for_each_nonzero(x, end - begin, [&](int64_t i) {
        add_row(x[i], b + row * p.n, p.n, y + (begin + i) * p.n);
      });
    }
  });
}

}  // namespace

KernelImpl by_nonzeros(const KernelImpl& otherwise) {
  return {otherwise.op, "cpu:nonzeros",
          [=](const KernelCall& call) -> std::optional<std::string> {
            for (const auto& types : {call.in, call.out}) {
              for (const TensorType& t : types) {
                if (t.dtype != DType::f32) return str("computes in f32, not ", t.dtype);
              }
            }
            std::string why;
            if (!Product::of(call, &why)) return why;
            return otherwise.refuses(call);
          },
          [=](const KernelCall& call) {
            std::string why;
            const Product p = Product::of(call, &why).value();
            const PreparedKernel dense = otherwise.prepare(call);
            return PreparedKernel{[=](const KernelArgs& args) {
                                    const auto *a = args.in[0].as<float>(),
                                               *b = args.in[1].as<float>();
                                    if (few(p, a) && finite(b, args.in[1].count())) {
                                      run(p, a, b, args.out[0].as<float>());
                                    } else {
                                      dense.run(args);
                                    }
                                  },
                                  dense.workspace_bytes, "cpu:nonzeros"};
          }};
}

}  // namespace shardrun::cpu
