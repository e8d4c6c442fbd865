// Searches of few choices.
#include "planner/starts.h"

#include <algorithm>

#include "planner/solver/narrowing.h"

namespace shardrun {
namespace {

bool cuts_nothing(const Strategy& strategy) {
  const auto whole = [](const Sharding& sharding) { return sharding.is_replicated(); };
  return std::all_of(strategy.in.begin(), strategy.in.end(), whole) &&
         std::all_of(strategy.out.begin(), strategy.out.end(), whole);
}

}  // namespace

std::optional<Solution> cheapest_of(const FactoredProblem& problem, const Kept& kept) {
  const std::optional<Narrowed> found = narrow(restricted(problem, kept), {});
  if (!found || !found->solution) return std::nullopt;
  return expanded(*found->solution, kept);
}

std::optional<Solution> least_cut(const FactoredProblem& problem, const SearchSpace& space) {
  Kept kept = all_kept(problem);
  for (size_t c = 0; c < space.strategies.size(); ++c) {
    const std::vector<Strategy>& all = space.strategies[c];
    const auto found = std::find_if(all.begin(), all.end(), cuts_nothing);
    if (found != all.end()) kept[c] = {static_cast<int>(found - all.begin())};
  }
  return cheapest_of(problem, kept);
}

}  // namespace shardrun
