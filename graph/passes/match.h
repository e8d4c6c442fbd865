// Seeing through the ways in which exporters write one formula.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "graph/graph.h"

namespace shardrun {

/// c * v1^e1 * v2^e2 …: what is left of mul, div, neg, sqrt, reciprocal and constant pow nodes.
/// x / sqrt(v) and x * v^-0.5 are the same Monomial.
struct Monomial {
  double coefficient = 1;
  std::map<ValueId, double> factors;   // value -> exponent, never 0
};

/// The scalar that every element of a constant, fill or a cast, reshape or expand of one equals.
std::optional<double> uniform_value(const Graph& graph, ValueId id);

Monomial monomial_of(const Graph& graph, ValueId id);
bool same_factors(const Monomial& a, const Monomial& b);
bool close(double a, double b);  // to 1e-3 relative: exporters print constants in f32 or fewer digits

/// The node that makes `id` if its op is `op`, else null.
const Node* made_by(const Graph& graph, ValueId id, std::string_view op);
/// If `id` is `op`(a, b) of which one equals the constant `c`: the other operand.
std::optional<ValueId> other_operand(const Graph& graph, ValueId id, std::string_view op, double c);
/// If `id` is the mean of something over `axes`: that something.
struct Mean {
  ValueId of;
  std::vector<int64_t> axes;
};
std::optional<Mean> mean_of(const Graph& graph, ValueId id);

/// The data of a small constant value; nullopt for anything else.
std::optional<Tensor> constant_data(const Graph& graph, ValueId id);

}  // namespace shardrun
