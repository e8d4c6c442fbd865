// Names of planners and baselines, read and written.
#include "planner/planner_choice.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace shardrun {
namespace {

/// The baselines that `text` joins; empty if one of the names is none.
std::vector<Baseline> parse_baselines(std::string_view text) {
  std::vector<Baseline> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::optional<Baseline> kind = kind_named(kBaselines, text.substr(begin, end - begin));
    if (!kind) return {};
    out.push_back(*kind);
    begin = end + 1;
  }
  return out;
}

}  // namespace

PlannerChoice parse_planner(std::string_view text) {
  std::vector<Baseline> baselines = parse_baselines(text);
  if (!baselines.empty()) return {PlannerKind::baselines, std::move(baselines)};
  const std::optional<PlannerKind> kind = kind_named(kPlanners, text);
  SR_REQUIRE(kind, invalid_input, "planner '", text, "' is not known; known are ",
             known_planners());
  return {*kind, {}};
}

std::string to_string(const PlannerChoice& planner) {
  std::string out(name_of(kPlanners, planner.kind));
  for (Baseline one : planner.baselines)
    out.append(out.empty() ? "" : "+").append(name_of(kBaselines, one));
  return out;
}

}  // namespace shardrun
