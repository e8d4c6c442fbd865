// Matching: sees through the ways in which exporters write one formula.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// c * v1^e1 * v2^e2 …: what is left of mul, div, neg, sqrt, reciprocal and constant pow nodes.
/// x / sqrt(v) and x * v^-0.5 are the same Monomial; sqrt(x * x), which is |x|, stays a factor.
struct Monomial {
  double coefficient = 1;
  std::map<ValueId, double> factors;  // value -> exponent, never 0
};

/// The scalar that every element of a constant, fill or a cast, reshape or expand of one equals.
std::optional<double> uniform_value(const Graph& graph, ValueId id);

Monomial monomial_of(const Graph& graph, ValueId id);
Monomial multiply(const Monomial& a, const Monomial& b);
Monomial power(const Monomial& a, double exponent);
bool same_factors(const Monomial& a, const Monomial& b);
/// The one factor of a Monomial c * v, else nullopt.
std::optional<ValueId> sole_factor(const Monomial& m);
bool close(double a, double b);  // to 1e-4 relative: people write constants with five digits

/// By value: how often nodes, outputs, loss, updates and metrics use it.
std::vector<int> use_counts(const Graph& graph);

/// The node that makes `id` if its op is `op`, else null.
const Node* made_by(const Graph& graph, ValueId id, std::string_view op);

/// If `id` is the mean of something over `axes`, which stay as dims of size 1: that something.
struct Mean {
  ValueId of;
  std::vector<int64_t> axes;
};
std::optional<Mean> mean_of(const Graph& graph, ValueId id);

/// The contents of a constant, read from its file if need be; nullopt for anything else and for
/// more than 2^26 elements.
std::optional<Tensor> constant_data(const Graph& graph, ValueId id);

/// Element (t, s) of the last two dims, the same for all others: `below` if s <= t + offset, else
/// `above`. below == above: the same everywhere, whatever the offset.
///   a causal mask of booleans, true = keep:  {1, 0, 0};   added to the scores:  {0, -inf, 0}
struct Triangle {
  double below = 0, above = 0;
  int64_t offset = 0;
};
/// Reads constants, and follows trilu, casts, slices, comparisons, where and arithmetic with single
/// numbers.
std::optional<Triangle> triangle_of(const Graph& graph, ValueId id);

/// Remembers them: one mask serves all layers, and reading it takes longer than all else that a
/// layer needs. For as long as no value is made by another node than before.
class Triangles {
 public:
  explicit Triangles(const Graph& graph) : graph_(graph) {}
  const std::optional<Triangle>& of(ValueId id) {
    const auto [it, fresh] = known_.try_emplace(id);
    if (fresh) it->second = triangle_of(graph_, id);
    return it->second;
  }

 private:
  const Graph& graph_;
  std::map<ValueId, std::optional<Triangle>> known_;
};

/// Does the value depend on a parameter that trains?
bool depends_on_trained(const Graph& graph, ValueId id);

}  // namespace shardrun
