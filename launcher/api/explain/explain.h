// Plans in words, for people. Each text is some lines.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "explain/analysis.h"
#include "planner/planner.h"
#include "program/compile.h"

namespace shardrun {

/// Where the time and bytes go, and the most expensive collectives with why they are there.
/// `report`: of the search. `flops`: arithmetic() of the step as it was modelled.
std::string details_text(const Explained& of, const PlanReport& report,
                         const std::map<std::string, double>& flops);

/// Collectives that are alike in every layer, together, and what it would cost to be without them.
struct ExpensiveCollective {
  std::string title;    // "4 x all_gather, one of 'x' f32[8]: [{m}] -> [-]"
  std::string reasons;  // lines
  double seconds = 0;   // of a step
};
/// The few that take the most time, that one first.
std::vector<ExpensiveCollective> expensive_collectives(const Explained& of,
                                                       const PlanAnalysis& analysis);

/// A table, layer by layer, layers that are alike printed once. `recomputed`: a sentence on what is
/// computed again, or "".
std::string table_text(const Explained& of, const std::string& recomputed);

/// How `value` lies and who wants it otherwise, and the best plan in which it does not lie so:
/// `without` makes it, or throws out_of_memory or invalid_input. Throws invalid_input if there is
/// no such value.
std::string why_text(
    const Explained& of, const std::string& value,
    const std::function<Plan(const std::string& value, const Sharding& sharding)>& without);

/// What if every value that `shard`, a "REGEX=SHARDING", names lay so: a row for each, and one for
/// all of them together, which `together` plans, or throws out_of_memory or invalid_input. Throws
/// invalid_input as find_request does.
std::string what_if_text(const Explained& of, const std::string& shard,
                         const std::function<Plan()>& together);

/// What `b` has that `a` has not: time, by what takes it (rows add up to the difference), bytes,
/// and every value that lies otherwise.
std::string difference_text(const Explained& a, const Explained& b);

/// Every node as loops over the mesh's axes, one result a line: "y : f32[8,4] = tile 0 a { sum b {
/// matmul(slice 0 a slice 1 b x, slice 0 b w) } }". A loop over an axis cuts a dim of the result,
/// or leaves it in parts to be reduced; a slice is what the rank's turn of the loop reads. The
/// lines hold all that a plan says of values and nodes.
std::string loops_text(const Explained& of);

/// What is known of every node of `of.graph`, by name, as a JSON object: op, phase, module, types
/// of operands and results, and seconds of a step (PlanCosts).
nlohmann::json nodes_json(const Graph& graph, const Plan& plan, const Cluster& cluster);

/// The plan as an HTML page (page/page.html) that loads nothing. `title`: of the model. `other`: a
/// plan whose differences are shown, or null. `report`: the JSON object of a run's --report, or
/// null. Throws invalid_input for a report that is none, or of another mesh.
std::string page_html(const Explained& of, const std::string& title, const Explained* other,
                      const std::string* report);

/// Writes a file for each pass of compile to `folder`: what the pass does, and the rank's program
/// before and after. `stop_after`: the last one ("": all). Throws invalid_input.
void write_passes(const Explained& of, int64_t rank, const BackendTraits& backend,
                  const std::string& folder, const std::string& stop_after);

}  // namespace shardrun
