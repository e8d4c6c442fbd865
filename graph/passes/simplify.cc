// No-ops, equal nodes, and transposes that a matmul can swallow.
#include <algorithm>
#include <map>
#include <numeric>

#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

constexpr int64_t kMergedBytes = 4096;  // of equal constants

bool is_identity_perm(const std::vector<int64_t>& perm) {
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

/// letters[i] of the transposed value are letters[perm[i]] of the original: "abc" under perm
/// [2,0,1] names the original's dims so that transpose(original) reads the given letters.
std::string before_transpose(const std::string& letters, const std::vector<int64_t>& perm) {
  std::string out(letters.size(), '?');
  for (size_t i = 0; i < perm.size(); ++i) out[static_cast<size_t>(perm[i])] = letters[i];
  return out;
}

std::string after_transpose(const std::string& letters, const std::vector<int64_t>& perm) {
  std::string out;
  for (int64_t p : perm) out += letters[static_cast<size_t>(p)];
  return out;
}

}  // namespace

std::vector<int> use_counts(const Graph& graph) {
  std::vector<int> uses(graph.values().size(), 0);
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) ++uses[static_cast<size_t>(id)];
  }
  for (ValueId id : graph.outputs) ++uses[static_cast<size_t>(id)];
  if (graph.loss != kNoValue) ++uses[static_cast<size_t>(graph.loss)];
  for (const auto& [persistent, next] : graph.updates) ++uses[static_cast<size_t>(next)];
  for (const auto& [name, id] : graph.metrics) ++uses[static_cast<size_t>(id)];
  return uses;
}

int remove_no_ops(Graph& graph) {
  int count = 0;
  std::map<ValueId, ValueId> same;  // result of a no-op -> what it is
  auto real = [&](ValueId id) {
    const auto it = same.find(id);
    return it == same.end() ? id : it->second;
  };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    for (ValueId& id : node.inputs) id = real(id);
    if (node.op == "transpose") {
      if (const Node* inner = made_by(graph, node.inputs[0], "transpose")) {
        const std::vector<int64_t>& first = inner->attrs.ints("perm");
        std::vector<int64_t> both;
        for (int64_t p : node.attrs.ints("perm")) both.push_back(first[static_cast<size_t>(p)]);
        node.inputs[0] = inner->inputs[0];
        node.attrs.set("perm", both);
      }
      if (!is_identity_perm(node.attrs.ints("perm"))) continue;
    } else if (node.op == "reshape") {
      if (const Node* inner = made_by(graph, node.inputs[0], "reshape"))
        node.inputs[0] = inner->inputs[0];
      if (graph.type(node.inputs[0]) != graph.type(node.outputs[0])) continue;
    } else if (node.op == "cast" || node.op == "expand") {
      if (graph.type(node.inputs[0]) != graph.type(node.outputs[0])) continue;
    } else if (node.op != "identity" || node.attrs.i("detach", 0) != 0) {
      continue;
    }
    same[node.outputs[0]] = node.inputs[0];
    ++count;
  }
  for (ValueId& id : graph.outputs) id = real(id);
  if (graph.loss != kNoValue) graph.loss = real(graph.loss);
  for (auto& [persistent, next] : graph.updates) next = real(next);
  for (auto& [name, id] : graph.metrics) id = real(id);
  remove_dead_nodes(graph);
  return count;
}

int reshape_before_transposes(Graph& graph) {
  int count = 0;
  Replacer replacer(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node node = graph.nodes()[n];
    const Node* inner = node.op == "reshape" && replacer.used(node.outputs[0])
                            ? made_by(graph, node.inputs[0], "transpose")
                            : nullptr;
    if (inner == nullptr) continue;
    const std::vector<int64_t> perm = inner->attrs.ints("perm");
    const ValueId x = inner->inputs[0];
    const Shape from = graph.type(node.inputs[0]).shape, to = graph.type(node.outputs[0]).shape;
    size_t stay = 0;  // leading dims
    while (stay < perm.size() && perm[stay] == static_cast<int64_t>(stay)) ++stay;
    const size_t behind = perm.size() - stay;
    if (behind == 0 || to.size() < behind ||
        !std::equal(from.end() - static_cast<int64_t>(behind), from.end(),
                    to.end() - static_cast<int64_t>(behind)))
      continue;
    const size_t ahead = to.size() - behind;
    Shape first(to.begin(), to.begin() + static_cast<int64_t>(ahead));
    std::vector<int64_t> moved(ahead);
    std::iota(moved.begin(), moved.end(), int64_t{0});
    for (size_t d = stay; d < perm.size(); ++d) {
      first.push_back(graph.type(x).shape[d]);
      moved.push_back(perm[d] - static_cast<int64_t>(stay) + static_cast<int64_t>(ahead));
    }
    const ValueId reshaped = graph.add("reshape", {x}, {{"shape", first}}, node.name);
    replacer.replace(node.outputs[0],
                     graph.add("transpose", {reshaped}, {{"perm", moved}}, node.name));
    ++count;
  }
  replacer.finish();
  return count;
}

