// A Problem as JSON, in the planner's own form (planner/contest/problem_file.h).
#pragma once

#include <charconv>
#include <string>

#include "planner/solver/problem.h"

namespace shardrun::test {

inline void print(std::string& out, double value) {
  if (value == kInfeasible) {
    out += "null";
    return;
  }
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, end);
}

template <typename List, typename Visit>
void print_list(std::string& out, const List& list, Visit&& visit) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out += ", ";
    first = false;
    visit(item);
  }
  out += ']';
}

/// Numbers so that they are read back equal.
inline std::string problem_json(const Problem& problem) {
  std::string out = "{\"nodes\": ";
  print_list(out, problem.nodes, [&](const Problem::Node& node) {
    out += "{\"name\": \"";
    for (char c : node.name) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    out += "\", \"cost\": ";
    print_list(out, node.cost, [&](double cost) { print(out, cost); });
    out += ", \"claims\": ";
    print_list(out, node.claims, [&](const Problem::Claim& claim) {
      out += "{\"bytes\": ";
      print_list(out, claim.bytes, [&](int64_t bytes) { out += std::to_string(bytes); });
      out += ", \"live\": ";
      print_list(out, claim.live, [&](const Problem::Interval& live) {
        out += "[" + std::to_string(live.first) + ", " + std::to_string(live.last) + "]";
      });
      out += "}";
    });
    out += "}";
  });
  out += ",\n \"edges\": ";
  print_list(out, problem.edges, [&](const Problem::Edge& edge) {
    out += "{\"from\": " + std::to_string(edge.from) + ", \"to\": " + std::to_string(edge.to) +
           ", \"cost\": ";
    print_list(out, edge.cost, [&](double cost) { print(out, cost); });
    out += "}";
  });
  if (problem.limited()) out += ",\n \"memory_limit\": " + std::to_string(problem.memory_limit);
  return out + "}\n";
}

}  // namespace shardrun::test
