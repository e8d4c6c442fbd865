// GELU and layer norm, and the order of all fusions.
#include "graph/passes/recognise/recognise.h"

#include <cmath>
#include <numbers>

#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"

namespace shardrun {
namespace {

constexpr double kCubic = 0.044715;

/// `id` multiplied out: the Monomials whose sum it is. Values in `atoms` stay whole.
std::vector<Monomial> terms_of(const Graph& g, ValueId id, const std::map<ValueId, double>& atoms,
                               int depth = 3) {
  const Monomial m = monomial_of(g, id);
  for (const auto& [factor, exponent] : m.factors) {
    const Node* add = made_by(g, factor, "add");
    if (!add || !close(exponent, 1) || atoms.count(factor) || depth == 0) continue;
    Monomial rest = m;
    rest.factors.erase(factor);
    std::vector<Monomial> out;
    for (ValueId operand : add->inputs) {
      for (const Monomial& term : terms_of(g, operand, atoms, depth - 1))
        out.push_back(multiply(rest, term));
    }
    return out;
  }
  return {m};
}

bool equal(const Monomial& a, const Monomial& b) {
  return same_factors(a, b) && close(a.coefficient, b.coefficient);
}

Monomial scaled(Monomial m, double by) {
  m.coefficient *= by;
  return m;
}

/// Is `arg` x / sqrt 2?
bool is_erf_argument(const Graph& g, ValueId arg, const Monomial& x) {
  return equal(monomial_of(g, arg), scaled(x, std::numbers::sqrt2 / 2));
}

/// Is `arg` sqrt(2/pi) (x + 0.044715 x^3), however it is bracketed?
bool is_tanh_argument(const Graph& g, ValueId arg, const Monomial& x) {
  const std::vector<Monomial> terms = terms_of(g, arg, x.factors);
  const double k = std::sqrt(2 / std::numbers::pi);
  const Monomial linear = scaled(x, k), cubic = scaled(power(x, 3), k * kCubic);
  return terms.size() == 2 && ((equal(terms[0], linear) && equal(terms[1], cubic)) ||
                               (equal(terms[1], linear) && equal(terms[0], cubic)));
}

/// A value among those that `id` is computed from, at most `depth` nodes back, that is the
/// Monomial.
std::optional<ValueId> value_of(const Graph& g, const Monomial& m, const TensorType& type,
                                ValueId id, int depth) {
  if (g.type(id) == type && !uniform_value(g, id) && equal(monomial_of(g, id), m)) return id;
  const NodeId producer = g.value(id).producer;
  if (producer < 0 || depth == 0 || m.factors.count(id)) return std::nullopt;
  for (ValueId input : g.node(producer).inputs) {
    if (const std::optional<ValueId> found = value_of(g, m, type, input, depth - 1)) return found;
  }
  return std::nullopt;
}

struct Gelu {
  ValueId x;
  const char* approximate;
};

/// c y (u + u erf(…)), in which c y u is x / 2.
std::optional<Gelu> match_gelu(const Graph& g, ValueId result) {
  const Monomial m = monomial_of(g, result);
  for (const auto& [factor, exponent] : m.factors) {
    const Node* add = made_by(g, factor, "add");
    if (!add || !close(exponent, 1)) continue;
    for (size_t i : {0, 1}) {
      const std::optional<double> unit = uniform_value(g, add->inputs[i]);
      const Monomial curve = monomial_of(g, add->inputs[1 - i]);
      const std::optional<ValueId> call = sole_factor(curve);
      if (!unit || !call || !close(curve.coefficient, *unit)) continue;
      Monomial x = m;
      x.factors.erase(factor);
      x.coefficient *= 2 * *unit;
      const Node* erf = made_by(g, *call, "erf");
      const Node* tanh = made_by(g, *call, "tanh");
      const bool exact = erf && is_erf_argument(g, erf->inputs[0], x);
      if (!exact && !(tanh && is_tanh_argument(g, tanh->inputs[0], x))) continue;
      constexpr int kFar = 8;
      if (const auto found = value_of(g, x, g.type(result), result, kFar))
        return Gelu{*found, exact ? "none" : "tanh"};
    }
  }
  return std::nullopt;
}

struct LayerNorm {
  ValueId x, scale = kNoValue, bias = kNoValue;  // kNoValue: none
  int64_t axis;
  double eps;
};

/// A parameter or constant that covers exactly the dims [axis, rank) (leading 1s allowed).
bool covers(const Graph& g, ValueId value, const Shape& shape, size_t axis) {
  Shape own = g.type(value).shape;
  while (own.size() > shape.size() - axis && !own.empty() && own[0] == 1) own.erase(own.begin());
  return own == Shape(shape.begin() + static_cast<int64_t>(axis), shape.end());
}

/// (x - mean) (variance + eps)^-0.5 [scale]
std::optional<LayerNorm> match_normalised(const Graph& g, ValueId result) {
  const Monomial m = monomial_of(g, result);
  if (m.factors.size() > 3 || !close(m.coefficient, 1)) return std::nullopt;
  for (const auto& [centred, centred_exponent] : m.factors) {
    const Node* sub = made_by(g, centred, "sub");
    const std::optional<Mean> mean = sub ? mean_of(g, sub->inputs[1]) : std::nullopt;
    if (!mean || mean->of != sub->inputs[0] || !close(centred_exponent, 1)) continue;
    const ValueId x = sub->inputs[0];
    const Shape& shape = g.type(x).shape;
    const auto axis = static_cast<int64_t>(shape.size() - mean->axes.size());
    if (mean->axes.empty() || mean->axes.front() != axis) continue;
    std::optional<double> eps;
    ValueId scale = kNoValue;
    bool only_these = true;
    for (const auto& [value, exponent] : m.factors) {
      if (value == centred) continue;
      const Node* plus = close(exponent, -0.5) ? made_by(g, value, "add") : nullptr;
      for (size_t i : {0, 1}) {
        if (!plus || eps) break;
        const std::optional<Mean> variance = mean_of(g, plus->inputs[1 - i]);
        if (!variance || variance->axes != mean->axes) continue;
        if (equal(monomial_of(g, variance->of), Monomial{1, {{centred, 2}}}))
          eps = uniform_value(g, plus->inputs[i]);
      }
      if (plus && eps) continue;
      only_these = only_these && close(exponent, 1) && scale == kNoValue &&
                   covers(g, value, shape, static_cast<size_t>(axis));
      scale = value;
    }
    if (eps && *eps >= 0 && only_these) return LayerNorm{x, scale, kNoValue, axis, *eps};
  }
  return std::nullopt;
}

std::optional<LayerNorm> match_layer_norm(const Graph& g, ValueId result) {
  if (const Node* plus = made_by(g, result, "add")) {
    for (size_t i : {0, 1}) {
      std::optional<LayerNorm> found = match_normalised(g, plus->inputs[i]);
      const ValueId bias = plus->inputs[1 - i];
      if (found && covers(g, bias, g.type(found->x).shape, static_cast<size_t>(found->axis))) {
        found->bias = bias;
        return found;
      }
    }
  }
  return match_normalised(g, result);
}

ValueId reshaped(Graph& g, ValueId value, const Shape& shape) {
  return g.type(value).shape == shape ? value : g.add("reshape", {value}, {{"shape", shape}});
}

}  // namespace

int recognise_gelu(Graph& graph) {
  int count = 0;
  Replacer replacer(graph);
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    if (graph.nodes()[n].op != "mul" && graph.nodes()[n].op != "div") continue;
    const ValueId result = graph.nodes()[n].outputs[0];
    const std::optional<Gelu> found =
        replacer.used(result) ? match_gelu(graph, result) : std::nullopt;
    if (!found) continue;
    const std::string name = graph.nodes()[n].name + "/gelu";
    replacer.replace(result, graph.add("gelu", {found->x},
                                       {{"approximate", std::string(found->approximate)}}, name));
    ++count;
  }
  replacer.finish();
  return count;
}

