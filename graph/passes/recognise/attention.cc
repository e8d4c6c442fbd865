// Attention from its products, its mask and its softmax.
#include <algorithm>
#include <limits>

#include "graph/ops/elementwise.h"
#include "graph/passes/equation.h"
#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"
#include "graph/passes/recognise/recognise.h"

namespace shardrun {
namespace {

/// The permutation that brings a value whose dims are named `from` into the order `to`.
std::vector<int64_t> permutation(const std::string& from, const std::string& to) {
  std::vector<int64_t> perm;
  for (char c : to) perm.push_back(static_cast<int64_t>(from.find(c)));
  return perm;
}

ValueId permuted(Graph& g, ValueId value, const std::string& from, const std::string& to) {
  return from == to ? value : g.add("transpose", {value}, {{"perm", permutation(from, to)}});
}

/// [B, T, D] to [B, 1, T, D]: attention of one head. Rank 4 stays.
ValueId with_heads(Graph& g, ValueId value) {
  Shape shape = g.type(value).shape;
  if (shape.size() == 4) return value;
  shape.insert(shape.begin() + 1, 1);
  return g.add("reshape", {value}, {{"shape", shape}});
}

ValueId number(Graph& g, DType dtype, double value) {
  return g.add("fill", {},
               {{"shape", Shape{}}, {"dtype", std::string(to_string(dtype))}, {"value", value}});
}

constexpr double kMasked = -1e4;  // exporters write -inf, the dtype's lowest, -1e9, -1e4 …
constexpr double kNever = -std::numeric_limits<double>::infinity();

/// A condition of which where keeps or drops the true elements.
struct Condition {
  ValueId of = kNoValue;
  bool drops_true = false;
  bool operator==(const Condition&) const = default;
};

struct Scores {
  ValueId product = kNoValue;  // of query and key
  double scale = 1;
  std::optional<double> slope;    // of a leaky_relu of the product, inside of all masks
  Condition zeroed;               // keys whose weights are zeroed behind the softmax, if any:
  bool hides_zeroed = false;      // they are hidden from it too
  std::optional<int64_t> causal;  // position t sees s <= t + this
  ValueId mask = kNoValue;        // additive or boolean, as attention takes it
};

bool fits(const Shape& mask, const Shape& scores) {
  if (mask.size() > scores.size()) return false;
  for (size_t i = 1; i <= mask.size(); ++i) {
    if (mask[mask.size() - i] != 1 && mask[mask.size() - i] != scores[scores.size() - i])
      return false;
  }
  return true;
}

/// Both masks in one: booleans with and, numbers by sum, a boolean with numbers as 0 and -inf.
ValueId join_masks(Graph& g, ValueId a, ValueId b) {
  if (a == kNoValue) return b;
  auto is_bool = [&](ValueId id) { return g.type(id).dtype == DType::boolean; };
  if (is_bool(a) && is_bool(b)) return g.add("logical_and", {a, b});
  const DType dtype = g.type(is_bool(a) ? b : a).dtype;
  auto additive = [&](ValueId id) {
    return is_bool(id) ? g.add("where", {id, number(g, dtype, 0), number(g, dtype, kNever)}) : id;
  };
  return g.add("add", {additive(a), additive(b)});
}

std::optional<Scores> match_scores(Graph& g, Triangles& triangles, ValueId at, Scores found,
                                   const Shape& shape, int depth);

/// where(condition, scores, very low) or the other way round.
std::optional<Scores> match_where(Graph& g, Triangles& triangles, const Node& where, Scores found,
                                  const Shape& shape, int depth) {
  const ValueId condition = where.inputs[0];
  const DType dtype = g.type(where.outputs[0]).dtype;
  for (const bool drops_true : {false, true}) {
    const std::optional<double> low = uniform_value(g, where.inputs[drops_true ? 1 : 2]);
    if (!low || *low > kMasked || !fits(g.type(condition).shape, shape)) continue;
    const ValueId scores = where.inputs[drops_true ? 2 : 1];
    const bool zeroed = found.zeroed == Condition{condition, drops_true};
    found.hides_zeroed = found.hides_zeroed || zeroed;
    const std::optional<Triangle> t = triangles.of(condition);
    if (t && (t->below != 0) != drops_true && (t->above != 0) == drops_true && t->offset >= 0) {
      found.causal = std::min(found.causal.value_or(t->offset), t->offset);
    } else if (*low == kNever || zeroed) {
      const ValueId keep = drops_true ? g.add("logical_not", {condition}) : condition;
      found.mask = join_masks(g, found.mask, keep);
    } else {
      // A finite number: a row of nothing but masked keys looks at all of them alike. So it does if
      // a number is added that is so large that the scores vanish against it. (Under a causal mask
      // as well, such a row looks at the keys before it instead of all of them.)
      const ValueId zero = number(g, dtype, 0), masked = number(g, dtype, -1e30);
      const ValueId mask = g.add("where", drops_true ? std::vector{condition, masked, zero}
                                                     : std::vector{condition, zero, masked});
      found.mask = join_masks(g, found.mask, mask);
    }
    return match_scores(g, triangles, scores, found, shape, depth - 1);
  }
  return std::nullopt;
}

/// scores + mask. A mask that trains, such as a table of relative positions, needs its gradient and
/// is left alone.
std::optional<Scores> match_add(Graph& g, Triangles& triangles, const Node& add,
                                const Scores& outer, const Shape& shape, int depth) {
  for (size_t i : {0, 1}) {
    ValueId mask = add.inputs[i];
    const ValueId scores = add.inputs[1 - i];
    if (g.type(scores).shape != shape || !fits(g.type(mask).shape, shape)) continue;
    // The side that leads to the product first: the test costs little, and makes no nodes.
    if (!match_scores(g, triangles, scores, Scores{}, shape, depth - 1) ||
        depends_on_trained(g, mask))
      continue;
    Scores found = outer;
    const std::optional<Triangle> t = triangles.of(mask);
    const bool adds_nothing = t && t->below == 0 && t->above == 0;
    if (t && t->below == 0 && t->above <= kMasked && t->offset >= 0) {
      found.causal = std::min(found.causal.value_or(t->offset), t->offset);
    } else if (!adds_nothing) {
      if (found.scale != 1) mask = g.add("mul", {mask, number(g, g.type(mask).dtype, found.scale)});
      found.mask = join_masks(g, found.mask, mask);
    }
    return match_scores(g, triangles, scores, found, shape, depth - 1);
  }
  return std::nullopt;
}

/// A column [.., T, 1] plus a row [.., 1, S] as the product of [column, 1] and [1, row]; kNoValue
/// if the operands are something else.
ValueId product_of_sum(Graph& g, const Node& add, const Shape& shape) {
  Shape column = shape, row = shape;
  column.back() = 1;
  row[row.size() - 2] = 1;
  for (size_t i : {0, 1}) {
    const ValueId a = add.inputs[i], b = add.inputs[1 - i];
    if (g.type(a).shape != column || g.type(b).shape != row) continue;
    const auto last = static_cast<int64_t>(shape.size()) - 1;
    Shape keys = row;
    std::swap(keys[keys.size() - 2], keys.back());
    const auto ones = [&](const Shape& like) {
      return g.add(
          "fill", {},
          {{"shape", like}, {"dtype", std::string(to_string(g.type(a).dtype))}, {"value", 1.0}});
    };
    const ValueId q = g.add("concat", {a, ones(column)}, {{"axis", last}});
    const ValueId k =
        g.add("concat", {ones(keys), g.add("reshape", {b}, {{"shape", keys}})}, {{"axis", last}});
    return g.add("matmul", {q, k},
                 {{"equation", std::string(last == 3 ? "bhtd,bhsd->bhts" : "btd,bsd->bts")}});
  }
  return kNoValue;
}

/// Walks from the softmax's operand to the product. May append nodes that a failure leaves dead.
std::optional<Scores> match_scores(Graph& g, Triangles& triangles, ValueId at, Scores found,
                                   const Shape& shape, int depth) {
  if (depth == 0 || g.type(at).shape != shape) return std::nullopt;
  if (made_by(g, at, "matmul")) {
    found.product = at;
    return found;
  }
  if (const Node* leaky = made_by(g, at, "leaky_relu")) {
    if (found.slope) return std::nullopt;
    found.slope = activation_attr(*leaky, "alpha");
    return match_scores(g, triangles, leaky->inputs[0], found, shape, depth - 1);
  }
  if (const Node* made = made_by(g, at, "add")) {
    found.product = product_of_sum(g, Node(*made), shape);
    if (found.product != kNoValue) return found;
  }
  // What lies inside of an activation is a product and its scale.
  if (const Node* made = found.slope ? nullptr : made_by(g, at, "where")) {
    const Node where = *made;
    return match_where(g, triangles, where, found, shape, depth);
  }
  if (const Node* made = found.slope ? nullptr : made_by(g, at, "add")) {
    const Node add = *made;
    return match_add(g, triangles, add, found, shape, depth);
  }
  const Monomial m = monomial_of(g, at);
  const std::optional<ValueId> inner = sole_factor(m);
  if (!inner || *inner == at || m.coefficient <= 0) return std::nullopt;
  found.scale *= m.coefficient;
  return match_scores(g, triangles, *inner, found, shape, depth - 1);
}

/// Takes a constant factor out of a query or key.
ValueId without_scale(const Graph& g, ValueId value, double& scale) {
  const Monomial m = monomial_of(g, value);
  const std::optional<ValueId> inner = sole_factor(m);
  if (!inner || g.type(*inner) != g.type(value)) return value;
  scale *= m.coefficient;
  return *inner;
}

/// The softmax behind the weights that multiply the values; a dropout and zeroed weights between.
struct Weights {
  ValueId softmax = kNoValue;
  std::optional<Node> dropout;
  Condition zeroed;
};

std::optional<Weights> match_weights(const Graph& g, ValueId at) {
  Weights found;
  for (int depth = 0; depth < 5; ++depth) {
    if (made_by(g, at, "softmax")) {
      found.softmax = at;
      return found;
    }
    const Node* drop = made_by(g, at, "dropout");
    const Node* where = made_by(g, at, "where");
    if (drop && !found.dropout) {
      found.dropout = *drop;
      at = drop->inputs[0];
    } else if (where) {
      const bool zero_where_true = uniform_value(g, where->inputs[1]) == 0.0;
      if (!zero_where_true && uniform_value(g, where->inputs[2]) != 0.0) return std::nullopt;
      at = where->inputs[zero_where_true ? 2 : 1];
      // Rows with nothing kept become 0 instead of NaN, as attention has it anyway.
      const Node* isnan = made_by(g, where->inputs[0], "isnan");
      if (isnan && zero_where_true && isnan->inputs[0] == at) continue;
      if (found.zeroed.of != kNoValue) return std::nullopt;
      found.zeroed = {where->inputs[0], zero_where_true};
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

/// Letters by meaning: batch dims, t and s of the scores, d inside q and k, e of the values.
struct Letters {
  std::string q, k, v, weights, out;
  bool a_is_query = true;
  std::string batch, v_batch;
  char t = 0, s = 0, d = 0, e = 0, v_t = 0, v_s = 0;
};

std::optional<Letters> match_letters(const Equation& qk, const Equation& pv, bool weights_first) {
  Letters l;
  const size_t rank = qk.out.size();
  l.weights = weights_first ? pv.a : pv.b;
  l.v = weights_first ? pv.b : pv.a;
  l.out = pv.out;
  for (const std::string& letters : {qk.a, qk.b, l.v, l.weights, l.out}) {
    if (letters.size() != rank) return std::nullopt;
  }
  l.batch = qk.out.substr(0, rank - 2);
  l.t = qk.out[rank - 2];
  l.s = qk.out[rank - 1];
  l.a_is_query = has_letter(qk.a, l.t);
  l.q = l.a_is_query ? qk.a : qk.b;
  l.k = l.a_is_query ? qk.b : qk.a;
  if (has_letter(l.k, l.t) || has_letter(l.q, l.s) || !has_letter(l.q, l.t) ||
      !has_letter(l.k, l.s))
    return std::nullopt;
  for (char c : l.q) {
    if (!has_letter(qk.out, c)) l.d = c;
  }
  l.v_batch = l.weights.substr(0, rank - 2);
  l.v_t = l.weights[rank - 2];
  l.v_s = l.weights[rank - 1];
  for (char c : l.v) {
    if (!has_letter(l.weights, c)) l.e = c;
  }
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (!has_letter(l.q, l.batch[i]) || !has_letter(l.k, l.batch[i]) ||
        !has_letter(l.v, l.v_batch[i]))
      return std::nullopt;
    if (!has_letter(l.out, l.v_batch[i])) return std::nullopt;
  }
  const bool whole = l.d && has_letter(l.k, l.d) && l.e && has_letter(l.v, l.v_s) &&
                     !has_letter(l.v, l.v_t) && !has_letter(l.out, l.v_s) &&
                     has_letter(l.out, l.v_t) && has_letter(l.out, l.e);
  return whole ? std::optional(l) : std::nullopt;
}

/// Makes attention of the product `result` = weights x values; false if it is something else.
bool recognise_one(Graph& g, Triangles& triangles, Replacer& replacer, ValueId result) {
  const Node output = g.node(g.value(result).producer);
  for (size_t side : {0, 1}) {
    const std::optional<Weights> weights = match_weights(g, output.inputs[side]);
    if (!weights) continue;
    const Shape shape = g.type(weights->softmax).shape;
    const auto rank = static_cast<int64_t>(shape.size());
    if (rank < 3 || rank > 4) continue;
    const Node* softmax = made_by(g, weights->softmax, "softmax");
    const ValueId operand = softmax->inputs[0];
    constexpr int kFar = 8;
    if (softmax->attrs.i("axis") != rank - 1) continue;
    Scores outside;
    outside.zeroed = weights->zeroed;
    const std::optional<Scores> scores = match_scores(g, triangles, operand, outside, shape, kFar);
    if (!scores || (weights->zeroed.of != kNoValue && !scores->hides_zeroed)) continue;
    const Node product = g.node(g.value(scores->product).producer);
    const std::optional<Letters> letters =
        match_letters(Equation::parse(product.attrs.s("equation")),
                      Equation::parse(output.attrs.s("equation")), side == 0);
    if (!letters) continue;
    const Letters& l = *letters;

    double scale = scores->scale;
    const ValueId q0 = without_scale(g, product.inputs[l.a_is_query ? 0 : 1], scale);
    const ValueId k0 = without_scale(g, product.inputs[l.a_is_query ? 1 : 0], scale);
    const ValueId q = with_heads(g, permuted(g, q0, l.q, l.batch + l.t + l.d));
    const ValueId k = with_heads(g, permuted(g, k0, l.k, l.batch + l.s + l.d));
    const ValueId v =
        with_heads(g, permuted(g, output.inputs[1 - side], l.v, l.v_batch + l.v_s + l.e));
    std::vector<ValueId> inputs = {q, k, v};
    Attrs attrs{{"scale", scale},
                {"causal", int64_t{scores->causal.has_value()}},
                {"q_offset", scores->causal.value_or(0)},
                {"has_mask", int64_t{scores->mask != kNoValue}},
                {"dropout", 0.0}};
    if (scores->slope) attrs.set("slope", *scores->slope);
    if (scores->mask != kNoValue) {
      Shape mask = g.type(scores->mask).shape;
      mask.insert(mask.begin(), static_cast<size_t>(rank) - mask.size(), 1);
      if (rank == 3) mask.insert(mask.begin() + 1, 1);
      inputs.push_back(mask == g.type(scores->mask).shape
                           ? scores->mask
                           : g.add("reshape", {scores->mask}, {{"shape", mask}}));
    }
    if (weights->dropout && weights->dropout->attrs.f("p") > 0) {
      const Node& dropout = *weights->dropout;
      Shape global = shape;
      if (rank == 3) global.insert(global.begin() + 1, 1);
      attrs.set("dropout", dropout.attrs.f("p"));
      attrs.set("key", dropout.attrs.i("key"));
      attrs.set("seed", dropout.attrs.i("seed"));
      attrs.set("global_shape", global);
      attrs.set("start", std::vector<int64_t>(4, 0));
      inputs.push_back(dropout.inputs[1]);
    }
    ValueId y = g.add_node("attention", inputs, attrs, output.name + "/attention")[0];
    if (rank == 3) {
      const Shape& wide = g.type(y).shape;
      y = g.add("reshape", {y}, {{"shape", Shape{wide[0], wide[2], wide[3]}}});
    }
    replacer.replace(result, permuted(g, y, l.v_batch + l.v_t + l.e, l.out));
    return true;
  }
  return false;
}

}  // namespace

int recognise_attention(Graph& graph) {
  int count = 0;
  Triangles triangles(graph);
  Replacer replacer(graph);
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    const Node& node = graph.nodes()[n];
    if (node.op == "matmul" && replacer.used(node.outputs[0]))
      count += recognise_one(graph, triangles, replacer, node.outputs[0]);
  }
  replacer.finish();
  return count;
}

}  // namespace shardrun
