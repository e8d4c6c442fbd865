// Element-wise ops: one loop over blocks for every op, dtype and broadcast. Operands reach the op's
// own loop as f32 blocks: directly where they are f32 and contiguous, else converted or spread.
#include "graph/ops/elementwise.h"

#include <array>

#include "base/lanes.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/simd.h"

namespace shardrun::cpu {
namespace {

struct Parameters {
  float alpha = 0, beta = 0;
  bool condition = false;  // operand 0 reaches the loop as the bytes of booleans
};
using Loop = void (*)(const Parameters&, const float* const* x, float* y, int64_t n);

/// Dims of the result, merged as far as every operand allows. After merging, an operand's stride
/// along the last dim is 1 or 0. Example: [8,16,32] + [32] -> dims [128,32], strides [32,1], [0,1].
struct Layout {
  Shape dims;
  std::vector<Shape> strides;  // per operand

  Layout(const Shape& out, std::span<const TensorType> in) : strides(in.size()) {
    const size_t rank = out.size();
    std::vector<Shape> full(in.size(), Shape(rank, 0));
    for (size_t k = 0; k < in.size(); ++k) {
      const Shape& shape = in[k].shape;
      const Shape dense = row_major_strides(shape);
      const size_t skip = rank - shape.size();
      for (size_t d = 0; d < shape.size(); ++d) full[k][skip + d] = shape[d] == 1 ? 0 : dense[d];
    }
    for (size_t d = 0; d < rank; ++d) {
      if (out[d] == 1) continue;
      bool merge = !dims.empty();
      for (size_t k = 0; merge && k < in.size(); ++k)
        merge = strides[k].back() == full[k][d] * out[d];
      if (merge) {
        dims.back() *= out[d];
        for (size_t k = 0; k < in.size(); ++k) strides[k].back() = full[k][d];
      } else {
        dims.push_back(out[d]);
        for (size_t k = 0; k < in.size(); ++k) strides[k].push_back(full[k][d]);
      }
    }
    if (dims.empty()) {
      dims.push_back(1);
      for (Shape& s : strides) s.push_back(0);
    }
  }
};

// n elements as floats, spread from one where stride is 0.
const float* gather_block(const TensorView& view, int64_t offset, int64_t stride, int64_t n,
                          float* buffer) {
  const DType d = view.type.dtype;
  if (stride == 1 && is_f32_or_bf16(d)) return floats(view, offset, n, buffer);
  if (stride == 1) {
    switch (d) {
      case DType::boolean: {
        const uint8_t* src = view.as<uint8_t>() + offset;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) buffer[i] = src[i];
        break;
      }
      case DType::i32: {
        const int32_t* src = view.as<int32_t>() + offset;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(src[i]);
        break;
      }
      default: {
        const int64_t* src = view.as<int64_t>() + offset;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(src[i]);
      }
    }
    return buffer;
  }
  float one[1];
  std::fill_n(buffer, n, gather_block(view, offset, 1, 1, one)[0]);
  return buffer;
}

// n booleans as bytes behind a pointer to float, as where_loop takes them.
const float* condition_block(const TensorView& view, int64_t offset, int64_t stride, int64_t n,
                             float* buffer) {
  const uint8_t* bytes = view.as<uint8_t>() + offset;
  if (stride == 1) return reinterpret_cast<const float*>(bytes);
  std::memset(buffer, *bytes, static_cast<size_t>(n));
  return buffer;
}

void put_block(const TensorView& view, int64_t offset, int64_t n, const float* y) {
  switch (view.type.dtype) {
    case DType::f32: break;
    case DType::bf16: put(view, offset, n, y); break;
    case DType::boolean: {
      uint8_t* dst = view.as<uint8_t>() + offset;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) dst[i] = y[i] != 0.0f ? 1 : 0;
      break;
    }
    case DType::i32: {
      int32_t* dst = view.as<int32_t>() + offset;
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<int32_t>(y[i]);
      break;
    }
    default: {
      int64_t* dst = view.as<int64_t>() + offset;
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<int64_t>(y[i]);
    }
  }
}