int recognise_layer_norm(Graph& graph) {
  int count = 0;
  Replacer replacer(graph);
  for (size_t n = graph.nodes().size();
       n-- > 0;) {  // from the end: the form with a bias before the one inside it
    const Node node = graph.nodes()[n];
    if (node.op != "add" && node.op != "mul" && node.op != "div") continue;
    const ValueId result = node.outputs[0];
    if (!replacer.used(result)) continue;
    const std::optional<LayerNorm> found = match_layer_norm(graph, result);
    if (!found || graph.type(found->x) != graph.type(result)) continue;
    const TensorType type = graph.type(found->x);
    const Shape tail(type.shape.begin() + found->axis, type.shape.end());
    const std::string name = node.name + "/layer_norm";
    const ValueId scale =
        found->scale != kNoValue
            ? reshaped(graph, found->scale, tail)
            : graph.add(
                  "fill", {},
                  {{"shape", tail}, {"dtype", std::string(to_string(type.dtype))}, {"value", 1.0}},
                  name + "/ones");
    std::vector<ValueId> inputs = {found->x, scale};
    if (found->bias != kNoValue) inputs.push_back(reshaped(graph, found->bias, tail));
    const auto made =
        graph.add_node("layer_norm", inputs, {{"axis", found->axis}, {"eps", found->eps}}, name);
    replacer.replace(result, made[0]);
    ++count;
  }
  replacer.finish();
  return count;
}

Recognised recognise(Graph& graph) {
  Recognised counts;
  remove_no_ops(graph);
  merge_equal_nodes(graph);
  counts.gelu = recognise_gelu(graph);
  counts.dropout = recognise_dropout(graph);
  counts.layer_norm = recognise_layer_norm(graph);
  counts.segment_softmax = recognise_segment_softmax(graph);
  fold_transposes(graph);
  counts.attention = recognise_attention(graph);
  remove_no_ops(graph);
  fold_transposes(graph);
  merge_equal_nodes(graph);
  counts.picked_weights = multiply_picked_weights(graph);
  if (counts.picked_weights > 0) {
    remove_no_ops(graph);
    merge_equal_nodes(graph);
  }
  counts.projections = split_projections(graph);
  counts.batch_norm = recognise_batch_norm(graph);
  fold_powers(graph);  // what the others have left
  take_stable_forms(graph);
  return counts;
}

}  // namespace shardrun
