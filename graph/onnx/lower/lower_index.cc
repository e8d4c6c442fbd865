// Lowering of indexing: Gather, Scatter and their relatives, OneHot.
#include <numeric>
#include <optional>

#include "graph/onnx/file/model_file.h"
#include "graph/onnx/lower/picked.h"

namespace shardrun::importer {
namespace {

/// Does the value come from a batch input through operators that move or cast elements only?
bool straight_from_batch(const Graph& graph, ValueId id) {
  while (graph.value(id).producer >= 0) {
    const Node& node = graph.node(graph.value(id).producer);
    const Elements from = op_def(node.op).elements;
    if (from != Elements::all && from != Elements::some) return false;
    id = node.inputs[0];
  }
  return graph.value(id).role == Role::batch;
}

}  // namespace

V normalise_indices(NodeContext& c, V indices, int64_t size) {
  Builder& b = c.b;
  const DType dtype = b.dtype(indices);
  SR_REQUIRE(dtype == DType::i32 || dtype == DType::i64, invalid_input, "indices are ",
             b.type(indices));
  if (const Tensor* known = b.known(indices)) {
    std::vector<int64_t> values = known->to_ints();
    bool negative = false;
    for (int64_t& v : values) {
      SR_REQUIRE(v >= -size && v < size, invalid_input, "index ", v, " is outside a dim of ", size);
      negative = negative || v < 0;
      if (v < 0) v += size;
    }
    if (!negative) return indices;
    return b.constant(convert(Tensor::from(known->shape(), values, DType::i64), dtype));
  }
  if (b.options.checked_indices && straight_from_batch(b.graph, b.id(indices))) return indices;
  const V zero = b.scalar(0, dtype);
  return b.add("where", {b.add("less", {indices, zero}),
                         b.with("add", indices, static_cast<double>(size)), indices});
}

namespace {

/// The row of an embedding's table that is not trained: the operator has no place for it.
std::optional<int64_t> padding_of(const NodeContext& c, int64_t rows) {
  const FxCall* call = c.call_of("aten.embedding");
  if (call == nullptr) return std::nullopt;
  SR_REQUIRE(!call->flag(3, "scale_grad_by_freq", false) || !c.b.options.training, unsupported,
             "an embedding with scale_grad_by_freq=True is not supported; export it without");
  const double padding = call->number(2, "padding_idx", -1);
  if (!(padding >= 0 && padding < static_cast<double>(rows))) return std::nullopt;
  return static_cast<int64_t>(padding);
}

void gather(NodeContext& c) {
  const V data = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(data));
  const int64_t size = c.b.shape(data)[static_cast<size_t>(axis)];
  const V indices = normalise_indices(c, c.in(1), size);
  Attrs attrs = {{"axis", axis}};
  if (const auto padding = padding_of(c, size)) attrs.set("padding", *padding);
  c.out(c.b.add("gather", {data, indices}, attrs));
}

/// rows_of for constant indices: their elements are compared.
V known_rows(NodeContext& c, const Tensor& indices, int64_t axis, int64_t size) {
  const auto along = static_cast<size_t>(axis);
  const int64_t count = indices.shape()[along], inner = row_major_strides(indices.shape())[along];
  if (indices.count() == 0) return kNone;
  const std::vector<int64_t> values = indices.to_ints();
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < count; ++r) rows.push_back(values[static_cast<size_t>(r * inner)]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != rows[i / static_cast<size_t>(inner) % static_cast<size_t>(count)])
      return kNone;
  }
  const V vector =
      c.b.constant(convert(Tensor::from(Shape{count}, rows, DType::i64), indices.dtype()));
  return normalise_indices(c, vector, size);
}

