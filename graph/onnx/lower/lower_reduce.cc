// Lowering of reductions: Reduce*, ArgMax, ArgMin, CumSum, softmax, global pooling.
#include <numeric>

#include "graph/onnx/lower/lowering.h"
#include "graph/onnx/lower/picked.h"

namespace shardrun::importer {
namespace {

/// Axes come as an attribute (ReduceSum to 12, the others to 17) or as an input.
std::vector<int64_t> reduce_axes(NodeContext& c, bool& noop) {
  const int64_t rank = c.b.rank(c.in(0));
  std::vector<int64_t> axes = c.attr_ints("axes");
  if (c.has(1)) axes = c.ints(1, "axes");
  const bool empty_means_none = c.attr_i("noop_with_empty_axes", 0) != 0;
  noop = axes.empty() && empty_means_none;
  if (axes.empty() && !noop) {
    axes.resize(static_cast<size_t>(rank));
    std::iota(axes.begin(), axes.end(), 0);
  }
  return NodeContext::axes(std::move(axes), rank);
}

V reduce(NodeContext& c, const char* op, V x, const std::vector<int64_t>& axes, bool keepdims) {
  return axes.empty() ? x : c.b.add(op, {x}, {{"axes", axes}, {"keepdims", int64_t{keepdims}}});
}

/// max() along a dim gives its gradient to the first of equal elements, amax() to each a part.
bool takes_first(NodeContext& c) {
  const FxCall* call = c.call();
  return call != nullptr && (call->target == "aten.max" || call->target == "aten.min") &&
         call->find(1, "dim") != nullptr && is_float(c.b.dtype(c.in(0)));
}

void reduce_any(NodeContext& c) {
  bool noop = false;
  const std::vector<int64_t> axes = reduce_axes(c, noop);
  const bool keep = c.attr_i("keepdims", 1) != 0;
  V x = c.in(0);
  const std::string& op = c.op();
  Builder& b = c.b;
  if (op == "ReduceSum") {
    const V sum = b.sum(x, axes, keep);
    if (static_cast<int64_t>(axes.size()) == b.rank(x)) note_count(b, x, sum);
    return c.out(sum);
  }
  if (op == "ReduceMean") return c.out(axes.empty() ? x : b.mean(x, axes, keep));
  if (op == "ReduceProd") return c.out(reduce(c, "reduce_prod", x, axes, keep));
  if (op == "ReduceL1") return c.out(b.sum(b.add("abs", {x}), axes, keep));
  if (op == "ReduceSumSquare") return c.out(b.sum(b.add("mul", {x, x}), axes, keep));
  if (op == "ReduceL2") return c.out(b.add("sqrt", {b.sum(b.add("mul", {x, x}), axes, keep)}));
  if (op == "ReduceLogSum") return c.out(b.add("log", {b.sum(x, axes, keep)}));
  if (op == "ReduceLogSumExp") {
    // max + log(sum(exp(x - max))); an infinite max would make NaN of x - max.
    V high = reduce(c, "reduce_max", x, axes, true);
    high = b.add("clip", {high}, {{"min", -3e38}, {"max", 3e38}});
    const V total = b.add("log", {b.sum(b.add("exp", {b.add("sub", {x, high})}), axes, keep)});
    return c.out(b.add("add", {total, b.reshape(high, b.shape(total))}));
  }
  const char* name = op == "ReduceMax" ? "reduce_max" : "reduce_min";
  const DType dtype = b.dtype(x);
  if (dtype == DType::boolean) x = b.cast(x, DType::i32);
  if (takes_first(c) && axes.size() == 1)
    return c.out(
        b.add(name, {x}, {{"axes", axes}, {"keepdims", int64_t{keep}}, {"first", int64_t{1}}}));
  c.out(b.cast(reduce(c, name, x, axes, keep), dtype));
}

void arg(NodeContext& c) {
  c.out(c.b.add(c.op() == "ArgMax" ? "argmax" : "argmin", {c.in(0)},
                {{"axis", NodeContext::axis(c.attr_i("axis", 0), c.b.rank(c.in(0)))},
                 {"keepdims", c.attr_i("keepdims", 1)},
                 {"select_last_index", c.attr_i("select_last_index", 0)}}));
}

/// In the order of their size also where any order would do: nothing else repeats.
void top_k(NodeContext& c) {
  const V x = c.in(0);
  const Tensor& k = c.known(1, "K");
  SR_REQUIRE(k.count() == 1, invalid_input, "K is not a scalar");
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), c.b.rank(x));
  const int64_t size = c.b.shape(x)[static_cast<size_t>(axis)];
  SR_REQUIRE(k.int_at(0) >= 0 && k.int_at(0) <= size, invalid_input, "K is ", k.int_at(0), ", dim ",
             axis, " of ", c.b.type(x), " has ", size);
  c.ignore("sorted");
  const std::vector<V> results = c.b.add_n(
      "top_k", {x}, {{"axis", axis}, {"k", k.int_at(0)}, {"largest", c.attr_i("largest", 1)}});
  c.out(0, results[0]);
  c.out(1, results[1]);
}

