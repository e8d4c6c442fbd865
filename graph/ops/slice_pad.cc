// slice and pad: ops whose attributes are positions.
#include <algorithm>

#include "graph/ops/gradients.h"
#include "graph/ops/movement.h"

namespace shardrun {

ValueId slice_dim(Graph& graph, ValueId x, size_t dim, int64_t start, int64_t end, int64_t step) {
  const Shape shape = graph.type(x).shape;
  std::vector<int64_t> starts(shape.size(), 0), ends = shape, steps(shape.size(), 1);
  starts[dim] = start;
  ends[dim] = end;
  steps[dim] = step;
  return graph.add("slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

ValueId pad_dim(Graph& graph, ValueId x, size_t dim, int64_t before, int64_t after) {
  if (before == 0 && after == 0) return x;
  std::vector<int64_t> befores(graph.type(x).shape.size(), 0), afters = befores;
  befores[dim] = before;
  afters[dim] = after;
  return graph.add("pad", {x}, {{"before", befores}, {"after", afters}});
}

namespace {

// ---- slice ----

int64_t slice_count(int64_t start, int64_t end, int64_t step) {
  return step > 0 ? std::max<int64_t>(0, (end - start + step - 1) / step)
                  : std::max<int64_t>(0, (start - end - step - 1) / -step);
}

Types infer_slice(const Node& node, InTypes in) {
  require_operands(in, 1);
  const Ints &starts = node.attrs.ints("starts"), &ends = node.attrs.ints("ends");
  const Ints& steps = node.attrs.ints("steps");
  const size_t rank = in[0].shape.size();
  SR_REQUIRE(starts.size() == rank && ends.size() == rank && steps.size() == rank, invalid_input,
             "starts, ends and steps have ", starts.size(), ", ", ends.size(), " and ",
             steps.size(), " entries, wanted one per dim of ", in[0]);
  Shape shape;
  for (size_t d = 0; d < rank; ++d) {
    SR_REQUIRE(steps[d] != 0, invalid_input, "step of dim ", d, " is 0");
    shape.push_back(slice_count(starts[d], ends[d], steps[d]));
    if (shape[d] == 0) continue;
    const int64_t first = starts[d], last = first + steps[d] * (shape[d] - 1);
    SR_REQUIRE(std::min(first, last) >= 0 && std::max(first, last) < in[0].shape[d], invalid_input,
               "slice of dim ", d, " runs from ", first, " to ", last, " in ", in[0]);
  }
  return {{in[0].dtype, shape}};
}

/// Element j of the result along a dim is element start + step * j of the operand; both boxes are
/// global. slice [2:10] of 12, result cut in two, operand whole: rank 1 has results [4, 8), which
/// are elements [6, 10). Where the operand's part does not hold them the cut is not possible, and
/// the shape comes out wrong.
Attrs localise_slice(const Node& node, InTypes, LocalBoxes boxes) {
  Ints starts = node.attrs.ints("starts"), ends = node.attrs.ints("ends");
  const Ints& steps = node.attrs.ints("steps");
  for (size_t d = 0; d < starts.size(); ++d) {
    const Range in = boxes.in[0][d], out = boxes.out[0][d];
    int64_t first = starts[d] + steps[d] * out.begin - in.begin;
    int64_t last = first + steps[d] * (out.size - 1);
    const bool possible =
        out.size > 0 && std::min(first, last) >= 0 && std::max(first, last) < in.size;
    starts[d] = possible ? first : 0;
    ends[d] = possible ? last + (steps[d] > 0 ? 1 : -1) : (steps[d] > 0 ? 0 : 1);
  }
  Attrs attrs = node.attrs;
  attrs.set("starts", starts);
  attrs.set("ends", ends);
  return attrs;
}

/// A dim that is cropped keeps being cropped on the same sides, by more than shards' rounding hides
/// (3 before, 2 after), so that what is found for the small shape holds for the large one.
Attrs shrink_slice(const Node& node, InTypes original, std::vector<TensorType>& in) {
  Ints starts = node.attrs.ints("starts"), ends = node.attrs.ints("ends");
  Ints steps = node.attrs.ints("steps");
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t extent = original[0].shape[d];
    int64_t& small = in[0].shape[d];
    const int64_t count = slice_count(starts[d], ends[d], steps[d]);
    if (count == 0) {
      starts[d] = ends[d] = 0;
      steps[d] = 1;
      continue;
    }
    if (count == extent && steps[d] == 1) {
      starts[d] = 0;
      ends[d] = small;
      continue;
    }
    const int64_t low = std::min(starts[d], starts[d] + steps[d] * (count - 1));
    const int64_t high = std::max(starts[d], starts[d] + steps[d] * (count - 1));
    const int64_t step = std::clamp<int64_t>(steps[d], -2, 2);
    const int64_t few = std::min(count, std::max<int64_t>(small, 4));
    const int64_t before = low > 0 ? 3 : 0, after = high < extent - 1 ? 2 : 0;
    const int64_t span = (few - 1) * std::abs(step) + 1;
    small = before + span + after;
    starts[d] = step > 0 ? before : before + span - 1;
    ends[d] = step > 0 ? before + span : before - 1;
    steps[d] = step;
  }
  return {{"starts", starts}, {"ends", ends}, {"steps", steps}};
}

/// Undoes the slice dim by dim: turn round, spread out by the step, pad with zeros.
Grads slice_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const Shape shape = c.in_shape(0);
  const Ints &starts = c.node.attrs.ints("starts"), &steps = c.node.attrs.ints("steps");
  ValueId dx = c.out_grads[0];
  if (element_count(g.type(dx).shape) == 0) return {fill(g, {g.type(dx).dtype, shape}, 0)};
  Ints before(shape.size()), after(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    const Shape now = g.type(dx).shape;
    const int64_t count = now[d], step = std::abs(steps[d]);
    int64_t first = starts[d];
    if (steps[d] < 0 && count > 1) {
      first += steps[d] * (count - 1);
      dx = slice_dim(g, dx, d, count - 1, -1, -1);
    }
    const int64_t span = (count - 1) * step + 1;
    if (step > 1 && count > 1) {  // a, b -> a, 0, b, 0 -> a, 0, b
      Shape apart = now, together = now;
      apart.insert(apart.begin() + static_cast<int64_t>(d) + 1, 1);
      together[d] = count * step;
      dx = pad_dim(g, g.add("reshape", {dx}, {{"shape", apart}}), d + 1, 0, step - 1);
      dx = slice_dim(g, g.add("reshape", {dx}, {{"shape", together}}), d, 0, span);
    }
    before[d] = first;
    after[d] = shape[d] - first - span;
  }
  if (g.type(dx).shape != shape) {
    dx = g.add("pad", {dx}, {{"before", before}, {"after", after}});
  }
  return {dx};
}

// ---- pad ----

Types infer_pad(const Node& node, InTypes in) {
  require_operands(in, 1);
  const Ints &before = node.attrs.ints("before"), &after = node.attrs.ints("after");
  const std::string mode = node.attrs.s("mode", "constant");
  SR_REQUIRE(mode == "constant" || mode == "reflect" || mode == "edge", invalid_input, "mode is '",
             mode, "', wanted constant, reflect or edge");
  SR_REQUIRE(before.size() == in[0].shape.size() && after.size() == before.size(), invalid_input,
             "before and after have ", before.size(), " and ", after.size(),
             " entries, wanted one per dim of ", in[0]);
  Shape shape = in[0].shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    SR_REQUIRE(before[d] >= 0 && after[d] >= 0, invalid_input, "padding of dim ", d, " is ",
               before[d], " and ", after[d], "; slice takes elements away");
    shape[d] += before[d] + after[d];
  }
  return {{in[0].dtype, shape}};
}

/// Operand element i lies at i + before in the result; both boxes are global. An operand cut in two
/// under a whole result is padded with the other half's place: [0, 2) of 4 with before=1, after=1
/// becomes before=1, after=3, and the ranks' results add up where the value is 0.
Attrs localise_pad(const Node& node, InTypes, LocalBoxes boxes) {
  Ints before = node.attrs.ints("before"), after = node.attrs.ints("after");
  for (size_t d = 0; d < before.size(); ++d) {
    const Range in = boxes.in[0][d], out = boxes.out[0][d];
    const int64_t first = in.begin + before[d];
    if (in.size == 0) {  // all of it is padding
      before[d] = out.size;
      after[d] = 0;
      continue;
    }
    before[d] = std::max<int64_t>(0, first - out.begin);
    after[d] = std::max<int64_t>(0, out.end() - (first + in.size));
  }
  Attrs attrs = node.attrs;
  attrs.set("before", before);
  attrs.set("after", after);
  return attrs;
}

Attrs shrink_pad(const Node& node, InTypes, std::vector<TensorType>& in) {
  Ints before = node.attrs.ints("before"), after = node.attrs.ints("after");
  for (size_t d = 0; d < before.size(); ++d) {  // as in shrink_slice
    if (before[d] > 0) before[d] = 3;
    if (after[d] > 0) after[d] = 2;
    const bool reflect = node.attrs.s("mode", "constant") == "reflect";
    if (reflect && before[d] + after[d] > 0) {
      in[0].shape[d] = std::max<int64_t>(in[0].shape[d], 4);
    }
  }
  Attrs attrs = node.attrs;
  attrs.set("before", before);
  attrs.set("after", after);
  return attrs;
}

/// Crops, and under edge and reflect adds what the padding copied back onto where it came from.
Grads pad_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const Shape shape = c.in_shape(0);
  const Ints &before = c.node.attrs.ints("before"), &after = c.node.attrs.ints("after");
  const std::string mode = c.node.attrs.s("mode", "constant");
  ValueId dx = c.out_grads[0];
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t n = shape[d], b = before[d], a = after[d];
    if (b == 0 && a == 0) continue;
    const ValueId padded = dx;
    dx = slice_dim(g, padded, d, b, b + n);
    if (mode == "constant" || n == 0) continue;
    const ValueId left = b > 0 ? slice_dim(g, padded, d, 0, b) : kNoValue;
    const ValueId right = a > 0 ? slice_dim(g, padded, d, b + n, b + n + a) : kNoValue;
    if (mode == "edge") {
      const Attrs over{{"axes", Ints{static_cast<int64_t>(d)}}, {"keepdims", int64_t{1}}};
      if (left != kNoValue) {
        dx = g.add("add", {dx, pad_dim(g, g.add("reduce_sum", {left}, over), d, 0, n - 1)});
      }
      if (right != kNoValue) {
        dx = g.add("add", {dx, pad_dim(g, g.add("reduce_sum", {right}, over), d, n - 1, 0)});
      }
      continue;
    }
    SR_REQUIRE(b < n && a < n, unsupported, "gradient of pad: reflected padding of dim ", d, " is ",
               b, " and ", a, ", as large as the dim, ", n);
    if (left != kNoValue) {  // padding i came from element b - i
      dx = g.add("add", {dx, pad_dim(g, slice_dim(g, left, d, b - 1, -1, -1), d, 1, n - 1 - b)});
    }
    if (right != kNoValue) {  // padding i came from element n - 2 - i
      dx = g.add("add", {dx, pad_dim(g, slice_dim(g, right, d, a - 1, -1, -1), d, n - 1 - a, 1)});
    }
  }
  return {dx};
}

