// Reductions: sum, max, min, product over dims; argmax, argmin, top_k; cumsum; the sum of squares.
#include <algorithm>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

Shape kept_shape(const Shape& shape, const std::vector<int64_t>& axes) {
  Shape kept = shape;
  for (int64_t axis : axes) kept[static_cast<size_t>(axis)] = 1;
  return kept;
}

Types infer_reduce(const Node& node, InTypes in) {
  require_operands(in, 1);
  SR_REQUIRE(in[0].dtype != DType::f16, invalid_input, "operand is ", in[0]);
  const std::vector<int64_t>& axes = node.attrs.ints("axes");
  Shape shape;
  for (size_t i = 0; i < axes.size(); ++i) {
    require_axis(axes[i], in[0].shape.size());
    SR_REQUIRE(i == 0 || axes[i - 1] < axes[i], invalid_input, "axes are ", to_string(axes),
               "; they must be sorted and distinct");
  }
  for (size_t d = 0; d < in[0].shape.size(); ++d) {
    const bool reduced = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d));
    if (!reduced) shape.push_back(in[0].shape[d]);
    if (reduced && node.attrs.i("keepdims") != 0) shape.push_back(1);
  }
  TensorType out{in[0].dtype, shape};
  if (node.op == "reduce_sum" && node.attrs.has("out_dtype")) {
    out.dtype = parse_dtype(node.attrs.s("out_dtype"));
    SR_REQUIRE(out.dtype == in[0].dtype || (out.dtype == DType::f32 && in[0].dtype == DType::bf16),
               invalid_input, "sum of ", in[0].dtype, " cannot have out_dtype ", out.dtype,
               "; only a bf16 operand may have an f32 result");
  }
  return {out};
}

Types infer_arg(const Node& node, InTypes in) {
  require_operands(in, 1);
  const int64_t axis = node.attrs.i("axis");
  require_axis(axis, in[0].shape.size());
  Shape shape = in[0].shape;
  if (node.attrs.i("keepdims") != 0) {
    shape[static_cast<size_t>(axis)] = 1;
  } else {
    shape.erase(shape.begin() + axis);
  }
  return {{DType::i64, shape}};
}

/// Values and their indices, best first; of equal ones the lower index first.
Types infer_top_k(const Node& node, InTypes in) {
  require_operands(in, 1);
  const int64_t axis = node.attrs.i("axis"), k = node.attrs.i("k");
  require_axis(axis, in[0].shape.size());
  Shape shape = in[0].shape;
  int64_t& size = shape[static_cast<size_t>(axis)];
  SR_REQUIRE(k >= 0 && k <= size, invalid_input, "k is ", k, ", dim ", axis, " of ", in[0], " has ",
             size);
  size = k;
  return {{in[0].dtype, shape}, {DType::i64, shape}};
}

Attrs shrink_top_k(const Node& node, InTypes original, std::vector<TensorType>& in) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const int64_t k = node.attrs.i("k"), now = in[0].shape[axis];
  Attrs attrs = node.attrs;
  attrs.set("k", k == original[0].shape[axis] ? now : std::min(k, std::max<int64_t>(now - 1, 0)));
  return attrs;
}

Types infer_cumsum(const Node& node, InTypes in) {
  require_operands(in, 1);
  require_axis(node.attrs.i("axis"), in[0].shape.size());
  SR_REQUIRE(in[0].dtype != DType::boolean, invalid_input, "operand is ", in[0], "; cast it");
  return {in[0]};
}

Types infer_sum_squares(const Node&, InTypes in) {
  SR_REQUIRE(!in.empty(), invalid_input, "takes an operand or more, got none");
  DType sum = DType::f32;
  for (const TensorType& t : in) {
    require_float(t, "operand");
    if (t.dtype == DType::f64) sum = DType::f64;
  }
  return {{sum, {}}};
}

double one_per_operand_element(const Node&, InTypes in, InTypes) {
  return static_cast<double>(element_count(in[0].shape));
}

double two_per_operand_element(const Node&, InTypes in, InTypes) {
  double elements = 0;
  for (const TensorType& t : in) elements += static_cast<double>(element_count(t.shape));
  return 2 * elements;
}

// ---- gradients ----

/// `value`, a result of the reduction or its gradient, with dims of 1 where it reduced.
ValueId with_kept_dims(GradientContext& c, ValueId value) {
  const Shape kept = kept_shape(c.in_shape(0), c.node.attrs.ints("axes"));
  if (c.graph.type(value).shape == kept) return value;
  return c.graph.add("reshape", {value}, {{"shape", kept}});
}