/// Where indices [.., n, ..] repeat one vector [n] along every dim but `axis`, as exporters write
/// "these rows", that vector; kNone where they do not, or are not as large as data there.
V rows_of(NodeContext& c, V indices, const Shape& data, int64_t axis) {
  Builder& b = c.b;
  const Shape shape = b.shape(indices);
  if (shape.size() != data.size()) return kNone;
  for (size_t d = 0; d < data.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && shape[d] != data[d]) return kNone;
  }
  const int64_t size = data[static_cast<size_t>(axis)];
  if (const Tensor* known = b.known(indices)) return known_rows(c, *known, axis, size);
  V from = indices;
  const NodeId producer = b.graph.value(b.id(indices)).producer;
  if (producer >= 0 && b.graph.node(producer).op == "expand")
    from = b.value(b.graph.node(producer).inputs[0]);
  const Shape small = b.shape(from);
  const int64_t count = shape[static_cast<size_t>(axis)];
  const int64_t lacking = static_cast<int64_t>(shape.size() - small.size());
  for (int64_t d = 0; d < static_cast<int64_t>(small.size()); ++d) {
    const int64_t wanted = d + lacking == axis ? count : 1;
    if (small[static_cast<size_t>(d)] != wanted) return kNone;
  }
  if (element_count(small) != count) return kNone;
  return normalise_indices(c, b.reshape(from, {count}), size);
}

/// Where each sample picks rows of its own, as in x.gather(1, rows.unsqueeze(-1).expand(-1, -1,
/// width)): indices [batch…, n, 1] of gather_nd or scatter_nd for [batch…, n, width…], with one
/// number for a row and not one for each of its elements. kNone where indices are not repeated so.
V sample_rows_of(NodeContext& c, V indices, const Shape& data, int64_t axis) {
  Builder& b = c.b;
  const NodeId producer = b.graph.value(b.id(indices)).producer;
  if (producer < 0 || b.graph.node(producer).op != "expand" || axis == 0) return kNone;
  const V from = b.value(b.graph.node(producer).inputs[0]);
  const Shape small = b.shape(from), shape = b.shape(indices);
  if (small.size() != data.size() || shape.size() != data.size()) return kNone;
  Shape tuples;
  for (size_t d = 0; d < data.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (at != axis && shape[d] != data[d]) return kNone;
    if (small[d] != (at <= axis ? shape[d] : 1)) return kNone;
    if (at <= axis) tuples.push_back(shape[d]);
  }
  tuples.push_back(1);
  return normalise_indices(c, b.reshape(from, tuples), data[static_cast<size_t>(axis)]);
}

bool is_zero(NodeContext& c, V v) {
  if (const Tensor* known = c.b.known(v)) {
    for (int64_t i = 0; i < known->count(); ++i) {
      if (known->at(i) != 0) return false;
    }
    return true;
  }
  const NodeId producer = c.b.graph.value(c.b.id(v)).producer;
  if (producer < 0) return false;
  const Node& node = c.b.graph.node(producer);
  if (node.op == "expand") return is_zero(c, c.b.value(node.inputs[0]));
  return node.op == "fill" && node.attrs.f("value") == 0;
}

void gather_elements(NodeContext& c) {
  const V data = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(data));
  if (const V rows = rows_of(c, c.in(1), c.b.shape(data), axis); rows != kNone)
    return c.out(c.b.add("gather", {data, rows}, {{"axis", axis}}));
  if (const V rows = sample_rows_of(c, c.in(1), c.b.shape(data), axis); rows != kNone)
    return c.out(c.b.add("gather_nd", {data, rows}, {{"batch_dims", axis}}));
  const V indices = normalise_indices(c, c.in(1), c.b.shape(data)[static_cast<size_t>(axis)]);
  c.out(c.b.add("gather_elements", {data, indices}, {{"axis", axis}}));
}

