// Trees, and what they find together.
#include "planner/game/mcts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/at.h"
#include "base/share.h"

namespace shardrun {
namespace {

/// How states are chosen and valued, and when the search ends.
struct TreeSearchSettings {
  int round = 100;        // trajectories between two looks at what was gained
  double explore = 0.3;   // of the span
  double span = 0.3;      // values so far below the best are all alike
  int tried = 4;          // actions of which a rollout takes the best
  double best = 0.5;      // a node's value: this much of its best, the rest its mean
  double worst = 1e6;     // relative prices beyond are all alike
  double gain = 1e-4;     // what counts as better
  double shorter = 1e-4;  // value of an action fewer
  int worse_steps = 3;    // a rollout ends after so many in a row
};
constexpr TreeSearchSettings kTreeSearch;

bool comes_before(const FoundState& a, const FoundState& b) {
  if (a.price.relative != b.price.relative) return a.price.relative < b.price.relative;
  return a.actions.size() < b.actions.size();
}

/// Ascending, each state once; the first of equals stays in front.
void keep_best_states(std::vector<FoundState>& states, size_t kept) {
  std::stable_sort(states.begin(), states.end(), comes_before);
  std::vector<FoundState> out;
  std::unordered_map<uint64_t, bool> known;
  for (FoundState& state : states) {
    if (out.size() < kept && known.emplace(state.state, true).second)
      out.push_back(std::move(state));
  }
  states = std::move(out);
}

class Tree {
 public:
  Tree(const GameBoard& board, const GameStart& start, int start_number, uint64_t seed,
       int64_t budget, const MctsOptions& options)
      : game_(board, start.first, start.start),
        start_(start_number),
        random_(seed),
        budget_(budget),
        options_(options) {
    root_ = new_node();
  }

  void run() {
    double least = found_.empty() ? kTreeSearch.worst : found_[0].price.relative;
    int stale = 0;
    while (!nodes_[at(root_)].done && looks_ < budget_ && stale < options_.patience) {
      for (int i = 0; i < kTreeSearch.round && !nodes_[at(root_)].done && looks_ < budget_; ++i)
        trajectory();
      keep_best_states(found_, options_.kept);
      stale = found_[0].price.relative < least * (1 - kTreeSearch.gain) ? 0 : stale + 1;
      least = std::min(least, found_[0].price.relative);
    }
    keep_best_states(found_, options_.kept);
  }

  std::vector<FoundState>& found() { return found_; }
  std::map<Action, FoundState>& behind() { return behind_; }
  int64_t evaluations() const { return static_cast<int64_t>(values_.size()); }
  bool exhausted() const { return nodes_[at(root_)].done; }

 private:
  static constexpr int kUntried = -1, kElsewhere = -2;  // its state hangs at another node
  struct Child {
    Action action;
    int node = kUntried;
  };
  struct Node {
    std::vector<Child> children;
    int visits = 0;
    double sum = 0, best = 0;
    bool expanded = false;
    bool done = false;  // all below it was looked at
  };

  /// The value of stopping here: relative time, as a logarithm, the more the better.
  double look() {
    ++looks_;
    const uint64_t state = game_.state();
    const auto [it, fresh] = values_.emplace(state, 0.0);
    if (!fresh) return it->second;
    const Price price = game_.price();
    it->second = -std::log(std::min(price.relative, kTreeSearch.worst)) -
                 kTreeSearch.shorter * static_cast<double>(game_.applied().size());
    highest_ = std::max(highest_, it->second);
    if (found_.size() < options_.kept || price.relative <= found_[options_.kept - 1].price.relative)
      found_.push_back({price, state, start_, game_.applied()});
    if (found_.size() > 4 * options_.kept) keep_best_states(found_, options_.kept);
    if (game_.applied().empty()) return it->second;
    const auto [known, first] = behind_.try_emplace(game_.applied().back());
    if (first || price.relative < known->second.price.relative)
      known->second = {price, state, start_, game_.applied()};
    return it->second;
  }

  /// A node for the game's state; kElsewhere if there is one.
  int new_node() {
    const auto [it, fresh] = known_.emplace(game_.state(), static_cast<int>(nodes_.size()));
    if (!fresh) return kElsewhere;
    nodes_.emplace_back();
    nodes_.back().best = look();
    return it->second;
  }

  void expand(int id) {
    std::vector<Child> children;
    for (const Action& action : game_.legal()) children.push_back({action, kUntried});
    std::shuffle(children.begin(), children.end(), random_);
    nodes_[at(id)].children = std::move(children);
    nodes_[at(id)].expanded = true;
  }

