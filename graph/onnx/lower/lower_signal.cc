// Lowering of Fourier transforms, as products with matrices of cosines and sines: DFT and
// STFT; and of the windows that go with them.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {
namespace {

/// Of a matrix: 8,192 real numbers go in, or 4,096 complex ones.
constexpr int64_t kMostNumbers = int64_t{1} << 26;

struct Transform {
  int64_t from = 0, to = 0;  // numbers that go in and come out
  int64_t length = 0;        // of the whole signal
  int64_t parts = 1;         // 2: complex numbers go in
  bool inverse = false;
  bool real = false;  // only the real part comes out, of an inverse transform of half a spectrum
};

/// What each number counts, [from, 1]. Of half a spectrum, most stand for their conjugates, too.
V scales(Builder& b, const Transform& t, DType dtype) {
  std::vector<double> out(static_cast<size_t>(t.from), 1 / static_cast<double>(t.length));
  for (int64_t n = 1; t.real && n < t.from; ++n)
    if (2 * n != t.length) out[static_cast<size_t>(n)] *= 2;
  return b.constant(convert(Tensor::from(Shape{t.from, 1}, out, DType::f64), dtype));
}

/// [from · parts, to · parts]: numbers times it are their transform. Of cosines and sines of
/// 2 pi n k / length, of which whole turns are left out while they are integers. Small matrices are
/// constants, of f64 before they are rounded; large ones are computed, equal ones once.
V matrix_of(NodeContext& c, const Transform& t, DType dtype) {
  constexpr int64_t kSmallMatrix = int64_t{1} << 16;
  Builder& b = c.b;
  const int64_t most = std::min(t.length, kMostNumbers);  // beyond, the product might overflow
  const int64_t out_parts = t.real ? 1 : 2;
  const int64_t numbers = std::min(t.from, most) * t.parts * std::min(t.to, most) * out_parts;
  SR_REQUIRE(numbers <= kMostNumbers, unsupported, "transforms ", t.length,
             " numbers, as a product with a matrix of ", numbers, ", wanted at most ", kMostNumbers,
             "; transform shorter pieces");
  const DType wide = dtype == DType::f64 || numbers <= kSmallMatrix ? DType::f64 : DType::f32;
  const auto length = static_cast<double>(t.length);
  std::vector<V> steps;  // towards the matrix
  const auto next = [&](V v) { return steps.emplace_back(v); };
  const V product = next(b.add("mul", {b.reshape(b.iota(t.from, 0, 1), {t.from, 1}),
                                       b.reshape(b.iota(t.to, 0, 1), {1, t.to})}));
  const V turn = next(b.add("mod", {product, b.ints({t.length})}, {{"fmod", int64_t{0}}}));
  const V is_late = next(b.with("greater", next(b.with("mul", turn, 2)), length));
  const V nearest = next(b.add("where", {is_late, next(b.with("sub", turn, length)), turn}));
  const V angle = next(b.with("mul", next(b.cast(nearest, wide)), 2 * std::numbers::pi / length));
  V cosine = next(b.add("cos", {angle})), sine = next(b.add("sin", {angle}));
  if (t.inverse) {
    const V scale = scales(b, t, wide);
    cosine = next(b.add("mul", {cosine, scale})), sine = next(b.add("mul", {sine, scale}));
  } else {
    sine = next(b.add("neg", {sine}));
  }
  const auto row = [&](V real, V imaginary) {  // [from, 1, to, out_parts]
    const Shape shape = {t.from, 1, t.to, 1};
    real = next(b.reshape(real, shape));
    return t.real ? real : next(b.concat({real, next(b.reshape(imaginary, shape))}, 3));
  };
  V matrix = row(cosine, sine);
  if (t.parts == 2) matrix = next(b.concat({matrix, row(next(b.add("neg", {sine})), cosine)}, 1));
  matrix = next(b.reshape(matrix, {t.from * t.parts, t.to * out_parts}));
  const V out = b.cast(matrix, dtype);
  for (V step : steps)
    if (step != out) b.forget(step);
  return out;
}

/// Cut, or filled up with zeros, to `length` along a dim.
V with_length(Builder& b, V x, int64_t axis, int64_t length) {
  const int64_t now = b.shape(x)[static_cast<size_t>(axis)];
  if (now >= length) return b.slice(x, axis, 0, length);
  Shape rest = b.shape(x);
  rest[static_cast<size_t>(axis)] = length - now;
  return b.concat({x, b.fill(0, b.dtype(x), rest)}, axis);
}

/// x [.., n, .., 1 or 2], real or complex numbers in the last dim. The axis is an input from opset
/// 20 on.
void dft(NodeContext& c) {
  Builder& b = c.b;
  V x = c.in(0);
  const int64_t rank = b.rank(x), parts = rank > 0 ? b.shape(x).back() : 0;
  SR_REQUIRE(is_float(b.dtype(x)) && rank >= 2 && (parts == 1 || parts == 2), invalid_input,
             "input is ", b.type(x), ", wanted floats [.., 1 or 2]");
  const bool inverse = c.attr_i("inverse", 0) != 0, half = c.attr_i("onesided", 0) != 0;
  int64_t axis = c.opset >= 20 ? -2 : c.attr_i("axis", 1);
  if (c.opset >= 20 && c.has(2)) axis = c.known(2, "axis").int_at(0);
  axis = NodeContext::axis(axis, rank);
  SR_REQUIRE(axis + 1 < rank, invalid_input, "axis ", axis, " is that of real and imaginary parts");
  SR_REQUIRE(!half || inverse || parts == 1, invalid_input,
             "is onesided, but its input is complex");
  SR_REQUIRE(!half || !inverse || parts == 2, invalid_input,
             "is onesided and inverse, but its input is not complex");
  const int64_t given = b.shape(x)[static_cast<size_t>(axis)];
  Transform t;
  t.length = half && inverse ? 2 * (given - 1) : given;
  if (c.has(1)) {
    const Tensor& length = c.known(1, "dft_length");
    SR_REQUIRE(length.count() == 1, invalid_input, "dft_length is ", length.type(),
               ", wanted a number");
    t.length = length.int_at(0);
  }
  SR_REQUIRE(t.length >= 1, invalid_input, "transforms ", t.length, " numbers");
  const int64_t of_half = t.length / 2 + 1;
  t.from = half && inverse ? of_half : t.length;
  t.to = half && !inverse ? of_half : t.length;
  t.parts = parts, t.inverse = inverse, t.real = half && inverse;
  x = with_length(b, x, axis, t.from);
  std::vector<int64_t> perm;  // the axis before the parts
  for (int64_t d = 0; d + 1 < rank; ++d)
    if (d != axis) perm.push_back(d);
  perm.push_back(axis), perm.push_back(rank - 1);
  V rows = b.transpose(x, perm);
  Shape shape = b.shape(rows);
  shape.resize(static_cast<size_t>(rank) - 2);
  Shape flat = shape;
  flat.push_back(t.from * parts);
  rows = b.matmul(b.reshape(rows, flat), matrix_of(c, t, b.dtype(x)));
  shape.push_back(t.to), shape.push_back(t.real ? 1 : 2);
  std::vector<int64_t> back(static_cast<size_t>(rank));
  for (int64_t d = 0; d < rank; ++d) back[static_cast<size_t>(perm[static_cast<size_t>(d)])] = d;
  c.out(b.transpose(b.reshape(rows, shape), back));
}

/// signal [N, length] or [N, length, 1 or 2] in frames that begin frame_step apart, each times the
/// window and transformed: [N, frames, numbers, 2].
void stft(NodeContext& c) {
  Builder& b = c.b;
  V x = c.in(0);
  if (b.rank(x) == 2) x = b.unsqueeze(x, 2);
  const Shape shape = b.shape(x);
  SR_REQUIRE(is_float(b.dtype(x)) && shape.size() == 3 && (shape[2] == 1 || shape[2] == 2),
             invalid_input, "signal is ", b.type(x), ", wanted floats [N, length, 1 or 2]");
  const int64_t step = c.known(1, "frame_step").int_at(0);
  V window = c.in_or(2, kNone);
  int64_t size = window != kNone ? b.shape(window).at(0) : 0;
  if (c.has(3)) size = c.known(3, "frame_length").int_at(0);
  SR_REQUIRE(step >= 1 && size >= 1 && size <= shape[1], invalid_input, "frames of ", size, ", ",
             step, " apart, of a signal of ", shape[1]);
  SR_REQUIRE(window == kNone || b.shape(window) == Shape{size}, invalid_input, "window is ",
             b.type(window), ", wanted ", size, " numbers");
  const bool half = c.attr_i("onesided", 1) != 0;
  SR_REQUIRE(!half || shape[2] == 1, invalid_input, "is onesided, but its signal is complex");
  const int64_t frames = (shape[1] - size) / step + 1;
  const V first = b.reshape(b.iota(frames, 0, step), {frames, 1});
  const V index = b.add("add", {first, b.reshape(b.iota(size, 0, 1), {1, size})});
  V framed = b.add("gather", {x, index}, {{"axis", int64_t{1}}});  // [N, frames, size, parts]
  if (window != kNone)
    framed = b.add("mul", {framed, b.reshape(b.cast(window, b.dtype(x)), {size, 1})});
  Transform t;
  t.from = t.length = size, t.to = half ? size / 2 + 1 : size, t.parts = shape[2];
  const V flat = b.reshape(framed, {shape[0], frames, size * shape[2]});
  c.out(b.reshape(b.matmul(flat, matrix_of(c, t, b.dtype(x))), {shape[0], frames, t.to, 2}));
}

/// Sums of cosines: HannWindow, HammingWindow, BlackmanWindow.
void window(NodeContext& c) {
  const Tensor& size = c.known(0, "size");
  SR_REQUIRE(size.count() == 1 && size.int_at(0) >= 1 && size.int_at(0) <= kFoldLimit,
             invalid_input, "size is ", size.count() == 1 ? str(size.int_at(0)) : str(size.type()),
             ", wanted a number from 1 to ", kFoldLimit);
  const int64_t n = size.int_at(0);
  const bool periodic = c.attr_i("periodic", 1) != 0;
  const DType dtype = graph_dtype(static_cast<int>(c.attr_i("output_datatype", 1)));
  std::vector<double> terms = {0.5, -0.5};
  if (c.op() == "HammingWindow") terms = {25.0 / 46, -21.0 / 46};
  // PyTorch's has 0.54 and 0.46, or what it is called with; the operator has no place for them.
  if (const FxCall* call = c.call_of("aten.hamming_window")) {
    terms = {call->number(2, "alpha", 0.54), -call->number(3, "beta", 0.46)};
    c.restored(str("alpha=", terms[0]));
  }
  if (c.op() == "BlackmanWindow") terms = {0.42, -0.5, 0.08};
  SR_REQUIRE(c.b.budget.spend(4 * static_cast<double>(n)), unsupported,
             "its windows take more operations than the import of a file may");
  std::vector<double> out(static_cast<size_t>(n), 0.0);
  const double whole = std::max<double>(static_cast<double>(periodic ? n : n - 1), 1);
  for (int64_t i = 0; i < n; ++i)
    for (size_t k = 0; k < terms.size(); ++k)
      out[static_cast<size_t>(i)] +=
          terms[k] *
          std::cos(2 * std::numbers::pi * static_cast<double>(k) * static_cast<double>(i) / whole);
  c.out(c.b.constant(convert(Tensor::from(Shape{n}, out, DType::f64), dtype)));
}

constexpr Lowering kSignalLowerings[] = {{"DFT", 17, dft},
                                         {"STFT", 17, stft},
                                         {"HannWindow", 17, window},
                                         {"HammingWindow", 17, window},
                                         {"BlackmanWindow", 17, window}};

}  // namespace

std::span<const Lowering> signal_lowerings() { return kSignalLowerings; }

}  // namespace shardrun::importer
