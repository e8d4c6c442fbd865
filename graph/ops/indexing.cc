// Indexing: gather and its gradient, gather_elements, gather_nd, scatter_elements, scatter_nd.
//
// Indices are not negative: import normalises them. An index outside the operand reads zeros and
// writes nowhere, so a rank that holds some rows of a table makes its summand. `offset` is the
// index of the operand's first row along `axis`. A gather with `padding` learns nothing at that
// index: the row is read, but gets no gradient.
#include <algorithm>

#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

/// [a.begin(), a.begin() + n) + rest.
Shape joined(const Shape& a, size_t n, const Shape& b, size_t from = 0) {
  Shape out(a.begin(), a.begin() + static_cast<int64_t>(n));
  out.insert(out.end(), b.begin() + static_cast<int64_t>(from), b.end());
  return out;
}

// ---- gather, gather_grad ----

Types infer_gather(const Node& node, InTypes in) {
  require_operands(in, 2);
  require_index(in[1], "indices");
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  require_axis(node.attrs.i("axis"), in[0].shape.size());
  return {{in[0].dtype, joined(joined(in[0].shape, axis, in[1].shape), axis + in[1].shape.size(),
                               in[0].shape, axis + 1)}};
}

/// Rows [begin, …) of the table answer to the same indices: offset grows by begin.
Attrs localise_gather(const Node& node, InTypes, LocalBoxes boxes) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  Attrs attrs = node.attrs;
  attrs.set("offset", attrs.i("offset", 0) + boxes.in[0][axis].begin);
  return attrs;
}

Grads gather_gradient(GradientContext& c) {
  const int64_t axis = c.node.attrs.i("axis");
  ValueId indices = c.node.inputs[1];
  if (c.node.attrs.has("padding")) {
    const TensorType type = c.in_type(1);
    const ValueId padded = c.graph.add(
        "equal",
        {indices, scalar(c.graph, type.dtype, static_cast<double>(c.node.attrs.i("padding")))});
    indices = c.graph.add("where", {padded, scalar(c.graph, type.dtype, -1), indices});
  }
  const ValueId dx = c.graph.add("gather_grad", {c.out_grads[0], indices},
                                 {{"axis", axis},
                                  {"size", c.in_shape(0)[static_cast<size_t>(axis)]},
                                  {"offset", c.node.attrs.i("offset", 0)}});
  return {dx, kNoValue};
}

Types infer_gather_grad(const Node& node, InTypes in) {
  require_operands(in, 2);
  require_float(in[0], "dy");
  require_index(in[1], "indices");
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  const Shape &dy = in[0].shape, &indices = in[1].shape;
  bool fits = dy.size() >= axis + indices.size();
  for (size_t d = 0; fits && d < indices.size(); ++d) fits = dy[axis + d] == indices[d];
  SR_REQUIRE(fits, invalid_input, "dy is ", in[0], ", indices are ", in[1],
             "; dy's dims from axis ", axis, " must be those of indices");
  Shape shape = joined(dy, axis, {node.attrs.i("size")});
  return {{in[0].dtype, joined(shape, axis + 1, dy, axis + indices.size())}};
}

Attrs localise_gather_grad(const Node& node, InTypes, LocalBoxes boxes) {
  const Range rows = boxes.out[0][static_cast<size_t>(node.attrs.i("axis"))];
  Attrs attrs = node.attrs;
  attrs.set("size", rows.size);
  attrs.set("offset", attrs.i("offset", 0) + rows.begin);
  return attrs;
}

Attrs shrink_gather_grad(const Node& node, InTypes original, std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  attrs.set("size", shrunk_size(attrs.i("size"), original, in));
  attrs.set("offset", int64_t{0});
  return attrs;
}

Attrs shrink_gather(const Node& node, InTypes, std::vector<TensorType>&) {
  Attrs attrs = node.attrs;
  attrs.set("offset", int64_t{0});
  return attrs;
}

Grads gather_grad_gradient(GradientContext& c) {
  return {c.graph.add("gather", {c.out_grads[0], c.node.inputs[1]},
                      {{"axis", c.node.attrs.i("axis")}, {"offset", c.node.attrs.i("offset", 0)}}),
          kNoValue};
}

