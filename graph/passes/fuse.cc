// GELU and layer norm, and the order of all fusions.
#include "graph/passes/fuse.h"

#include <cmath>
#include <numbers>

#include "graph/passes/match.h"
#include "graph/passes/rebuild.h"

namespace shardrun {
namespace {

constexpr double kCubic = 0.044715;

/// x if `arg` is x / sqrt 2.
std::optional<ValueId> erf_argument(const Graph& g, ValueId arg) {
  const Monomial m = monomial_of(g, arg);
  if (!close(m.coefficient, std::numbers::sqrt2 / 2)) return std::nullopt;
  for (const char* op : {"mul", "div"}) {
    if (const Node* node = made_by(g, arg, op)) {
      for (size_t i : {0, 1}) {
        if (uniform_value(g, node->inputs[1 - i])) return node->inputs[i];
      }
    }
  }
  return std::nullopt;
}

/// x if `arg` is sqrt(2/pi) (x + 0.044715 x^3), written as a sum or as x (1 + 0.044715 x^2).
std::optional<ValueId> tanh_argument(const Graph& g, ValueId arg) {
  const Monomial m = monomial_of(g, arg);
  if (!close(m.coefficient, std::sqrt(2 / std::numbers::pi))) return std::nullopt;
  auto is_power = [&](ValueId term, ValueId x, double exponent) {
    Monomial want = monomial_of(g, x);
    const Monomial have = monomial_of(g, term);
    const double coefficient = std::pow(want.coefficient, exponent) * kCubic;
    for (auto& [value, e] : want.factors) e *= exponent;
    return close(have.coefficient, coefficient) && same_factors(have, want);
  };
  for (const auto& [factor, exponent] : m.factors) {
    const Node* add = made_by(g, factor, "add");
    if (!add || !close(exponent, 1)) continue;
    for (size_t i : {0, 1}) {
      const ValueId x = add->inputs[i];
      if (m.factors.size() == 1 && is_power(add->inputs[1 - i], x, 3)) return x;
    }
    const std::optional<ValueId> square = other_operand(g, factor, "add", 1.0);
    if (square && m.factors.size() == 2) {
      for (const auto& [x, e] : m.factors) {
        if (x != factor && close(e, 1) && is_power(*square, x, 2)) return x;
      }
    }
  }
  return std::nullopt;
}

struct Gelu {
  ValueId x;
  const char* approximate;
};

std::optional<Gelu> match_gelu(const Graph& g, ValueId result) {
  const Monomial m = monomial_of(g, result);
  for (const auto& [factor, exponent] : m.factors) {
    if (!close(exponent, 1)) continue;
    const std::optional<ValueId> inner = other_operand(g, factor, "add", 1.0);
    if (!inner) continue;
    std::optional<ValueId> x;
    const char* approximate = "none";
    if (const Node* erf = made_by(g, *inner, "erf")) x = erf_argument(g, erf->inputs[0]);
    if (const Node* tanh = made_by(g, *inner, "tanh")) {
      x = tanh_argument(g, tanh->inputs[0]);
      approximate = "tanh";
    }
    if (!x || g.type(*x) != g.type(result)) continue;
    Monomial rest = m;
    rest.factors.erase(factor);
    const Monomial want = monomial_of(g, *x);
    if (same_factors(rest, want) && close(rest.coefficient, 0.5 * want.coefficient)) return Gelu{*x, approximate};
  }
  return std::nullopt;
}

struct LayerNorm {
  ValueId x, scale, bias = kNoValue;
  int64_t axis;
  double eps;
};

/// A parameter or constant that covers exactly the dims [axis, rank) (leading 1s allowed).
bool covers(const Graph& g, ValueId value, const Shape& shape, size_t axis) {
  Shape own = g.type(value).shape;
  while (own.size() > shape.size() - axis && !own.empty() && own[0] == 1) own.erase(own.begin());
  return own == Shape(shape.begin() + static_cast<int64_t>(axis), shape.end());
}

std::optional<LayerNorm> match_normalised(const Graph& g, ValueId result) {
  const Monomial m = monomial_of(g, result);
  if (m.factors.size() != 3 || !close(m.coefficient, 1)) return std::nullopt;
  ValueId centred = kNoValue, variance_eps = kNoValue, scale = kNoValue;
  for (const auto& [value, exponent] : m.factors) {
    if (close(exponent, -0.5)) {
      variance_eps = value;
    } else if (close(exponent, 1) && made_by(g, value, "sub") && centred == kNoValue) {
      centred = value;
    } else if (close(exponent, 1)) {
      scale = value;
    }
  }
  if (centred == kNoValue || variance_eps == kNoValue || scale == kNoValue) return std::nullopt;
  const Node* plus = made_by(g, variance_eps, "add");
  if (!plus) return std::nullopt;
  for (size_t i : {0, 1}) {
    const std::optional<double> eps = uniform_value(g, plus->inputs[i]);
    const std::optional<Mean> variance = mean_of(g, plus->inputs[1 - i]);
    if (!eps || !variance) continue;
    const Monomial square = monomial_of(g, variance->of);
    const Node* sub = made_by(g, centred, "sub");
    const std::optional<Mean> mean = mean_of(g, sub->inputs[1]);
    const bool squares = square.factors.size() == 1 && square.factors.count(centred) && close(square.factors.at(centred), 2);
    if (!squares || !mean || mean->of != sub->inputs[0] || mean->axes != variance->axes) continue;
    const Shape& shape = g.type(sub->inputs[0]).shape;
    const auto axis = static_cast<int64_t>(shape.size() - mean->axes.size());
    if (mean->axes.empty() || mean->axes.front() != axis || !covers(g, scale, shape, static_cast<size_t>(axis))) continue;
    return LayerNorm{sub->inputs[0], scale, kNoValue, axis, *eps};
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

int fuse_gelu(Graph& graph) {
  int count = 0;
  const size_t nodes = graph.nodes().size();
  for (size_t n = 0; n < nodes; ++n) {
    if (graph.nodes()[n].op != "mul") continue;
    const ValueId result = graph.nodes()[n].outputs[0];
    const std::optional<Gelu> found = match_gelu(graph, result);
    if (!found) continue;
    const std::string name = graph.nodes()[n].name + "/gelu";
    graph.replace_uses(result, graph.add("gelu", {found->x}, {{"approximate", std::string(found->approximate)}}, name));
    ++count;
  }
  sort_nodes(graph);
  remove_dead_nodes(graph);
  return count;
}

int fuse_layer_norm(Graph& graph) {
  int count = 0;
  const size_t nodes = graph.nodes().size();
  for (size_t n = nodes; n-- > 0;) {   // from the end: the form with a bias before the one inside it
    const Node node = graph.nodes()[n];
    if (node.op != "add" && node.op != "mul" && node.op != "div") continue;
    const ValueId result = node.outputs[0];
    const std::optional<LayerNorm> found = match_layer_norm(graph, result);
    if (!found || graph.type(found->x) != graph.type(result)) continue;
    const Shape& shape = graph.type(found->x).shape;
    const Shape tail(shape.begin() + found->axis, shape.end());
    std::vector<ValueId> inputs = {found->x, reshaped(graph, found->scale, tail)};
    if (found->bias != kNoValue) inputs.push_back(reshaped(graph, found->bias, tail));
    const auto made = graph.add_node("layer_norm", inputs, {{"axis", found->axis}, {"eps", found->eps}}, node.name + "/layer_norm");
    graph.replace_uses(result, made[0]);
    ++count;
  }
  sort_nodes(graph);
  remove_dead_nodes(graph);
  return count;
}

FusionCounts fuse(Graph& graph) {
  FusionCounts counts;
  remove_no_ops(graph);
  merge_equal_nodes(graph);
  counts.gelu = fuse_gelu(graph);
  counts.layer_norm = fuse_layer_norm(graph);
  fold_transposes(graph);
  counts.attention = fuse_attention(graph);
  remove_no_ops(graph);
  fold_transposes(graph);
  merge_equal_nodes(graph);
  counts.projections = split_projections(graph);
  return counts;
}

}  // namespace shardrun