/// The first `sequence_lens` steps of each sample backward, the others as they are.
void reverse_sequence(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  const Shape shape = b.shape(x);
  const auto axis_of = [&](const char* name, int64_t otherwise) {
    return static_cast<size_t>(NodeContext::axis(c.attr_i(name, otherwise), b.rank(x)));
  };
  const size_t batch = axis_of("batch_axis", 1), time = axis_of("time_axis", 0);
  SR_REQUIRE(batch != time && b.shape(c.in(1)) == Shape{shape[batch]}, invalid_input, "lengths ",
             b.type(c.in(1)), " of ", b.type(x), ", samples in dim ", batch, " and steps in dim ",
             time);
  const int64_t steps = shape[time];
  const Tensor* known = b.known(c.in(1));
  bool whole = known != nullptr;
  for (int64_t i = 0; whole && i < known->count(); ++i) whole = known->at(i) == steps;
  if (whole && steps > 0) {
    std::vector<int64_t> starts(shape.size(), 0), ends = shape, strides(shape.size(), 1);
    starts[time] = steps - 1, ends[time] = -1, strides[time] = -1;
    return c.out(b.add("slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", strides}}));
  }
  Shape of_batch(shape.size(), 1), of_time(shape.size(), 1);
  of_batch[batch] = shape[batch], of_time[time] = steps;
  const V step = b.reshape(b.iota(steps, 0, 1), of_time);
  const V lengths = b.reshape(b.cast(c.in(1), DType::i64), of_batch);
  const V mirrored = b.with("sub", b.add("sub", {lengths, step}), 1);
  const V from = b.add("where", {b.add("less", {step, lengths}), mirrored, step});
  c.out(
      b.add("gather_elements", {x, b.expand(from, shape)}, {{"axis", static_cast<int64_t>(time)}}));
}

/// Indices [..., k] into dims [first, first + k): each column has its own size.
V normalise_nd(NodeContext& c, V indices, int64_t first, const Shape& dims) {
  Builder& b = c.b;
  SR_REQUIRE(b.rank(indices) > 0, invalid_input, "indices are a scalar");
  const int64_t k = b.shape(indices).back();
  SR_REQUIRE(k >= 0 && first + k <= static_cast<int64_t>(dims.size()), invalid_input, "indices ",
             b.type(indices), " name ", k, " dims of ", to_string(dims));
  if (const Tensor* known = b.known(indices)) {
    for (int64_t i = 0; i < known->count(); ++i) {
      const int64_t size = dims[static_cast<size_t>(first + i % k)], at = known->int_at(i);
      SR_REQUIRE(at >= -size && at < size, invalid_input, "index ", at, " is outside a dim of ",
                 size);
    }
  }
  if (b.known(indices) == nullptr && b.options.checked_indices &&
      straight_from_batch(b.graph, b.id(indices)))
    return indices;
  std::vector<int64_t> sizes(dims.begin() + first, dims.begin() + first + k);
  const V size = b.cast(b.ints(sizes), b.dtype(indices));
  const V zero = b.scalar(0, b.dtype(indices));
  return b.add("where", {b.add("less", {indices, zero}), b.add("add", {indices, size}), indices});
}

void gather_nd(NodeContext& c) {
  const int64_t batch = c.attr_i("batch_dims", 0);
  SR_REQUIRE(batch >= 0 && batch < c.b.rank(c.in(0)), invalid_input, "batch_dims is ", batch);
  const V indices = normalise_nd(c, c.in(1), batch, c.b.shape(c.in(0)));
  if (batch == 0 && c.b.shape(indices).back() == 1) {  // whole rows
    Shape rows = c.b.shape(indices);
    rows.pop_back();
    return c.out(c.b.add("gather", {c.in(0), c.b.reshape(indices, rows)}, {{"axis", int64_t{0}}}));
  }
  c.out(c.b.add("gather_nd", {c.in(0), indices}, {{"batch_dims", batch}}));
}

std::string reduction(NodeContext& c) {
  const std::string name = c.attr_s("reduction", "none");
  for (const char* known : {"none", "add", "mul", "max", "min"}) {
    if (name == known) return name;
  }
  c.refuse_attr("reduction", "supported are none, add, mul, max and min");
}

/// data with each slice of updates added to the row that `rows` [n] names for it.
V add_rows(NodeContext& c, V data, V rows, V updates, int64_t axis) {
  const V sum = c.b.add("gather_grad", {updates, rows},
                        {{"axis", axis},
                         {"size", c.b.shape(data)[static_cast<size_t>(axis)]},
                         {"offset", int64_t{0}}});
  return is_zero(c, data) ? sum : c.b.add("add", {data, sum});
}

