// Pools over the trailing dims, and their gradients.
//
//   max_pool(x […, in]) -> y […, out], which […, out]
//       `which` is the offset inside the window, in row-major order, of the first maximum: u8 where
//       the window has fewer than 256 offsets, else i32. It does not depend on where the image is
//       cut. Padding is never a maximum; a window of padding alone gives -infinity. NaN wins, as in
//       PyTorch.
//   max_pool_grad(dy […, out], which […, out]) -> dx […, size]
//   sum_pool(x […, in]) -> y […, out]; padding counts as 0
//   sum_pool_grad(dy […, out]) -> dx […, size]
//
// With channels_last=1 the last dim is not pooled: x […, in, C], y […, out, C].
//
// Attributes, one entry per pooled dim: kernel, strides, dilations, pads_low; the pools have
// pads_high and their gradients `size`. See window.h. An average is sum_pool times a constant of
// the inverse counts, so that a cut inside the image does not change what is divided by.
#include <algorithm>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"
#include "graph/ops/window.h"

namespace shardrun {
namespace {

DType which_type(const Ints& kernel) {
  return element_count(kernel) < 256 ? DType::u8 : DType::i32;
}

/// How many dims stand before the pooled ones.
size_t lead_of(const Node& node, const TensorType& x) {
  const size_t pooled = node.attrs.ints("kernel").size(), behind = channels_last(node) ? 1 : 0;
  SR_REQUIRE(x.shape.size() >= pooled + behind, invalid_input, "operand is ", x, "; a kernel of ",
             pooled, " dims needs at least rank ", pooled + behind);
  return x.shape.size() - pooled - behind;
}

/// Sizes of the pooled dims.
Shape pooled(const Node& node, const Shape& shape, size_t lead) {
  const auto first = shape.begin() + static_cast<std::ptrdiff_t>(lead);
  return Shape(first, first + static_cast<std::ptrdiff_t>(node.attrs.ints("kernel").size()));
}

Types infer_pool(const Node& node, InTypes in) {
  require_operands(in, 1);
  require_float(in[0], "operand");
  const std::vector<Window> windows = windows_of(node, node.attrs.ints("kernel"));
  const size_t lead = lead_of(node, in[0]);
  Shape out = in[0].shape;
  for (size_t s = 0; s < windows.size(); ++s) out[lead + s] = windows[s].count(out[lead + s]);
  if (node.op == "sum_pool") return {{in[0].dtype, out}};
  return {{in[0].dtype, out}, {which_type(node.attrs.ints("kernel")), out}};
}

Types infer_pool_grad(const Node& node, InTypes in) {
  const bool max = node.op == "max_pool_grad";
  require_operands(in, max ? 2 : 1);
  require_float(in[0], "dy");
  const Ints &kernel = node.attrs.ints("kernel"), &size = node.attrs.ints("size");
  windows_of(node, kernel);
  const TensorType which{which_type(kernel), in[0].shape};
  SR_REQUIRE(!max || in[1] == which, invalid_input, "which is ", in.back(), ", wanted ", which);
  SR_REQUIRE(size.size() == kernel.size(), invalid_input, "size is ", to_string(size), ", wanted ",
             kernel.size(), " entries");
  Shape out = in[0].shape;
  std::copy(size.begin(), size.end(),
            out.begin() + static_cast<std::ptrdiff_t>(lead_of(node, in[0])));
  return {{in[0].dtype, out}};
}

Attrs gradient_attrs(const GradientContext& c) {
  Attrs attrs;
  for (const char* name : {"kernel", "strides", "dilations", "pads_low"})
    attrs.set(name, c.node.attrs.ints(name));
  attrs.set("size", pooled(c.node, c.in_shape(0), lead_of(c.node, c.in_type(0))));
  if (channels_last(c.node)) attrs.set("channels_last", int64_t{1});
  return attrs;
}

Grads max_pool_gradient(GradientContext& c) {
  return {c.graph.add("max_pool_grad", {c.out_grads[0], c.node.outputs[1]}, gradient_attrs(c))};
}

Grads sum_pool_gradient(GradientContext& c) {
  return {c.graph.add("sum_pool_grad", {c.out_grads[0]}, gradient_attrs(c))};
}

/// Each element of y meets each offset of the window.
double pool_flops(const Node& node, InTypes in, InTypes out) {
  const bool gradient = node.op.ends_with("_grad");
  const double y = static_cast<double>(element_count((gradient ? in : out)[0].shape));
  if (node.op == "max_pool_grad") return y;
  return y * static_cast<double>(element_count(node.attrs.ints("kernel")));
}

Attrs localise_pool(const Node& node, InTypes in, LocalBoxes boxes) {
  const size_t lead = lead_of(node, in[0]);
  std::vector<Window> windows = windows_of(node, node.attrs.ints("kernel"));
  for (size_t s = 0; s < windows.size(); ++s) {
    const Range x = boxes.in[0][lead + s], y = boxes.out[0][lead + s];
    windows[s].low = windows[s].local_low(x, y);
    windows[s].high = windows[s].high_for(x.size, y.size);
  }
  return with_pads(node.attrs, windows);
}

Attrs localise_pool_grad(const Node& node, InTypes in, LocalBoxes boxes) {
  const size_t lead = lead_of(node, in[0]);
  std::vector<Window> windows = windows_of(node, node.attrs.ints("kernel"));
  for (size_t s = 0; s < windows.size(); ++s)
    windows[s].low = windows[s].local_low(boxes.out[0][lead + s], boxes.in[0][lead + s]);
  Attrs attrs = with_pads(node.attrs, windows);
  attrs.set("size", pooled(node, box_shape(boxes.out[0]), lead));
  return attrs;
}

/// A window as large as the image, as of a global pool, shrinks with it; any other stays.
bool is_global(const Window& w, int64_t size) {
  return size > 1 && w.kernel == size && w.dilation == 1 && w.low == 0 && w.high == 0;
}

Attrs shrink_pool(const Node& node, InTypes original, Types& in) {
  const size_t lead = lead_of(node, original[0]);
  Ints kernel = node.attrs.ints("kernel");
  const std::vector<Window> windows = windows_of(node, kernel);
  for (size_t s = 0; s < windows.size(); ++s) {
    const int64_t size = original[0].shape[lead + s];
    int64_t& small = in[0].shape[lead + s];
    if (is_global(windows[s], size)) {
      kernel[s] = small;
    } else {
      small = shrink_window(windows[s], size, windows[s].count(size), small).in;
    }
  }
  Attrs attrs = node.attrs;
  attrs.set("kernel", kernel);
  return attrs;
}

Attrs shrink_pool_grad(const Node& node, InTypes original, Types& in) {
  constexpr int64_t kSmall = 5;  // of a window as large as the image
  const size_t lead = lead_of(node, original[0]);
  Ints kernel = node.attrs.ints("kernel"), size = node.attrs.ints("size");
  const std::vector<Window> windows = windows_of(node, kernel);
  for (size_t s = 0; s < windows.size(); ++s) {
    SmallWindow small{kSmall, 1};
    if (is_global(windows[s], size[s]) && original[0].shape[lead + s] == 1) {
      kernel[s] = kSmall;
    } else {
      small =
          shrink_window(windows[s], size[s], original[0].shape[lead + s], in[0].shape[lead + s]);
    }
    size[s] = small.in;
    for (TensorType& t : in) t.shape[lead + s] = small.out;
  }
  if (node.op == "max_pool_grad") in[1].dtype = which_type(kernel);
  Attrs attrs = node.attrs;
  attrs.set("kernel", kernel);
  attrs.set("size", size);
  return attrs;
}

std::optional<int64_t> which_bound(const Node& node, InTypes, size_t operand) {
  if (operand != 1) return std::nullopt;
  return element_count(node.attrs.ints("kernel"));
}

struct PoolCase {
  Shape x;
  Ints kernel, strides, dilations, low, high;
};

const std::vector<PoolCase>& pool_cases() {
  static const std::vector<PoolCase> all = {
      {{2, 3, 6, 4}, {2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
      {{2, 2, 7, 5}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
      {{1, 3, 5, 6}, {3, 2}, {1, 3}, {1, 2}, {1, 0}, {2, 1}},
      {{2, 3, 8}, {3}, {1}, {1}, {1}, {1}},
      {{1, 2, 3, 4, 3}, {2, 2, 2}, {1, 2, 1}, {1, 1, 1}, {1, 0, 0}, {0, 0, 1}},
      {{3, 2, 5, 4}, {5, 4}, {1, 1}, {1, 1}, {0, 0}, {0, 0}},
      {{2, 2, 7}, {2}, {2}, {1}, {-1}, {0}},
  };
  return all;
}

OpDef::Sample sample(const std::string& op, const PoolCase& c, bool last) {
  const bool gradient = op.ends_with("_grad"), max = op.starts_with("max");
  Attrs attrs{{"kernel", c.kernel},
              {"strides", c.strides},
              {"dilations", c.dilations},
              {"pads_low", c.low}};
  if (last) attrs.set("channels_last", int64_t{1});
  Attrs whole = attrs;
  whole.set("pads_high", c.high);
  TensorType x{DType::f32, c.x};
  if (last) x.shape.push_back(3);
  if (!gradient) return {{x}, whole};
  Node node;
  node.op = "max_pool";
  node.attrs = whole;
  Types operands = infer_pool(node, Types{x});
  if (!max) operands.pop_back();
  attrs.set("size", pooled(node, x.shape, lead_of(node, x)));
  return {operands, attrs};
}

std::vector<OpDef::Sample> samples(const std::string& op) {
  std::vector<OpDef::Sample> out;
  for (const PoolCase& c : pool_cases()) out.push_back(sample(op, c, false));
  for (size_t i = 0; i < pool_cases().size(); i += 2)
    out.push_back(sample(op, pool_cases()[i], true));
  out.push_back(sample(op, pool_cases()[1], true));
  return out;
}

}  // namespace

std::vector<OpDef> pool_ops() {
  std::vector<OpDef> ops;
  for (const char* name : {"max_pool", "sum_pool", "max_pool_grad", "sum_pool_grad"}) {
    OpDef op;
    op.name = name;
    const bool gradient = op.name.ends_with("_grad");
    op.infer = gradient ? infer_pool_grad : infer_pool;
    op.localise = gradient ? localise_pool_grad : localise_pool;
    op.shrink = gradient ? shrink_pool_grad : shrink_pool;
    op.flops = pool_flops;
    op.cost = CostClass::streamed;
    op.precision = Precision::follows;
    op.samples = samples(op.name);
    ops.push_back(std::move(op));
  }
  ops[0].gradient = max_pool_gradient;
  ops[0].model_body = true;
  ops[1].gradient = sum_pool_gradient;
  ops[1].precision = Precision::f32;
  ops[2].index_bound = which_bound;
  // More offsets than a byte counts.
  ops[0].samples.push_back({{{DType::f32, {2, 17, 18}}},
                            {{"kernel", Ints{17, 17}},
                             {"strides", Ints{1, 1}},
                             {"dilations", Ints{1, 1}},
                             {"pads_low", Ints{0, 0}},
                             {"pads_high", Ints{0, 0}}}});
  return ops;
}

}  // namespace shardrun
