// What becomes of an operator some of whose operands are rows that a mask picks.
#include "graph/onnx/lower/picked.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "graph/onnx/lower/picked_rows.h"

namespace shardrun::importer {
namespace {

using Ints = std::vector<int64_t>;

/// A node with operands that are picked, all by one mask.
class PickedNode {
 public:
  PickedNode(NodeContext& c, const Lowering& lowering) : c_(c), b_(c.b), lowering_(lowering) {
    for (size_t i = 0; i < c.input_count(); ++i) {
      const V v = c.peek(i);
      const Picked* rows = v == kNone ? nullptr : b_.rows(v);
      if (rows == nullptr) continue;
      SR_REQUIRE(picked_.empty() || any().pick == rows->pick, unsupported,
                 "its operands are rows that two masks pick, those of '",
                 pick_at(b_, any().pick).name, "' and '", pick_at(b_, rows->pick).name,
                 "'; use one mask for both");
      picked_[i] = *rows;
    }
  }

  void lower();

 private:
  bool is(size_t i) const { return picked_.count(i) > 0; }
  bool only(size_t i) const { return picked_.size() == 1 && is(i); }
  const Picked& of(size_t i) const {
    c_.in(i);  // which is used therefore
    return picked_.at(i);
  }
  const Picked& any() const { return picked_.begin()->second; }
  int64_t rank(size_t i) const { return b_.rank(of(i).all); }
  int pick() const { return any().pick; }
  [[noreturn]] void refuse() {
    for (const auto& [i, rows] : picked_) b_.refuse_rows(c_.in(i), c_.op());
    fail(ErrorKind::internal, "has no picked operand");
  }
  void require(bool holds) {
    if (!holds) refuse();
  }

  /// Lowers the node on all rows. `safely`: what it computes of rows that are not picked must not
  /// be NaN. Results have their rows in dim `axis`.
  void on_all_rows(int64_t axis, bool safely = true) {
    const bool is_safe = make_whole(safely);
    lowering_.lower(c_);
    wrap(axis, is_safe);
  }
  /// All rows in place of picked ones; whether those that are not picked repeat one that is.
  bool make_whole(bool safely) {
    bool is_safe = true;
    for (const auto& [i, rows] : picked_) {
      const bool known = b_.known(rows.all) != nullptr;
      c_.replace_input(i, safely && !known ? safe(b_, rows) : rows.all);
      is_safe = is_safe && (rows.is_safe || (safely && !known));
    }
    return is_safe;
  }
  void wrap(int64_t axis, bool is_safe) {
    for (size_t i = 0; i < c_.outputs().size(); ++i)
      if (c_.outputs()[i] != kNone) c_.out(i, b_.picked({c_.outputs()[i], axis, pick(), is_safe}));
  }

  Ints axes_input(size_t i) { return c_.has(i) ? c_.ints(i, "axes") : c_.attr_ints("axes"); }
  int64_t axis_attr(int64_t otherwise, int64_t rank) {
    return NodeContext::axis(c_.attr_i("axis", otherwise), rank);
  }

  void element_wise();
  void cast_like();
  void along_an_axis();
  void reduce();
  void product();
  void of_samples();
  void normalise();
  void move();
  void split_or_slice();
  void gather();
  void gather_positions();
  void loss();
  void scatter();
  void shape_of();
  void size_of_all();
  void reshape();
  void expand();

