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

PreparedKernel prepare(const KernelCall& call) {
  const Attrs& a = call.node.attrs;
  const double p = a.f("p");
  Shape shape = call.in[0].shape, global = a.ints("global_shape");
  std::vector<int64_t> start = a.ints("start");
  merge_whole_dims(shape, global, start);
  const Shape strides = row_major_strides(global);
  const auto seed = static_cast<uint64_t>(a.i("seed", 0)),
             key = static_cast<uint64_t>(a.i("key", 0));
  return {[=](const KernelArgs& args) {
            const RandomStream stream{seed, key, static_cast<uint64_t>(*args.in[1].as<int64_t>())};
            const auto factor = static_cast<float>(1 / (1 - p));
            const int64_t cols = shape.empty() ? 1 : shape.back();
            const int64_t rows = cols == 0 ? 0 : args.in[0].count() / cols;
            const int64_t blocks = (cols + kBlock - 1) / kBlock;
            parallel_ranges(
                rows * blocks, row_grain(8 * std::min(cols, kBlock)),
                [&](int64_t begin, int64_t end) {
                  alignas(64) float keep[kBlock], x_buffer[kBlock], y_buffer[kBlock];
                  for (int64_t item = begin; item < end; ++item) {
                    const int64_t row = item / blocks, from = item % blocks * kBlock,
                                  n = std::min(kBlock, cols - from);
                    int64_t position = from + (shape.empty() ? 0 : start.back()), rest = row;
                    for (size_t d = shape.empty() ? 0 : shape.size() - 1; d-- > 0;) {
                      position += (start[d] + rest % shape[d]) * strides[d];
                      rest /= shape[d];
                    }
                    draw_keep(stream, static_cast<uint64_t>(position), n, p, factor, keep);
                    const int64_t at = row * cols + from;
                    const float* x = floats(args.in[0], at, n, x_buffer);
                    float* y = place(args.out[0], at, y_buffer);
#pragma omp simd
                    for (int64_t i = 0; i < n; ++i) y[i] = keep[i] == 0.0f ? 0.0f : x[i] * keep[i];
                    put(args.out[0], at, n, y);
                  }
                });
          },
          0, "cpu:simd"};
}

}  // namespace

KernelList dropout_kernels() { return {{"dropout", "cpu:simd", refuse_other_floats, prepare}}; }

}  // namespace shardrun::cpu
