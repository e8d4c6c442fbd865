// Copies of values, made anew or shared.
#include "planner/space/copy_requests.h"

#include "base/at.h"

namespace shardrun {

void CopyRequests::add(const Graph& graph, const Request::Copies& copies, const std::string& by) {
  const auto [known, fresh] = of_.emplace(copies.value, Asked{copies, by});
  SR_REQUIRE(fresh || known->second.copies == copies, invalid_input, known->second.by, " and ", by,
             " contradict at value '", graph.value(copies.value).name,
             "'; leave out one of the two");
}

void CopyRequests::mark(const Graph& graph, const Mesh& mesh,
                        std::map<NodeId, std::string>& marks) const {
  if (empty()) return;
  const auto mark_those_of = [&](size_t n, const std::vector<ValueId>& values, const char* side) {
    for (size_t k = 0; k < values.size(); ++k) {
      const auto asked = of_.find(values[k]);
      if (asked == of_.end()) continue;
      const Request::Copies& copies = asked->second.copies;
      marks[static_cast<NodeId>(n)] += str(side, k, copies.regathered ? '+' : '-',
                                           copies.from ? to_string(*copies.from, mesh) : "");
    }
  };
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    mark_those_of(n, graph.nodes()[n].inputs, "<");
    mark_those_of(n, graph.nodes()[n].outputs, ">");
  }
}

void CopyRequests::apply(const Graph& graph, SearchSpace& space) const {
  if (empty()) return;
  if (space.regathered.empty()) space.regathered.assign(graph.values().size(), false);
  space.from_nearest.assign(graph.values().size(), false);
  for (const auto& [value, asked] : of_) {
    space.regathered[at(value)] = asked.copies.regathered;
    space.from_nearest[at(value)] = !asked.copies.regathered && !asked.copies.from;
    if (asked.copies.from) space.copied_from.emplace(value, *asked.copies.from);
  }
}

}  // namespace shardrun
