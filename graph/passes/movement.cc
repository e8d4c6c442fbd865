// Transposes of dims of 1, expands in front of element-wise ops, and sums of padded pieces.
#include "graph/passes/movement.h"

#include <algorithm>
#include <map>
#include <optional>

#include "graph/ops/elementwise.h"
#include "graph/ops/gradients.h"
#include "graph/ops/movement.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

/// An operand of a sum that is zero but for [begin, end) of one dim.
struct Piece {
  ValueId padded = kNoValue, inner = kNoValue;
  size_t dim = 0;
  int64_t begin = 0, end = 0;
};

std::optional<Piece> piece_of(const Graph& graph, ValueId id) {
  const Node* pad = made_by(graph, id, "pad");
  if (pad == nullptr || pad->attrs.s("mode", "constant") != "constant" ||
      pad->attrs.f("value", 0) != 0)
    return std::nullopt;
  const std::vector<int64_t>&before = pad->attrs.ints("before"), &after = pad->attrs.ints("after");
  std::optional<Piece> out;
  for (size_t d = 0; d < before.size(); ++d) {
    if (before[d] == 0 && after[d] == 0) continue;
    if (out) return std::nullopt;
    out = Piece{id, pad->inputs[0], d, before[d], graph.type(id).shape[d] - after[d]};
  }
  return out;
}

/// What a tree of sums adds up, from left to right: sums of its shape that only it reads are taken
/// apart, and added to `inside`.
std::vector<ValueId> summands(const Graph& graph, const Node& sum, const std::vector<int>& uses,
                              std::vector<ValueId>& inside) {
  const TensorType& type = graph.type(sum.outputs[0]);
  std::vector<ValueId> out, open(sum.inputs.rbegin(), sum.inputs.rend());
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    const Node* inner = made_by(graph, id, "add");
    if (inner != nullptr && inner->phase == sum.phase && uses[static_cast<size_t>(id)] == 1 &&
        graph.type(id) == type) {
      open.insert(open.end(), inner->inputs.rbegin(), inner->inputs.rend());
      inside.push_back(id);
    } else {
      out.push_back(id);
    }
  }
  return out;
}

/// Joins runs of two pieces or more, each where the one before ends. They leave `terms` for what
/// they become. Returns how many they were.
int join_runs(Graph& graph, std::vector<Piece> pieces, std::vector<ValueId>& terms,
              const std::string& name) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.dim, a.begin) < std::pair(b.dim, b.begin);
  });
  int count = 0;
  for (size_t first = 0, last = 0; first < pieces.size(); first = last) {
    std::vector<ValueId> inner;
    for (last = first; last < pieces.size() && pieces[last].dim == pieces[first].dim &&
                       (last == first || pieces[last].begin == pieces[last - 1].end);
         ++last)
      inner.push_back(pieces[last].inner);
    if (inner.size() < 2) continue;
    const size_t dim = pieces[first].dim;
    const int64_t size = graph.type(pieces[first].padded).shape[dim];
    const ValueId joined =
        graph.add("concat", inner, {{"axis", static_cast<int64_t>(dim)}}, name + "/pieces");
    for (size_t p = first; p < last; ++p) std::erase(terms, pieces[p].padded);
    terms.insert(terms.begin(),
                 pad_dim(graph, joined, dim, pieces[first].begin, size - pieces[last - 1].end));
    count += static_cast<int>(inner.size());
  }
  return count;
}

}  // namespace

bool moves_only_ones(const Shape& shape, const std::vector<int64_t>& perm) {
  std::vector<int64_t> others = perm;
  std::erase_if(others, [&](int64_t d) { return shape[static_cast<size_t>(d)] == 1; });
  return std::is_sorted(others.begin(), others.end());
}

int reshape_transposes(Graph& graph) {
  int count = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op != "transpose" ||
        !moves_only_ones(graph.type(node.inputs[0]).shape, node.attrs.ints("perm")))
      continue;
    node.op = "reshape";
    node.attrs = {{"shape", graph.type(node.outputs[0]).shape}};
    ++count;
  }
  return count;
}

int sink_expands(Graph& graph) {
  int count = 0;
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];                                // a copy: the graph grows
    if (!is_elementwise(node.op) || node.op == "gelu_grad") continue;  // which wants equal shapes
    std::vector<ValueId> inputs = node.inputs;
    Shape shape;
    for (ValueId& id : inputs) {
      const Node* expand = made_by(graph, id, "expand");
      if (expand != nullptr && expand->phase == node.phase) id = expand->inputs[0];
      shape = broadcast_shape(shape, graph.type(id).shape);
    }
    if (inputs == node.inputs) continue;
    const Shape wide = graph.type(node.outputs[0]).shape;
    if (shape == wide) {
      graph.node(static_cast<NodeId>(n)).inputs = inputs;
    } else {
      graph.phase = node.phase;
      const ValueId narrow = graph.add(node.op, inputs, node.attrs, node.name + "/narrow");
      graph.phase = Phase::micro;
      Node& expand = graph.node(static_cast<NodeId>(n));
      expand.op = "expand";
      expand.attrs = {{"shape", wide}};
      expand.inputs = {narrow};
    }
    ++count;
  }
  if (count > 0) sort_nodes(graph);  // what is narrow was appended
  remove_dead_nodes(graph);
  return count;
}

int join_pieces(Graph& graph) {
  int count = 0;
  const std::vector<int> uses = use_counts(graph);
  std::vector<bool> of_no_pieces(uses.size(), false);  // sums within a tree of such
  Replacer replacer(graph);
  for (size_t n = graph.nodes().size(); n-- > 0;) {  // a tree's last sum before those in it
    if (graph.nodes()[n].op != "add") continue;
    const Node sum = graph.nodes()[n];  // a copy: the graph grows
    const TensorType type = graph.type(sum.outputs[0]);
    if (!replacer.used(sum.outputs[0]) || of_no_pieces[static_cast<size_t>(sum.outputs[0])])
      continue;
    std::vector<ValueId> inside;
    std::vector<ValueId> terms = summands(graph, sum, uses, inside);
    std::vector<Piece> pieces;
    for (ValueId id : terms) {
      const std::optional<Piece> piece = piece_of(graph, id);
      if (piece && graph.type(id) == type && uses[static_cast<size_t>(id)] == 1)
        pieces.push_back(*piece);
    }
    if (pieces.empty()) {
      for (ValueId id : inside) of_no_pieces[static_cast<size_t>(id)] = true;
      continue;
    }
    graph.phase = sum.phase;
    if (const int joined = join_runs(graph, pieces, terms, sum.name)) {
      ValueId total = terms[0];
      for (size_t t = 1; t < terms.size(); ++t)
        total = graph.add("add", {total, terms[t]}, {}, sum.name);
      replacer.replace(sum.outputs[0], total);
      count += joined;
    }
  }
  graph.phase = Phase::micro;
  replacer.finish();
  return count;
}

void remove_movement(Graph& graph) {
  join_pieces(graph);
  reshape_transposes(graph);
  sink_expands(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op == "identity") node.attrs = {};
  }
  remove_no_ops(graph);
}

}  // namespace shardrun
