// Attention from its products and softmax, and fused query-key-value projections taken apart.
#include <algorithm>
#include <limits>
#include <set>

#include "graph/passes/fuse.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"

namespace shardrun {
namespace {

struct Equation {
  std::string a, b, out;
};

Equation split_equation(const std::string& text) {
  const size_t comma = text.find(','), arrow = text.find("->");
  return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
}

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

/// The permutation that brings a value whose dims are named `from` into the order `to`.
std::vector<int64_t> permutation(const std::string& from, const std::string& to) {
  std::vector<int64_t> perm;
  for (char c : to) perm.push_back(static_cast<int64_t>(from.find(c)));
  return perm;
}

ValueId permuted(Graph& g, ValueId value, const std::string& from, const std::string& to) {
  return from == to ? value : g.add("transpose", {value}, {{"perm", permutation(from, to)}});
}

/// A constant mask [.., T, S] that keeps exactly s <= t + S - T. Values: keep(x) says whether kept.
template <class Keep>
bool is_causal(const Tensor& mask, int64_t rows, int64_t columns, Keep keep) {
  const Shape& shape = mask.shape();
  if (shape.size() < 2 || mask.count() != rows * columns || shape[shape.size() - 2] != rows) return false;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t s = 0; s < columns; ++s) {
      if (keep(mask.at(t * columns + s)) != (s <= t + columns - rows)) return false;
    }
  }
  return true;
}

constexpr double kMasked = -1e4;  // exporters write -inf, the dtype's lowest, -1e9, -1e4 …

struct Scores {
  const Node* product = nullptr;   // matmul of query and key
  double scale = 1;
  bool causal = false;
  ValueId mask = kNoValue;         // additive or boolean, as attention takes it
};

/// Walks from the softmax's operand to the product.
std::optional<Scores> match_scores(Graph& g, ValueId at) {
  Scores found;
  const Shape shape = g.type(at).shape;
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  for (int depth = 0; depth < 8; ++depth) {
    if (const Node* product = made_by(g, at, "matmul")) {
      found.product = product;
      return found;
    }
    if (const Node* where = made_by(g, at, "where")) {
      const std::optional<double> yes = uniform_value(g, where->inputs[1]), no = uniform_value(g, where->inputs[2]);
      const bool drops_true = yes && *yes <= kMasked;
      if (found.mask != kNoValue || found.causal || (!drops_true && !(no && *no <= kMasked))) return std::nullopt;
      const ValueId condition = where->inputs[0];
      at = where->inputs[drops_true ? 2 : 1];
      const std::optional<Tensor> data = constant_data(g, condition);
      if (data && is_causal(*data, rows, columns, [&](double x) { return (x != 0) != drops_true; })) {
        found.causal = true;
      } else {
        found.mask = drops_true ? g.add("logical_not", {condition}) : condition;
      }
      continue;
    }
    if (const Node* plus = made_by(g, at, "add")) {
      if (found.mask != kNoValue || found.causal) return std::nullopt;
      bool matched = false;
      for (size_t i : {0, 1}) {
        const ValueId mask = plus->inputs[i];
        const std::optional<Tensor> data = constant_data(g, mask);
        if (!data || monomial_of(g, plus->inputs[1 - i]).factors.size() != 1) continue;
        bool zero_or_masked = true;
        for (int64_t k = 0; k < data->count(); ++k) zero_or_masked = zero_or_masked && (data->at(k) == 0 || data->at(k) <= kMasked);
        if (zero_or_masked && is_causal(*data, rows, columns, [](double x) { return x == 0; })) {
          found.causal = true;
        } else {
          found.mask = mask;
        }
        at = plus->inputs[1 - i];
        matched = true;
        break;
      }
      if (!matched) return std::nullopt;
      continue;
    }
    const Monomial m = monomial_of(g, at);
    if (m.factors.size() != 1 || !close(m.factors.begin()->second, 1) || m.factors.begin()->first == at) return std::nullopt;
    // A scale outside of a mask would scale the mask as well; -inf stays -inf, 0 stays 0.
    if (found.mask != kNoValue && is_float(g.type(found.mask).dtype)) return std::nullopt;
    found.scale *= m.coefficient;
    at = m.factors.begin()->first;
  }
  return std::nullopt;
}

/// Takes a constant factor out of a query or key.
ValueId without_scale(const Graph& g, ValueId value, double& scale) {
  const Monomial m = monomial_of(g, value);
  if (m.factors.size() != 1 || !close(m.factors.begin()->second, 1)) return value;
  if (g.type(m.factors.begin()->first) != g.type(value)) return value;
  scale *= m.coefficient;
  return m.factors.begin()->first;
}

