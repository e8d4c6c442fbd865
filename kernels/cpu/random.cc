// dropout and random_uniform: runs of global positions share Philox blocks.
#include "kernels/cpu/random.h"

#include "kernels/cpu/families.h"

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

constexpr int64_t kDrawn = kPhiloxWords;

/// Elements of a tensor that is part of a whole one, and the numbers drawn for them.
struct Draws {
  Shape shape, strides;  // here, and those of the whole tensor
  std::vector<int64_t> start;
  uint64_t seed = 0, key = 0;

  Draws(const Attrs& a, const Shape& of) : shape(of), start(a.ints("start")) {
    Shape global = a.ints("global_shape");
    merge_whole_dims(shape, global, start);
    strides = row_major_strides(global);
    seed = static_cast<uint64_t>(a.i("seed", 0));
    key = static_cast<uint64_t>(a.i("key", 0));
  }

  RandomStream stream(const TensorView& step) const {
    return {seed, key, static_cast<uint64_t>(*step.as<int64_t>())};
  }

  /// Where element `at` lies in the whole tensor.
  uint64_t position(int64_t at) const {
    int64_t out = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      out += (start[d] + at % shape[d]) * strides[d];
      at /= shape[d];
    }
    return static_cast<uint64_t>(out);
  }

  /// run(line, n, position): n <= kDrawn elements from `line` on lie side by side in the whole.
  template <class Run>
  void each_run(int64_t begin, int64_t end, const Run& run) const {
    const int64_t cols = shape.empty() ? 1 : shape.back();
    for (int64_t line = begin; line < end;) {
      const int64_t stop = std::min(line - line % cols + cols, end);
      for (uint64_t from = position(line); line < stop;) {
        // What is drawn at a time ends where whole blocks of numbers do.
        const int64_t n = std::min(stop - line, kDrawn - static_cast<int64_t>(from % kDrawn));
        run(line, n, from);
        line += n, from += static_cast<uint64_t>(n);
      }
    }
  }
};

bool all_zero(const float* x, int64_t n) {
  uint32_t any = 0;
  for (int64_t i = 0; i < n; ++i) any |= std::bit_cast<uint32_t>(x[i]) << 1;  // -0 is zero
  return any == 0;
}

struct Dropout {
  double p = 0;
  Draws draws;

  void run(const KernelArgs& args, int64_t begin, int64_t end) const {
    const RandomStream stream = draws.stream(args.in[1]);
    const auto factor = static_cast<float>(1 / (1 - p));
    alignas(64) float keep[kDrawn], x_buffer[kDrawn], y_buffer[kDrawn];
    draws.each_run(begin, end, [&](int64_t line, int64_t n, uint64_t from) {
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
    });
  }
};

struct Uniform {
  Draws draws;

  void run(const KernelArgs& args, int64_t begin, int64_t end) const {
    const RandomStream stream = draws.stream(args.in[0]);
    draws.each_run(begin, end, [&](int64_t line, int64_t n, uint64_t from) {
      draw_uniform(stream, from, n, args.out[0].as<float>() + line);
    });
  }
};

template <class Op>
PreparedKernel in_ranges(const Op& op, const Shape& shape) {
  const int64_t columns = shape.empty() ? 1 : shape.back();
  return {[=](const KernelArgs& args) {
            parallel_ranges(args.out[0].count(), 8192,
                            [&](int64_t begin, int64_t end) { op.run(args, begin, end); });
          },
          0, "cpu:simd",
          [=](const KernelArgs& args, int64_t begin, int64_t end) {
            op.run(args, begin * columns, end * columns);
          }};
}

PreparedKernel prepare_dropout(const KernelCall& call) {
  const Shape& shape = call.out[0].shape;
  return in_ranges(Dropout{call.node.attrs.f("p"), Draws(call.node.attrs, shape)}, shape);
}

PreparedKernel prepare_uniform(const KernelCall& call) {
  const Shape& shape = call.out[0].shape;
  return in_ranges(Uniform{Draws(call.node.attrs, shape)}, shape);
}

}  // namespace

KernelList random_kernels() {
  return {{"dropout", "cpu:simd", refuse_other_floats, prepare_dropout},
          {"random_uniform", "cpu:simd", nullptr, prepare_uniform}};
}

}  // namespace shardrun::cpu