  /// Where to go on, or -1: nothing is left below.
  int chosen(const Node& node) const {
    const auto part = [&](double value) {
      return std::max(0.0, 1 - (highest_ - value) / kTreeSearch.span);
    };
    int best = -1;
    double most = 0;
    for (size_t i = 0; i < node.children.size(); ++i) {
      const Child& child = node.children[i];
      if (child.node == kUntried) return static_cast<int>(i);
      if (child.node == kElsewhere) continue;
      const Node& to = nodes_[at(child.node)];
      if (to.done) continue;
      const double visits = std::max(1, to.visits);
      const double mean = to.visits > 0 ? to.sum / visits : part(to.best);
      const double score = kTreeSearch.best * part(to.best) + (1 - kTreeSearch.best) * mean +
                           kTreeSearch.explore * std::sqrt(std::log(node.visits + 1.0) / visits);
      if (best < 0 || score > most) {
        best = static_cast<int>(i);
        most = score;
      }
    }
    return best;
  }

  void trajectory() {
    std::vector<int> path = {root_};
    bool fresh = false;
    while (!fresh && static_cast<int>(path.size()) <= options_.depth) {
      const int id = path.back();
      if (!nodes_[at(id)].expanded) expand(id);
      const int next = chosen(nodes_[at(id)]);
      if (next < 0) break;
      const Action action = nodes_[at(id)].children[at(next)].action;
      int to = nodes_[at(id)].children[at(next)].node;
      game_.apply(action);
      if (to == kUntried) {
        to = nodes_[at(id)].children[at(next)].node = new_node();
        fresh = to != kElsewhere;
      }
      if (to == kElsewhere) {
        game_.undo();
      } else {
        path.push_back(to);
      }
    }
    if (static_cast<int>(path.size()) > options_.depth) nodes_[at(path.back())].done = true;
    const double below = rollout();
    double best = below;
    for (size_t i = path.size(); i-- > 0;) {
      Node& node = nodes_[at(path[i])];
      node.done = node.done || (node.expanded && chosen(node) < 0);
      best = std::max(best, node.best);
      node.best = best;
      node.sum += std::max(0.0, 1 - (highest_ - best) / kTreeSearch.span);
      ++node.visits;
    }
    while (!game_.applied().empty()) game_.undo();
    ++looks_;  // where nothing new is found, too, this comes to an end
  }

  /// Random actions from here until they lead nowhere; the best state on the way.
  double rollout() {
    double best = look();
    int worse = 0;
    while (worse < kTreeSearch.worse_steps &&
           static_cast<int>(game_.applied().size()) < options_.depth) {
      const std::vector<Action> legal = game_.legal();
      if (legal.empty()) break;
      Action action;
      double value = 0;
      for (int i = 0; i < kTreeSearch.tried; ++i) {
        const Action& other = legal[random_() % legal.size()];
        game_.apply(other);
        const double its = look();
        game_.undo();
        if (i > 0 && its <= value) continue;
        value = its;
        action = other;
      }
      game_.apply(action);
      worse = value > best ? 0 : worse + 1;
      best = std::max(best, value);
    }
    return best;
  }

  PlanGame game_;
  int start_ = 0, root_ = 0;
  std::mt19937_64 random_;
  int64_t budget_ = 0, looks_ = 0;
  const MctsOptions& options_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, int> known_;  // by state, its node
  std::unordered_map<uint64_t, double> values_;
  double highest_ = -std::log(kTreeSearch.worst);  // of all values
  std::vector<FoundState> found_;
  std::map<Action, FoundState> behind_;
};

/// The starts by price, the first one in front.
std::vector<FoundState> looked_at(const GameBoard& board, const std::vector<GameStart>& starts) {
  std::vector<FoundState> out;
  for (size_t s = 0; s < starts.size(); ++s) {
    PlanGame game(board, starts[s].first, starts[s].start);
    out.push_back({game.price(), game.state(), static_cast<int>(s), {}});
  }
  std::stable_sort(out.begin() + 1, out.end(), comes_before);
  return out;
}

}  // namespace

MctsResult search_schedules(const GameBoard& board, const std::vector<GameStart>& starts,
                            const MctsOptions& options) {
  const std::vector<FoundState> begin = looked_at(board, starts);
  std::vector<std::unique_ptr<Tree>> trees(at(options.trees));
  MctsResult out;
  out.other_seconds = share(options.trees, options.threads, [&](int t) {
    const int start = begin[at(t) % begin.size()].start;
    trees[at(t)] = std::make_unique<Tree>(board, starts[at(start)], start,
                                          options.seed * 1000003 + static_cast<uint64_t>(t),
                                          options.evaluations / options.trees, options);
    trees[at(t)]->run();
  });
  for (const FoundState& state : begin) out.starts.push_back(state.start);
  out.best = begin;
  out.evaluations = static_cast<int64_t>(begin.size());
  out.exhausted = true;
  std::vector<bool> seen(starts.size(), false);
  for (size_t t = 0; t < trees.size(); ++t) {
    for (FoundState& state : trees[t]->found()) out.best.push_back(std::move(state));
    for (auto& [action, state] : trees[t]->behind()) out.behind.push_back(std::move(state));
    out.evaluations += trees[t]->evaluations();
    if (trees[t]->exhausted()) seen[at(begin[t % begin.size()].start)] = true;
  }
  out.exhausted = std::all_of(seen.begin(), seen.end(), [](bool one) { return one; });
  keep_best_states(out.best, options.kept);
  return out;
}

}  // namespace shardrun