bool fuse_one(Graph& g, NodeId n) {
  const Node output = g.node(n);
  if (output.op != "matmul") return false;
  const Equation pv = split_equation(output.attrs.s("equation"));
  for (size_t side : {0, 1}) {
    ValueId at = output.inputs[side];
    double dropout = 0;
    Node dropout_node;
    const Node* softmax = nullptr;
    for (int depth = 0; depth < 5 && !softmax; ++depth) {
      softmax = made_by(g, at, "softmax");
      if (softmax) break;
      if (const Node* drop = made_by(g, at, "dropout")) {
        dropout_node = *drop;
        dropout = drop->attrs.f("p");
        at = drop->inputs[0];
      } else if (const Node* where = made_by(g, at, "where"); where && made_by(g, where->inputs[0], "isnan")) {
        at = where->inputs[2];   // rows with nothing kept become 0 instead of NaN
      } else {
        break;
      }
    }
    if (!softmax) continue;
    const TensorType weights = g.type(softmax->outputs[0]);
    if (weights.shape.size() != 4 || softmax->attrs.i("axis") != 3) continue;
    const std::optional<Scores> scores = match_scores(g, softmax->inputs[0]);
    if (!scores) continue;
    const Equation qk = split_equation(scores->product->attrs.s("equation"));
    const std::string p = side == 0 ? pv.a : pv.b, v = side == 0 ? pv.b : pv.a;  // letters of pv
    if (qk.out.size() != 4 || p.size() != 4 || v.size() != 4 || pv.out.size() != 4 || qk.a.size() != 4 || qk.b.size() != 4) continue;
    // In the scores' own letters: two batch letters, then rows t, then columns s.
    const char t = qk.out[2], s = qk.out[3];
    const bool a_is_query = has(qk.a, t) && !has(qk.a, s) && has(qk.b, s) && !has(qk.b, t);
    const bool b_is_query = has(qk.b, t) && !has(qk.b, s) && has(qk.a, s) && !has(qk.a, t);
    if (!a_is_query && !b_is_query) continue;
    const std::string& q_letters = a_is_query ? qk.a : qk.b;
    const std::string& k_letters = a_is_query ? qk.b : qk.a;
    const std::string batch = qk.out.substr(0, 2);
    char d = 0;
    for (char c : q_letters) {
      if (!has(qk.out, c)) d = c;
    }
    if (!d || !has(k_letters, d) || !has(q_letters, batch[0]) || !has(q_letters, batch[1]) || !has(k_letters, batch[0]) ||
        !has(k_letters, batch[1])) {
      continue;
    }
    // pv: weights [b h t s] times values with s contracted.
    const char pv_s = p[3], pv_t = p[2];
    char e = 0;
    for (char c : v) {
      if (!has(p, c)) e = c;
    }
    if (!e || has(pv.out, pv_s) || !has(v, p[0]) || !has(v, p[1]) || !has(v, pv_s) || has(v, pv_t) || !has(pv.out, e)) continue;

    double scale = scores->scale;
    const ValueId q0 = without_scale(g, scores->product->inputs[a_is_query ? 0 : 1], scale);
    const ValueId k0 = without_scale(g, scores->product->inputs[a_is_query ? 1 : 0], scale);
    const ValueId v0 = output.inputs[1 - side];
    const ValueId q = permuted(g, q0, q_letters, batch + t + d);
    const ValueId k = permuted(g, k0, k_letters, batch + s + d);
    const ValueId value = permuted(g, v0, v, std::string{p[0], p[1], pv_s, e});
    std::vector<ValueId> inputs = {q, k, value};
    const int64_t rows = weights.shape[2], columns = weights.shape[3];
    Attrs attrs{{"scale", scale}, {"causal", int64_t{scores->causal}}, {"q_offset", scores->causal ? columns - rows : 0},
                {"has_mask", int64_t{scores->mask != kNoValue}}, {"dropout", dropout}};
    if (scores->mask != kNoValue) {
      ValueId mask = scores->mask;
      Shape shape = g.type(mask).shape;
      if (shape.size() > 4) return false;
      if (shape.size() < 4) {
        shape.insert(shape.begin(), 4 - shape.size(), 1);
        mask = g.add("reshape", {mask}, {{"shape", shape}});
      }
      inputs.push_back(mask);
    }
    if (dropout > 0) {
      attrs.set("key", dropout_node.attrs.i("key"));
      attrs.set("seed", dropout_node.attrs.i("seed"));
      attrs.set("global_shape", weights.shape);
      attrs.set("start", std::vector<int64_t>(4, 0));
      inputs.push_back(dropout_node.inputs[1]);
    }
    const ValueId y = g.add_node("attention", inputs, attrs, output.name + "/attention")[0];
    const ValueId result = permuted(g, y, std::string{p[0], p[1], pv_t, e}, pv.out);
    g.replace_uses(output.outputs[0], result);
    return true;
  }
  return false;
}

}  // namespace

int fuse_attention(Graph& graph) {
  int count = 0;
  const auto nodes = static_cast<NodeId>(graph.nodes().size());
  for (NodeId n = 0; n < nodes; ++n) count += fuse_one(graph, n);
  sort_nodes(graph);
  remove_dead_nodes(graph);
  return count;
}