  NodeContext& c_;
  Builder& b_;
  const Lowering& lowering_;
  std::map<size_t, Picked> picked_;
};

/// Operands broadcast; those that are not picked have a dim of 1 where others have the rows, or
/// none.
void PickedNode::element_wise() {
  const int64_t from_right = b_.rank(any().all) - any().axis;
  int64_t highest = 0;
  for (size_t i = 0; i < c_.input_count(); ++i) {
    const V v = c_.peek(i);
    if (v == kNone) continue;
    const Picked* rows = b_.rows(v);
    const Shape shape = b_.shape(rows != nullptr ? rows->all : v);
    const auto r = static_cast<int64_t>(shape.size());
    highest = std::max(highest, r);
    require(rows != nullptr ? r - rows->axis == from_right
                            : r < from_right || shape[static_cast<size_t>(r - from_right)] == 1);
  }
  const bool copies = c_.op() == "Identity" || c_.op() == "Cast";
  on_all_rows(highest - from_right, !copies);
}

/// The second operand says the type alone: a number that is cast for rows, as the least of a clamp,
/// stays a number.
void PickedNode::cast_like() {
  const bool of_rows = is(0);
  const int64_t axis = of_rows ? of(0).axis : 0;
  const bool is_safe = make_whole(false);
  lowering_.lower(c_);
  if (of_rows) wrap(axis, is_safe);
}

/// Softmax, ArgMax, TopK, CumSum: along another dim than the rows.
void PickedNode::along_an_axis() {
  require(only(0));
  const Picked rows = of(0);
  const bool is_arg = c_.op().starts_with("Arg");
  const int64_t axis = c_.op() == "CumSum"
                           ? NodeContext::axis(c_.known(1, "axis").int_at(0), rank(0))
                           : axis_attr(is_arg ? 0 : -1, rank(0));
  require(axis != rows.axis);
  const bool drops = is_arg && c_.attr_i("keepdims", 1) == 0;
  on_all_rows(rows.axis - (drops && axis < rows.axis ? 1 : 0));
}

/// What stands for a row that does not count, by reduction; none where there is no such number.
std::optional<double> neutral_of(const std::string& op, DType dtype) {
  const bool is_long = dtype == DType::i64;
  const double lowest = is_float(dtype) ? static_cast<double>(std::numeric_limits<float>::lowest())
                        : is_long       ? -static_cast<double>(int64_t{1} << 62)
                                  : static_cast<double>(std::numeric_limits<int32_t>::min() + 1);
  if (op == "ReduceMax") return dtype == DType::boolean ? 0 : lowest;
  if (op == "ReduceMin") return dtype == DType::boolean ? 1 : -lowest;
  if (op == "ReduceLogSumExp") return lowest;
  if (op == "ReduceProd") return 1;
  return 0;
}

/// Over other dims it is of each row. Over the rows, too, it is of those that are picked.
void PickedNode::reduce() {
  require(only(0));
  const Picked rows = of(0);
  Ints axes = NodeContext::axes(axes_input(1), rank(0));
  const bool all = axes.empty() && c_.attr_i("noop_with_empty_axes", 0) == 0;
  const bool over_rows = all || std::count(axes.begin(), axes.end(), rows.axis) > 0;
  if (!over_rows) {
    int64_t axis = rows.axis;
    if (c_.attr_i("keepdims", 1) == 0)
      axis -= std::count_if(axes.begin(), axes.end(), [&](int64_t a) { return a < rows.axis; });
    return on_all_rows(axis);
  }
  const DType dtype = b_.dtype(rows.all);
  c_.replace_input(0, masked(b_, rows, *neutral_of(c_.op(), dtype)));
  lowering_.lower(c_);
  if (c_.op() != "ReduceMean") return;
  const V sum = b_.with("mul", c_.outputs()[0], static_cast<double>(rows_of(b_, rows.pick)));
  c_.out(b_.add("div", {sum, b_.cast(count_of(b_, rows.pick), dtype)}));
}

/// Rows times a matrix.
void PickedNode::product() {
  require(only(0));
  const Picked rows = of(0);
  const Shape& other = b_.shape(c_.in(1));
  if (c_.op() == "MatMul") {
    require(rows.axis + 1 < rank(0) && other.size() <= 2);
  } else {
    require(rows.axis == 0 && c_.attr_i("transA", 0) == 0);
    const bool has_bias = c_.has(2);
    require(!has_bias || b_.rank(c_.in(2)) < 2 || b_.shape(c_.in(2))[0] == 1);
  }
  on_all_rows(rows.axis);
}

/// Rows are the samples of a convolution, a pool or a normalisation.
void PickedNode::of_samples() {
  require(only(0) && of(0).axis == 0);
  on_all_rows(0);
}

/// LayerNormalization: over dims behind the rows.
void PickedNode::normalise() {
  require(only(0) && of(0).axis < axis_attr(-1, rank(0)));
  on_all_rows(of(0).axis);
}

/// Transpose, Squeeze, Unsqueeze, Flatten, OneHot, Concat: where the rows are thereafter.
void PickedNode::move() {
  const Picked rows = any();
  const int64_t dims = b_.rank(rows.all);
  const auto before = [&](const Ints& axes) {
    return std::count_if(axes.begin(), axes.end(), [&](int64_t a) { return a < rows.axis; });
  };
  int64_t axis = rows.axis;
  if (c_.op() == "Concat") {
    require(picked_.size() == c_.input_count() && axis_attr(0, dims) != axis);
    for (const auto& [i, other] : picked_) require(other.axis == axis);
    return on_all_rows(axis);
  }
  require(only(0));
  if (c_.op() == "Transpose") {
    Ints perm = c_.attr_ints("perm");
    for (int64_t& p : perm) p = NodeContext::axis(p, dims);
    axis =
        perm.empty() ? dims - 1 - axis : std::find(perm.begin(), perm.end(), axis) - perm.begin();
  } else if (c_.op() == "Squeeze") {
    Ints axes = NodeContext::axes(axes_input(1), dims);
    require(!axes.empty() && std::count(axes.begin(), axes.end(), axis) == 0);
    axis -= before(axes);
  } else if (c_.op() == "Unsqueeze") {
    Ints axes = axes_input(1);
    axes = NodeContext::axes(axes, dims + static_cast<int64_t>(axes.size()));
    for (int64_t added : axes) axis += added <= axis ? 1 : 0;
  } else if (c_.op() == "OneHot") {
    axis += NodeContext::axis(c_.attr_i("axis", -1), dims + 1) <= axis ? 1 : 0;
    return on_all_rows(axis);
  } else {
    require(c_.op() == "Flatten" && axis == 0 && c_.attr_i("axis", 1) == 1);
  }
  on_all_rows(axis, false);
  if (rows.positions_in.empty() || c_.op() != "Transpose" || axis == rows.axis) return;
  Picked moved = *b_.rows(c_.outputs()[0]);
  moved.positions_in = rows.positions_in;
  c_.out(b_.picked(moved));
}

/// Split and Slice: along other dims.
void PickedNode::split_or_slice() {
  require(only(0));
  const Picked rows = of(0);
  if (c_.op() == "Split") {
    require(axis_attr(0, rank(0)) != rows.axis);
    return on_all_rows(rows.axis, false);
  }
  const Ints starts = c_.ints(1, "starts");
  Ints axes(starts.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (c_.has(3)) axes = NodeContext::axes(c_.ints(3, "axes"), rank(0));
  const auto counted = b_.counted.find(c_.in(2));
  if (counted != b_.counted.end()) {  // x[0:rows], of all rows
    const bool whole = counted->second.pick == rows.pick && axes == Ints{rows.axis} &&
                       starts == Ints{0} && counted->second.dims.to_ints() == Ints{kPickedRows} &&
                       (!c_.has(4) || c_.ints(4, "steps") == Ints{1});
    require(whole);
    return c_.out(c_.in(0));
  }
  require(std::count(axes.begin(), axes.end(), rows.axis) == 0);
  on_all_rows(rows.axis, false);
}

/// Gather and GatherElements: of each row, or of a table by indices that are picked.
void PickedNode::gather() {
  const V data = c_.in(0);
  if (c_.op() == "GatherElements") {
    require(is(0) && is(1) && of(0).axis == of(1).axis && axis_attr(0, rank(0)) != of(0).axis);
    return on_all_rows(of(0).axis);
  }
  if (only(0)) {
    const int64_t axis = axis_attr(0, rank(0)), at = of(0).axis;
    require(axis != at);
    return on_all_rows(at + (at > axis ? b_.rank(c_.in(1)) - 1 : 0), false);
  }
  require(only(1));
  const int64_t axis = axis_attr(0, b_.rank(data));
  if (b_.rank(of(1).all) == 1 &&
      are_all_positions(b_, of(1), {b_.shape(data)[static_cast<size_t>(axis)]}))
    return c_.out(b_.picked({data, axis, pick(), false}));
  on_all_rows(axis + of(1).axis);
}

/// GatherND by positions that are picked. Those of NonZero are of all elements: nothing is looked
/// up.
void PickedNode::gather_positions() {
  require(only(1) && c_.attr_i("batch_dims", 0) == 0 && of(1).axis + 1 < rank(1));
  const V data = c_.in(0);
  const Shape shape = b_.shape(data);
  const auto k = static_cast<size_t>(b_.shape(of(1).all).back());
  if (rank(1) == 2 && are_all_positions(b_, of(1), shape)) {
    Shape flat(shape.begin() + static_cast<int64_t>(k), shape.end());
    flat.insert(flat.begin(), b_.shape(of(1).all)[0]);
    return c_.out(b_.picked({b_.reshape(data, flat), 0, pick(), false}));
  }
  on_all_rows(of(1).axis);
}

/// Of scores and labels: samples that are not picked count for nothing.
void PickedNode::loss() {
  require(is(0) && is(1) && !is(2) && of(0).axis == 0 && of(1).axis == 0);
  const bool by_labels = !is_float(b_.dtype(of(1).all));
  const bool skips = c_.op() == "SoftmaxCrossEntropyLoss" && by_labels;  // it has a label for that
  c_.replace_input(0, skips ? of(0).all : safe(b_, of(0)));
  c_.replace_input(1, safe(b_, of(1)));
  c_.counts = pick_at(b_, pick()).mask;
  lowering_.lower(c_);
  for (size_t i = 0; i < c_.outputs().size(); ++i) {
    const V v = c_.outputs()[i];
    if (v != kNone && b_.rank(v) > 0) c_.out(i, b_.picked({v, 0, pick(), false}));
  }
}

/// Rows that are picked go back to positions that are picked with them. Where what is there is
/// replaced, no position may be named twice, as in ONNX.
void PickedNode::scatter() {
  const bool by_elements = c_.op() == "ScatterElements";
  const std::string reduction = c_.attr_s("reduction", "none");
  require(!is(0) && is(1) && is(2) && (reduction == "none" || reduction == "add") &&
          is_float(b_.dtype(of(2).all)) && of(1).axis == 0 && of(2).axis == 0);
  const V data = c_.in(0), known = b_.known(of(1).all) != nullptr ? of(1).all : kNone;
  const V indices = known != kNone ? known : safe(b_, of(1));
  const int64_t axis = by_elements ? axis_attr(0, b_.rank(data)) : 0;
  const Shape shape = b_.shape(data);
  const auto added = [&](V to, V updates) {  // to those of `to`
    c_.replace_input(0, to), c_.replace_input(1, indices), c_.replace_input(2, updates);
    return scattered_sum(c_, axis);
  };
  require(axis == 0);
  if (reduction == "add") return c_.out(added(data, masked(b_, of(2), 0)));
  const V mask = pick_at(b_, pick()).mask;
  if (!by_elements && rank(1) == 2 && are_all_positions(b_, of(1), shape)) {
    Shape mask_shape = shape;
    const int64_t k = b_.shape(indices).back();
    std::fill(mask_shape.begin() + k, mask_shape.end(), 1);
    return c_.out(
        b_.add("where", {b_.reshape(mask, mask_shape), b_.reshape(of(2).all, shape), data}));
  }
  const DType dtype = b_.dtype(data);
  const V zeros = b_.fill(0, dtype, shape);
  const V ones = as_dim(b_, b_.cast(mask, dtype), rank(2), 0);
  const V hits = added(zeros, b_.expand(ones, b_.shape(of(2).all)));
  const V sum = added(zeros, masked(b_, of(2), 0));
  c_.out(b_.add("where", {b_.with("greater", hits, 0), sum, data}));
}

void PickedNode::shape_of() {
  const Picked rows = of(0);
  Ints dims = b_.shape(rows.all);
  dims[static_cast<size_t>(rows.axis)] = kPickedRows;
  const int64_t r = rank(0);
  const auto bound = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + r : at, 0, r); };
  const int64_t start = bound(c_.attr_i("start", 0)), end = bound(c_.attr_i("end", r));
  const Ints part = start < end ? Ints(dims.begin() + start, dims.begin() + end) : Ints{};
  const bool counts = std::count(part.begin(), part.end(), kPickedRows) > 0;
  c_.out(counts ? counted_shape(b_, part, rows.pick) : b_.ints(part));
}

void PickedNode::size_of_all() {
  const int64_t rows = std::max<int64_t>(rows_of(b_, pick()), 1);
  const int64_t of_a_row = element_count(b_.shape(of(0).all)) / rows;
  c_.out(b_.with("mul", count_of(b_, pick()), static_cast<double>(of_a_row)));
}

/// The rows stay a dim, or become one with dims behind them: [rows, 3] to [rows · 3], of which
/// three in a row are picked together.
void PickedNode::reshape() {
  require(only(0));
  const Picked rows = of(0);
  const Shape from = b_.shape(rows.all);
  const auto counted = b_.counted.find(c_.in(1));
  Ints to = counted == b_.counted.end() ? c_.ints(1, "shape") : counted->second.dims.to_ints();
  require(counted == b_.counted.end() || counted->second.pick == rows.pick);
  const bool copies = c_.attr_i("allowzero", 0) == 0;
  int64_t known = 1;
  size_t open = to.size();
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] == 0 && copies) {
      require(d < from.size());
      to[d] = static_cast<int64_t>(d) == rows.axis ? kPickedRows : from[d];
    }
    if (to[d] < 0) require(open == to.size());
    if (to[d] < 0)
      open = d;
    else
      known *= to[d];
  }
  const int64_t count = element_count(from), of_rows = rows_of(b_, rows.pick);
  require(open < to.size() && known > 0 &&
          count % known == 0);  // else it has a fixed number of rows
  to[open] = count / known;
  const auto product = [](const Shape& s, size_t n) {
    return element_count(Shape(s.begin(), s.begin() + static_cast<int64_t>(n)));
  };
  const bool stays = product(to, open) == product(from, static_cast<size_t>(rows.axis));
  require(stays && of_rows > 0 && to[open] % of_rows == 0);
  Picked out = rows;
  out.all = b_.reshape(rows.all, to);
  out.axis = static_cast<int64_t>(open);
  if (const int64_t together = to[open] / of_rows; together != 1) {
    const V mask = b_.reshape(pick_at(b_, rows.pick).mask, {of_rows, 1});
    out.pick = pick_of(b_, b_.reshape(b_.expand(mask, {of_rows, together}), {to[open]}));
  }
  c_.out(b_.picked(out));
}

