// Fused projections (query, key and value in one matrix) taken apart.
#include <set>

#include "graph/passes/equation.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

/// y = matmul(x, W) [+ bias] cut along its last dim into equal parts by split or by slices.
struct Projection {
  NodeId matmul = -1, add = -1;
  ValueId weight = kNoValue, bias = kNoValue;
  std::vector<ValueId> parts;  // what the split makes, in order
};

std::map<ValueId, std::vector<NodeId>> users_of(const Graph& g) {
  std::map<ValueId, std::vector<NodeId>> users;
  for (size_t n = 0; n < g.nodes().size(); ++n) {
    for (ValueId id : g.nodes()[n].inputs) users[id].push_back(static_cast<NodeId>(n));
  }
  for (ValueId id : g.outputs) users[id].push_back(-1);
  return users;
}

/// The equal parts of `whole` along its last dim in order, if all its users together are such a
/// split.
std::vector<ValueId> equal_parts(const Graph& g, ValueId whole, const std::vector<NodeId>& users) {
  const Shape& shape = g.type(whole).shape;
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  if (users.size() == 1 && users[0] >= 0 && g.node(users[0]).op == "split") {
    const Node& split = g.node(users[0]);
    const std::vector<int64_t>& sizes = split.attrs.ints("sizes");
    if (split.attrs.i("axis") != last || std::set<int64_t>(sizes.begin(), sizes.end()).size() != 1)
      return {};
    return split.outputs;
  }
  std::map<int64_t, ValueId> by_start;
  for (NodeId user : users) {
    if (user < 0 || g.node(user).op != "slice") return {};
    const Node& slice = g.node(user);
    const Shape& part = g.type(slice.outputs[0]).shape;
    const std::vector<int64_t>& steps = slice.attrs.ints("steps");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (steps[d] != 1 || (d + 1 < shape.size() && part[d] != shape[d])) return {};
    }
    if (!by_start.emplace(slice.attrs.ints("starts").back(), slice.outputs[0]).second) return {};
  }
  std::vector<ValueId> parts;
  int64_t at = 0;
  for (const auto& [start, part] : by_start) {
    const int64_t size = g.type(part).shape.back();
    if (start != at || size != g.type(by_start.begin()->second).shape.back()) return {};
    at += size;
    parts.push_back(part);
  }
  return at == shape.back() ? parts : std::vector<ValueId>{};
}

bool sole_parameter(const Graph& g, ValueId id,
                    const std::map<ValueId, std::vector<NodeId>>& users) {
  return id != kNoValue && g.value(id).role == Role::parameter && users.at(id).size() == 1;
}

}  // namespace

int split_projections(Graph& graph) {
  int count = 0;
  const auto nodes = static_cast<NodeId>(graph.nodes().size());
  const auto users = users_of(graph);
  auto users_of_value = [&](ValueId id) {
    const auto it = users.find(id);
    return it == users.end() ? std::vector<NodeId>{} : it->second;
  };
  for (NodeId n = 0; n < nodes; ++n) {
    const Node matmul = graph.node(n);
    if (matmul.op != "matmul") continue;
    Equation eq = Equation::parse(matmul.attrs.s("equation"));
    Projection found;
    found.matmul = n;
    found.weight = matmul.inputs[1];
    ValueId whole = matmul.outputs[0];
    const char column = eq.out.back();
    if (!sole_parameter(graph, found.weight, users) || !has_letter(eq.b, column) ||
        has_letter(eq.a, column))
      continue;
    std::vector<NodeId> next = users_of_value(whole);
    if (next.size() == 1 && next[0] >= 0 && graph.node(next[0]).op == "add") {
      const Node& add = graph.node(next[0]);
      found.bias = add.inputs[add.inputs[0] == whole ? 1 : 0];
      if (!sole_parameter(graph, found.bias, users) || graph.type(found.bias).shape.size() != 1)
        continue;
      found.add = next[0];
      whole = add.outputs[0];
      next = users_of_value(whole);
    }
    found.parts = equal_parts(graph, whole, next);
    const auto k = static_cast<int64_t>(found.parts.size());
    if (k < 2) continue;

    // W [.., C k] becomes [.., k, C], the bias [k, C], the result [.., k, C]: one new letter.
    char fresh = 'a';
    while (has_letter(eq.a + eq.b, fresh)) ++fresh;
    const int64_t width = graph.type(whole).shape.back() / k;
    auto widen = [&](std::string& letters) { letters.insert(letters.find(column), 1, fresh); };
    auto reshape_parameter = [&](ValueId id, size_t dim) {
      Shape& shape = graph.value(id).type.shape;
      graph.file_shapes.try_emplace(id, shape);
      shape[dim] = width;
      shape.insert(shape.begin() + static_cast<int64_t>(dim), k);
    };
    reshape_parameter(found.weight, eq.b.find(column));
    widen(eq.b);
    widen(eq.out);
    Attrs attrs = matmul.attrs;
    attrs.set("equation", eq.text());
    ValueId y =
        graph.add("matmul", {matmul.inputs[0], found.weight}, attrs, matmul.name + "/split");
    if (found.bias != kNoValue) {
      reshape_parameter(found.bias, 0);
      y = graph.add("add", {y, found.bias}, {}, graph.node(found.add).name + "/split");
    }
    const Shape shape = graph.type(y).shape;
    for (int64_t i = 0; i < k; ++i) {
      std::vector<int64_t> starts(shape.size(), 0), ends(shape), steps(shape.size(), 1);
      starts[shape.size() - 2] = i;
      ends[shape.size() - 2] = i + 1;
      const ValueId part =
          graph.add("slice", {y}, {{"starts", starts}, {"ends", ends}, {"steps", steps}},
                    matmul.name + "/part");
      graph.replace_uses(
          found.parts[static_cast<size_t>(i)],
          graph.add("reshape", {part},
                    {{"shape", graph.type(found.parts[static_cast<size_t>(i)]).shape}},
                    matmul.name + "/part_view"));
    }
    ++count;
  }
  sort_nodes(graph);
  remove_dead_nodes(graph);
  return count;
}

}  // namespace shardrun
