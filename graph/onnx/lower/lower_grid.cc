// Lowering of what reads or writes images at computed positions: GridSample, AffineGrid, Col2Im.
#include <array>
#include <numeric>

#include "graph/onnx/lower/spatial.h"

namespace shardrun::importer {
namespace {

using Ints = std::vector<int64_t>;

// ---- GridSample ----

/// Spatial dims of the image, and how positions between and outside its elements are read.
struct Sampling {
  Shape sizes;
  std::string padding;   // zeros, border, reflection
  bool aligned = false;  // align_corners
};

/// Into [0, size): from -1 … 1, which are the outer elements' middles if aligned, else the image's
/// edges.
V in_elements(Builder& b, V at, int64_t size, bool aligned) {
  const auto n = static_cast<double>(size);
  return aligned ? b.with("mul", b.with("add", at, 1), (n - 1) / 2)
                 : b.with("mul", b.with("add", b.with("mul", at, n), n - 1), 0.5);
}

V clipped(Builder& b, V at, int64_t size) {
  return b.add("clip", {at}, {{"min", 0.0}, {"max", static_cast<double>(size - 1)}});
}

/// A position outside, mirrored into the image.
V reflected(Builder& b, V at, int64_t size, bool aligned) {
  const auto n = static_cast<double>(size);
  const double low = aligned ? 0 : -0.5, span = aligned ? n - 1 : n;
  if (span <= 0) return b.with("mul", at, 0);
  const V distance = b.add("abs", {b.with("sub", at, low)});
  const V turns = b.add("floor", {b.with("div", distance, span)});
  const V rest = b.add("sub", {distance, b.with("mul", turns, span)});
  const V half = b.with("mul", turns, 0.5);
  const V is_odd = b.add("greater", {half, b.add("floor", {half})});
  const V back = b.add("sub", {b.scalar(span, b.dtype(at)), rest});
  return b.with("add", b.add("where", {is_odd, back, rest}), low);
}

/// As the padding has it, a position that is inside the image; zeros stays where it is.
V inside(Builder& b, V at, const Sampling& how, size_t d) {
  if (how.padding == "zeros") return at;
  if (how.padding == "reflection") at = reflected(b, at, how.sizes[d], how.aligned);
  return clipped(b, at, how.sizes[d]);
}

/// Of one dim: whole positions [N, points], floating, and the weights that they have.
struct Taps {
  std::vector<V> at, weight;  // weight kNone: 1
};

Taps linear_taps(Builder& b, V at, const Sampling& how, size_t d) {
  at = inside(b, at, how, d);
  const V low = b.add("floor", {at}), part = b.add("sub", {at, low});
  return {{low, b.with("add", low, 1)}, {b.add("sub", {b.scalar(1, b.dtype(at)), part}), part}};
}

/// Keys' cubic convolution with a = -0.75, at distances t + 1, t, 1 - t and 2 - t.
Taps cubic_taps(Builder& b, V at, const Sampling& how, size_t d) {
  constexpr double a = -0.75;
  const V low = b.add("floor", {at}), t = b.add("sub", {at, low});
  Taps out;
  for (int k = 0; k < 4; ++k) {
    const V distance =
        k < 2 ? b.with("add", t, 1 - k) : b.add("sub", {b.scalar(k - 1, b.dtype(t)), t});
    const bool is_near = k == 1 || k == 2;
    const std::array<double, 4> c = is_near ? std::array<double, 4>{a + 2, -(a + 3), 0, 1}
                                            : std::array<double, 4>{a, -5 * a, 8 * a, -4 * a};
    V sum = b.with("mul", distance, c[0]);
    for (size_t i = 1; i < 4; ++i) {
      sum = b.with("add", sum, c[i]);
      if (i < 3) sum = b.add("mul", {sum, distance});
    }
    out.at.push_back(inside(b, b.with("add", low, k - 1), how, d));
    out.weight.push_back(sum);
  }
  return out;
}

Taps taps(Builder& b, const std::string& mode, V at, const Sampling& how, size_t d) {
  at = in_elements(b, at, how.sizes[d], how.aligned);
  if (mode == "cubic") return cubic_taps(b, at, how, d);
  if (mode == "linear") return linear_taps(b, at, how, d);
  return {{b.add("round", {inside(b, at, how, d)})}, {kNone}};
}

/// The image's rows [N, elements, C] at one choice of taps, weighted: [N, points, C].
V read(Builder& b, V image, const std::vector<Taps>& all, const Ints& choice, const Sampling& how) {
  const Shape strides = row_major_strides(how.sizes);
  V index = kNone, weight = kNone;
  const auto times = [&](V factor) {
    weight = weight == kNone ? factor : b.add("mul", {weight, factor});
  };
  for (size_t d = 0; d < all.size(); ++d) {
    const auto k = static_cast<size_t>(choice[d]);
    V at = all[d].at[k];
    if (all[d].weight[k] != kNone) times(all[d].weight[k]);
    if (how.padding == "zeros") {
      const V above = b.add("greater_equal", {at, b.scalar(0, b.dtype(at))});
      const V below = b.with("less", at, static_cast<double>(how.sizes[d]));
      times(b.cast(b.add("logical_and", {above, below}), b.dtype(at)));
    }
    at = b.cast(clipped(b, at, how.sizes[d]), DType::i64);
    if (strides[d] != 1) at = b.with("mul", at, static_cast<double>(strides[d]));
    index = index == kNone ? at : b.add("add", {index, at});
  }
  const Shape points = b.shape(index);
  const V tuples = b.reshape(index, {points[0], points[1], 1});
  const V rows = b.add("gather_nd", {image, tuples}, {{"batch_dims", int64_t{1}}});
  if (weight == kNone) return rows;
  return b.add("mul", {rows, b.reshape(b.cast(weight, b.dtype(rows)), {points[0], points[1], 1})});
}

/// x [N, C, …sizes] at grid [N, …points, dims], whose last numbers are the positions in the last
/// dim first.
void grid_sample(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0), grid = c.in(1);
  require_image(c, x);
  Sampling how;
  how.sizes = spatial_of(b.shape(x));
  const size_t dims = how.sizes.size();
  const Shape positions = b.shape(grid);
  SR_REQUIRE(positions.size() == dims + 2 && positions[0] == b.shape(x)[0] &&
                 positions.back() == static_cast<int64_t>(dims),
             invalid_input, "grid is ", b.type(grid), ", wanted [", b.shape(x)[0], ", ", dims,
             " dims of points, ", dims, "] for x ", b.type(x));
  SR_REQUIRE(element_count(how.sizes) > 0, invalid_input, "x is ", b.type(x), ", an empty image");
  std::string mode = c.attr_s("mode", "linear");
  if (mode == "bilinear") mode = "linear";  // opset 16 to 19
  if (mode == "bicubic") mode = "cubic";
  if (mode != "linear" && mode != "nearest" && (mode != "cubic" || dims != 2))
    c.refuse_attr("mode", "supported are linear, nearest, and cubic of images with two dims");
  how.padding = c.attr_s("padding_mode", "zeros");
  if (how.padding != "zeros" && how.padding != "border" && how.padding != "reflection")
    c.refuse_attr("padding_mode", "supported are zeros, border and reflection");
  how.aligned = c.attr_i("align_corners", 0) != 0;
  const Shape points(positions.begin() + 1, positions.end() - 1);
  const int64_t count = element_count(points), channels = b.shape(x)[1];
  std::vector<Taps> all;
  Ints choices;
  for (size_t d = 0; d < dims; ++d) {
    const auto from = static_cast<int64_t>(dims - 1 - d);
    const V at = b.reshape(b.slice(grid, b.rank(grid) - 1, from, from + 1), {positions[0], count});
    all.push_back(taps(b, mode, at, how, d));
    choices.push_back(static_cast<int64_t>(all.back().at.size()));
  }
  const V flat = b.reshape(x, {positions[0], channels, element_count(how.sizes)});
  const V image = b.transpose(flat, {0, 2, 1});
  const Shape strides = row_major_strides(choices);
  V sum = kNone;
  for (int64_t i = 0; i < element_count(choices); ++i) {
    Ints choice;
    for (size_t d = 0; d < dims; ++d) choice.push_back(i / strides[d] % choices[d]);
    const V part = read(b, image, all, choice, how);
    sum = sum == kNone ? part : b.add("add", {sum, part});
  }
  Shape out = {positions[0], channels};
  out.insert(out.end(), points.begin(), points.end());
  c.out(b.reshape(b.transpose(sum, {0, 2, 1}), out));
}

/// theta [N, dims, dims + 1] times the positions of an image's elements and a 1: [N, …sizes, dims].
void affine_grid(NodeContext& c) {
  Builder& b = c.b;
  const V theta = c.in(0);
  const Ints size = c.ints(1, "size");
  SR_REQUIRE(size.size() == 4 || size.size() == 5, invalid_input, "size is ", to_string(size),
             ", wanted [N, C, H, W] or [N, C, D, H, W]");
  const Shape sizes(size.begin() + 2, size.end());
  for (int64_t n : sizes)
    SR_REQUIRE(n >= 1, invalid_input, "size is ", to_string(size), ", wanted positive numbers");
  const auto dims = static_cast<int64_t>(sizes.size());
  SR_REQUIRE((b.shape(theta) == Shape{size[0], dims, dims + 1}), invalid_input, "theta is ",
             b.type(theta), ", wanted ", to_string(Shape{size[0], dims, dims + 1}));
  const bool aligned = c.attr_i("align_corners", 0) != 0;
  const int64_t count = element_count(sizes);
  std::vector<V> columns;
  for (int64_t d = dims; d-- > 0;) {
    const int64_t n = sizes[static_cast<size_t>(d)];
    const auto wide = static_cast<double>(n);
    const V steps = b.cast(b.iota(n, 0, 1), b.dtype(theta));
    const double step = aligned ? 2 / std::max(wide - 1, 1.0) : 2 / wide;
    const double first = aligned ? (n > 1 ? -1 : 0) : 1 / wide - 1;
    Shape along(sizes.size(), 1);
    along[static_cast<size_t>(d)] = n;
    const V at = b.reshape(b.with("add", b.with("mul", steps, step), first), along);
    columns.push_back(b.reshape(b.expand(at, sizes), {count, 1}));
  }
  columns.push_back(b.fill(1, b.dtype(theta), {count, 1}));
  const V grid = b.matmul(b.concat(columns, 1), b.transpose(theta, {0, 2, 1}));
  Shape out = sizes;
  out.insert(out.begin(), size[0]);
  out.push_back(dims);
  c.out(b.reshape(grid, out));
}

// ---- Col2Im ----

/// PyTorch's older exporter writes the padding of a fold dim by dim, [p, p, q, q] in place of
/// [p, q, p, q]. PyTorch itself has the same on both sides of a dim.
void repair_pads(NodeContext& c, std::vector<Window>& windows) {
  if (windows.size() != 2 || !c.report.producer.starts_with("pytorch")) return;
  Window &rows = windows[0], &columns = windows[1];
  if (rows.low != columns.low || rows.high != columns.high || rows.low == rows.high) return;
  columns.low = columns.high = rows.high;
  rows.high = rows.low;
  c.restored(str("padding=(", rows.low, ", ", columns.low, ")"));
}

/// Columns [N, C · block, blocks] added up where they come from: [N, C, …image].
void col_to_image(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  const Shape image = c.ints(1, "image_shape"), block = c.ints(2, "block_shape");
  SR_REQUIRE(!image.empty() && image.size() == block.size(), invalid_input, "image_shape is ",
             to_string(image), ", block_shape ", to_string(block), "; wanted as many dims");
  constexpr int64_t kMost = int64_t{1} << 31;
  for (const Shape* dims : {&image, &block})
    for (int64_t dim : *dims)
      SR_REQUIRE(dim >= 1 && dim < kMost, invalid_input, "image_shape is ", to_string(image),
                 ", block_shape ", to_string(block), "; wanted positive numbers below 2^31");
  std::vector<Window> windows = read_windows(c, image, block);
  repair_pads(c, windows);
  Shape counts, padded;
  for (size_t d = 0; d < windows.size(); ++d) {
    counts.push_back(std::max<int64_t>(windows[d].count(image[d]), 0));
    padded.push_back(image[d] + windows[d].low + windows[d].high);
  }
  const int64_t of_block = element_count(block), blocks = element_count(counts);
  const Shape shape = b.shape(x);
  SR_REQUIRE(shape.size() == 3 && of_block > 0 && shape[1] % of_block == 0 && shape[2] == blocks,
             invalid_input, "input is ", b.type(x), ", wanted [N, C * ", of_block, ", ", blocks,
             "], the blocks of an image ", to_string(image));
  // Positions in the padded image, [block, blocks], of all dims together.
  V index = kNone;
  const Shape strides = row_major_strides(padded);
  for (size_t d = 0; d < windows.size(); ++d) {
    Shape in_block(block.size(), 1), of_blocks(counts.size(), 1);
    in_block[d] = block[d], of_blocks[d] = counts[d];
    const auto flat = [&](int64_t count, int64_t step, Shape along, const Shape& all) {
      return b.reshape(b.expand(b.reshape(b.iota(count, 0, step * strides[d]), along), all),
                       {element_count(all)});
    };
    const V inner = flat(block[d], windows[d].dilation, in_block, block);
    const V outer = flat(counts[d], windows[d].stride, of_blocks, counts);
    const V both = b.add("add", {b.reshape(inner, {of_block, 1}), b.reshape(outer, {1, blocks})});
    index = index == kNone ? both : b.add("add", {index, both});
  }
  const int64_t channels = shape[1] / of_block;
  V out = b.add("gather_grad",
                {b.reshape(x, {shape[0], channels, of_block * blocks}),
                 b.reshape(index, {of_block * blocks})},
                {{"axis", int64_t{2}}, {"size", element_count(padded)}, {"offset", int64_t{0}}});
  Shape whole = padded;
  whole.insert(whole.begin(), {shape[0], channels});
  out = b.reshape(out, whole);
  for (size_t d = 0; d < windows.size(); ++d)
    out = b.slice(out, static_cast<int64_t>(d) + 2, windows[d].low, windows[d].low + image[d]);
  c.out(out);
}

constexpr Lowering kGridLowerings[] = {
    {"GridSample", 16, grid_sample}, {"AffineGrid", 20, affine_grid}, {"Col2Im", 18, col_to_image}};

}  // namespace

std::span<const Lowering> grid_lowerings() { return kGridLowerings; }

}  // namespace shardrun::importer