/// Expand to a shape that is known but for the number of rows, which stay where they are.
void PickedNode::expand() {
  require(only(0));
  const Picked rows = of(0);
  const Ints to = c_.ints(1, "shape");
  const int64_t from_right = rank(0) - rows.axis, longer = static_cast<int64_t>(to.size());
  require(longer < from_right || to[static_cast<size_t>(longer - from_right)] == 1);
  on_all_rows(std::max(rank(0), longer) - from_right, false);
}

/// How many operands element-wise operators have that take more than one.
const std::map<std::string, size_t>& operands_by_element() {
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  static const std::map<std::string, size_t> most = {
      {"Add", 2},         {"Sub", 2},           {"Mul", 2},    {"Div", 2},    {"Equal", 2},
      {"Less", 2},        {"Greater", 2},       {"And", 2},    {"Or", 2},     {"Xor", 2},
      {"PRelu", 2},       {"Pow", 2},           {"Mod", 2},    {"Where", 3},  {"Clip", 3},
      {"Dropout", 3},     {"Max", kAny},        {"Min", kAny}, {"Sum", kAny}, {"Mean", kAny},
      {"LessOrEqual", 2}, {"GreaterOrEqual", 2}};
  return most;
}

void PickedNode::lower() {
  struct Rule {
    std::map<std::string, size_t> ops;  // with the most operands that each has
    void (PickedNode::*lower)();
  };
  static const std::vector<Rule> rules = {
      {{{"Softmax", 1},
        {"LogSoftmax", 1},
        {"ArgMax", 1},
        {"ArgMin", 1},
        {"TopK", 2},
        {"CumSum", 2}},
       &PickedNode::along_an_axis},
      {{{"CastLike", 2}}, &PickedNode::cast_like},
      {{{"MatMul", 2}, {"Gemm", 3}}, &PickedNode::product},
      {{{"Conv", 3},
        {"ConvTranspose", 3},
        {"MaxPool", 1},
        {"AveragePool", 1},
        {"GlobalAveragePool", 1},
        {"GlobalMaxPool", 1},
        {"GroupNormalization", 3}},
       &PickedNode::of_samples},
      {{{"LayerNormalization", 3}, {"RMSNormalization", 2}}, &PickedNode::normalise},
      {{{"Transpose", 1},
        {"Squeeze", 2},
        {"Unsqueeze", 2},
        {"Flatten", 1},
        {"OneHot", 3},
        {"Concat", std::numeric_limits<size_t>::max()}},
       &PickedNode::move},
      {{{"Split", 2}, {"Slice", 5}}, &PickedNode::split_or_slice},
      {{{"Gather", 2}, {"GatherElements", 2}}, &PickedNode::gather},
      {{{"GatherND", 2}}, &PickedNode::gather_positions},
      {{{"SoftmaxCrossEntropyLoss", 3}, {"NegativeLogLikelihoodLoss", 3}}, &PickedNode::loss},
      {{{"ScatterND", 3}, {"ScatterElements", 3}}, &PickedNode::scatter},
      {{{"Shape", 1}}, &PickedNode::shape_of},
      {{{"Size", 1}}, &PickedNode::size_of_all},
      {{{"Reshape", 2}}, &PickedNode::reshape},
      {{{"Expand", 2}}, &PickedNode::expand}};
  const auto at_most = [&](size_t operands) {
    for (size_t i = operands; i < c_.input_count(); ++i)
      if (c_.peek(i) != kNone) c_.refuse_input(i);
  };
  for (const Rule& rule : rules) {
    const auto found = rule.ops.find(c_.op());
    if (found == rule.ops.end()) continue;
    at_most(found->second);
    return (this->*rule.lower)();
  }
  if (c_.op().starts_with("Reduce")) {
    at_most(2);
    return reduce();
  }
  const auto all = elementwise_lowerings();
  const bool by_elements =
      c_.op() == "Dropout" ||
      std::any_of(all.begin(), all.end(), [&](auto& l) { return l.op == c_.op(); });
  require(by_elements);
  const auto several = operands_by_element().find(c_.op());
  at_most(several == operands_by_element().end() ? 1 : several->second);
  element_wise();
}

}  // namespace