// ---- gather_elements, scatter_elements ----

void require_inside(const Node& node, const TensorType& data, const TensorType& indices) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  require_axis(node.attrs.i("axis"), data.shape.size());
  require_index(indices, "indices");
  bool fits = data.shape.size() == indices.shape.size();
  for (size_t d = 0; fits && d < data.shape.size(); ++d) {
    fits = d == axis || indices.shape[d] <= data.shape[d];
  }
  SR_REQUIRE(fits, invalid_input, "data is ", data, ", indices are ", indices,
             "; indices may be larger along axis ", axis, " only");
}

Types infer_gather_elements(const Node& node, InTypes in) {
  require_operands(in, 2);
  require_inside(node, in[0], in[1]);
  return {{in[0].dtype, in[1].shape}};
}

Types infer_scatter_elements(const Node& node, InTypes in) {
  require_operands(in, 3);
  require_inside(node, in[0], in[1]);
  require_same_dtype(in[0], in[2]);
  SR_REQUIRE(in[1].shape == in[2].shape, invalid_input, "indices are ", in[1], ", updates are ",
             in[2], "; they must have one shape");
  return {in[0]};
}

Attrs shrink_elements(const Node& node, InTypes, std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  attrs.set("offset", int64_t{0});
  for (size_t d = 0; d < in[0].shape.size(); ++d) {
    if (static_cast<int64_t>(d) == node.attrs.i("axis")) continue;
    for (size_t i = 1; i < in.size(); ++i) {
      in[i].shape[d] = std::min(in[1].shape[d], in[0].shape[d]);
    }
  }
  return attrs;
}

// ---- gather_nd, scatter_nd ----

/// data's dims left after batch dims and what one index tuple picks.
size_t picked_dims(const Node& node, const TensorType& data, const TensorType& indices) {
  require_index(indices, "indices");
  const auto batch = static_cast<size_t>(node.attrs.i("batch_dims", 0));
  SR_REQUIRE(!indices.shape.empty() && batch < indices.shape.size(), invalid_input, "indices are ",
             indices, ", wanted more than ", batch, " dims");
  const auto picked = batch + static_cast<size_t>(indices.shape.back());
  SR_REQUIRE(picked <= data.shape.size(), invalid_input, "indices ", indices, " pick ", picked,
             " dims of ", data);
  for (size_t d = 0; d < batch; ++d) {
    SR_REQUIRE(data.shape[d] == indices.shape[d], invalid_input, "batch dim ", d, " of data ", data,
               " and indices ", indices, " differs");
  }
  return picked;
}

Shape nd_updates_shape(const Node& node, const TensorType& data, const TensorType& indices) {
  return joined(indices.shape, indices.shape.size() - 1, data.shape,
                picked_dims(node, data, indices));
}

Types infer_gather_nd(const Node& node, InTypes in) {
  require_operands(in, 2);
  return {{in[0].dtype, nd_updates_shape(node, in[0], in[1])}};
}

Types infer_scatter_nd(const Node& node, InTypes in) {
  require_operands(in, 3);
  require_same_dtype(in[0], in[2]);
  const Shape wanted = nd_updates_shape(node, in[0], in[1]);
  SR_REQUIRE(in[2].shape == wanted, invalid_input, "updates are ", in[2], ", wanted ",
             to_string(wanted));
  return {in[0]};
}

/// The last dim of indices is a tuple, not an extent: it stays.
Attrs shrink_nd(const Node& node, InTypes original, std::vector<TensorType>& in) {
  in[1].shape.back() = original[1].shape.back();
  if (in.size() == 3) in[2].shape = nd_updates_shape(node, in[0], in[1]);
  return node.attrs;
}

// ---- gradients of both kinds ----

/// Attributes of the gather that reads what a scatter of these attributes wrote, and back.
Attrs gather_attrs(const Node& node) {
  Attrs attrs;
  for (const char* name : {"axis", "batch_dims", "offset"}) {
    if (node.attrs.has(name)) attrs.set(name, node.attrs.i(name));
  }
  return attrs;
}

Attrs scatter_attrs(const Node& node, const char* reduction) {
  Attrs attrs = gather_attrs(node);
  attrs.set("reduction", std::string(reduction));
  return attrs;
}

