// Bounds, solutions and removals in turns.
#include "planner/solver/narrowing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/at.h"
#include "planner/solver/deadline.h"
#include "planner/solver/descent/coordinate_descent.h"
#include "planner/solver/descent/repair.h"
#include "planner/solver/descent/tree_descent.h"
#include "planner/solver/factored_bound.h"
#include "planner/solver/memory_use.h"
#include "planner/solver/presolve/contraction.h"

namespace shardrun {
namespace {

/// When narrowing ends, and how often it removes.
struct NarrowSettings {
  int sweeps = 120;             // of message passing at most
  int limited_sweeps = 240;     // the same where memory is limited: prices have to settle
  int decode_every = 2;         // sweeps between two solutions, and between two moves of the prices
  int remove_every = 8;         // sweeps between two removals
  int patience = 10;            // sweeps that gain nothing
  int idle_solutions = 2;       // that are no better, once the gap is small enough
  double gain = 1e-5;           // relative: a sweep that gains less has stalled
  double unnoticed = 0.05;      // seconds that a search may take, however little is to be gained
  double rounding = 1e-6;       // relative: matrices are in single precision
  int tree_patience = 12;       // moves of trees that gain nothing
  size_t starts = 3;            // of descents of trees
  double repairable = 1.3;      // times the limit: so many bytes at most
  double hopeless = 0.2;        // relative: so far from the bound behind the first, they end
  double worth_joining = 1e-4;  // relative: a join that gains less is the last
  size_t worth_removing = 10;   // one in so many strategies: less is not worth a copy
};
constexpr NarrowSettings kNarrow;

class Narrower {
 public:
  Narrower(const FactoredProblem& problem, const NarrowOptions& options)
      : problem_(problem), options_(options), end_(options.seconds, Deadline::Clock::work) {
    if (options.memory_limit <= 0) return;
    claims_.memory_limit = options.memory_limit;
    for (const FactoredProblem::Node& node : problem.nodes)
      claims_.nodes.push_back({node.name, node.cost, node.claims});
    flat_.emplace(claims_);
    memory_.emplace(*flat_);
    repair_.emplace(problem, *memory_);
    prices_ = MemoryPrices(memory_->times());
  }

  std::optional<Narrowed> run() {
    out_.kept = all_kept(problem_);
    if (!prune_impossible(problem_, out_.kept)) return std::nullopt;
    keep(restricted(problem_, out_.kept));
    bound_.emplace(now_);
    for (const Solution& start : options_.starts) {
      offer(start);
      if (!memory_) remember(start);
    }
    const int most = memory_ ? kNarrow.limited_sweeps : kNarrow.sweeps;
    for (int sweep = 1; sweep <= most && !done(); ++sweep) {
      const bool looks = sweep % kNarrow.decode_every == 0;
      const double value = bound_->sweep(looks) - prices_.priced_limit();
      const bool gained = value > out_.lower_bound + kNarrow.gain * std::abs(out_.lower_bound);
      stalled_ = gained ? 0 : stalled_ + 1;
      out_.lower_bound = std::max(out_.lower_bound, value - kNarrow.rounding * std::abs(value));
      if (looks) try_decoded();
      if (sweep % kNarrow.remove_every == 0) remove();
      if (memory_ && looks) move_prices(value);
    }
    if (!memory_ && options_.descends && !good()) descend_trees();
    out_.enough = good();
    finish_slack();
    out_.lower_bound = std::min(out_.lower_bound, out_.cost);
    return std::move(out_);
  }

 private:
  bool good() const {
    if (!out_.solution) return false;
    const double left = out_.cost - out_.lower_bound;
    return left <= options_.gap * out_.cost ||
           std::max(kNarrow.unnoticed, left * steps_to_gain(options_.memory_limit)) <=
               end_.elapsed();
  }
  bool done() const {
    if (end_.passed()) return true;
    if (memory_)
      return good() || prices_.settled() ||
             (options_.patience > 0 && out_.solution && since_better_ >= options_.patience);
    // The gap alone is no reason to end while solutions still get better.
    return (good() && since_better_ >= kNarrow.idle_solutions) || stalled_ >= kNarrow.patience;
  }

  void keep(FactoredProblem less) {
    now_ = std::move(less);
    edge_costs_.emplace(now_);
    count_work(kSearchWork.listed_edge * static_cast<double>(edge_costs_->listed()));
  }

