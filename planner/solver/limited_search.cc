// Solving with few of the times at which memory is limited, and adding those that are violated.
#include "planner/solver/limited_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "planner/solver/deadline.h"
#include "planner/solver/highs_mip.h"
#include "planner/solver/narrowing.h"
#include "planner/solver/solver.h"

namespace shardrun {
namespace {

/// What LimitedSearch gives to the solvers, and when.
struct LimitedSearchSettings {
  size_t strategies = 64;  // of a node at most, where message passing finds nothing good enough
  double hope = 2.0 / 3;   // how much of what narrowing could gain the solvers may, without a limit
  double free_gap = 1e-5;  // relative, where no memory is limited: that close costs hundredths of
                           // a second, and what the bound leaves is small enough to be eliminated
  double plain_pairs = 5e6;      // variables of the plain program at most
  double polish_fraction = 0.1;  // of the seconds, for the solvers: narrowing has a solution
  double rescue_fraction = 0.3;  // the same where it has none
  // Times at which memory is limited.
  int rounds = 24;       // of adding some
  size_t segments = 48;  // each adds its worst time
};
constexpr LimitedSearchSettings kLimitedSearch;

/// Of each node's kept strategies those with the least slack, the best solution's among them;
/// where memory is scarce, a third are those with the smallest results. `all`: is that all of
/// them?
Kept most_promising(const FactoredProblem& problem, const Narrowed& narrowed, bool scarce,
                    bool& all) {
  Kept out;
  for (size_t i = 0; i < narrowed.kept.size(); ++i) {
    const std::vector<int>& kept = narrowed.kept[i];
    if (kept.size() <= kLimitedSearch.strategies) {
      out.push_back(kept);
      continue;
    }
    all = false;
    std::set<int> chosen;
    for (const auto& solution : {narrowed.solution, narrowed.tightest}) {
      if (solution) chosen.insert((*solution)[i]);
    }
    std::vector<size_t> order(kept.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto take = [&](size_t most, const auto& key) {
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return key(a) < key(b); });
      for (size_t k : order) {
        if (chosen.size() < most) chosen.insert(kept[k]);
      }
    };
    take(scarce ? kLimitedSearch.strategies * 2 / 3 : kLimitedSearch.strategies,
         [&](size_t k) { return narrowed.slack[i][k]; });
    take(kLimitedSearch.strategies, [&](size_t k) {
      int64_t bytes = 0;
      for (const Problem::Claim& claim : problem.nodes[i].claims)
        bytes += claim.bytes[static_cast<size_t>(kept[k])];
      return bytes;
    });
    out.emplace_back(chosen.begin(), chosen.end());
  }
  return out;
}

LimitedResult result_of(const Narrowed& narrowed) {
  return {narrowed, narrowed.lower_bound, "bound"};
}

}  // namespace

double LimitedSearch::gap_at(int64_t limit) const {
  return limit > 0 ? options_.gap : std::min(options_.gap, kLimitedSearch.free_gap);
}

LimitedResult LimitedSearch::plain(const FactoredProblem& problem, int64_t limit,
                                   double seconds) const {
  double pairs = 0;
  for (const FactoredProblem::Edge& edge : problem.edges)
    pairs += static_cast<double>(edge.row.size()) * static_cast<double>(edge.column.size());
  SR_REQUIRE(pairs <= kLimitedSearch.plain_pairs, invalid_input,
             "planner 'plain-ilp': the program has ", pairs, " variables, ",
             kLimitedSearch.plain_pairs,
             " are the most that HiGHS is given; take --planner ilp or a mesh of fewer axes");
  Problem whole = dense(problem);
  if (limit > 0) whole.memory_limit = limit;
  SolveOptions options;
  options.seed = options_.seed;
  options.gap = options_.gap;
  const MipResult mip = solve_mip(whole, nullptr, Deadline(seconds), options);
  LimitedResult out;
  out.solution = mip.solution;
  if (mip.solution) out.cost = raw_cost(problem, *mip.solution);
  out.lower_bound = std::min(mip.bound, out.cost);
  out.solver = "mip";
  return out;
}

LimitedResult LimitedSearch::polished(const FactoredProblem& problem, int64_t limit,
                                      const Narrowed& narrowed, double seconds) const {
  const bool beam = options_.method == LimitedOptions::Method::beam;
  LimitedResult out = result_of(narrowed);
  const double gap = gap_at(limit);
  if (!beam && (limit > 0 ? narrowed.gap() <= gap : narrowed.enough)) return out;
  bool all = true;
  const Kept kept = most_promising(problem, narrowed, limit > 0, all);
  Problem left = dense(restricted(problem, kept));
  if (limit > 0) left.memory_limit = limit;
  SolveOptions options;
  options.seconds = beam                ? seconds
                    : narrowed.solution ? kLimitedSearch.polish_fraction * seconds
                                        : kLimitedSearch.rescue_fraction * seconds;
  options.clock = Deadline::Clock::work;
  options.seed = options_.seed;
  options.gap = gap;
  if (limit <= 0) options.steps = kLimitedSearch.hope * steps_to_gain(limit);
  options.mip = false;  // it takes most of the time, and finds hardly anything
  if (all && limit <= 0) options.lower_bound = narrowed.lower_bound;
  const std::optional<Solution> known =
      narrowed.solution ? choices_in(*narrowed.solution, kept) : std::nullopt;
  if (known) options.start = &*known;
  const SolveResult result = beam ? solve_beam(left, options) : solve_ilp(left, options);
  out.solver = result.solver;
  if (result.solution && (result.cost < out.cost || beam)) {
    out.solution = expanded(*result.solution, kept);
    out.cost = result.cost;
  }
  if (result.tightest) out.tightest = expanded(*result.tightest, kept);
  // What was removed cannot be in anything that is cheaper than what was known then.
  if (all && !beam)
    out.lower_bound = std::max(out.lower_bound, std::min(result.lower_bound, narrowed.cost));
  out.lower_bound = std::min(out.lower_bound, out.cost);
  return out;
}

