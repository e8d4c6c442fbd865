// Beam search over the nodes in their order.
#include <algorithm>

#include "planner/solver/bytes_over_time.h"
#include "planner/solver/deadline.h"
#include "planner/solver/flat_problem.h"
#include "planner/solver/presolve/reductions.h"
#include "planner/solver/solver.h"

namespace shardrun {
namespace {

/// Widths of a beam: narrow first, since something is there early, and a wider beam is not always
/// the better one.
struct BeamSettings {
  int first = 8;
  int factor = 8;  // from one to the next
};
constexpr BeamSettings kBeam;

/// One more choice after those of step `before`; shared by all candidates that go on from it.
struct BeamChoice {
  int before = -1;
  int choice = 0;
};

struct BeamState {
  int last = -1;               // step
  std::vector<int> open;       // choices of the nodes that later ones still look at
  std::vector<int64_t> bytes;  // per kept time: the chosen nodes' and the least of the others
  double cost = 0;
};

class Beam {
 public:
  Beam(const Problem& core, size_t width) : core_(core), flat_(core), width_(width) {}

  /// nullopt if every candidate came to a node that had no choice left, or time ran out.
  std::optional<Solution> run(const Deadline& end) {
    const size_t count = core_.nodes.size();
    std::vector<int> last_reader(count, -1);
    for (size_t i = 0; i < count; ++i) {
      for (const FlatProblem::Arc& arc : flat_.arcs(static_cast<int>(i)))
        last_reader[i] = std::max(last_reader[i], arc.other);
    }
    std::vector<BeamState> beam(1);
    beam[0].bytes = least_bytes();
    std::vector<int> open;  // earlier nodes with readers to come
    struct Next {
      double cost;
      size_t from;
      int choice;
    };
    for (size_t i = 0; i < count; ++i) {
      if (end.passed()) return std::nullopt;
      std::vector<Next> next;
      for (size_t b = 0; b < beam.size(); ++b) {
        const std::vector<double> costs = costs_after(static_cast<int>(i), open, beam[b]);
        for (size_t a = 0; a < costs.size(); ++a) {
          if (costs[a] != kInfeasible)
            next.push_back({beam[b].cost + costs[a], b, static_cast<int>(a)});
        }
      }
      count_work(kSearchWork.candidate * static_cast<double>(next.size()));
      std::stable_sort(next.begin(), next.end(),
                       [](const Next& a, const Next& b) { return a.cost < b.cost; });
      std::vector<size_t> kept;  // of `open`, those still open after this node
      for (size_t k = 0; k < open.size(); ++k) {
        if (last_reader[static_cast<size_t>(open[k])] > static_cast<int>(i)) kept.push_back(k);
      }
      const bool stays = last_reader[i] > static_cast<int>(i);
      std::vector<BeamState> chosen;
      for (const Next& n : next) {
        if (chosen.size() >= width_) break;
        const BeamState& from = beam[n.from];
        BeamState candidate;
        candidate.bytes = from.bytes;
        hold(static_cast<int>(i), n.choice, candidate.bytes);
        if (!fits(candidate.bytes)) continue;
        for (size_t k : kept) candidate.open.push_back(from.open[k]);
        if (stays) candidate.open.push_back(n.choice);
        // What differs only in the past is not worth a place: the first is the cheaper.
        const bool known = std::any_of(chosen.begin(), chosen.end(), [&](const BeamState& c) {
          return c.open == candidate.open && c.bytes == candidate.bytes;
        });
        if (known) continue;
        candidate.cost = n.cost;
        candidate.last = static_cast<int>(steps_.size());
        steps_.push_back({from.last, n.choice});
        chosen.push_back(std::move(candidate));
      }
      if (chosen.empty()) return std::nullopt;
      beam = std::move(chosen);
      std::vector<int> still;
      for (size_t k : kept) still.push_back(open[k]);
      if (stays) still.push_back(static_cast<int>(i));
      open = std::move(still);
    }
    Solution solution(count);
    int step = beam[0].last;
    for (size_t i = count; i-- > 0; step = steps_[static_cast<size_t>(step)].before)
      solution[i] = steps_[static_cast<size_t>(step)].choice;
    return solution;
  }

 private:
  /// Per kept time, if each claim is as small as it can be.
  std::vector<int64_t> least_bytes() {
    BytesOverTime sum(flat_.times());
    for (int i = 0; i < flat_.size(); ++i) {
      std::vector<int64_t>& least = least_.emplace_back();
      for (const FlatProblem::Range& range : flat_.ranges(i)) {
        least.push_back(*std::min_element(range.bytes, range.bytes + flat_.strategies(i)));
        sum.add(range.first, range.end, least.back());
      }
    }
    return sum.values();
  }
  std::vector<double> costs_after(int node, const std::vector<int>& open,
                                  const BeamState& candidate) const {
    std::vector<double> costs = core_.nodes[static_cast<size_t>(node)].cost;
    for (const FlatProblem::Arc& arc : flat_.arcs(node)) {
      if (arc.other > node) continue;
      const auto at = std::lower_bound(open.begin(), open.end(), arc.other) - open.begin();
      const double* row =
          arc.by_other +
          static_cast<size_t>(candidate.open[static_cast<size_t>(at)]) * costs.size();
      for (size_t a = 0; a < costs.size(); ++a) costs[a] += row[a];
    }
    return costs;
  }
  bool fits(const std::vector<int64_t>& bytes) const {
    count_work(static_cast<double>(bytes.size()));
    return bytes.empty() || *std::max_element(bytes.begin(), bytes.end()) <= core_.memory_limit;
  }
  void hold(int node, int choice, std::vector<int64_t>& bytes) const {
    const std::vector<FlatProblem::Range>& ranges = flat_.ranges(node);
    for (size_t r = 0; r < ranges.size(); ++r) {
      const FlatProblem::Range& range = ranges[r];
      const int64_t extra = range.bytes[choice] - least_[static_cast<size_t>(node)][r];
      if (extra == 0) continue;
      for (int t = range.first; t < range.end; ++t) bytes[static_cast<size_t>(t)] += extra;
    }
  }

  const Problem& core_;
  FlatProblem flat_;
  size_t width_;
  std::vector<std::vector<int64_t>> least_;  // by node and range
  std::vector<BeamChoice> steps_;
};

}  // namespace

SolveResult solve_beam(const Problem& problem, const SolveOptions& options) {
  const Deadline end(options.seconds, options.clock);
  check_problem(problem);
  SolveResult result;
  result.solver = "beam";
  Reducer reducer(problem);
  if (!reducer.run(Reducer::kQuickWork, [&] { return end.passed(); })) {
    result.proven_infeasible = true;
    result.seconds = end.elapsed();
    return result;
  }
  result.core_nodes = reducer.core().nodes.size() - 1;
  for (int width = std::min(kBeam.first, std::max(1, options.beam_width));;
       width = std::min(width * kBeam.factor, options.beam_width)) {
    if (const std::optional<Solution> found =
            Beam(reducer.core(), static_cast<size_t>(width)).run(end)) {
      const Solution solution = reducer.expand(*found);
      result.offer(solution, evaluate(problem, solution).cost, -1, true);
    }
    if (width >= options.beam_width || end.passed()) break;
  }
  result.seconds = end.elapsed();
  return result;
}

}  // namespace shardrun