Grads sum_gradient(GradientContext& c) {
  const ValueId dy = cast_to(c.graph, with_kept_dims(c, c.out_grads[0]), c.in_type(0).dtype);
  const Shape shape = c.in_shape(0);
  if (c.graph.type(dy).shape == shape) return {dy};
  return {c.graph.add("expand", {dy}, {{"shape", shape}})};
}

/// Each of several equal extremes gets the same fraction, as in torch.amax.
Grads extreme_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId x = c.node.inputs[0];
  const ValueId y = with_kept_dims(c, c.node.outputs[0]);
  const ValueId dy = with_kept_dims(c, c.out_grads[0]);
  if (c.node.attrs.has("first")) {
    const char* arg = c.node.op == "reduce_max" ? "argmax" : "argmin";
    const int64_t axis = c.node.attrs.ints("axes").at(0);
    const ValueId place = g.add(
        arg, {x}, {{"axis", axis}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{0}}});
    return {g.add("scatter_elements", {fill(g, TensorType(c.in_type(0)), 0), place, dy},
                  {{"axis", axis}, {"reduction", std::string("add")}})};
  }
  const ValueId mask =
      g.add("cast", {g.add("equal", {x, y})}, {{"to", std::string(to_string(c.in_type(0).dtype))}});
  const ValueId count =
      g.add("reduce_sum", {mask}, {{"axes", c.node.attrs.ints("axes")}, {"keepdims", int64_t{1}}});
  return {g.add("mul", {mask, g.add("div", {dy, count})})};
}

/// The product of the others, also where x holds zeros: with p the product of the nonzero elements
/// of the group, it is p / x without zeros; p at the only zero and 0 elsewhere with one; else 0.
Grads product_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId x = c.node.inputs[0];
  const DType dtype = c.in_type(0).dtype;
  const Attrs over{{"axes", c.node.attrs.ints("axes")}, {"keepdims", int64_t{1}}};
  const ValueId is_zero = g.add("equal", {x, scalar(g, dtype, 0)});
  const ValueId zero = g.add("cast", {is_zero}, {{"to", std::string(to_string(dtype))}});
  const ValueId nonzero_x = g.add("add", {x, zero});
  const ValueId product = g.add("reduce_prod", {nonzero_x}, over);
  const ValueId zeros = g.add("reduce_sum", {zero}, over);
  const ValueId other_zeros = g.add("sub", {zeros, zero});
  const ValueId others = g.add("div", {product, nonzero_x});
  const ValueId slope = g.add(
      "where", {g.add("equal", {other_zeros, scalar(g, dtype, 0)}), others, scalar(g, dtype, 0)});
  return {g.add("mul", {with_kept_dims(c, c.out_grads[0]), slope})};
}

Grads top_k_gradient(GradientContext& c) {
  if (c.out_grads[0] == kNoValue) return {kNoValue};
  const ValueId zeros = fill(c.graph, TensorType(c.in_type(0)), 0);
  return {c.graph.add("scatter_elements", {zeros, c.node.outputs[1], c.out_grads[0]},
                      {{"axis", c.node.attrs.i("axis")}, {"reduction", std::string("add")}})};
}

Grads cumsum_gradient(GradientContext& c) {
  Attrs attrs = c.node.attrs;
  attrs.set("reverse", int64_t{attrs.i("reverse", 0) == 0});
  return {c.graph.add("cumsum", {c.out_grads[0]}, attrs)};
}

Grads sum_squares_gradient(GradientContext& c) {
  Grads grads;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) {
    const ValueId dy = cast_to(c.graph, c.out_grads[0], c.in_type(i).dtype);
    grads.push_back(c.graph.add("mul", {c.node.inputs[i], scale(c.graph, dy, 2)}));
  }
  return grads;
}

// ---- the list ----

Attrs over(std::vector<int64_t> axes, int64_t keepdims) {
  return {{"axes", std::move(axes)}, {"keepdims", keepdims}};
}

OpDef reduction(const char* name, decltype(&sum_gradient) gradient) {
  OpDef def;
  def.name = name;
  def.infer = infer_reduce;
  def.gradient = gradient;
  def.flops = one_per_operand_element;
  def.cost = CostClass::reduction;
  def.precision = Precision::f32;
  const DType f = DType::f32;
  def.samples = {{{{f, {3, 4}}}, over({1}, 0)},          {{{f, {3, 4}}}, over({0}, 1)},
                 {{{f, {2, 3, 5}}}, over({0, 2}, 1)},    {{{f, {2, 3, 5}}}, over({1}, 0)},
                 {{{f, {4, 3}}}, over({0, 1}, 0)},       {{{f, {5}}}, over({}, 0)},
                 {{{DType::i64, {3, 4}}}, over({1}, 0)}, {{{DType::i32, {3, 4}}}, over({0}, 1)}};
  return def;
}

