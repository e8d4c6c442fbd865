// Products with a matrix that is picked from a table for each row: experts, as transformers exports
// them.
#include <algorithm>

#include "graph/passes/equation.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

struct PickedProduct {
  size_t weights = 0;  // the operand that is table[rows]
  ValueId table = kNoValue, rows = kNoValue;
};

/// Elements of the dims whose letters are in `term` and not in `other`.
int64_t elements_only_in(const std::string& term, const std::string& other, const Shape& shape) {
  int64_t count = 1;
  for (size_t d = 0; d < term.size(); ++d) count *= has_letter(other, term[d]) ? 1 : shape[d];
  return count;
}

/// matmul(x, table[rows]), every dim of `rows` a batch of it, where neither the table nor what
/// replaces the copies is larger than these.
std::optional<PickedProduct> match_picked(const Graph& g, const Node& matmul,
                                          const std::vector<int>& uses) {
  const Equation eq = Equation::parse(matmul.attrs.s("equation"));
  for (const size_t i : {0, 1}) {
    const ValueId copies = matmul.inputs[i];
    const Node* gather = made_by(g, copies, "gather");
    if (!gather || gather->attrs.i("axis") != 0 || gather->attrs.i("offset", 0) != 0 ||
        gather->attrs.has("padding") || uses[static_cast<size_t>(copies)] != 1)
      continue;
    const PickedProduct found{i, gather->inputs[0], gather->inputs[1]};
    const std::string &weights = i == 0 ? eq.a : eq.b, &x = i == 0 ? eq.b : eq.a;
    const Shape &table = g.type(found.table).shape, &rows = g.type(found.rows).shape;
    const bool batches = std::all_of(
        weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(rows.size()),
        [&](char letter) { return has_letter(x, letter) && has_letter(eq.out, letter); });
    if (batches && table[0] <= element_count(rows) &&
        table[0] <= elements_only_in(weights, x, g.type(copies).shape))
      return found;
  }
  return std::nullopt;
}

/// 1 where row `letters` picks matrix `expert`, else 0, in the order of `order` and with dims of 1
/// for its other letters.
ValueId choice(Graph& g, const PickedProduct& found, const std::string& letters, char expert,
               const std::string& order, DType dtype, const std::string& name) {
  const TensorType rows = g.type(found.rows);
  const int64_t experts = g.type(found.table).shape[0];
  Shape apart = rows.shape;
  apart.push_back(1);
  const ValueId each = g.add("iota", {},
                             {{"shape", Shape{experts}},
                              {"dtype", std::string(to_string(rows.dtype))},
                              {"axis", int64_t{0}},
                              {"start", int64_t{0}},
                              {"step", int64_t{1}}},
                             name + "/experts");
  const ValueId column = g.add("reshape", {found.rows}, {{"shape", apart}}, name + "/rows");
  ValueId chosen = g.add("cast", {g.add("equal", {column, each}, {}, name + "/chosen")},
                         {{"to", std::string(to_string(dtype))}}, name + "/choice");
  const std::string all = letters + expert;
  std::vector<int64_t> perm;
  Shape shape;
  for (char letter : order) {
    const size_t at = all.find(letter);
    shape.push_back(at == std::string::npos ? 1 : g.type(chosen).shape[at]);
    if (at != std::string::npos) perm.push_back(static_cast<int64_t>(at));
  }
  if (!std::is_sorted(perm.begin(), perm.end()))
    chosen = g.add("transpose", {chosen}, {{"perm", perm}}, name + "/turned");
  return g.add("reshape", {chosen}, {{"shape", shape}}, name + "/mask");
}

}  // namespace

int multiply_picked_weights(Graph& graph) {
  int count = 0;
  Replacer replacer(graph);
  const std::vector<int> uses = use_counts(graph);
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node node = graph.nodes()[n];
    if (node.op != "matmul") continue;
    const std::optional<PickedProduct> found = match_picked(graph, node, uses);
    if (!found) continue;
    Equation eq = Equation::parse(node.attrs.s("equation"));
    std::string &weights = found->weights == 0 ? eq.a : eq.b,
                &x = found->weights == 0 ? eq.b : eq.a;
    char expert = 'a';
    while (has_letter(eq.a + eq.b, expert)) ++expert;
    const size_t picked = graph.type(found->rows).shape.size();
    const std::string letters = weights.substr(0, picked);
    weights = expert + weights.substr(picked);

    // Experts stand before the first dim that is summed, so that both are one.
    const ValueId operand = node.inputs[1 - found->weights];
    const TensorType type = graph.type(operand);
    size_t at = 0;
    while (at < x.size() && has_letter(eq.out, x[at])) ++at;
    Shape apart = type.shape;
    apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(at), 1);
    x.insert(at, 1, expert);
    const ValueId mask = choice(graph, *found, letters, expert, x, type.dtype, node.name);
    const ValueId wide = graph.add("reshape", {operand}, {{"shape", apart}}, node.name + "/apart");
    std::vector<ValueId> in = {found->table, found->table};
    in[1 - found->weights] = graph.add("mul", {wide, mask}, {}, node.name + "/masked");
    Attrs attrs = node.attrs;
    attrs.set("equation", eq.text());
    replacer.replace(node.outputs[0], graph.add("matmul", in, attrs, node.name));
    ++count;
  }
  replacer.finish();
  return count;
}

}  // namespace shardrun