void pick_positions(NodeContext& c) {
  Builder& b = c.b;
  V x = c.in(0);
  if (b.dtype(x) != DType::boolean) x = b.add("logical_not", {b.with("equal", x, 0)});
  const Shape shape = b.shape(x);
  SR_REQUIRE(!shape.empty(), unsupported, "of a scalar that depends on data is not supported");
  const int pick = pick_of(b, b.reshape(x, {element_count(shape)}));
  c.out(b.picked({all_positions(b, shape), 1, pick, false, shape}));
}

void pick_parts(NodeContext& c, std::optional<int64_t> axis) {
  Builder& b = c.b;
  const V x = axis ? c.in(0) : b.reshape(c.in(0), {element_count(b.shape(c.in(0)))});
  const int64_t along = axis.value_or(0), size = b.shape(x)[static_cast<size_t>(along)];
  SR_REQUIRE(b.dtype(c.in(1)) == DType::boolean && b.shape(c.in(1)) == Shape{size}, unsupported,
             "condition is ", b.type(c.in(1)), ", wanted a boolean for each of ", size,
             " along its axis");
  c.out(b.picked({x, along, pick_of(b, c.in(1)), false}));
}

bool takes_picked(const Builder& b, std::span<const V> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [&](V v) {
    return v != kNone && (b.rows(v) != nullptr || b.counted.count(v) > 0);
  });
}

void lower_picked(NodeContext& c, const Lowering& lowering) {
  Builder& b = c.b;
  const bool of_shape = c.op() == "ConstantOfShape";
  if (of_shape || c.op() == "Expand") {
    const size_t operand = of_shape ? 0 : 1;
    if (b.counted.count(c.in(operand)) > 0) return lower_of_counted_shape(c, lowering, operand);
  }
  for (size_t i = 0; i < c.input_count(); ++i)
    if (const V v = c.peek(i); v != kNone && b.rows(v) != nullptr)
      return PickedNode(c, lowering).lower();
  lower_counted(c, lowering);
}

}  // namespace shardrun::importer