V scattered(NodeContext& c, V data, V updates, int64_t axis, const std::string& reduce) {
  if (reduce == "add" && is_float(c.b.dtype(data))) {
    if (const V rows = rows_of(c, c.in(1), c.b.shape(data), axis); rows != kNone)
      return add_rows(c, data, rows, updates, axis);
  }
  if (const V rows = sample_rows_of(c, c.in(1), c.b.shape(data), axis); rows != kNone)
    return c.b.add("scatter_nd", {data, rows, updates},
                   {{"batch_dims", axis}, {"reduction", reduce}});
  const V indices = normalise_indices(c, c.in(1), c.b.shape(data)[static_cast<size_t>(axis)]);
  return c.b.add("scatter_elements", {data, indices, updates},
                 {{"axis", axis}, {"reduction", reduce}});
}

/// aten.scatter_reduce(data, dim, index, updates, "mean", include_self): PyTorch's exporter writes
/// a scatter without a reduction, behind another one of zeros where the elements themselves do not
/// count.
V scattered_mean(NodeContext& c, V data, V updates, int64_t axis, bool with_self) {
  Builder& b = c.b;
  auto filled = [&](V like, double value) { return b.fill(value, b.dtype(like), b.shape(like)); };
  const V sum = scattered(c, data, updates, axis, "add");
  V count = scattered(c, filled(data, with_self ? 1 : 0), filled(updates, 1), axis, "add");
  if (!with_self) count = b.with("max", count, 1);  // what no index names stays as it is
  return b.add("div", {sum, count});
}

void scatter_elements(NodeContext& c) {
  const V data = c.in(0), updates = c.in(2);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", 0), c.b.rank(data));
  const std::string reduce = reduction(c);
  const FxCall* call = c.call_of("aten.scatter_reduce");
  const FxArgument* wanted = call != nullptr ? call->find(4, "reduce") : nullptr;
  if (wanted == nullptr || wanted->text != "mean" || reduce != "none")
    return c.out(scattered(c, data, updates, axis, reduce));
  const bool with_self = call->flag(5, "include_self", true);
  if (!with_self && is_zero(c, updates))  // the first of two scatters
    return c.out(scattered(c, data, updates, axis, reduce));
  SR_REQUIRE(is_float(c.b.dtype(data)), unsupported, "the mean of ", c.b.type(data),
             " is not supported; only floats are");
  c.restored("reduce='mean'");
  c.out(scattered_mean(c, data, updates, axis, with_self));
}

void scatter_nd_by(NodeContext& c, const std::string& reduce) {
  const V data = c.in(0), indices = normalise_nd(c, c.in(1), 0, c.b.shape(data));
  if (reduce == "add" && is_float(c.b.dtype(data)) && c.b.shape(indices).back() == 1) {
    Shape rows = c.b.shape(indices);
    rows.pop_back();
    return c.out(add_rows(c, data, c.b.reshape(indices, rows), c.in(2), 0));
  }
  c.out(c.b.add("scatter_nd", {data, indices, c.in(2)}, {{"reduction", reduce}}));
}

void scatter_nd(NodeContext& c) { scatter_nd_by(c, reduction(c)); }

/// where(indices == iota, on, off) along a new axis.
void one_hot(NodeContext& c) {
  Builder& b = c.b;
  const Tensor& given = c.known(1, "depth");
  SR_REQUIRE(given.count() == 1 && given.int_at(0) > 0, invalid_input, "depth is ",
             given.count() == 1 ? str(given.int_at(0)) : str(given.type()),
             ", wanted a positive number");
  const int64_t depth = given.int_at(0);
  SR_REQUIRE(b.shape(c.in(2)) == Shape{2}, invalid_input, "values are ", b.type(c.in(2)),
             ", wanted [off, on]");
  const V indices = normalise_indices(c, b.cast(c.in(0), DType::i64), depth);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), b.rank(indices) + 1);
  Shape row(static_cast<size_t>(b.rank(indices)) + 1, 1);
  row[static_cast<size_t>(axis)] = depth;
  const V classes = b.add("iota", {},
                          {{"shape", row},
                           {"dtype", std::string("i64")},
                           {"axis", axis},
                           {"start", int64_t{0}},
                           {"step", int64_t{1}}});
  const V hit = b.add("equal", {b.unsqueeze(indices, axis), classes});
  const V off = b.reshape(b.slice(c.in(2), 0, 0, 1), {}),
          on = b.reshape(b.slice(c.in(2), 0, 1, 2), {});
  c.out(b.add("where", {hit, on, off}));
}

