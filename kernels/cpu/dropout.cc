// dropout: runs of global positions share Philox blocks.
#include "kernels/cpu/families.h"
#include "kernels/cpu/random.h"

namespace shardrun::cpu {
namespace {

/// Where the last dim is whole, rows lie side by side in the whole tensor as they do here: two dims
/// are one. [13264, 8] is drawn in one run, not in 13264.
void merge_whole_dims(Shape& shape, Shape& global, std::vector<int64_t>& start) {
  while (shape.size() > 1 && shape.back() == global.back()) {
    const int64_t inner = shape.back();
    for (auto* dims : {&shape, &global, &start}) {
      dims->pop_back();
      dims->back() *= inner;
    }
  }
}

struct Dropout {
  double p = 0;
  Shape shape, strides;  // here, and those of the whole tensor
  std::vector<int64_t> start;
  uint64_t seed = 0, key = 0;

  /// Where element `at` lies in the whole tensor.
  uint64_t position(int64_t at) const {
    int64_t out = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      out += (start[d] + at % shape[d]) * strides[d];
      at /= shape[d];
    }
    return static_cast<uint64_t>(out);
  }

  void run(const KernelArgs& args, int64_t begin, int64_t end) const {
    const RandomStream stream{seed, key, static_cast<uint64_t>(*args.in[1].as<int64_t>())};
    const auto factor = static_cast<float>(1 / (1 - p));
    const int64_t cols = shape.empty() ? 1 : shape.back();
    alignas(64) float keep[kDrawn], x_buffer[kDrawn], y_buffer[kDrawn];
    for (int64_t line = begin; line < end;) {
      const int64_t stop = std::min(line - line % cols + cols, end);
      for (uint64_t from = position(line); line < stop;) {
        // What is drawn at a time ends where whole blocks of numbers do.
        const int64_t n = std::min(stop - line, kDrawn - static_cast<int64_t>(from % kDrawn));
        const float* x = floats(args.in[0], line, n, x_buffer);
        float* y = place(args.out[0], line, y_buffer);
        if (all_zero(x, n)) {  // whatever is drawn: as behind a mask
          std::fill_n(y, n, 0.0f);
        } else {
          draw_keep(stream, from, n, p, factor, keep);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) y[i] = keep[i] == 0.0f ? 0.0f : x[i] * keep[i];
        }
        put(args.out[0], line, n, y);
        line += n, from += static_cast<uint64_t>(n);
      }
    }
  }

  static constexpr int64_t kDrawn = 64;

  static bool all_zero(const float* x, int64_t n) {
    uint32_t any = 0;
    for (int64_t i = 0; i < n; ++i) any |= std::bit_cast<uint32_t>(x[i]) << 1;  // -0 is zero
    return any == 0;
  }
};

PreparedKernel prepare(const KernelCall& call) {
  const Attrs& a = call.node.attrs;
  const int64_t columns = call.in[0].shape.empty() ? 1 : call.in[0].shape.back();
  Dropout dropout;
  dropout.p = a.f("p");
  dropout.shape = call.in[0].shape;
  dropout.start = a.ints("start");
  Shape global = a.ints("global_shape");
  merge_whole_dims(dropout.shape, global, dropout.start);
  dropout.strides = row_major_strides(global);
  dropout.seed = static_cast<uint64_t>(a.i("seed", 0));
  dropout.key = static_cast<uint64_t>(a.i("key", 0));
  return {[=](const KernelArgs& args) {
            parallel_ranges(args.in[0].count(), 8192,
                            [&](int64_t begin, int64_t end) { dropout.run(args, begin, end); });
          },
          0, "cpu:simd",
          [=](const KernelArgs& args, int64_t begin, int64_t end) {
            dropout.run(args, begin * columns, end * columns);
          }};
}

}  // namespace

KernelList dropout_kernels() { return {{"dropout", "cpu:simd", refuse_other_floats, prepare}}; }

}  // namespace shardrun::cpu