namespace {

/// y = matmul(x, W) [+ bias] cut along its last dim into equal parts by split or by slices.
struct Projection {
  NodeId matmul = -1, add = -1;
  ValueId weight = kNoValue, bias = kNoValue;
  std::vector<ValueId> parts;   // what the split makes, in order
};

std::map<ValueId, std::vector<NodeId>> users_of(const Graph& g) {
  std::map<ValueId, std::vector<NodeId>> users;
  for (size_t n = 0; n < g.nodes().size(); ++n) {
    for (ValueId id : g.nodes()[n].inputs) users[id].push_back(static_cast<NodeId>(n));
  }
  for (ValueId id : g.outputs) users[id].push_back(-1);
  return users;
}

/// The equal parts of `whole` along its last dim in order, if all its users together are such a split.
std::vector<ValueId> equal_parts(const Graph& g, ValueId whole, const std::vector<NodeId>& users) {
  const Shape& shape = g.type(whole).shape;
  const auto last = static_cast<int64_t>(shape.size()) - 1;
  if (users.size() == 1 && users[0] >= 0 && g.node(users[0]).op == "split") {
    const Node& split = g.node(users[0]);
    const std::vector<int64_t>& sizes = split.attrs.ints("sizes");
    if (split.attrs.i("axis") != last || std::set<int64_t>(sizes.begin(), sizes.end()).size() != 1) return {};
    return split.outputs;
  }
  std::map<int64_t, ValueId> by_start;
  for (NodeId user : users) {
    if (user < 0 || g.node(user).op != "slice") return {};
    const Node& slice = g.node(user);
    const Shape& part = g.type(slice.outputs[0]).shape;
    for (size_t d = 0; d + 1 < shape.size(); ++d) {
      if (part[d] != shape[d]) return {};
    }
    if (slice.attrs.ints("steps").back() != 1) return {};
    by_start[slice.attrs.ints("starts").back()] = slice.outputs[0];
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

bool sole_parameter(const Graph& g, ValueId id, const std::map<ValueId, std::vector<NodeId>>& users) {
  return id != kNoValue && g.value(id).role == Role::parameter && users.at(id).size() == 1 &&
         g.sources.at(id).perm.empty();
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
    Equation eq = split_equation(matmul.attrs.s("equation"));
    Projection found;
    found.matmul = n;
    found.weight = matmul.inputs[1];
    ValueId whole = matmul.outputs[0];
    const char column = eq.out.back();
    if (!sole_parameter(graph, found.weight, users) || !has(eq.b, column) || has(eq.a, column)) continue;
    std::vector<NodeId> next = users_of_value(whole);
    if (next.size() == 1 && next[0] >= 0 && graph.node(next[0]).op == "add") {
      const Node& add = graph.node(next[0]);
      found.bias = add.inputs[add.inputs[0] == whole ? 1 : 0];
      if (!sole_parameter(graph, found.bias, users) || graph.type(found.bias).shape.size() != 1) continue;
      found.add = next[0];
      whole = add.outputs[0];
      next = users_of_value(whole);
    }
    found.parts = equal_parts(graph, whole, next);
    const auto k = static_cast<int64_t>(found.parts.size());
    if (k < 2) continue;

    // W [.., C k] becomes [.., k, C], the bias [k, C], the result [.., k, C]: one new letter.
    char fresh = 'a';
    while (has(eq.a + eq.b, fresh)) ++fresh;
    const int64_t width = graph.type(whole).shape.back() / k;
    auto widen = [&](std::string& letters) { letters.insert(letters.find(column), 1, fresh); };
    auto reshape_parameter = [&](ValueId id, size_t dim) {
      Shape& shape = graph.value(id).type.shape;
      Source& source = graph.sources.at(id);
      if (source.shape.empty()) source.shape = shape;
      shape[dim] = width;
      shape.insert(shape.begin() + static_cast<int64_t>(dim), k);
    };
    reshape_parameter(found.weight, eq.b.find(column));
    widen(eq.b);
    widen(eq.out);
    Attrs attrs = matmul.attrs;
    attrs.set("equation", eq.a + "," + eq.b + "->" + eq.out);
    ValueId y = graph.add("matmul", {matmul.inputs[0], found.weight}, attrs, matmul.name + "/split");
    if (found.bias != kNoValue) {
      reshape_parameter(found.bias, 0);
      y = graph.add("add", {y, found.bias}, {}, graph.node(found.add).name + "/split");
    }
    const Shape shape = graph.type(y).shape;
    for (int64_t i = 0; i < k; ++i) {
      std::vector<int64_t> starts(shape.size(), 0), ends(shape), steps(shape.size(), 1);
      starts[shape.size() - 2] = i;
      ends[shape.size() - 2] = i + 1;
      const ValueId part = graph.add("slice", {y}, {{"starts", starts}, {"ends", ends}, {"steps", steps}}, matmul.name + "/part");
      graph.replace_uses(found.parts[static_cast<size_t>(i)],
                         graph.add("reshape", {part}, {{"shape", graph.type(found.parts[static_cast<size_t>(i)]).shape}}, matmul.name + "/part_view"));
    }
    ++count;
  }
  sort_nodes(graph);
  remove_dead_nodes(graph);
  return count;
}

}  // namespace shardrun
