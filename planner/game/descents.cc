// Descents, hops, and their union.
#include "planner/game/descents.h"

#include <algorithm>
#include <set>

#include "base/at.h"
#include "base/share.h"
#include "planner/solver/descent/tree_descent.h"
#include "planner/solver/narrowing.h"

namespace shardrun {
namespace {

/// How many descents there are, and when each ends.
struct DescentSettings {
  int patience = 3;           // moves of trees that gain nothing
  double seconds = 0.1;       // of work, each
  double entries = 2.4e8;     // of tables, looked at once in each of all descents
  int fewest = 16;            // descents
  int most = 200;             // descents
  double gain = 1e-4;         // relative: a round that gains less is the last
  double join_gap = 1e-4;     // relative: a union this close to its bound is good enough
  double join_seconds = 0.1;  // of work
};
constexpr DescentSettings kDescents;

class Descents {
 public:
  Descents(const GameBoard& board, double whole_seconds, const MctsOptions& options)
      : board_(board),
        descent_(board.problem()),
        whole_seconds_(whole_seconds),
        most_(at(most_descents(board))),
        threads_(options.threads) {
    under_.seed = options.seed;
    under_.patience = kDescents.patience;
    under_.seconds = kDescents.seconds;
    under_.memory_limit = board.options().memory_limit;
    if (under_.memory_limit > 0)
      under_.byte_seconds =
          board.options().penalty * whole_seconds / static_cast<double>(under_.memory_limit);
  }

  std::vector<Descended> run(std::vector<Solution> starts) {
    descend_from(std::move(starts), most_);
    while (!found_.empty() && found_.size() < most_) {
      const double before = found_[0].price.relative;
      descend_from(hops(found_[0].solution), most_ - found_.size());
      if (std::optional<Solution> all = joined()) descend_from({std::move(*all)}, 1);
      if (found_[0].price.relative >= before * (1 - kDescents.gain)) break;
    }
    return std::move(found_);
  }
  double other_seconds() const { return other_seconds_; }

 private:
  /// Adds what the first of them come to, best first.
  void descend_from(std::vector<Solution> starts, size_t most) {
    const size_t known = found_.size();
    starts.resize(std::min(starts.size(), most));
    found_.resize(known + starts.size());
    other_seconds_ += share(static_cast<int>(starts.size()), threads_, [&](int i) {
      found_[known + at(i)] = priced(descent_.improve(std::move(starts[at(i)]), under_));
    });
    std::stable_sort(found_.begin(), found_.end(), [](const Descended& a, const Descended& b) {
      return a.price.relative < b.price.relative;
    });
  }
  Descended priced(Solution solution) const {
    Descended out;
    out.price.seconds = raw_cost(board_.problem(), solution);
    if (under_.memory_limit > 0) out.price.bytes = peak_bytes(board_.problem(), solution);
    out.price.relative = descent_.cost(solution, under_) / whole_seconds_;
    out.solution = std::move(solution);
    return out;
  }

  /// A solution with each action, as far as it changes anything; and with nothing cut along an
  /// axis.
  std::vector<Solution> hops(const Solution& from) const {
    std::vector<Solution> out;
    for (int axis = 0; axis < board_.mesh().axis_count(); ++axis) {
      if (board_.mesh().axis_size(axis) == 1) continue;
      for (int move = -1; move < static_cast<int>(board_.moves().size()); ++move) {
        if (move >= 0 && !board_.usable(move, axis)) continue;
        Solution next = from;
        cut(next, move, axis);
        if (next != from) out.push_back(std::move(next));
      }
    }
    return out;
  }
  /// Classes that a move cuts are cut so along an axis; of -1, all are whole.
  void cut(Solution& solution, int move, int axis) const {
    for (size_t c = 0; c < board_.classes(); ++c) {
      if (!board_.is_of_nodes(c)) continue;
      std::vector<uint8_t> word = board_.ways_of(c, solution[c]);
      const uint8_t way = move < 0 ? uint8_t{0} : board_.alone(move)[c];
      if (word.empty() || (move >= 0 && way == 0) || word[at(axis)] == way) continue;
      word[at(axis)] = way;
      solution[c] = board_.strategy(c, word);
    }
  }

  /// The best of all that take, class by class, what some found solution has; nullopt: none fits.
  std::optional<Solution> joined() const {
    const FactoredProblem& problem = board_.problem();
    Kept kept;
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      std::set<int> choices;
      for (const Descended& one : found_) choices.insert(one.solution[i]);
      kept.emplace_back(choices.begin(), choices.end());
    }
    const FactoredProblem less = restricted(problem, kept);
    // First as if memory were no matter: mostly it is none.
    std::optional<Narrowed> narrowed = narrow(less, {kDescents.join_gap, kDescents.join_seconds});
    if (under_.memory_limit > 0 && narrowed && narrowed->solution &&
        peak_bytes(less, *narrowed->solution) > under_.memory_limit)
      narrowed = narrow(less, {kDescents.join_gap, kDescents.join_seconds, under_.memory_limit});
    if (!narrowed) return std::nullopt;
    const std::optional<Solution>& best =
        narrowed->solution ? narrowed->solution : narrowed->tightest;
    return best ? std::optional(expanded(*best, kept)) : std::nullopt;
  }

  const GameBoard& board_;
  const TreeDescent descent_;
  TreeDescentOptions under_;
  double whole_seconds_ = 0;
  size_t most_ = 0;
  int threads_ = 1;
  std::vector<Descended> found_;
  double other_seconds_ = 0;
};

}  // namespace

int most_descents(const GameBoard& board) {
  double entries = 1;
  for (const FactoredProblem::Edge& edge : board.problem().edges)
    entries += static_cast<double>(edge.matrix->rows * edge.matrix->columns);
  return static_cast<int>(
      std::clamp<double>(kDescents.entries / entries, kDescents.fewest, kDescents.most));
}

std::vector<Descended> descended(const GameBoard& board, std::vector<Solution> starts,
                                 double whole_seconds, const MctsOptions& options,
                                 double& other_seconds) {
  Descents descents(board, whole_seconds, options);
  std::vector<Descended> out = descents.run(std::move(starts));
  other_seconds += descents.other_seconds();
  return out;
}

}  // namespace shardrun
