// Convolution and its two gradients, over any number of spatial dims.
//
//   conv(x [N, C, …in], w [O, C, …kernel]) -> y [N, O, …out]
//   conv_data_grad(dy [N, O, …out], w [O, C, …kernel]) -> dx [N, C, …size]
//   conv_weight_grad(x [N, C, …in], dy [N, O, …out]) -> dw [O, C, …kernel]
//
// Groups are a dim of their own, so that they are cut like any other:
//
//   conv(x [N, G, C, …in], w [G, O, C, …kernel]) -> y [N, G, O, …out]     C, O: of one group
//
// With channels_last=1 the channels of images stand at the end (window.h, ImageDims).
//
// Attributes, one entry per spatial dim: strides, dilations, pads_low; conv has pads_high, which
// fixes the result's size; conv_data_grad has `size` and conv_weight_grad `kernel` instead.
//
// window.h says which positions meet and what the padding of a part is. conv_data_grad is also a
// transposed convolution, with w [in channels, out channels, …], and is differentiable for that
// use.
#include <algorithm>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"
#include "graph/ops/window.h"

namespace shardrun {
namespace {

ImageDims dims_of(const Node& node, size_t rank) {
  const size_t spatial = node.attrs.ints("strides").size();
  return {spatial, rank == spatial + 3, channels_last(node)};
}

ImageDims dims_of(const Node& node, InTypes in) {
  require_operands(in, 2);
  require_float(in[0], "first operand");
  require_same_dtype(in[0], in[1]);
  const size_t spatial = node.attrs.ints("strides").size();
  const size_t rank = in[0].shape.size();
  SR_REQUIRE(
      spatial >= 1 && in[1].shape.size() == rank && (rank == spatial + 2 || rank == spatial + 3),
      invalid_input, "operands are ", in[0], " and ", in[1], "; with ", spatial,
      " strides both need rank ", spatial + 2, ", or ", spatial + 3, " with groups");
  return dims_of(node, rank);
}

void require_dim(InTypes in, size_t a, size_t b, const char* what) {
  SR_REQUIRE(in[0].shape[a] == in[1].shape[b], invalid_input, what, " differ: ", in[0].shape[a],
             " in ", in[0], " and ", in[1].shape[b], " in ", in[1]);
}

/// The image with other channels and sizes.
Shape image_like(Shape image, const ImageDims& d, int64_t channels, const Shape& sizes) {
  image[d.channel()] = channels;
  for (size_t s = 0; s < d.spatial; ++s) image[d.at(s)] = sizes[s];
  return image;
}

/// Where weights have their channels out, [.., O, C, …kernel]; those in stand behind them.
size_t channels_out(const ImageDims& d) { return d.kernel_at(0) - 2; }

Types infer_conv(const Node& node, InTypes in) {
  const ImageDims d = dims_of(node, in);
  if (d.groups) require_dim(in, d.group(), 0, "groups");
  require_dim(in, d.channel(), channels_out(d) + 1, "channels");
  const std::vector<Window> windows = windows_of(node, d.kernel_sizes(in[1].shape));
  Shape sizes = d.sizes(in[0].shape);
  for (size_t s = 0; s < d.spatial; ++s) sizes[s] = windows[s].count(sizes[s]);
  return {{in[0].dtype, image_like(in[0].shape, d, in[1].shape[channels_out(d)], sizes)}};
}

Types infer_data_grad(const Node& node, InTypes in) {
  const ImageDims d = dims_of(node, in);
  if (d.groups) require_dim(in, d.group(), 0, "groups");
  require_dim(in, d.channel(), channels_out(d), "channels of the result");
  windows_of(node, d.kernel_sizes(in[1].shape));
  const Ints& size = node.attrs.ints("size");
  SR_REQUIRE(size.size() == d.spatial, invalid_input, "size is ", to_string(size), ", wanted ",
             d.spatial, " entries");
  return {{in[0].dtype, image_like(in[0].shape, d, in[1].shape[channels_out(d) + 1], size)}};
}

Types infer_weight_grad(const Node& node, InTypes in) {
  const ImageDims d = dims_of(node, in);
  require_dim(in, 0, 0, "batch sizes");
  if (d.groups) require_dim(in, d.group(), d.group(), "groups");
  const Ints& kernel = node.attrs.ints("kernel");
  windows_of(node, kernel);
  Shape out;
  if (d.groups) out.push_back(in[0].shape[d.group()]);
  out.push_back(in[1].shape[d.channel()]);
  out.push_back(in[0].shape[d.channel()]);
  out.insert(out.end(), kernel.begin(), kernel.end());
  TensorType type{in[0].dtype, out};
  if (node.attrs.has("out_dtype")) {
    type.dtype = parse_dtype(node.attrs.s("out_dtype"));
    SR_REQUIRE(
        type.dtype == in[0].dtype || (type.dtype == DType::f32 && in[0].dtype == DType::bf16),
        invalid_input, "gradient of ", in[0].dtype, " cannot have out_dtype ", type.dtype,
        "; only bf16 operands may have an f32 result");
  }
  return {type};
}

/// The windows of any of the three, from the shapes that have the kernel and, for `high`, from the
/// operand's and result's sizes.
std::vector<Window> exact_windows(const Node& node, const Shape& kernel, const Shape& in,
                                  const Shape& out) {
  std::vector<Window> windows = windows_of(node, kernel);
  for (size_t s = 0; s < windows.size(); ++s) windows[s].high = windows[s].high_for(in[s], out[s]);
  return windows;
}

Attrs without(const Attrs& attrs, std::initializer_list<const char*> names) {
  Attrs out;
  for (const auto& [name, value] : attrs.all()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) out.set(name, value);
  }
  return out;
}

// ---- gradients ----

Grads conv_gradient(GradientContext& c) {
  const ValueId x = c.node.inputs[0], w = c.node.inputs[1], dy = c.out_grads[0];
  const ImageDims d = dims_of(c.node, c.in_shape(0).size());
  const Attrs shared = without(c.node.attrs, {"pads_high"});
  Grads grads = {kNoValue, kNoValue};
  if (c.needs[0]) {
    Attrs attrs = shared;
    attrs.set("size", d.sizes(c.in_shape(0)));
    grads[0] = c.graph.add("conv_data_grad", {dy, w}, attrs);
  }
  if (c.needs[1]) {
    Attrs attrs = shared;
    attrs.set("kernel", d.kernel_sizes(c.in_shape(1)));
    grads[1] = c.graph.add("conv_weight_grad", {x, dy}, attrs);
  }
  return grads;
}

/// dx = conv_data_grad(dy, w) is linear in both: with g the gradient of dx, that of dy is
/// conv(g, w), and that of w what w would get as the weights of that convolution.
Grads data_grad_gradient(GradientContext& c) {
  const ValueId dy = c.node.inputs[0], w = c.node.inputs[1], g = c.out_grads[0];
  const ImageDims d = dims_of(c.node, c.in_shape(0).size());
  const Shape kernel = d.kernel_sizes(c.in_shape(1));
  const Attrs shared = without(c.node.attrs, {"size"});
  Grads grads = {kNoValue, kNoValue};
  if (c.needs[0]) {
    Attrs attrs = shared;
    attrs.set("pads_high", Ints(d.spatial, 0));
    attrs = with_pads(
        attrs, exact_windows(c.node, kernel, c.node.attrs.ints("size"), d.sizes(c.in_shape(0))));
    grads[0] = c.graph.add("conv", {g, w}, attrs);
  }
  if (c.needs[1]) {
    Attrs attrs = shared;
    attrs.set("kernel", kernel);
    grads[1] = c.graph.add("conv_weight_grad", {g, dy}, attrs);
  }
  return grads;
}

double conv_flops(const Node& node, InTypes in, InTypes out) {
  // Every element of y meets every channel and kernel offset of w.
  const ImageDims d = dims_of(node, in[0].shape.size());
  const Shape& y = node.op == "conv"             ? out[0].shape
                   : node.op == "conv_data_grad" ? in[0].shape
                                                 : in[1].shape;
  const Shape& w = node.op == "conv_weight_grad" ? out[0].shape : in[1].shape;
  double flops = 2 * static_cast<double>(element_count(y));
  for (size_t i = channels_out(d) + 1; i < w.size(); ++i) flops *= static_cast<double>(w[i]);
  return flops;
}

// ---- parts ----

Attrs localise_conv(const Node& node, InTypes in, LocalBoxes boxes) {
  const ImageDims d = dims_of(node, in);
  std::vector<Window> windows = windows_of(node, d.kernel_sizes(in[1].shape));
  for (size_t s = 0; s < d.spatial; ++s) {
    const Range x = boxes.in[0][d.at(s)], y = boxes.out[0][d.at(s)];
    windows[s].low = windows[s].local_low(x, y);
    windows[s].high = windows[s].high_for(x.size, y.size);
  }
  return with_pads(node.attrs, windows);
}

Attrs localise_data_grad(const Node& node, InTypes in, LocalBoxes boxes) {
  const ImageDims d = dims_of(node, in);
  std::vector<Window> windows = windows_of(node, d.kernel_sizes(in[1].shape));
  for (size_t s = 0; s < d.spatial; ++s)
    windows[s].low = windows[s].local_low(boxes.out[0][d.at(s)], boxes.in[0][d.at(s)]);
  Attrs attrs = with_pads(node.attrs, windows);
  attrs.set("size", d.sizes(box_shape(boxes.out[0])));
  return attrs;
}

Attrs localise_weight_grad(const Node& node, InTypes in, LocalBoxes boxes) {
  const ImageDims d = dims_of(node, in);
  std::vector<Window> windows = windows_of(node, node.attrs.ints("kernel"));
  for (size_t s = 0; s < d.spatial; ++s)
    windows[s].low = windows[s].local_low(boxes.in[0][d.at(s)], boxes.in[1][d.at(s)]);
  return with_pads(node.attrs, windows);
}

// ---- small shapes: the kernel, strides and padding stay, so that halos stay as wide ----

Attrs shrink_conv(const Node& node, InTypes original, Types& in) {
  const ImageDims d = dims_of(node, original);
  const std::vector<Window> windows = windows_of(node, d.kernel_sizes(original[1].shape));
  for (size_t s = 0; s < d.spatial; ++s) {
    const int64_t size = original[0].shape[d.at(s)];
    int64_t& small = in[0].shape[d.at(s)];
    small = shrink_window(windows[s], size, windows[s].count(size), small).in;
    in[1].shape[d.kernel_at(s)] = original[1].shape[d.kernel_at(s)];
  }
  return node.attrs;
}

Attrs shrink_data_grad(const Node& node, InTypes original, Types& in) {
  const ImageDims d = dims_of(node, original);
  const std::vector<Window> windows = windows_of(node, d.kernel_sizes(original[1].shape));
  Ints size = node.attrs.ints("size");
  for (size_t s = 0; s < d.spatial; ++s) {
    const SmallWindow small =
        shrink_window(windows[s], size[s], original[0].shape[d.at(s)], in[0].shape[d.at(s)]);
    size[s] = small.in;
    in[0].shape[d.at(s)] = small.out;
    in[1].shape[d.kernel_at(s)] = original[1].shape[d.kernel_at(s)];
  }
  Attrs attrs = node.attrs;
  attrs.set("size", size);
  return attrs;
}

Attrs shrink_weight_grad(const Node& node, InTypes original, Types& in) {
  const ImageDims d = dims_of(node, original);
  const std::vector<Window> windows = windows_of(node, node.attrs.ints("kernel"));
  for (size_t s = 0; s < d.spatial; ++s) {
    const SmallWindow small = shrink_window(windows[s], original[0].shape[d.at(s)],
                                            original[1].shape[d.at(s)], in[1].shape[d.at(s)]);
    in[0].shape[d.at(s)] = small.in;
    in[1].shape[d.at(s)] = small.out;
  }
  return node.attrs;
}

// ---- samples ----

struct ConvCase {
  Shape x, w;
  Ints strides, dilations, low, high;
};

/// Each attribute in turn, even and uneven; with groups; one and three spatial dims; a stride wider
/// than its kernel; rows that no window reads; cropping, as parts of an image have it; each channel
/// alone, with a window larger than those that libraries are made for.
const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> all = {
      {{2, 2, 6, 5}, {4, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
      {{2, 3, 7, 5}, {2, 3, 3, 2}, {2, 1}, {1, 2}, {0, 2}, {1, 0}},
      {{3, 2, 6, 6}, {4, 2, 1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
      {{1, 2, 9, 4}, {3, 2, 5, 1}, {3, 1}, {1, 1}, {2, 0}, {2, 0}},
      {{2, 2, 2, 5, 4}, {2, 3, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
      {{2, 4, 1, 5, 4}, {4, 1, 1, 2, 2}, {1, 2}, {1, 1}, {0, 0}, {0, 0}},
      {{2, 3, 8}, {4, 3, 3}, {1}, {2}, {2}, {2}},
      {{1, 2, 3, 4, 3}, {2, 2, 2, 2, 2}, {1, 2, 1}, {1, 1, 1}, {1, 0, 0}, {0, 0, 1}},
      {{2, 2, 7}, {3, 2, 3}, {1}, {1}, {-1}, {-2}},
      {{2, 3, 1, 5, 4}, {3, 1, 1, 4, 5}, {1, 1}, {1, 1}, {2, 2}, {1, 2}},
  };
  return all;
}

/// [N, C, …] -> [N, …, C].
Shape with_channels_last(Shape image, const ImageDims& d) {
  std::rotate(image.begin() + 1, image.begin() + static_cast<std::ptrdiff_t>(d.kernel_at(0)),
              image.end());
  return image;
}

OpDef::Sample sample(const char* op, const ConvCase& c, bool last = false,
                     DType dtype = DType::f32) {
  Attrs attrs{{"strides", c.strides}, {"dilations", c.dilations}, {"pads_low", c.low}};
  if (last) attrs.set("channels_last", int64_t{1});
  Attrs whole = attrs;
  whole.set("pads_high", c.high);
  Node node;
  node.op = "conv";
  node.attrs = whole;
  const ImageDims d = dims_of(node, c.x.size());
  const TensorType x{dtype, last ? with_channels_last(c.x, d) : c.x}, w{dtype, c.w};
  const TensorType y = infer_conv(node, Types{x, w})[0];
  if (op == node.op) return {{x, w}, whole};
  if (op == std::string("conv_data_grad")) {
    attrs.set("size", d.sizes(x.shape));
    return {{y, w}, attrs};
  }
  attrs.set("kernel", d.kernel_sizes(c.w));
  return {{x, y}, attrs};
}

std::vector<OpDef::Sample> samples(const char* op) {
  std::vector<OpDef::Sample> out;
  for (const ConvCase& c : conv_cases()) out.push_back(sample(op, c));
  for (size_t i = 0; i < conv_cases().size(); i += 2)
    out.push_back(sample(op, conv_cases()[i], true));
  return out;
}

}  // namespace

std::vector<OpDef> conv_ops() {
  OpDef conv;
  conv.name = "conv";
  conv.infer = infer_conv;
  conv.gradient = conv_gradient;
  conv.cost = CostClass::convolution;
  conv.precision = Precision::bf16;
  conv.model_body = true;
  conv.localise = localise_conv;
  conv.shrink = shrink_conv;

  OpDef data;
  data.name = "conv_data_grad";
  data.infer = infer_data_grad;
  data.gradient = data_grad_gradient;
  data.cost = CostClass::convolution;
  data.precision = Precision::bf16;
  data.model_body = true;
  data.localise = localise_data_grad;
  data.shrink = shrink_data_grad;

  OpDef weight;
  weight.name = "conv_weight_grad";
  weight.infer = infer_weight_grad;
  weight.cost = CostClass::convolution_weights;
  weight.precision = Precision::follows;
  weight.widens = true;
  weight.localise = localise_weight_grad;
  weight.shrink = shrink_weight_grad;

  std::vector<OpDef> ops = {conv, data, weight};
  for (OpDef& op : ops) {
    op.flops = conv_flops;
    op.samples = samples(op.name.c_str());
  }
  OpDef::Sample widened = sample("conv_weight_grad", conv_cases()[0], false, DType::bf16);
  widened.attrs.set("out_dtype", std::string("f32"));
  ops[2].samples.push_back(widened);
  return ops;
}

}  // namespace shardrun