Attrs slice_attrs(Ints starts, Ints ends, Ints steps) {
  return {{"starts", std::move(starts)}, {"ends", std::move(ends)}, {"steps", std::move(steps)}};
}

Attrs pad_attrs(Ints before, Ints after, std::string mode, double value) {
  return {{"before", std::move(before)},
          {"after", std::move(after)},
          {"mode", std::move(mode)},
          {"value", value}};
}

}  // namespace

std::vector<OpDef> slice_pad_ops() {
  std::vector<OpDef> ops;
  const DType f = DType::f32;
  OpDef slice;
  slice.name = "slice";
  slice.infer = infer_slice;
  slice.gradient = slice_gradient;
  slice.flops = no_flops;
  slice.cost = CostClass::lookup;
  slice.precision = Precision::follows;
  slice.elements = Elements::some;
  slice.localise = localise_slice;
  slice.shrink = shrink_slice;
  slice.samples = {{{{f, {4, 6}}}, slice_attrs({0, 0}, {4, 3}, {1, 1})},
                   {{{f, {4, 7}}}, slice_attrs({1, 2}, {3, 6}, {1, 1})},
                   {{{f, {3, 7}}}, slice_attrs({0, 1}, {3, 7}, {1, 3})},
                   {{{f, {5, 4}}}, slice_attrs({4, 0}, {-1, 4}, {-1, 1})},
                   {{{f, {8, 3}}}, slice_attrs({6, 0}, {0, 3}, {-2, 1})},
                   {{{f, {2, 3, 5}}}, slice_attrs({0, 0, 4}, {2, 3, 5}, {1, 1, 1})},
                   {{{DType::i64, {6}}}, slice_attrs({2}, {5}, {1})},
                   {{{f, {4, 3}}}, slice_attrs({2, 0}, {2, 3}, {1, 1})}};
  ops.push_back(std::move(slice));

  OpDef pad;
  pad.name = "pad";
  pad.infer = infer_pad;
  pad.gradient = pad_gradient;
  pad.flops = no_flops;
  pad.cost = CostClass::streamed;
  pad.precision = Precision::follows;
  pad.elements = Elements::among;
  pad.localise = localise_pad;
  pad.shrink = shrink_pad;
  pad.samples = {{{{f, {4, 3}}}, pad_attrs({0, 1}, {0, 2}, "constant", 0)},
                 {{{f, {5, 2}}}, pad_attrs({3, 0}, {0, 0}, "constant", 1.5)},
                 {{{f, {4, 5}}}, pad_attrs({0, 2}, {0, 1}, "reflect", 0)},
                 {{{f, {4, 5}}}, pad_attrs({1, 0}, {2, 3}, "edge", 0)},
                 {{{DType::i64, {4}}}, pad_attrs({2}, {1}, "constant", 7)}};
  ops.push_back(std::move(pad));
  return ops;
}

}  // namespace shardrun
