// Monomials and other small matchers.
#include "graph/passes/match.h"

#include <cmath>

namespace shardrun {
namespace {

void raise(Monomial& into, const Monomial& part, double exponent) {
  into.coefficient *= std::pow(part.coefficient, exponent);
  for (const auto& [value, e] : part.factors) {
    double& slot = into.factors[value];
    slot += e * exponent;
    if (std::abs(slot) < 1e-9) into.factors.erase(value);
  }
}

}  // namespace

bool close(double a, double b) { return std::abs(a - b) <= 1e-3 * std::max(std::abs(a), std::abs(b)); }

const Node* made_by(const Graph& graph, ValueId id, std::string_view op) {
  const NodeId producer = graph.value(id).producer;
  if (producer < 0 || graph.node(producer).op != op) return nullptr;
  return &graph.node(producer);
}

std::optional<Tensor> constant_data(const Graph& graph, ValueId id) {
  if (graph.value(id).role != Role::constant) return std::nullopt;
  const auto it = graph.sources.find(id);
  if (it == graph.sources.end() || it->second.kind != Source::Kind::data || !it->second.perm.empty()) {
    return std::nullopt;
  }
  return it->second.data;
}

std::optional<double> uniform_value(const Graph& graph, ValueId id) {
  for (std::string_view op : {"cast", "reshape", "expand"}) {
    if (const Node* node = made_by(graph, id, op)) return uniform_value(graph, node->inputs[0]);
  }
  if (const Node* node = made_by(graph, id, "fill")) return node->attrs.f("value");
  const std::optional<Tensor> data = constant_data(graph, id);
  if (!data || data->count() == 0 || data->count() > (1 << 16)) return std::nullopt;
  const double first = data->at(0);
  for (int64_t i = 1; i < data->count(); ++i) {
    if (data->at(i) != first) return std::nullopt;
  }
  return first;
}

Monomial monomial_of(const Graph& graph, ValueId id) {
  Monomial out;
  if (const std::optional<double> c = uniform_value(graph, id)) {
    out.coefficient = *c;
    return out;
  }
  const NodeId producer = graph.value(id).producer;
  const Node* node = producer >= 0 && is_float(graph.type(id).dtype) ? &graph.node(producer) : nullptr;
  auto take = [&](size_t operand, double exponent) {
    raise(out, monomial_of(graph, node->inputs[operand]), exponent);
  };
  if (node && node->op == "mul") {
    take(0, 1);
    take(1, 1);
  } else if (node && node->op == "div") {
    take(0, 1);
    take(1, -1);
  } else if (node && node->op == "neg") {
    take(0, 1);
    out.coefficient = -out.coefficient;
  } else if (node && node->op == "reciprocal") {
    take(0, -1);
  } else if (node && node->op == "sqrt") {
    take(0, 0.5);
  } else if (node && node->op == "pow" && uniform_value(graph, node->inputs[1])) {
    take(0, *uniform_value(graph, node->inputs[1]));
  } else {
    out.factors[id] = 1;
  }
  return out;
}

bool same_factors(const Monomial& a, const Monomial& b) {
  if (a.factors.size() != b.factors.size()) return false;
  for (const auto& [value, exponent] : a.factors) {
    const auto it = b.factors.find(value);
    if (it == b.factors.end() || !close(it->second, exponent)) return false;
  }
  return true;
}

std::optional<ValueId> other_operand(const Graph& graph, ValueId id, std::string_view op, double c) {
  const Node* node = made_by(graph, id, op);
  if (!node) return std::nullopt;
  for (size_t i : {0, 1}) {
    const std::optional<double> value = uniform_value(graph, node->inputs[i]);
    if (value && close(*value, c)) return node->inputs[1 - i];
  }
  return std::nullopt;
}

std::optional<Mean> mean_of(const Graph& graph, ValueId id) {
  const Monomial m = monomial_of(graph, id);
  if (m.factors.size() != 1 || !close(m.factors.begin()->second, 1)) return std::nullopt;
  const Node* sum = made_by(graph, m.factors.begin()->first, "reduce_sum");
  if (!sum) return std::nullopt;
  const std::vector<int64_t>& axes = sum->attrs.ints("axes");
  double count = 1;
  for (int64_t axis : axes) count *= static_cast<double>(graph.type(sum->inputs[0]).shape[static_cast<size_t>(axis)]);
  if (!close(m.coefficient * count, 1)) return std::nullopt;
  return Mean{sum->inputs[0], axes};
}

}  // namespace shardrun