int merge_equal_nodes(Graph& graph) {
  int count = 0;
  std::map<ValueId, ValueId> merged;  // value -> the first of its equals
  auto first = [&](ValueId id) {
    const auto it = merged.find(id);
    return it == merged.end() ? id : it->second;
  };
  std::map<std::string, ValueId> constants;
  for (ValueId id : graph.with_role(Role::constant)) {
    const auto it = graph.sources.find(id);
    const int64_t bytes = byte_size(graph.type(id));
    if (it == graph.sources.end() || it->second.kind != Source::Kind::data ||
        bytes > kMergedBytes || !it->second.perm.empty())
      continue;
    const Tensor& data = it->second.data;
    if (data.type() != graph.type(id)) continue;
    const std::string key =
        to_string(data.type()) +
        std::string(static_cast<const char*>(data.data()), static_cast<size_t>(bytes));
    const auto [seen, fresh] = constants.emplace(key, id);
    if (!fresh) merged[id] = seen->second;
  }
  std::map<std::string, std::vector<NodeId>> by_call;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    std::string call = node.op + (node.phase == Phase::update ? " u" : " m");
    for (ValueId& id : node.inputs) {
      id = first(id);
      call += "," + std::to_string(id);
    }
    std::vector<NodeId>& same_call = by_call[call];
    bool found = false;
    for (NodeId other : same_call) {
      if (graph.node(other).attrs != node.attrs) continue;
      for (size_t i = 0; i < node.outputs.size(); ++i)
        merged[node.outputs[i]] = graph.node(other).outputs[i];
      found = true;
      ++count;
      break;
    }
    if (!found) same_call.push_back(static_cast<NodeId>(n));
  }
  for (ValueId& id : graph.outputs) id = first(id);
  if (graph.loss != kNoValue) graph.loss = first(graph.loss);
  for (auto& [persistent, next] : graph.updates) next = first(next);
  for (auto& [name, id] : graph.metrics) id = first(id);
  remove_dead_nodes(graph);
  return count;
}

int fold_powers(Graph& graph) {
  int count = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op != "pow" || graph.type(node.inputs[0]) != graph.type(node.outputs[0])) continue;
    const std::optional<double> exponent = uniform_value(graph, node.inputs[1]);
    if (exponent == 2.0) {
      node.op = "mul";
      node.inputs[1] = node.inputs[0];
    } else if (exponent == -1.0 && is_float(graph.type(node.inputs[0]).dtype)) {
      node.op = "reciprocal";
      node.inputs.resize(1);
    } else {
      continue;
    }
    ++count;
  }
  remove_dead_nodes(graph);
  return count;
}

int mask_before_dropout(Graph& graph) {
  int count = 0;
  const std::vector<int> uses = use_counts(graph);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& mask = graph.node(static_cast<NodeId>(n));
    if (mask.op != "where") continue;
    for (const size_t side : {1, 2}) {
      const ValueId dropped = mask.inputs[side];
      if (made_by(graph, dropped, "dropout") == nullptr ||
          uses[static_cast<size_t>(dropped)] != 1 ||
          graph.type(dropped) != graph.type(mask.outputs[0]) ||
          uniform_value(graph, mask.inputs[3 - side]) != 0.0)
        continue;
      Node& dropout = graph.node(graph.value(dropped).producer);
      if (dropout.phase != mask.phase) continue;
      const ValueId x = dropout.inputs[0], step = dropout.inputs[1];
      std::swap(dropout.op, mask.op);
      std::swap(dropout.name, mask.name);
      std::swap(dropout.attrs, mask.attrs);
      dropout.inputs = mask.inputs;
      dropout.inputs[side] = x;
      mask.inputs = {dropped, step};
      ++count;
      break;
    }
  }
  if (count > 0) sort_nodes(graph);  // the condition may be made behind the dropout
  return count;
}

int fold_transposes(Graph& graph) {
  int count = 0;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = graph.node(static_cast<NodeId>(n));
    if (node.op != "matmul") continue;
    const std::string equation = node.attrs.s("equation");
    const size_t comma = equation.find(','), arrow = equation.find("->");
    std::string letters[2] = {equation.substr(0, comma),
                              equation.substr(comma + 1, arrow - comma - 1)};
    std::string out = equation.substr(arrow + 2);
    for (size_t i : {0, 1}) {
      while (const Node* transpose = made_by(graph, node.inputs[i], "transpose")) {
        letters[i] = before_transpose(letters[i], transpose->attrs.ints("perm"));
        node.inputs[i] = transpose->inputs[0];
        ++count;
      }
    }
    node.attrs.set("equation", letters[0] + "," + letters[1] + "->" + out);
  }
  const std::vector<int> uses = use_counts(graph);
  std::vector<Node> nodes = graph.nodes();
  std::vector<bool> gone(nodes.size(), false);
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].op != "transpose") continue;
    const ValueId from = nodes[n].inputs[0];
    const NodeId producer = graph.value(from).producer;
    if (producer < 0 || nodes[static_cast<size_t>(producer)].op != "matmul" ||
        uses[static_cast<size_t>(from)] != 1)
      continue;
    Node& matmul = nodes[static_cast<size_t>(producer)];
    if (matmul.outputs[0] != from) continue;
    std::string equation = matmul.attrs.s("equation");
    const size_t arrow = equation.find("->");
    const std::string out =
        after_transpose(equation.substr(arrow + 2), nodes[n].attrs.ints("perm"));
    matmul.attrs.set("equation", equation.substr(0, arrow + 2) + out);
    matmul.outputs[0] = nodes[n].outputs[0];
    gone[n] = true;
    ++count;
  }
  std::vector<Node> kept;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!gone[n]) kept.push_back(nodes[n]);
  }
  graph.set_nodes(std::move(kept));
  remove_dead_nodes(graph);
  return count;
}

}  // namespace shardrun