/// The positions that were read get dy added up.
Grads picked_gradient(GradientContext& c, const char* scatter) {
  const ValueId zeros = fill(c.graph, {c.graph.type(c.out_grads[0]).dtype, c.in_shape(0)}, 0);
  return {
      c.graph.add(scatter, {zeros, c.node.inputs[1], c.out_grads[0]}, scatter_attrs(c.node, "add")),
      kNoValue};
}

/// reduction none: data's gradient is dy where nothing was written, updates' what is at their place
/// (ONNX leaves it open which of several updates of one place counts). add: dy and its gather. mul:
/// through y / updates, or data where an update is 0. max, min: each of several equal extremes gets
/// the same fraction, as with torch.scatter_reduce.
Grads scattered_gradient(GradientContext& c, const char* gather, const char* scatter) {
  Graph& g = c.graph;
  const ValueId data = c.node.inputs[0], indices = c.node.inputs[1], updates = c.node.inputs[2];
  const ValueId y = c.node.outputs[0], dy = c.out_grads[0];
  const std::string reduction = c.node.attrs.s("reduction", "none");
  const DType dtype = g.type(dy).dtype;
  auto gathered = [&](ValueId from) {
    return g.add(gather, {from, indices}, gather_attrs(c.node));
  };
  Grads grads(3, kNoValue);
  if (reduction == "none" || reduction == "add") {
    if (c.needs[0]) {
      grads[0] = dy;
      if (reduction == "none") {
        const ValueId zeros = fill(g, TensorType(g.type(updates)), 0);
        grads[0] = g.add(scatter, {dy, indices, zeros}, scatter_attrs(c.node, "none"));
      }
    }
    if (c.needs[2]) grads[2] = gathered(dy);
    return grads;
  }
  const ValueId zero = scalar(g, dtype, 0);
  if (reduction == "mul") {
    if (c.needs[0]) grads[0] = g.add(scatter, {dy, indices, updates}, scatter_attrs(c.node, "mul"));
    if (c.needs[2]) {
      const ValueId is_zero = g.add("equal", {updates, zero});
      const ValueId others = g.add("div", {gathered(g.add("mul", {dy, y})), updates});
      grads[2] = g.add("where", {is_zero, gathered(g.add("mul", {dy, data})), others});
    }
    return grads;
  }
  const ValueId of_data = g.add("equal", {data, y});
  const ValueId of_updates = g.add("equal", {updates, gathered(y)});
  const Attrs number = {{"to", std::string(to_string(dtype))}};
  const ValueId count = g.add(
      scatter, {g.add("cast", {of_data}, number), indices, g.add("cast", {of_updates}, number)},
      scatter_attrs(c.node, "add"));
  const ValueId each = g.add("div", {dy, count});
  if (c.needs[0]) grads[0] = g.add("where", {of_data, each, zero});
  if (c.needs[2]) grads[2] = g.add("where", {of_updates, gathered(each), zero});
  return grads;
}

// ---- the list ----

std::optional<int64_t> axis_bound(const Node& node, InTypes in, size_t operand) {
  if (operand != 1) return std::nullopt;
  return in[0].shape[static_cast<size_t>(node.attrs.i("axis"))];
}

/// The least of the dims that a tuple picks bounds all its entries.
std::optional<int64_t> tuple_bound(const Node& node, InTypes in, size_t operand) {
  if (operand != 1) return std::nullopt;
  const auto batch = static_cast<size_t>(node.attrs.i("batch_dims", 0));
  const size_t picked = picked_dims(node, in[0], in[1]);
  std::optional<int64_t> bound;
  for (size_t d = batch; d < picked; ++d) {
    bound = std::min(bound.value_or(in[0].shape[d]), in[0].shape[d]);
  }
  return bound;
}

/// Rows along the axis of operand 0 or result 0, if they lie in one piece; of a maximum of both:
/// what operand 0 holds counts as often as one likes.
std::optional<OpDef::NumberedRows> rows_of(const Node& node, InTypes in, bool operand,
                                           bool result) {
  const auto axis = static_cast<size_t>(node.attrs.i("axis"));
  for (size_t d = 0; d < axis; ++d) {
    if (in[0].shape[d] != 1) return std::nullopt;
  }
  if (node.attrs.i("offset", 0) != 0) return std::nullopt;
  OpDef::NumberedRows rows;
  if (operand) rows.of.push_back({false, 0, static_cast<int>(axis)});
  if (result) rows.of.push_back({true, 0, static_cast<int>(axis)});
  return rows;
}