/// Lines shorter than this are done several at a time.
constexpr int64_t kShortLine = 64;

/// y = each x `count` times, until n elements are written; the first one `skip` times fewer. Writes
/// up to kLanes beyond.
void repeat_each(const float* x, int64_t count, int64_t skip, int64_t n, float* y) {
  for (int64_t at = -skip; at < n; at += count, ++x) {
    const int64_t from = std::max<int64_t>(at, 0);
    if (count <= kLanes) {
      store_lanes(y + from, Lanes{} + *x);
    } else {
      std::fill_n(y + from, std::min(at + count, n) - from, *x);
    }
  }
}

/// y = n elements from place `start` on of one line of `length` after another, all the same. Writes
/// up to kLanes beyond.
void repeat_line(const TensorView& view, int64_t offset, int64_t length, int64_t start, int64_t n,
                 float* y) {
  alignas(64) float wide[kShortLine];
  const float* x = gather_block(view, offset, 1, length, wide);
  if (length <= kLanes) {
    const Lanes whole = load_lanes(x, length);
    const int64_t skip = start % length;
    store_lanes(y, load_lanes(x + skip, length - skip));
    for (int64_t at = length - skip; at < n; at += length) store_lanes(y + at, whole);
    return;
  }
  int64_t done = std::min(length - start % length, n);
  std::copy_n(x + start % length, done, y);
  for (int64_t whole = 0; done < n; done += whole) {
    whole = std::min(length, n - done);
    std::copy_n(x, whole, y + done);
  }
}

/// n elements from place `start` on of lines of `length` elements, as floats. Operands lie densely,
/// have one element for each line, or one line for all (`steps`: from line to line, and within
/// one). `buffer` has kLanes more.
const float* gather_lines(const TensorView& view, int64_t offset, std::array<int64_t, 2> steps,
                          int64_t length, int64_t start, int64_t n, float* buffer) {
  if (steps[1] == 1 && steps[0] == length) return gather_block(view, offset + start, 1, n, buffer);
  if (steps[1] == 1) {
    repeat_line(view, offset, length, start, n, buffer);
    return buffer;
  }
  const int64_t line = start / length, skip = start % length;
  alignas(64) float wide[kBlock];
  const int64_t lines = (skip + n + length - 1) / length;
  const float* x = gather_block(view, offset + line * steps[0], steps[0], lines, wide);
  repeat_each(x, length, skip, n, buffer);
  return buffer;
}

/// Can blocks span lines? Where these are short and every operand but a condition is dense over the
/// last two dims of the layout, or has one element for each line, or one line for all.
bool spans_lines(const Layout& layout, const Parameters& p) {
  const size_t rank = layout.dims.size();
  if (rank < 2 || layout.dims.back() >= kShortLine || p.condition) return false;
  for (const Shape& strides : layout.strides) {
    const bool dense = strides[rank - 1] == 1 && strides[rank - 2] == layout.dims.back();
    const bool each = strides[rank - 1] == 0 && strides[rank - 2] <= 1;
    const bool same = strides[rank - 1] == 1 && strides[rank - 2] == 0;
    if (!dense && !each && !same) return false;
  }
  return true;
}

/// Elements [begin, end) of the result, in blocks that begin at `begin` or where a line of the
/// layout does, or several lines.
void run_elements(const Layout& layout, Loop loop, const Parameters& p, const KernelArgs& args,
                  int64_t begin, int64_t end) {
  const bool lines = spans_lines(layout, p);
  const size_t rank = layout.dims.size(), outer = rank - (lines ? 2 : 1);
  const int64_t line = layout.dims.back();
  const int64_t length = lines ? line * layout.dims[rank - 2] : line;
  const size_t operands = args.in.size();
  alignas(64) float buffers[3][kBlock + kLanes], result[kBlock];
  const float* x[3] = {nullptr, nullptr, nullptr};
  for (int64_t at = begin; at < end;) {
    const int64_t start = at % length, n = std::min({kBlock, length - start, end - at});
    int64_t offset[3] = {0, 0, 0};
    int64_t rest = at / length;
    for (size_t d = outer; d-- > 0;) {
      const int64_t index = rest % layout.dims[d];
      rest /= layout.dims[d];
      for (size_t k = 0; k < operands; ++k) offset[k] += index * layout.strides[k][d];
    }
    for (size_t k = 0; k < operands; ++k) {
      const Shape& strides = layout.strides[k];
      if (lines) {
        x[k] = gather_lines(args.in[k], offset[k], {strides[rank - 2], strides[rank - 1]}, line,
                            start, n, buffers[k]);
        continue;
      }
      const auto block = k == 0 && p.condition ? condition_block : gather_block;
      x[k] = block(args.in[k], offset[k] + start * strides.back(), strides.back(), n, buffers[k]);
    }
    float* y = place(args.out[0], at, result);
    loop(p, x, y, n);
    put_block(args.out[0], at, n, y);
    at += n;
  }
}

