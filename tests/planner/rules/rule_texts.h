// What discovery finds for an op, as a set of texts: "[S0, -] -> [S0]".
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/rules/discovery.h"

namespace shardrun::test {

using Rules = std::set<std::string>;
using Ints = std::vector<int64_t>;

inline TensorType f32(Shape shape) { return {DType::f32, std::move(shape)}; }
inline TensorType i64(Shape shape) { return {DType::i64, std::move(shape)}; }

inline Node node(const std::string& op, Attrs attrs = {}) {
  Node n;
  n.op = op;
  n.name = "test";
  n.attrs = std::move(attrs);
  return n;
}

inline Rules all_rules(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
                       const Evidence& evidence = {}) {
  Rules rules;
  for (const auto& option : discover(node(op, attrs), in, evidence).options)
    rules.insert(to_string(option));
  return rules;
}

/// Cuts only: no operand is partial.
inline Rules cuts(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
                  const Evidence& evidence = {}) {
  Rules rules;
  for (const std::string& r : all_rules(op, attrs, std::move(in), evidence)) {
    if (r.substr(0, r.find("->")).find('P') == std::string::npos) rules.insert(r);
  }
  return rules;
}

/// Options with operands that are partial sums.
inline Rules sums(const std::string& op, const Attrs& attrs, std::vector<TensorType> in,
                  const Evidence& evidence = {}) {
  Rules rules;
  for (const std::string& r : all_rules(op, attrs, std::move(in), evidence)) {
    if (r.substr(0, r.find("->")).find("P(sum)") != std::string::npos) rules.insert(r);
  }
  return rules;
}

inline Attrs equation(const char* e) { return {{"equation", std::string(e)}}; }

}  // namespace shardrun::test