  /// Judges a solution of the whole problem.
  void offer(const Solution& solution) {
    const double cost = raw_cost(problem_, solution);
    if (memory_) memory_->reset(solution);
    const int64_t peak = memory_ ? memory_->peak() : -1;
    if (out_.offer(solution, cost, peak, !memory_ || peak <= options_.memory_limit))
      since_better_ = 0;
  }

  void try_decoded() {
    ++since_better_;
    Solution solution = bound_->decoded();
    if (memory_) price_claims(prices_.price());
    descend(now_, *edge_costs_, solution, memory_ ? &priced_ : nullptr);
    last_ = expanded(solution, out_.kept);
    offer(last_);
    memory_ ? repair(last_) : remember(last_);
  }

  /// Of a solution, just offered, that claims a little too much offers one that fits. Prices move
  /// towards what they reach themselves.
  void repair(Solution solution) {
    const double cost = raw_cost(problem_, solution);
    if (memory_->overflow() == 0) {
      priced_cost_ = std::min(priced_cost_, cost);
      return;
    }
    const double most = kNarrow.repairable * static_cast<double>(options_.memory_limit);
    if (static_cast<double>(memory_->peak()) <= most && cost < out_.cost &&
        repair_->fit(solution, out_.kept))
      offer(solution);
  }

  /// Remembers the cheapest of what was decoded, to begin descents from.
  void remember(const Solution& solution) {
    const double cost = raw_cost(problem_, solution);
    const auto place = std::lower_bound(seen_.begin(), seen_.end(), cost,
                                        [](const Seen& one, double c) { return one.cost < c; });
    if (place != seen_.end() && place->cost == cost) return;
    seen_.insert(place, {cost, solution});
    if (seen_.size() > kNarrow.starts) seen_.pop_back();
  }

  /// Whole trees choose anew, from several solutions, and these are joined: each node takes what it
  /// has in one of them. Messages that have stalled leave open what several nodes would have to
  /// change at once.
  void descend_trees() {
    const TreeDescent trees(now_);
    TreeDescentOptions under;
    under.patience = kNarrow.tree_patience;
    Kept choices(now_.nodes.size());
    const auto improve = [&](const Solution& from) {
      under.seconds = std::max(0.0, end_.left());
      const Solution found = trees.improve(from, under);
      for (size_t i = 0; i < found.size(); ++i) {
        const auto place = std::lower_bound(choices[i].begin(), choices[i].end(), found[i]);
        if (place == choices[i].end() || *place != found[i]) choices[i].insert(place, found[i]);
      }
      offer(expanded(found, out_.kept));
    };
    if (out_.solution) remember(*out_.solution);  // a start that nothing beat
    for (const Seen& one : seen_) {
      if (const std::optional<Solution> start = choices_in(one.solution, out_.kept))
        improve(*start);
      if (good() || out_.gap() > kNarrow.hopeless) return;
    }
    if (choices[0].empty()) return;
    while (!good() && !end_.passed()) {
      const double before = out_.cost;
      const FactoredProblem joint = restricted(now_, choices);
      const std::optional<Narrowed> joined =
          narrow(joint, {options_.gap, end_.left(), 0, {}, false});
      if (!joined || !joined->solution) return;
      improve(expanded(*joined->solution, choices));
      if (out_.cost >= before * (1 - kNarrow.worth_joining)) return;
    }
  }

  /// Sets what the memory of each node's kept strategies costs.
  void price_claims(const std::vector<double>& price) {
    priced_.resize(problem_.nodes.size());
    for (size_t i = 0; i < priced_.size(); ++i) {
      const double claims = static_cast<double>(problem_.nodes[i].claims.size());
      count_work(static_cast<double>(problem_.nodes[i].cost.size()) * (claims + 2));
      priced_[i].assign(out_.kept[i].size(), 0.0);
      memory_->add_priced(static_cast<int>(i), price, out_.kept[i], priced_[i]);
    }
  }

  void move_prices(double value) {
    if (last_.empty()) return;
    memory_->reset(last_);
    prices_.settle(stalled_);
    if (!prices_.move(*memory_, value, priced_cost_)) return;
    price_claims(prices_.change());
    for (size_t i = 0; i < priced_.size(); ++i) {
      if (!problem_.nodes[i].claims.empty()) bound_->add_cost(static_cast<int>(i), priced_[i]);
    }
  }