/// Positions of non-zero elements, [rank, count]. If data decide which these are, so they do how
/// many.
void non_zero(NodeContext& c) {
  if (c.b.known(c.in(0)) == nullptr) return pick_positions(c);
  const Tensor& x = c.known(0, "X");
  const Shape strides = row_major_strides(x.shape());
  std::vector<int64_t> hits;
  for (int64_t i = 0; i < x.count(); ++i) {
    if (x.at(i) != 0) hits.push_back(i);
  }
  const auto rank = static_cast<int64_t>(strides.size());
  std::vector<int64_t> out;
  for (int64_t d = 0; d < rank; ++d) {
    for (int64_t i : hits)
      out.push_back(i / strides[static_cast<size_t>(d)] % x.shape()[static_cast<size_t>(d)]);
  }
  c.out(
      c.b.constant(Tensor::from(Shape{rank, static_cast<int64_t>(hits.size())}, out, DType::i64)));
}

/// The parts along an axis, or of all elements in a row, where a vector of booleans holds.
void compress(NodeContext& c) {
  Builder& b = c.b;
  std::optional<int64_t> axis;
  if (c.has_attr("axis")) axis = NodeContext::axis(c.attr_i("axis", 0), b.rank(c.in(0)));
  const Tensor* condition = b.known(c.in(1));
  if (condition == nullptr) return pick_parts(c, axis);
  const V x = axis ? c.in(0) : b.reshape(c.in(0), {element_count(b.shape(c.in(0)))});
  const int64_t along = axis.value_or(0), size = b.shape(x)[static_cast<size_t>(along)];
  SR_REQUIRE(b.rank(c.in(1)) == 1 && condition->count() <= size, invalid_input, "condition is ",
             b.type(c.in(1)), ", wanted at most ", size, " booleans");
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < condition->count(); ++i)
    if (condition->at(i) != 0) kept.push_back(i);
  c.out(b.add("gather", {x, b.ints(kept)}, {{"axis", along}}));
}

/// Ones on the k-th diagonal of a matrix of the operand's shape.
void eye_like(NodeContext& c) {
  Builder& b = c.b;
  SR_REQUIRE(b.rank(c.in(0)) == 2, invalid_input, "input is ", b.type(c.in(0)),
             ", wanted a matrix");
  const Shape shape = b.shape(c.in(0));
  const DType dtype =
      c.has_attr("dtype") ? graph_dtype(static_cast<int>(c.attr_i("dtype", 1))) : b.dtype(c.in(0));
  const V row = b.reshape(b.iota(shape[0], c.attr_i("k", 0), 1), {shape[0], 1});
  const V column = b.reshape(b.iota(shape[1], 0, 1), {1, shape[1]});
  c.out(b.cast(b.add("equal", {row, column}), dtype));
}

constexpr Lowering kIndexLowerings[] = {
    {"Gather", 11, gather},        {"GatherElements", 11, gather_elements},
    {"GatherND", 11, gather_nd},   {"ScatterElements", 11, scatter_elements},
    {"ScatterND", 11, scatter_nd}, {"OneHot", 11, one_hot},
    {"NonZero", 9, non_zero},      {"ReverseSequence", 10, reverse_sequence},
    {"Compress", 9, compress},     {"EyeLike", 9, eye_like}};

}  // namespace

V scattered_sum(NodeContext& c, int64_t axis) {
  if (c.op() == "ScatterElements") return scattered(c, c.in(0), c.in(2), axis, "add");
  scatter_nd_by(c, "add");
  return c.outputs()[0];
}

std::span<const Lowering> index_lowerings() { return kIndexLowerings; }

}  // namespace shardrun::importer