void run(const Layout& layout, Loop loop, const Parameters& p, const KernelArgs& args) {
  // Parts end where lines do, or where blocks of long ones do.
  const int64_t length = layout.dims.back(), blocks = (length + kBlock - 1) / kBlock;
  const int64_t lines = length == 0 ? 0 : args.out[0].count() / length;
  const int64_t block_length = std::min(length, kBlock);
  parallel_ranges(lines * blocks, std::max<int64_t>(1, 16384 / std::max<int64_t>(block_length, 1)),
                  [&](int64_t begin, int64_t end) {
                    const auto element = [&](int64_t block) {
                      return block / blocks * length + block % blocks * kBlock;
                    };
                    run_elements(layout, loop, p, args, element(begin), element(end));
                  });
}

KernelImpl elementwise(
    const char* op, Loop loop, Parameters (*parameters)(const Node&) = nullptr,
    std::function<std::optional<std::string>(const KernelCall&)> refuses = nullptr,
    Loop (*choose)(const Node&) = nullptr) {
  KernelImpl impl;
  impl.op = op;
  impl.name = "cpu:simd";
  impl.refuses =
      refuses ? std::move(refuses) : [](const KernelCall& call) -> std::optional<std::string> {
    for (const TensorType& t : call.in) {
      if (!is_f32_or_bf16(t.dtype) && t.dtype != DType::boolean) {
        return str("computes in f32 and bf16, not ", t.dtype);
      }
    }
    return std::nullopt;
  };
  impl.prepare = [=](const KernelCall& call) {
    const Layout layout(call.out[0].shape, call.in);
    const Parameters p = parameters != nullptr ? parameters(call.node) : Parameters{};
    const Loop chosen = choose != nullptr ? choose(call.node) : loop;
    const int64_t columns = call.out[0].shape.empty() ? 1 : call.out[0].shape.back();
    return PreparedKernel{[=](const KernelArgs& args) { run(layout, chosen, p, args); }, 0,
                          "cpu:simd",
                          [=](const KernelArgs& args, int64_t begin, int64_t end) {
                            run_elements(layout, chosen, p, args, begin * columns, end * columns);
                          }};
  };
  return impl;
}

template <auto F>
void loop1(const Parameters& p, const float* const* x, float* y, int64_t n) {
  const float* a = x[0];
  if constexpr (std::is_invocable_v<decltype(F), float>) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = F(a[i]);
  } else {
    const Parameters q = p;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = F(a[i], q);
  }
}