  /// Strategies that no better solution uses go.
  void remove() {
    if (!out_.solution) return;
    const double margin = out_.cost * (1 + options_.spare + kNarrow.rounding) -
                          (bound_->bound_before_sweep() - prices_.priced_limit());
    Kept less;
    size_t gone = 0, total = 0;
    for (size_t i = 0; i < out_.kept.size(); ++i) {
      less.emplace_back();
      const std::span<const double> slack = bound_->slack(static_cast<int>(i));
      for (size_t a = 0; a < slack.size(); ++a) {
        if (slack[a] <= margin) less.back().push_back(static_cast<int>(a));
      }
      gone += slack.size() - less.back().size();
      total += slack.size();
      if (less.back().empty()) return;  // the best solution is optimal to rounding
    }
    if (gone * kNarrow.worth_removing < total || !prune_impossible(now_, less)) return;
    keep(restricted(now_, less));
    bound_->restrict(now_, less);
    for (size_t i = 0; i < less.size(); ++i) {
      for (int& a : less[i]) a = out_.kept[i][at(a)];
    }
    out_.kept = std::move(less);
  }

  /// Slacks of the strategies that are left, as the bound stands.
  void finish_slack() {
    bound_->find_bound();
    bound_->sweep();
    remove();
    for (size_t i = 0; i < out_.kept.size(); ++i) {
      const std::span<const double> slack = bound_->slack(static_cast<int>(i));
      out_.slack.emplace_back(slack.begin(), slack.end());
    }
  }

  const FactoredProblem& problem_;
  const NarrowOptions& options_;
  Deadline end_;
  FactoredProblem now_;                  // of the kept strategies
  std::optional<EdgeCosts> edge_costs_;  // of now_
  std::optional<FactoredBound> bound_;
  Narrowed out_;
  int stalled_ = 0, since_better_ = 0;
  // Memory.
  Problem claims_;
  std::optional<FlatProblem> flat_;  // of claims_
  std::optional<MemoryUse> memory_;
  std::optional<Repair> repair_;
  MemoryPrices prices_{0};                   // seconds a byte, per time
  std::vector<std::vector<double>> priced_;  // by node and kept strategy
  Solution last_;
  double priced_cost_ = kInfeasible;  // of the cheapest that fits and was not repaired
  struct Seen {
    double cost;
    Solution solution;
  };
  std::vector<Seen> seen_;  // the cheapest first
};

}  // namespace

std::optional<Narrowed> narrow(const FactoredProblem& problem, const NarrowOptions& options) {
  Kept possible = all_kept(problem);
  if (!prune_impossible(problem, possible)) return std::nullopt;
  const Contraction less(restricted(problem, possible));
  NarrowOptions inner = options;
  inner.starts.clear();
  for (const Solution& start : options.starts) {
    const std::optional<Solution> left = choices_in(start, possible);
    if (std::optional<Solution> its = left ? less.contracted(*left) : std::nullopt)
      inner.starts.push_back(std::move(*its));
  }
  std::optional<Narrowed> out = Narrower(less.problem(), inner).run();
  if (!out) return std::nullopt;
  for (std::optional<Solution>* solution : {&out->solution, &out->tightest}) {
    if (*solution) *solution = expanded(less.expanded(**solution), possible);
  }
  const Kept kept = std::exchange(out->kept, {});
  const std::vector<std::vector<double>> slack = std::exchange(out->slack, {});
  for (size_t i = 0; i < possible.size(); ++i) {
    const size_t node = at(less.node(static_cast<int>(i)));
    std::map<int, double> least;  // by choice
    for (size_t k = 0; k < kept[node].size(); ++k) {
      const int own = possible[i][at(less.choices(static_cast<int>(i))[at(kept[node][k])])];
      const auto [place, fresh] = least.emplace(own, slack[node][k]);
      if (!fresh) place->second = std::min(place->second, slack[node][k]);
    }
    out->kept.emplace_back();
    out->slack.emplace_back();
    for (const auto& [own, its] : least) {
      out->kept.back().push_back(own);
      out->slack.back().push_back(its);
    }
  }
  return out;
}

}  // namespace shardrun
