// Shapes and numbers that depend on how many rows a mask picks.
#include <algorithm>
#include <set>

#include "graph/onnx/lower/picked.h"
#include "graph/onnx/lower/picked_rows.h"

namespace shardrun::importer {

V counted_shape(Builder& b, const std::vector<int64_t>& dims, int pick) {
  std::vector<V> parts;
  for (const int64_t dim : dims)
    parts.push_back(dim == kPickedRows ? b.reshape(count_of(b, pick), {1}) : b.ints({dim}));
  const V out = b.concat(parts, 0);
  b.counted[out] = {Tensor::vector_i64(dims), pick};
  return out;
}

/// Expand, ConstantOfShape and Reshape to such a shape make picked rows.
void lower_of_counted_shape(NodeContext& c, const Lowering& lowering, size_t operand) {
  Builder& b = c.b;
  const Builder::Counted& counted = b.counted.at(c.in(operand));
  std::vector<int64_t> dims = counted.dims.to_ints();
  const auto at = std::find(dims.begin(), dims.end(), kPickedRows) - dims.begin();
  const int pick = counted.pick;
  if (at == std::ssize(dims)) b.refuse_rows(b.picked({c.in(operand), 0, pick, false}), c.op());
  dims[static_cast<size_t>(at)] = rows_of(b, pick);
  c.replace_input(operand, b.ints(dims));
  const int64_t from_right = static_cast<int64_t>(dims.size()) - at;
  bool is_safe = true;
  if (operand == 1) {
    const Picked* rows = b.rows(c.in(0));
    const Shape shape = b.shape(rows != nullptr ? rows->all : c.in(0));
    const auto rank = static_cast<int64_t>(shape.size());
    const bool fits = rows != nullptr
                          ? rows->pick == pick && rank - rows->axis == from_right
                          : rank < from_right || shape[static_cast<size_t>(rank - from_right)] == 1;
    if (!fits || c.op() != "Expand")
      b.refuse_rows(rows != nullptr ? c.in(0) : b.picked({c.in(0), 0, pick, false}), c.op());
    if (rows != nullptr) c.replace_input(0, rows->all);
    is_safe = rows == nullptr || rows->is_safe;
  }
  lowering.lower(c);
  const V out = c.outputs()[0];
  c.out(b.picked({out, b.rank(out) - from_right, pick, is_safe}));
}

/// The first rows of input 0, as many as a mask picks: the first row that is picked has the first,
/// and so on. Where more are picked than there are, they are NaN.
void lower_leading_rows(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  const Builder::Counted& counted = b.counted.at(c.in(2));
  const std::vector<int64_t> starts = c.ints(1, "starts"),
                             axes = c.has(3) ? c.ints(3, "axes") : std::vector<int64_t>{0},
                             steps = c.has(4) ? c.ints(4, "steps") : std::vector<int64_t>{1};
  const std::vector<int64_t> first = {0}, one = {1}, rows_alone = {kPickedRows};
  SR_REQUIRE(starts == first && steps == one && axes.size() == 1 &&
                 counted.dims.to_ints() == rows_alone && b.rank(x) > 0,
             unsupported, "input 2 (ends) '", c.proto.input(2),
             "' counts the rows that the mask of '", pick_at(b, counted.pick).name,
             "' picks: supported are the first rows, with a step of 1");
  const int64_t axis = NodeContext::axis(axes[0], b.rank(x)),
                size = b.shape(x)[static_cast<size_t>(axis)];
  const V mask = pick_at(b, counted.pick).mask;
  const bool suffices = size >= rows_of(b, counted.pick);
  SR_REQUIRE(size > 0 && (suffices || is_float(b.dtype(x))), unsupported, "takes rows of ",
             b.type(x), " for a mask that may pick ", rows_of(b, counted.pick));
  const V running =
      b.add("cumsum", {b.cast(mask, DType::i64)},
            {{"axis", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}});
  const V number = b.with("sub", running, 1);
  const V within = b.with("min", b.with("max", number, 0), static_cast<double>(size - 1));
  V all = b.add("gather", {x, within}, {{"axis", axis}});
  if (!suffices) {  // the root of less than 0 names this node where it is first not a number
    const V left = b.with("mul", b.with("sub", running, static_cast<double>(size)), -1);
    const V lack = b.cast(b.with("min", left, 0), b.dtype(x));
    all = b.add("add", {all, as_dim(b, b.add("sqrt", {lack}), b.rank(x), axis)});
  }
  c.out(b.picked({all, axis, counted.pick, false}));
}

/// Is it the product with a number, as of a shape that lays rows' elements side by side?
bool is_multiple(const NodeContext& c) {
  if (c.op() != "Mul") return false;
  const Builder& b = c.b;
  constexpr int64_t kMost = 1 << 20;
  int counts = 0;
  for (const size_t i : {0, 1}) {
    if (b.counted.count(c.peek(i)) > 0) {
      ++counts;
      continue;
    }
    const Tensor* other = b.known(c.peek(i));
    if (other == nullptr || other->count() != 1 || other->dtype() != DType::i64 ||
        other->int_at(0) < 1 || other->int_at(0) > kMost)
      return false;
  }
  return counts == 1;
}

/// What moves such a vector's entries moves the number of rows with them, and a product with a
/// number has a multiple of it in its place; anything else makes numbers of it. No number of rows
/// is negative: to look for -1 in a shape is to know.
void lower_counted(NodeContext& c, const Lowering& lowering) {
  static const std::set<std::string> moves = {"Gather",    "Slice",          "Concat", "Squeeze",
                                              "Unsqueeze", "Identity",       "Cast",   "Reshape",
                                              "Where",     "ScatterElements"};
  Builder& b = c.b;
  if (c.op() == "Slice" && b.counted.count(c.peek(2)) > 0) return lower_leading_rows(c);
  NodeContext marked = c;
  int pick = 0;
  bool looks_for_negative = c.op() == "Equal";
  for (size_t i = 0; i < c.input_count(); ++i) {
    const V v = c.peek(i);
    const auto counted = b.counted.find(v);
    if (counted == b.counted.end()) {
      const Tensor* other = v == kNone ? nullptr : b.known(v);
      looks_for_negative = looks_for_negative && other != nullptr;
      for (int64_t e = 0; looks_for_negative && e < other->count(); ++e)
        looks_for_negative = other->at(e) < 0;
      continue;
    }
    pick = counted->second.pick;
    marked.replace_input(i, b.constant(counted->second.dims));
  }
  lowering.lower(c);
  if (moves.count(c.op()) == 0 && !looks_for_negative && !is_multiple(c)) return;
  lowering.lower(marked);
  const Tensor* dims = b.known(marked.outputs()[0]);
  if (dims == nullptr || (dims->dtype() != DType::i64 && !looks_for_negative)) return;
  const std::vector<int64_t> values = dims->to_ints();
  if (std::any_of(values.begin(), values.end(), [](int64_t v) { return v <= kPickedRows; }))
    b.counted[c.outputs()[0]] = {*dims, pick};
  else
    c.out(marked.outputs()[0]);
}

void note_count(Builder& b, V ones, V sum) {
  if (b.known(sum) != nullptr || b.dtype(sum) != DType::i64) return;
  ValueId mask = b.id(ones);
  const auto behind = [&](const char* op) {
    const int64_t producer = b.graph.value(mask).producer;
    if (producer < 0 || b.graph.node(producer).op != op) return false;
    mask = b.graph.node(producer).inputs[0];
    return true;
  };
  while (behind("reshape")) continue;
  if (!behind("cast") || b.graph.type(mask).dtype != DType::boolean) return;
  const V rows = b.value(mask);
  Tensor dims({DType::i64, b.shape(sum)});
  std::fill_n(dims.as<int64_t>(), dims.count(), kPickedRows);
  b.counted[sum] = {dims, pick_of(b, b.reshape(rows, {element_count(b.shape(rows))}))};
}

}  // namespace shardrun::importer
