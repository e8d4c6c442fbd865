// Softmax over segments: the rows of x that one row number names, as the edges of a graph that
// share their target. In the steps that a mesh needs, which can be cut along the edges: what a
// rank finds of a segment joins with what others do.
//
//   segment_max(x [E, …], rows [E]){size, offset} -> top [size, …]; -inf where nothing is named
//   segment_exp_sum(x, top, rows){offset} -> total [N, …]: the sums of exp(x - top)
//   segment_softmax(x, top, total, rows) -> y [E, …] = exp(x - top) / total
//   segment_softmax_reduce_grad(dy, y, rows){size, offset} -> sums [size, …] of dy y
//   segment_softmax_grad(dy, y, sums, rows) -> dx = y (dy - sums)
//
// and whole, for Programs that cut no segment (runtime/program/fusion/patterns.h):
//
//   segment_softmax(x, rows){size} -> y          segment_softmax_grad(dy, y, rows){size} -> dx
//
// `offset` is the number of a table's first row. Where a number is outside, it counts nowhere, and
// y and dx are 0. Of bf16 operands top, total and sums are f32.
#include "graph/ops/families.h"
#include "graph/ops/gradients.h"

namespace shardrun {
namespace {

/// Segments: as `size` says, or as many as operand `table` has rows.
int64_t extent_of(const Node& node, InTypes in, size_t table) {
  return node.attrs.has("size") ? node.attrs.i("size") : in[table].shape[0];
}

/// Checks x and rows; the type of a table with a row for each segment.
TensorType table_of(const TensorType& x, const TensorType& rows, int64_t size) {
  require_float(x, "x");
  require_index(rows, "rows");
  SR_REQUIRE(rows.shape.size() == 1 && !x.shape.empty() && x.shape[0] == rows.shape[0],
             invalid_input, "x is ", x, ", rows are ", rows, "; wanted a number for each row of x");
  Shape shape = x.shape;
  shape[0] = size;
  return {statistics_type(x.dtype), shape};
}

void require_tables(const Node& node, InTypes in, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    SR_REQUIRE(!in[i].shape.empty(), invalid_input, "operand ", i, " is ", in[i],
               ", wanted a row for each segment");
    const TensorType want = table_of(in[0], in.back(), extent_of(node, in, first));
    SR_REQUIRE(in[i] == want, invalid_input, "operand ", i, " is ", in[i], ", wanted ", want);
  }
}

Types infer_max(const Node& node, InTypes in) {
  require_operands(in, 2);
  return {table_of(in[0], in[1], node.attrs.i("size"))};
}

Types infer_exp_sum(const Node& node, InTypes in) {
  require_operands(in, 3);
  require_tables(node, in, 1, 2);
  return {in[1]};
}

Types infer_softmax(const Node& node, InTypes in) {
  SR_REQUIRE(in.size() == 2 || in.size() == 4, invalid_input,
             "wanted x and rows, or x, top, total and rows, got ", in.size(), " operands");
  table_of(in[0], in.back(), in.size() == 2 ? node.attrs.i("size") : 0);
  require_tables(node, in, 1, in.size() - 1);
  return {in[0]};
}

Types infer_segment_reduce_grad(const Node& node, InTypes in) {
  require_operands(in, 3);
  SR_REQUIRE(in[0] == in[1], invalid_input, "dy is ", in[0], ", y is ", in[1]);
  return {table_of(in[0], in[2], node.attrs.i("size"))};
}

Types infer_grad(const Node& node, InTypes in) {
  require_operands(in, 3, 4);
  SR_REQUIRE(in[0] == in[1], invalid_input, "dy is ", in[0], ", y is ", in[1]);
  table_of(in[0], in.back(), in.size() == 3 ? node.attrs.i("size") : 0);
  require_tables(node, in, 2, in.size() - 1);
  return {in[1]};
}

// ---- cutting: rows of a table [begin, …) answer to the same numbers, so offset grows by begin

/// `table`: its rows that a rank has.
Attrs moved(const Node& node, const Range& table) {
  Attrs attrs = node.attrs;
  if (attrs.has("size")) attrs.set("size", table.size);
  attrs.set("offset", attrs.i("offset", 0) + table.begin);
  return attrs;
}

Attrs shrink(const Node& node, InTypes original, std::vector<TensorType>& in) {
  Attrs attrs = node.attrs;
  if (attrs.has("size")) attrs.set("size", shrunk_size(attrs.i("size"), original, in));
  if (attrs.has("offset")) attrs.set("offset", int64_t{0});
  return attrs;
}

template <size_t kTable>
std::optional<int64_t> bound(const Node& node, InTypes in, size_t operand) {
  if (operand + 1 != in.size()) return std::nullopt;
  return extent_of(node, in, kTable);
}

/// Dim 0 of tables [first, end) among the operands, and of the result.
std::optional<OpDef::NumberedRows> numbered(const Node& node, InTypes in, size_t first, size_t end,
                                            bool result) {
  if (node.attrs.i("offset", 0) != 0 || (first == end && !result)) return std::nullopt;
  OpDef::NumberedRows rows;
  rows.numbers = static_cast<int>(in.size()) - 1;
  for (size_t i = first; i < end; ++i) rows.of.push_back({false, static_cast<int>(i), 0});
  if (result) rows.of.push_back({true, 0, 0});
  return rows;
}

// ---- gradients: of Graphs, in which every number counts from 0

/// The table's rows that `rows` names, in x's type.
ValueId rows_named(GradientContext& c, ValueId table, ValueId rows) {
  return cast_to(c.graph, c.graph.add("gather", {table, rows}, {{"axis", int64_t{0}}}),
                 c.in_type(0).dtype);
}

/// Each of several equal maxima of a segment gets the same fraction, as the gradient of reduce_max.
Grads max_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId x = c.node.inputs[0], rows = c.node.inputs[1];
  const ValueId is_top = g.add("equal", {x, rows_named(c, c.node.outputs[0], rows)});
  const ValueId count =
      g.add("gather_grad", {cast_to(g, is_top, g.type(c.out_grads[0]).dtype), rows},
            {{"axis", int64_t{0}}, {"size", g.type(c.node.outputs[0]).shape[0]}});
  const ValueId each = g.add("div", {c.out_grads[0], count});
  return {g.add("where", {is_top, rows_named(c, each, rows), scalar(g, c.in_type(0).dtype, 0)}),
          kNoValue};
}

