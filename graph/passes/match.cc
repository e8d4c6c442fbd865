// Monomials and other small matchers.
#include "graph/passes/match.h"

#include <cmath>
#include <set>

namespace shardrun {
namespace {

constexpr int kDeepestProduct = 12;             // of nested products
constexpr int64_t kLargest = int64_t{1} << 26;  // elements of a constant that is read

void raise(Monomial& into, const Monomial& part, double exponent) {
  into.coefficient *= std::pow(part.coefficient, exponent);
  for (const auto& [value, e] : part.factors) {
    double& slot = into.factors[value];
    slot += e * exponent;
    if (std::abs(slot) < 1e-9) into.factors.erase(value);
  }
}

bool is_even(double exponent) { return std::abs(std::remainder(exponent, 2.0)) < 1e-9; }

/// May a root be drawn factor by factor? sqrt(x * x) is |x|, sqrt(x * y) has no value for x alone.
bool has_plain_root(const Monomial& m) {
  if (m.coefficient <= 0 || m.factors.size() > 1) return false;
  return m.factors.empty() || !is_even(m.factors.begin()->second);
}

Monomial monomial(const Graph& graph, ValueId id, int depth) {
  Monomial out;
  if (const std::optional<double> c = uniform_value(graph, id)) {
    out.coefficient = *c;
    return out;
  }
  const NodeId producer = graph.value(id).producer;
  const bool opaque = producer < 0 || !is_float(graph.type(id).dtype) || depth >= kDeepestProduct;
  const Node* node = opaque ? nullptr : &graph.node(producer);
  auto take = [&](size_t operand, double exponent) {
    raise(out, monomial(graph, node->inputs[operand], depth + 1), exponent);
    return true;
  };
  auto root = [&](size_t operand, double exponent) {
    const Monomial part = monomial(graph, node->inputs[operand], depth + 1);
    if (!has_plain_root(part)) return false;
    raise(out, part, exponent);
    return true;
  };
  bool seen_through = false;
  if (node && node->op == "mul") {
    seen_through = take(0, 1) && take(1, 1);
  } else if (node && node->op == "div") {
    seen_through = take(0, 1) && take(1, -1);
  } else if (node && node->op == "neg") {
    seen_through = take(0, 1);
    out.coefficient = -out.coefficient;
  } else if (node && node->op == "reciprocal") {
    seen_through = take(0, -1);
  } else if (node && node->op == "sqrt") {
    seen_through = root(0, 0.5);
  } else if (node && node->op == "pow") {
    if (const std::optional<double> exponent = uniform_value(graph, node->inputs[1])) {
      const bool whole = *exponent == std::round(*exponent) && *exponent != 0;
      seen_through = whole ? take(0, *exponent) : *exponent != 0 && root(0, *exponent);
    }
  }
  if (seen_through) return out;
  return {1, {{id, 1}}};
}

}  // namespace

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-4 * std::max(std::abs(a), std::abs(b));
}

const Node* made_by(const Graph& graph, ValueId id, std::string_view op) {
  const NodeId producer = graph.value(id).producer;
  if (producer < 0 || graph.node(producer).op != op) return nullptr;
  return &graph.node(producer);
}

std::optional<Tensor> constant_data(const Graph& graph, ValueId id) {
  if (graph.value(id).role != Role::constant) return std::nullopt;
  const auto it = graph.sources.find(id);
  const TensorType& type = graph.type(id);
  if (it == graph.sources.end() || element_count(type.shape) > kLargest) return std::nullopt;
  const Source::Kind kind = it->second.kind;
  if (kind != Source::Kind::data && kind != Source::Kind::file) return std::nullopt;
  if (kind == Source::Kind::data && it->second.perm.empty() && it->second.data.type() == type)
    return it->second.data;
  Tensor out(type);
  read_source(it->second, type, full_box(type.shape), 0, out.data());
  return out;
}

std::optional<double> uniform_value(const Graph& graph, ValueId id) {
  if (const Node* node = made_by(graph, id, "cast")) {
    const std::optional<double> value = uniform_value(graph, node->inputs[0]);
    if (!value) return std::nullopt;
    const Tensor one = Tensor::from<double>({}, {*value}, DType::f64);
    return convert(one, graph.type(id).dtype).at(0);
  }
  for (std::string_view op : {"reshape", "expand"}) {
    if (const Node* node = made_by(graph, id, op)) return uniform_value(graph, node->inputs[0]);
  }
  if (const Node* node = made_by(graph, id, "fill")) return node->attrs.f("value");
  if (graph.value(id).role != Role::constant) return std::nullopt;
  const int64_t count = element_count(graph.type(id).shape);
  if (count == 0 || count > (1 << 16)) return std::nullopt;
  const std::optional<Tensor> data = constant_data(graph, id);
  if (!data) return std::nullopt;
  const double first = data->at(0);
  for (int64_t i = 1; i < count; ++i) {
    if (data->at(i) != first) return std::nullopt;
  }
  return first;
}

Monomial monomial_of(const Graph& graph, ValueId id) { return monomial(graph, id, 0); }

Monomial multiply(const Monomial& a, const Monomial& b) {
  Monomial out = a;
  raise(out, b, 1);
  return out;
}

Monomial power(const Monomial& a, double exponent) {
  Monomial out;
  raise(out, a, exponent);
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

std::optional<ValueId> sole_factor(const Monomial& m) {
  if (m.factors.size() != 1 || !close(m.factors.begin()->second, 1)) return std::nullopt;
  return m.factors.begin()->first;
}

std::optional<Mean> mean_of(const Graph& graph, ValueId id) {
  const Monomial m = monomial_of(graph, id);
  const std::optional<ValueId> factor = sole_factor(m);
  const Node* sum = factor ? made_by(graph, *factor, "reduce_sum") : nullptr;
  if (!sum || sum->attrs.i("keepdims") == 0) return std::nullopt;
  const std::vector<int64_t>& axes = sum->attrs.ints("axes");
  double count = 1;
  for (int64_t axis : axes)
    count *= static_cast<double>(graph.type(sum->inputs[0]).shape[static_cast<size_t>(axis)]);
  // Exactly 1 / n, but for rounding: n - 1 instead of n is another formula, and n may be thousands.
  if (std::abs(m.coefficient * count - 1) > 1e-6) return std::nullopt;
  return Mean{sum->inputs[0], axes};
}

bool depends_on_trained(const Graph& graph, ValueId id) {
  std::vector<ValueId> stack = {id};
  std::set<ValueId> seen;
  while (!stack.empty()) {
    const ValueId at = stack.back();
    stack.pop_back();
    if (!seen.insert(at).second) continue;
    const Value& value = graph.value(at);
    if (value.role == Role::parameter) {
      const auto it = graph.trainable.find(at);
      if (it == graph.trainable.end() || it->second) return true;
    }
    if (value.producer < 0) continue;
    for (ValueId input : graph.node(value.producer).inputs) {
      if (is_float(graph.type(input).dtype)) stack.push_back(input);
    }
  }
  return false;
}

}  // namespace shardrun