void add_reductions(std::vector<OpDef>& ops) {
  ops.push_back(reduction("reduce_sum", sum_gradient));
  // out_dtype="f32": a sum of bf16 that is not rounded at its end, such as a bias's gradient.
  Attrs widened = over({0}, 0);
  widened.set("out_dtype", std::string("f32"));
  ops.back().widens = true;
  ops.back().samples.push_back({{{DType::bf16, {3, 4}}}, widened});
  ops.push_back(reduction("reduce_max", extreme_gradient));
  ops.push_back(reduction("reduce_min", extreme_gradient));
  // Along one dim, where the gradient goes to the first of equal elements.
  const Attrs first = {
      {"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}, {"first", int64_t{1}}};
  for (size_t i : {ops.size() - 2, ops.size() - 1})
    ops[i].samples.push_back({{{DType::f32, {3, 4}}}, first});
  ops.push_back(reduction("reduce_prod", product_gradient));
}

/// Which elements are the largest.
void add_order_ops(std::vector<OpDef>& ops) {
  for (const char* name : {"argmax", "argmin"}) {
    OpDef def;
    def.name = name;
    def.infer = infer_arg;
    def.flops = one_per_operand_element;
    def.cost = CostClass::streamed;
    def.precision = Precision::follows;
    auto attrs = [](int64_t axis, int64_t keepdims, int64_t last) {
      return Attrs{{"axis", axis}, {"keepdims", keepdims}, {"select_last_index", last}};
    };
    def.samples = {{{{DType::f32, {3, 4}}}, attrs(1, 0, 0)},
                   {{{DType::f32, {2, 5, 3}}}, attrs(1, 1, 1)},
                   {{{DType::i64, {4, 5}}}, attrs(0, 0, 0)}};
    ops.push_back(std::move(def));
  }

  OpDef top_k;
  top_k.name = "top_k";
  top_k.infer = infer_top_k;
  top_k.gradient = top_k_gradient;
  top_k.flops = one_per_operand_element;
  top_k.cost = CostClass::streamed;
  top_k.precision = Precision::follows;
  top_k.shrink = shrink_top_k;
  auto best = [](int64_t axis, int64_t k, int64_t largest) {
    return Attrs{{"axis", axis}, {"k", k}, {"largest", largest}};
  };
  top_k.samples = {{{{DType::f32, {4, 6}}}, best(1, 2, 1)},
                   {{{DType::f32, {5, 3}}}, best(0, 3, 0)},
                   {{{DType::f32, {2, 5, 3}}}, best(1, 5, 1)},
                   {{{DType::f32, {7}}}, best(0, 1, 1)},
                   {{{DType::i64, {3, 4}}}, best(1, 2, 1)}};
  ops.push_back(std::move(top_k));
}

void add_running_sums(std::vector<OpDef>& ops) {
  OpDef cumsum;
  cumsum.name = "cumsum";
  cumsum.infer = infer_cumsum;
  cumsum.gradient = cumsum_gradient;
  cumsum.cost = CostClass::streamed;
  cumsum.precision = Precision::f32;
  for (int64_t exclusive : {0, 1}) {
    for (int64_t reverse : {0, 1}) {
      for (int64_t axis : {0, 1}) {
        cumsum.samples.push_back(
            {{{DType::f32, {3, 5}}},
             {{"axis", axis}, {"exclusive", exclusive}, {"reverse", reverse}}});
      }
    }
  }
  ops.push_back(std::move(cumsum));
}

void add_sum_of_squares(std::vector<OpDef>& ops) {
  OpDef squares;
  squares.name = "reduce_sum_squares";
  squares.infer = infer_sum_squares;
  squares.gradient = sum_squares_gradient;
  squares.flops = two_per_operand_element;
  squares.cost = CostClass::reduction;
  squares.precision = Precision::f32;
  squares.samples = {{{{DType::f32, {3, 5}}}},
                     {{{DType::f32, {7}}}},
                     {{{DType::bf16, {4, 3}}}},
                     {{{DType::f32, {3, 5}}, {DType::bf16, {7}}, {DType::f32, {}}}}};
  ops.push_back(std::move(squares));
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  std::vector<OpDef> ops;
  add_reductions(ops);
  add_order_ops(ops);
  add_running_sums(ops);
  add_sum_of_squares(ops);
  return ops;
}

}  // namespace shardrun