std::optional<OpDef::NumberedRows> gathered_rows(const Node& node, InTypes in) {
  return rows_of(node, in, true, false);
}

std::optional<OpDef::NumberedRows> summed_rows(const Node& node, InTypes in) {
  return rows_of(node, in, false, true);
}

std::optional<OpDef::NumberedRows> scattered_rows(const Node& node, InTypes in) {
  const std::string reduction = node.attrs.s("reduction", "none");
  if (reduction != "max" && reduction != "min") return std::nullopt;
  return rows_of(node, in, true, true);
}

void require_reduction(const Node& node) {
  const std::string r = node.attrs.s("reduction", "none");
  SR_REQUIRE(r == "none" || r == "add" || r == "mul" || r == "max" || r == "min", invalid_input,
             "reduction is '", r, "', wanted none, add, mul, max or min");
}

// Types and attributes of samples.
TensorType f(Shape s) { return {DType::f32, std::move(s)}; }
TensorType i(Shape s, DType d = DType::i64) { return {d, std::move(s)}; }
Attrs axis(int64_t a) { return Attrs{{"axis", a}}; }
Attrs axis_size(int64_t a, int64_t size) { return Attrs{{"axis", a}, {"size", size}}; }
Attrs reduce(int64_t a, const char* r) { return Attrs{{"axis", a}, {"reduction", std::string(r)}}; }
Attrs reduce_nd(const char* r) { return Attrs{{"reduction", std::string(r)}}; }

void add_row_ops(std::vector<OpDef>& ops) {
  OpDef gather;
  gather.name = "gather";
  gather.infer = infer_gather;
  gather.gradient = gather_gradient;
  gather.cost = CostClass::lookup;
  gather.precision = Precision::lookup;
  gather.elements = Elements::some;
  gather.localise = localise_gather;
  gather.shrink = shrink_gather;
  gather.index_bound = axis_bound;
  gather.numbered_rows = gathered_rows;
  gather.samples = {{{f({5, 4}), i({3})}, axis(0)},
                    {{f({6, 3}), i({2, 4}, DType::i32)}, axis(0)},
                    {{f({3, 5, 2}), i({4})}, axis(1)},
                    {{f({4, 5}), i({})}, axis(1)},
                    {{i({5, 3}), i({4})}, axis(0)}};
  ops.push_back(std::move(gather));

  OpDef gather_grad;
  gather_grad.name = "gather_grad";
  gather_grad.infer = infer_gather_grad;
  gather_grad.gradient = gather_grad_gradient;
  gather_grad.flops = [](const Node&, InTypes in, InTypes) {
    return static_cast<double>(element_count(in[0].shape));
  };
  gather_grad.cost = CostClass::streamed;
  gather_grad.precision = Precision::follows;
  gather_grad.localise = localise_gather_grad;
  gather_grad.shrink = shrink_gather_grad;
  gather_grad.index_bound = [](const Node& node, InTypes, size_t operand) {
    return operand == 1 ? std::optional(node.attrs.i("size")) : std::nullopt;
  };
  gather_grad.numbered_rows = summed_rows;
  gather_grad.samples = {{{f({3, 4}), i({3})}, axis_size(0, 5)},
                         {{f({2, 4, 3}), i({2, 4}, DType::i32)}, axis_size(0, 6)},
                         {{f({3, 4, 2}), i({4})}, axis_size(1, 5)}};
  ops.push_back(std::move(gather_grad));
}