/// dx = exp(x - top) dtotal, dtop = -total dtotal.
Grads exp_sum_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId top = c.node.inputs[1], rows = c.node.inputs[2], total = c.node.outputs[0];
  const ValueId each =
      g.add("segment_softmax", {c.node.inputs[0], top, fill(g, TensorType(g.type(top)), 1), rows});
  return {g.add("mul", {each, rows_named(c, c.out_grads[0], rows)}),
          g.add("neg", {g.add("mul", {total, c.out_grads[0]})}), kNoValue};
}

/// Are top and total those of x itself?
bool of_itself(const GradientContext& c) {
  const Graph& g = c.graph;
  const std::vector<ValueId>& in = c.node.inputs;
  const auto made = [&](ValueId value, const char* op, const std::vector<ValueId>& by) {
    const NodeId producer = g.value(value).producer;
    return producer >= 0 && g.node(producer).op == op && g.node(producer).inputs == by;
  };
  return in.size() == 2 || (made(in[1], "segment_max", {in[0], in[3]}) &&
                            made(in[2], "segment_exp_sum", {in[0], in[1], in[3]}));
}

/// Through top and total of x itself the gradient goes at once: they get none from here. Of others
/// it is dx = dy y, dtop = -sums, dtotal = -sums / total.
Grads segment_softmax_gradient(GradientContext& c) {
  Graph& g = c.graph;
  const ValueId dy = c.out_grads[0], y = c.node.outputs[0], rows = c.node.inputs.back();
  const bool whole = c.node.inputs.size() == 2;
  const int64_t size = whole ? c.node.attrs.i("size") : c.in_shape(1)[0];
  const ValueId sums = g.add("segment_softmax_reduce_grad", {dy, y, rows}, {{"size", size}});
  Grads grads(c.node.inputs.size(), kNoValue);
  if (of_itself(c)) {
    grads[0] = g.add("segment_softmax_grad", {dy, y, sums, rows});
    return grads;
  }
  grads[0] = g.add("mul", {dy, y});
  grads[1] = g.add("neg", {sums});
  grads[2] = g.add("div", {grads[1], c.node.inputs[2]});
  return grads;
}