/// Of booleans it counts: PyTorch's older exporter writes (x > 0).cumsum(1) without a Cast.
void cum_sum(NodeContext& c) {
  const Tensor& axis = c.known(1, "axis");
  SR_REQUIRE(axis.count() == 1, invalid_input, "axis is not a scalar");
  const bool counts = c.b.dtype(c.in(0)) == DType::boolean;
  c.out(c.b.add("cumsum", {counts ? c.b.cast(c.in(0), DType::i64) : c.in(0)},
                {{"axis", NodeContext::axis(axis.int_at(0), c.b.rank(c.in(0)))},
                 {"exclusive", c.attr_i("exclusive", 0)},
                 {"reverse", c.attr_i("reverse", 0)}}));
}

void softmax(NodeContext& c) {
  c.out(c.b.add(c.op() == "Softmax" ? "softmax" : "log_softmax", {c.in(0)},
                {{"axis", NodeContext::axis(c.attr_i("axis", -1), c.b.rank(c.in(0)))}}));
}

/// 1 at the first largest of each row, else 0.
void hardmax(NodeContext& c) {
  Builder& b = c.b;
  const V x = c.in(0);
  const int64_t axis = NodeContext::axis(c.attr_i("axis", -1), b.rank(x));
  const V first = b.add(
      "argmax", {x}, {{"axis", axis}, {"keepdims", int64_t{1}}, {"select_last_index", int64_t{0}}});
  Shape along(b.shape(x).size(), 1);
  along[static_cast<size_t>(axis)] = b.shape(x)[static_cast<size_t>(axis)];
  const V places = b.reshape(b.iota(along[static_cast<size_t>(axis)], 0, 1), along);
  c.out(b.cast(b.add("equal", {places, first}), b.dtype(x)));
}

// ReduceSum takes its axes as an input from 13, the others from 18.
constexpr Lowering kReduceLowerings[] = {{"ReduceSum", 11, reduce_any},
                                         {"ReduceMean", 11, reduce_any},
                                         {"ReduceMax", 11, reduce_any},
                                         {"ReduceMin", 11, reduce_any},
                                         {"ReduceProd", 11, reduce_any},
                                         {"ReduceL1", 11, reduce_any},
                                         {"ReduceL2", 11, reduce_any},
                                         {"ReduceLogSum", 11, reduce_any},
                                         {"ReduceLogSumExp", 11, reduce_any},
                                         {"ReduceSumSquare", 11, reduce_any},
                                         {"ArgMax", 12, arg},
                                         {"ArgMin", 12, arg},
                                         {"CumSum", 11, cum_sum},
                                         {"TopK", 11, top_k},
                                         {"Hardmax", 13, hardmax},
                                         {"Softmax", 13, softmax},
                                         {"LogSoftmax", 13, softmax}};

}  // namespace

std::span<const Lowering> reduce_lowerings() { return kReduceLowerings; }

}  // namespace shardrun::importer