void add_element_ops(std::vector<OpDef>& ops) {
  OpDef elements;
  elements.name = "gather_elements";
  elements.infer = infer_gather_elements;
  elements.gradient = [](GradientContext& c) { return picked_gradient(c, "scatter_elements"); };
  elements.cost = CostClass::lookup;
  elements.precision = Precision::follows;
  elements.localise = localise_gather;
  elements.shrink = shrink_elements;
  elements.index_bound = axis_bound;
  elements.numbered_rows = gathered_rows;
  elements.samples = {{{f({4, 5}), i({4, 3})}, axis(1)},
                      {{f({5, 4}), i({7, 4})}, axis(0)},
                      {{f({5, 4, 3}), i({2, 4, 3}, DType::i32)}, axis(1)}};
  ops.push_back(std::move(elements));

  OpDef nd;
  nd.name = "gather_nd";
  nd.infer = infer_gather_nd;
  nd.gradient = [](GradientContext& c) { return picked_gradient(c, "scatter_nd"); };
  nd.cost = CostClass::lookup;
  nd.precision = Precision::follows;
  nd.shrink = shrink_nd;
  nd.index_bound = tuple_bound;
  nd.samples = {{{f({4, 5}), i({3, 2})}, {{"batch_dims", int64_t{0}}}},
                {{f({4, 5, 3}), i({2, 4, 1})}, {{"batch_dims", int64_t{0}}}},
                {{f({3, 4, 5}), i({3, 2, 1})}, {{"batch_dims", int64_t{1}}}}};
  ops.push_back(std::move(nd));

  // Samples of reduction none write every place at most once.
  OpDef scatter;
  scatter.name = "scatter_elements";
  scatter.infer = [](const Node& node, InTypes in) {
    require_reduction(node);
    return infer_scatter_elements(node, in);
  };
  scatter.gradient = [](GradientContext& c) {
    return scattered_gradient(c, "gather_elements", "scatter_elements");
  };
  scatter.cost = CostClass::streamed;
  scatter.precision = Precision::follows;
  scatter.localise = localise_gather;
  scatter.shrink = shrink_elements;
  scatter.index_bound = axis_bound;
  scatter.in_place = {{0, 0}};
  scatter.numbered_rows = scattered_rows;
  scatter.samples = {{{f({4, 5}), i({4, 1}), f({4, 1})}, reduce(1, "none")},
                     {{f({5, 3}), i({1, 3}, DType::i32), f({1, 3})}, reduce(0, "none")}};
  for (const char* r : {"add", "mul", "max", "min"}) {
    scatter.samples.push_back({{f({4, 5}), i({4, 3}), f({4, 3})}, reduce(1, r)});
  }
  scatter.samples.push_back({{i({6}), i({4}), i({4})}, reduce(0, "add")});
  for (const char* r : {"max", "min"})
    scatter.samples.push_back({{f({5, 3}), i({7, 3}), f({7, 3})}, reduce(0, r)});
  ops.push_back(std::move(scatter));

  OpDef scatter_nd;
  scatter_nd.name = "scatter_nd";
  scatter_nd.infer = [](const Node& node, InTypes in) {
    require_reduction(node);
    return infer_scatter_nd(node, in);
  };
  scatter_nd.gradient = [](GradientContext& c) {
    return scattered_gradient(c, "gather_nd", "scatter_nd");
  };
  scatter_nd.cost = CostClass::streamed;
  scatter_nd.precision = Precision::follows;
  scatter_nd.shrink = shrink_nd;
  scatter_nd.index_bound = tuple_bound;
  scatter_nd.in_place = {{0, 0}};
  scatter_nd.samples = {{{f({4, 5}), i({1, 2}), f({1})}, reduce_nd("none")},
                        {{f({5, 3}), i({1, 1}), f({1, 3})}, reduce_nd("none")}};
  for (const char* r : {"add", "mul", "max", "min"}) {
    scatter_nd.samples.push_back({{f({5, 3}), i({4, 1}), f({4, 3})}, reduce_nd(r)});
  }
  Attrs in_batches = reduce_nd("add");  // the gradient of a gather_nd with batch dims
  in_batches.set("batch_dims", int64_t{1});
  scatter_nd.samples.push_back({{f({3, 4, 5}), i({3, 2, 1}), f({3, 2, 5})}, in_batches});
  ops.push_back(std::move(scatter_nd));
}

}  // namespace

std::vector<OpDef> indexing_ops() {
  std::vector<OpDef> ops;
  add_row_ops(ops);
  add_element_ops(ops);
  return ops;
}

}  // namespace shardrun