/// `fast` where that reaches, else the library's.
template <auto fast, float (*library)(float)>
void circular_loop(const Parameters&, const float* const* x, float* y, int64_t n) {
  const float* a = x[0];
  int reaches = 1;
#pragma omp simd reduction(& : reaches)
  for (int64_t i = 0; i < n; ++i) reaches &= std::fabs(a[i]) <= kMostCircular ? 1 : 0;
  if (reaches != 0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = fast(a[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = library(a[i]);
  }
}

template <auto F>
void loop2(const Parameters&, const float* const* x, float* y, int64_t n) {
  const float *a = x[0], *b = x[1];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = F(a[i], b[i]);
}

/// fmod=1: the dividend's sign, else the divisor's.
template <bool kFmod>
void mod_loop(const Parameters&, const float* const* x, float* y, int64_t n) {
  const float *a = x[0], *b = x[1];
  const auto as_asked = [](float r, float divisor) {
    return !kFmod && r != 0.0f && (r < 0.0f) != (divisor < 0.0f) ? r + divisor : r;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  int reaches = 1;
#pragma omp simd reduction(& : reaches)
  for (int64_t i = 0; i < n; ++i) {
    const float divisor = std::fabs(b[i]);
    reaches &= std::fabs(a[i]) < kMostQuotient * divisor && divisor < infinity ? 1 : 0;
  }
  if (reaches != 0) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = as_asked(fmod(a[i], b[i]), b[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = as_asked(std::fmod(a[i], b[i]), b[i]);
  }
}

void where_loop(const Parameters&, const float* const* x, float* y, int64_t n) {
  const auto* c = reinterpret_cast<const uint8_t*>(x[0]);
  const float *a = x[1], *b = x[2];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = c[i] != 0 ? a[i] : b[i];
}

Parameters alpha_only(const Node& n) {
  return {.alpha = static_cast<float>(activation_attr(n, "alpha"))};
}
Parameters alpha_beta(const Node& n) {
  return {static_cast<float>(activation_attr(n, "alpha")),
          static_cast<float>(activation_attr(n, "beta"))};
}
Parameters alpha_gamma(const Node& n) {
  return {static_cast<float>(activation_attr(n, "alpha")),
          static_cast<float>(activation_attr(n, "gamma"))};
}
Parameters detects(const Node& n) {
  return {static_cast<float>(n.attrs.i("detect_negative", 1)),
          static_cast<float>(n.attrs.i("detect_positive", 1))};
}
Parameters min_max(const Node& n) {
  const double inf = std::numeric_limits<double>::infinity();
  return {static_cast<float>(n.attrs.f("min", -inf)), static_cast<float>(n.attrs.f("max", inf))};
}

float clamp01(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

bool wants_tanh(const Node& node) { return node.attrs.s("approximate", "none") == "tanh"; }

std::optional<std::string> cast_refuses(const KernelCall& call) {
  const DType from = call.in[0].dtype, to = call.out[0].dtype;
  auto known = [](DType d) {
    return is_f32_or_bf16(d) || d == DType::boolean || d == DType::i32 || d == DType::i64;
  };
  auto passes = [](DType d) { return is_f32_or_bf16(d) || d == DType::boolean; };
  if (!known(from) || !known(to)) return str("has no conversion from ", from, " to ", to);
  if (!passes(from) && !passes(to))
    return str("converts by way of f32, which does not hold every ", from);
  return std::nullopt;
}

// A copy, which may have nothing to do when the result lies in the operand's memory.
KernelImpl copy_kernel(const char* op) {
  return {op, "cpu:copy", [](const KernelCall&) { return std::nullopt; },
          [](const KernelCall& call) {
            const int64_t size = size_of(call.in[0].dtype);
            return PreparedKernel{
                [size](const KernelArgs& args) {
                  const char* src = args.in[0].as<char>();
                  char* dst = args.out[0].as<char>();
                  if (src == dst) return;
                  parallel_ranges(args.in[0].count() * size, 1 << 18, [&](int64_t b, int64_t e) {
                    std::memcpy(dst + b, src + b, static_cast<size_t>(e - b));
                  });
                },
                0, "cpu:copy"};
          }};
}

// f32 to bf16 without a stop in between: what a step spends on its weights' casts is memory's time.
KernelImpl narrowing_kernel() {
  KernelImpl impl;
  impl.op = "cast";
  impl.name = "cpu:narrow";
  impl.refuses = [](const KernelCall& call) -> std::optional<std::string> {
    if (call.in[0].dtype == DType::f32 && call.out[0].dtype == DType::bf16) return std::nullopt;
    return str("rounds f32 to bf16, not ", call.in[0].dtype, " to ", call.out[0].dtype);
  };
  impl.prepare = [](const KernelCall& call) {
    const int64_t columns = call.out[0].shape.empty() ? 1 : call.out[0].shape.back();
    const auto narrow = [](const KernelArgs& args, int64_t begin, int64_t end) {
      put(args.out[0], begin, end - begin, args.in[0].as<float>() + begin);
    };
    return PreparedKernel{[=](const KernelArgs& args) {
                            parallel_ranges(args.out[0].count(), 16384,
                                            [&](int64_t b, int64_t e) { narrow(args, b, e); });
                          },
                          0, "cpu:narrow",
                          [=](const KernelArgs& args, int64_t begin, int64_t end) {
                            narrow(args, begin * columns, end * columns);
                          }};
  };
  return impl;
}

void add_arithmetic(KernelList& list) {
  const auto unary = [&](const char* op, Loop loop) { list.push_back(elementwise(op, loop)); };
  unary("neg", loop1<[](float x) { return -x; }>);
  unary("abs", loop1<[](float x) { return std::fabs(x); }>);
  unary("sign", loop1<[](float x) { return 0 < x ? 1.0f : x < 0 ? -1.0f : x; }>);
  unary("floor", loop1<[](float x) { return std::floor(x); }>);
  unary("ceil", loop1<[](float x) { return std::ceil(x); }>);
  unary("round", loop1<[](float x) { return std::nearbyint(x); }>);
  unary("exp", loop1<[](float x) { return exp(x); }>);
  unary("log", loop1<[](float x) { return log(x); }>);
  unary("sqrt", loop1<[](float x) { return std::sqrt(x); }>);
  unary("reciprocal", loop1<[](float x) { return 1.0f / x; }>);
  unary("sin", circular_loop<[](float x) { return sin(x); }, std::sin>);
  unary("cos", circular_loop<[](float x) { return cos(x); }, std::cos>);
  unary("tan", circular_loop<[](float x) { return tan(x); }, std::tan>);
  unary("asin", loop1<[](float x) { return asin(x); }>);
  unary("acos", loop1<[](float x) { return acos(x); }>);
  unary("atan", loop1<[](float x) { return atan(x); }>);
  unary("sinh", loop1<[](float x) { return sinh(x); }>);
  unary("cosh", loop1<[](float x) { return cosh(x); }>);
  unary("asinh", loop1<[](float x) { return asinh(x); }>);
  unary("acosh", loop1<[](float x) { return acosh(x); }>);
  unary("atanh", loop1<[](float x) { return atanh(x); }>);
  unary("tanh", loop1<[](float x) { return tanh(x); }>);
  unary("erf", loop1<[](float x) { return erf(x); }>);
}

void add_activations(KernelList& list) {
  using P = Parameters;
  const auto unary = [&](const char* op, Loop loop, P (*parameters)(const Node&) = nullptr) {
    list.push_back(elementwise(op, loop, parameters));
  };
  unary("sigmoid", loop1<[](float x) { return sigmoid(x); }>);
  unary("softplus", loop1<[](float x) { return softplus(x); }>);
  unary("softsign", loop1<[](float x) { return x / (1.0f + std::fabs(x)); }>);
  unary("silu", loop1<[](float x) { return x * sigmoid(x); }>);
  unary("mish", loop1<[](float x) { return mish(x); }>);
  unary("relu", loop1<[](float x) { return x < 0.0f ? 0.0f : x; }>);
  unary("leaky_relu", loop1<[](float x, const P& p) { return x < 0.0f ? p.alpha * x : x; }>,
        alpha_only);
  unary("elu", loop1<[](float x, const P& p) { return x < 0.0f ? p.alpha * expm1(x) : x; }>,
        alpha_only);
  unary("selu",
        loop1<[](float x, const P& p) { return p.beta * (x < 0.0f ? p.alpha * expm1(x) : x); }>,
        alpha_gamma);
  unary("celu",
        loop1<[](float x, const P& p) { return x < 0.0f ? p.alpha * expm1(x / p.alpha) : x; }>,
        alpha_only);
  unary("hard_sigmoid", loop1<[](float x, const P& p) { return clamp01(p.alpha * x + p.beta); }>,
        alpha_beta);
  unary("hard_swish", loop1<[](float x) { return x * clamp01(x * (1.0f / 6) + 0.5f); }>);
  unary("thresholded_relu", loop1<[](float x, const P& p) { return p.alpha < x ? x : 0.0f; }>,
        alpha_only);
  unary("clip", loop1<[](float x, const P& p) {
          const float low = p.alpha < p.beta ? p.alpha : p.beta;  // max wins over min
          return x < p.alpha ? low : p.beta < x ? p.beta : x;
        }>,
        min_max);
  unary("isnan", loop1<[](float x) { return x != x ? 1.0f : 0.0f; }>);
  unary("isinf", loop1<[](float x, const P& p) {
          const float inf = std::numeric_limits<float>::infinity();
          return x == inf ? p.beta : x == -inf ? p.alpha : 0.0f;
        }>,
        detects);
  unary("logical_not", loop1<[](float x) { return x == 0.0f ? 1.0f : 0.0f; }>);
  list.push_back(elementwise("gelu", nullptr, nullptr, nullptr, [](const Node& node) -> Loop {
    return wants_tanh(node) ? loop1<gelu_tanh> : loop1<gelu_erf>;
  }));
  list.push_back(elementwise("gelu_grad", nullptr, nullptr, nullptr, [](const Node& node) -> Loop {
    return wants_tanh(node) ? loop2<gelu_tanh_grad> : loop2<gelu_erf_grad>;
  }));
}

void add_binary(KernelList& list) {
  const auto binary = [&](const char* op, Loop loop) { list.push_back(elementwise(op, loop)); };
  binary("add", loop2<[](float a, float b) { return a + b; }>);
  binary("sub", loop2<[](float a, float b) { return a - b; }>);
  binary("mul", loop2<[](float a, float b) { return a * b; }>);
  binary("div", loop2<[](float a, float b) { return a / b; }>);
  binary("pow", loop2<[](float a, float b) { return pow(a, b); }>);
  list.push_back(elementwise("mod", nullptr, nullptr, nullptr, [](const Node& node) -> Loop {
    return node.attrs.i("fmod", 0) != 0 ? mod_loop<true> : mod_loop<false>;
  }));
  binary("max", loop2<[](float a, float b) { return b < a || a != a ? a : b; }>);
  binary("min", loop2<[](float a, float b) { return a < b || a != a ? a : b; }>);
  binary("equal", loop2<[](float a, float b) { return a == b ? 1.0f : 0.0f; }>);
  binary("less", loop2<[](float a, float b) { return a < b ? 1.0f : 0.0f; }>);
  binary("less_equal", loop2<[](float a, float b) { return a <= b ? 1.0f : 0.0f; }>);
  binary("greater", loop2<[](float a, float b) { return b < a ? 1.0f : 0.0f; }>);
  binary("greater_equal", loop2<[](float a, float b) { return b <= a ? 1.0f : 0.0f; }>);
  binary("logical_and", loop2<[](float a, float b) { return a != 0 && b != 0 ? 1.0f : 0.0f; }>);
  binary("logical_or", loop2<[](float a, float b) { return a != 0 || b != 0 ? 1.0f : 0.0f; }>);
  binary("logical_xor", loop2<[](float a, float b) { return (a != 0) != (b != 0) ? 1.0f : 0.0f; }>);
}

}  // namespace

KernelList elementwise_kernels() {
  KernelList list;
  list.push_back(copy_kernel("identity"));
  list.push_back(copy_kernel("reshape"));
  add_arithmetic(list);
  add_activations(list);
  add_binary(list);
  list.push_back(elementwise(
      "where", where_loop, [](const Node&) { return Parameters{.condition = true}; },
      [](const KernelCall& call) -> std::optional<std::string> {
        const DType d = call.in[1].dtype;
        if (is_f32_or_bf16(d) || d == DType::boolean) return std::nullopt;
        return str("computes in f32 and bf16, not ", d);
      }));
  list.push_back(narrowing_kernel());
  list.push_back(elementwise("cast", loop1<[](float x) { return x; }>, nullptr, cast_refuses));
  return list;
}

}  // namespace shardrun::cpu