template <int kPerElement>
double segment_flops(const Node&, InTypes in, InTypes) {
  return kPerElement * static_cast<double>(element_count(in[0].shape));
}

// ---- samples

/// Operands by letter: x [E, …], t [N, …], r [E]. `sized`: with the attribute size.
std::vector<OpDef::Sample> samples(const std::string& operands, bool sized) {
  std::vector<OpDef::Sample> out;
  int64_t size = 4;
  for (const Shape& x : {Shape{6, 4}, {9, 3, 2}, {7}, {8, 1}, {33, 5}}) {
    Shape table = x;
    table[0] = size;
    OpDef::Sample s;
    for (char kind : operands) {
      if (kind == 'r') {
        s.in.push_back({size % 2 == 0 ? DType::i64 : DType::i32, {x[0]}});
      } else {
        s.in.push_back({DType::f32, kind == 'x' ? x : table});
      }
    }
    if (sized) s.attrs.set("size", size);
    s.low = 0.4, s.high = 1;  // totals are well above 0
    out.push_back(std::move(s));
    ++size;
  }
  return out;
}

/// Many rows of few segments, so that each has some: the maximum of none is -inf, which has no
/// difference quotient.
std::vector<OpDef::Sample> full_samples() {
  std::vector<OpDef::Sample> out;
  for (const Shape& x : {Shape{24, 3}, {30, 2, 2}, {33}})
    out.push_back({{{DType::f32, x}, {DType::i64, {x[0]}}}, {{"size", int64_t{2}}}});
  out.back().in[1].dtype = DType::i32;
  return out;
}

std::vector<OpDef::Sample> both(std::vector<OpDef::Sample> a, std::vector<OpDef::Sample> b) {
  for (OpDef::Sample& s : b) a.push_back(std::move(s));
  return a;
}

}  // namespace

std::vector<OpDef> segment_ops() {
  return {
      {.name = "segment_max",
       .infer = infer_max,
       .gradient = max_gradient,
       .flops = segment_flops<1>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .localise = [](const Node& n, InTypes,
                      LocalBoxes boxes) { return moved(n, boxes.out[0][0]); },
       .shrink = shrink,
       .index_bound = bound<0>,
       .numbered_rows = [](const Node& n, InTypes in) { return numbered(n, in, 0, 0, true); },
       .samples = full_samples()},
      {.name = "segment_exp_sum",
       .infer = infer_exp_sum,
       .gradient = exp_sum_gradient,
       .flops = segment_flops<3>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .localise = [](const Node& n, InTypes,
                      LocalBoxes boxes) { return moved(n, boxes.in[1][0]); },
       .shrink = shrink,
       .index_bound = bound<1>,
       .numbered_rows = [](const Node& n, InTypes in) { return numbered(n, in, 1, 2, true); },
       .samples = samples("xtr", false)},
      {.name = "segment_softmax",
       .infer = infer_softmax,
       .gradient = segment_softmax_gradient,
       .flops = segment_flops<5>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .model_body = true,
       .shrink = shrink,
       .index_bound = bound<1>,
       .numbered_rows = [](const Node& n,
                           InTypes in) { return numbered(n, in, 1, in.size() - 1, false); },
       .in_place = {{0, 0}},
       .samples = both(samples("xttr", false), samples("xr", true))},
      {.name = "segment_softmax_reduce_grad",
       .infer = infer_segment_reduce_grad,
       .flops = segment_flops<2>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .localise = [](const Node& n, InTypes,
                      LocalBoxes boxes) { return moved(n, boxes.out[0][0]); },
       .shrink = shrink,
       .index_bound = bound<0>,
       .numbered_rows = [](const Node& n, InTypes in) { return numbered(n, in, 0, 0, true); },
       .samples = samples("xxr", true)},
      {.name = "segment_softmax_grad",
       .infer = infer_grad,
       .flops = segment_flops<4>,
       .cost = CostClass::streamed,
       .precision = Precision::mixed,
       .shrink = shrink,
       .index_bound = bound<2>,
       .numbered_rows = [](const Node& n,
                           InTypes in) { return numbered(n, in, 2, in.size() - 1, false); },
       .in_place = {{0, 0}, {0, 1}},
       .samples = both(samples("xxtr", false), samples("xxr", true))},
  };
}

}  // namespace shardrun
