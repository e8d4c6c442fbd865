// Softmax over segments, as exporters write graph attention over a list of edges.
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

/// What keeps divisors from 0 where a segment is empty: nothing compared with the sum of one that
/// is not, as that holds exp(0).
constexpr double kMostGuard = 1e-9;

/// The table of which `rows` of a gather along dim 0 names the rows; kNoValue if `id` is not such.
ValueId table_of(const Graph& g, ValueId id, ValueId rows) {
  const Node* gather = made_by(g, id, "gather");
  if (!gather || gather->attrs.i("axis") != 0 || gather->attrs.i("offset", 0) != 0 ||
      gather->attrs.has("padding") || (rows != kNoValue && gather->inputs[1] != rows))
    return kNoValue;
  return gather->inputs[0];
}

/// `id` without a guard that is added to it.
ValueId unguarded(const Graph& g, ValueId id) {
  if (const Node* plus = made_by(g, id, "add")) {
    for (size_t i : {0, 1}) {
      const std::optional<double> guard = uniform_value(g, plus->inputs[i]);
      if (guard && *guard >= 0 && *guard <= kMostGuard) return plus->inputs[1 - i];
    }
  }
  return id;
}

struct SegmentSoftmax {
  ValueId x = kNoValue, rows = kNoValue;
  int64_t size = 0;
};

/// w / total[rows], where total = gather_grad(w, rows) and w = exp(x - shift[rows]). Whatever the
/// shift, it falls out of the quotient.
std::optional<SegmentSoftmax> match_segment_softmax(const Graph& g, const Node& quotient) {
  const ValueId w = quotient.inputs[0], divisor = quotient.inputs[1];
  const Node* exp = made_by(g, w, "exp");
  const Node* gather = made_by(g, divisor, "gather");
  if (!exp || !gather || g.type(w) != g.type(divisor)) return std::nullopt;
  SegmentSoftmax found;
  found.rows = gather->inputs[1];
  const ValueId total = table_of(g, divisor, found.rows);
  const Node* sum = total == kNoValue ? nullptr : made_by(g, unguarded(g, total), "gather_grad");
  if (!sum || sum->inputs != std::vector<ValueId>{w, found.rows} || sum->attrs.i("axis") != 0 ||
      sum->attrs.i("offset", 0) != 0 || g.type(found.rows).shape.size() != 1)
    return std::nullopt;
  found.size = sum->attrs.i("size");
  const Node* sub = made_by(g, exp->inputs[0], "sub");
  if (!sub || table_of(g, sub->inputs[1], found.rows) == kNoValue ||
      g.type(sub->inputs[0]) != g.type(w) || g.type(sub->inputs[1]) != g.type(w))
    return std::nullopt;
  found.x = sub->inputs[0];
  return found;
}

}  // namespace

int recognise_segment_softmax(Graph& graph) {
  int count = 0;
  Replacer replacer(graph);
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];
    if (node.op != "div" || !replacer.used(node.outputs[0])) continue;
    const std::optional<SegmentSoftmax> found = match_segment_softmax(graph, node);
    if (!found) continue;
    const std::string name = node.name + "/segment_softmax";
    const ValueId top =
        graph.add("segment_max", {found->x, found->rows}, {{"size", found->size}}, name + "/top");
    const ValueId total =
        graph.add("segment_exp_sum", {found->x, top, found->rows}, {}, name + "/total");
    replacer.replace(node.outputs[0],
                     graph.add("segment_softmax", {found->x, top, total, found->rows}, {}, name));
    ++count;
  }
  replacer.finish();
  return count;
}

}  // namespace shardrun
