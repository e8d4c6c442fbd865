// Problems as files: the planner's own JSON form and the IOPDDL contest's, plain or gzipped.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "planner/solver/problem.h"

namespace shardrun {

/// Reads the file (gzipped or not) and what parse_problem reads from it. Throws invalid_input if it
/// cannot be read. nullopt if `late` (may be null) says so before the end is reached. `rounded`
/// (may be null) gets the first whole cost that no double holds, or "":
///   edges[3].cost[1] is 9007199254740993 and is taken as 9007199254740992
std::optional<Problem> read_problem(const std::string& path,
                                    const std::function<bool()>& late = nullptr,
                                    std::string* rounded = nullptr);

/// Two forms. Ours, with inclusive intervals as in Problem and no other fields; "name", "claims"
/// and "memory_limit" may be absent, and null forbids:
///   {"nodes": [{"name": "a", "cost": [1, null], "claims": [{"bytes": [4, 8], "live": [[0, 3]]}]}],
///    "edges": [{"from": 0, "to": 1, "cost": [0, 1, 1, 0]}],
///    "memory_limit": 8}
///
/// The contest's, with half-open intervals; a cost of 1e18 or more is forbidden:
///   {"problem": {
///     "nodes": {"intervals": [[lo, hi], ...], "costs": [[...], ...], "usages": [[...], ...]},
///     "edges": {"nodes": [[u, v], ...], "costs": [[...], ...]},
///     "usage_limit": N}}
///
/// A strategy that alone exceeds the limit is forbidden in both. Costs are held as double: exact as
/// long as a solution's cost stays below 2^53; a whole number above it may be rounded. Throws
/// invalid_input with the place in the text.
Problem parse_problem(const std::string& text, const std::string& name = "problem");

}  // namespace shardrun