/// The problem with one time per row. What the capacity of a row lacks of the largest one's is
/// claimed by a node of one choice, the last.
FactoredProblem LimitedSearch::at_rows(const std::vector<int64_t>& capacity, int64_t& limit) const {
  FactoredProblem out = problem_;
  for (FactoredProblem::Node& node : out.nodes) {
    for (Problem::Claim& claim : node.claims) {
      for (Problem::Interval& live : claim.live) {
        const auto first = std::lower_bound(rows_.begin(), rows_.end(), live.first);
        const auto end = std::upper_bound(rows_.begin(), rows_.end(), live.last);
        live = {static_cast<int>(first - rows_.begin()), static_cast<int>(end - rows_.begin()) - 1};
      }
      std::erase_if(claim.live,
                    [](const Problem::Interval& live) { return live.first > live.last; });
    }
    std::erase_if(node.claims, [](const Problem::Claim& claim) { return claim.live.empty(); });
  }
  limit = 0;
  if (rows_.empty()) return out;
  for (int t : rows_) limit = std::max(limit, capacity[static_cast<size_t>(t)]);
  limit = std::max<int64_t>(limit, 1);
  FactoredProblem::Node rest{"the rest of the arena", {0.0}, {}, 0};
  for (size_t r = 0; r < rows_.size(); ++r) {
    const int64_t bytes = limit - capacity[static_cast<size_t>(rows_[r])];
    const int row = static_cast<int>(r);
    if (bytes > 0) rest.claims.push_back({{bytes}, {{row, row}}});
  }
  out.nodes.push_back(std::move(rest));
  return out;
}

bool LimitedSearch::add_rows(const std::vector<int64_t>& capacity, const Solution& solution) {
  const std::vector<int64_t> use = bytes_over_time(problem_, solution);
  const size_t times = std::min(use.size(), capacity.size());
  std::set<int> rows(rows_.begin(), rows_.end());
  const size_t before = rows.size();
  for (size_t s = 0; s < kLimitedSearch.segments; ++s) {
    int64_t most = 0;
    int worst = -1;
    for (size_t t = times * s / kLimitedSearch.segments;
         t < times * (s + 1) / kLimitedSearch.segments; ++t) {
      if (use[t] - capacity[t] <= most) continue;
      most = use[t] - capacity[t];
      worst = static_cast<int>(t);
    }
    if (worst >= 0) rows.insert(worst);
  }
  rows_.assign(rows.begin(), rows.end());
  return rows.size() > before;
}

LimitedResult LimitedSearch::run(const std::vector<int64_t>& capacity,
                                 const std::vector<Solution>& starts, double seconds) {
  const bool plainly = options_.method == LimitedOptions::Method::plain;
  const Deadline end(seconds, plainly ? Deadline::Clock::wall : Deadline::Clock::work);
  double lower_bound = -kInfeasible;
  LimitedResult found;
  FactoredProblem now;  // with the times that are known
  int64_t limit = 0;
  std::optional<Narrowed> narrowed;
  bool fresh = true, polish = plainly || (capacity.empty() && options_.polishes);  // at last
  Incumbent all;  // whose peaks are those of all times
  for (int round = 0; round < kLimitedSearch.rounds; ++round) {
    if (fresh) {
      now = capacity.empty() || rows_.empty() ? problem_ : at_rows(capacity, limit);
      std::vector<Solution> from = starts;
      for (Solution& start : from) start.resize(now.nodes.size(), 0);
      if (!plainly)
        narrowed =
            narrow(now, {gap_at(limit), seconds, limit, std::move(from), true, options_.patience});
    }
    found = plainly     ? plain(now, limit, end.left())
            : !narrowed ? LimitedResult()
            : polish    ? polished(now, limit, *narrowed, seconds)
                        : result_of(*narrowed);
    for (auto* solution : {&found.solution, &found.tightest}) {
      if (!*solution) continue;
      (*solution)->resize(problem_.nodes.size());
      if (!capacity.empty())
        all.offer(**solution, raw_cost(problem_, **solution), peak_bytes(problem_, **solution),
                  false);
    }
    lower_bound = std::max(lower_bound, found.lower_bound);
    const std::optional<Solution>& seen = found.solution ? found.solution : found.tightest;
    if (end.passed() || !seen) break;
    fresh = !capacity.empty() && add_rows(capacity, *seen);
    if (fresh) continue;
    const bool good = found.solution && (found.cost - lower_bound <= options_.gap * found.cost ||
                                         (capacity.empty() && !options_.polishes));
    if (polish || (good && options_.method != LimitedOptions::Method::beam)) break;
    polish = true;
  }
  // The last solution may be one that time left no more rounds for.
  if (!capacity.empty() && found.solution && add_rows(capacity, *found.solution)) {
    found.solution = std::nullopt;
    found.cost = kInfeasible;
  }
  if (all.tightest) found.tightest = std::move(all.tightest);
  found.lower_bound = std::min(lower_bound, found.cost);
  return found;
}

}  // namespace shardrun
