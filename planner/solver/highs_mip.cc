// Building and solving the mixed-integer program with HiGHS.
#include "planner/solver/highs_mip.h"

#include <interfaces/highs_c_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "base/error.h"
#include "planner/solver/deadline.h"
#include "planner/solver/flat_problem.h"

namespace shardrun {
namespace {

/// Rows and columns collected one by one, then passed column-wise.
struct Rows {
  std::vector<double> lower, upper;
  std::vector<HighsInt> start{0}, index;
  std::vector<double> value;

  void add(HighsInt column, double coefficient) {
    index.push_back(column);
    value.push_back(coefficient);
  }
  void end(double low, double high) {
    lower.push_back(low);
    upper.push_back(high);
    start.push_back(static_cast<HighsInt>(index.size()));
  }
};

/// What HiGHS is given and asked for.
struct MipSettings {
  // Operations per coefficient of the program (planner/solver/deadline.h).
  double call_work = 50;      // between two calls back
  double iteration_work = 8;  // of a simplex iteration
  double costs = 1e6;         // costs are scaled to about so much: its tolerances are absolute
  double tolerance = 1e-9;    // absolute, for the gap and for integers
  double most_gap = 0.5;      // relative, where a constant part makes the rest's gap large
};
constexpr MipSettings kMip;

void require_ok(HighsInt status, const char* what) {
  SR_REQUIRE(status != kHighsStatusError, internal, "HiGHS refused to ", what);
}

/// Moves what every choice costs into a constant, which is returned: minima of edges' rows and
/// columns go to their nodes, minima of nodes to the constant. HiGHS' tolerances then see only
/// differences.
double normalise(Problem& problem) {
  for (Problem::Edge& edge : problem.edges) {
    std::vector<double>& from = problem.nodes[static_cast<size_t>(edge.from)].cost;
    std::vector<double>& to = problem.nodes[static_cast<size_t>(edge.to)].cost;
    for (size_t a = 0; a < from.size(); ++a) {
      double* row = edge.cost.data() + a * to.size();
      const double least = *std::min_element(row, row + to.size());
      if (least == kInfeasible) continue;
      from[a] += least;
      for (size_t b = 0; b < to.size(); ++b) row[b] -= least;
    }
    for (size_t b = 0; b < to.size(); ++b) {
      double least = kInfeasible;
      for (size_t a = 0; a < from.size(); ++a)
        least = std::min(least, edge.cost[a * to.size() + b]);
      if (least == kInfeasible) continue;
      to[b] += least;
      for (size_t a = 0; a < from.size(); ++a) edge.cost[a * to.size() + b] -= least;
    }
  }
  double constant = 0;
  for (Problem::Node& node : problem.nodes) {
    const double least = *std::min_element(node.cost.begin(), node.cost.end());
    if (least == kInfeasible) continue;
    constant += least;
    for (double& cost : node.cost) cost -= least;
  }
  return constant;
}

/// The program of a Problem, and HiGHS with it.
class Mip {
 public:
  Mip(const Problem& original, const Solution* start, const Deadline& deadline,
      const SolveOptions& options)
      : problem_(original),
        constant_(normalise(problem_)),
        factor_(kMip.costs / scale(start)),
        memory_(problem_),
        start_(start),
        deadline_(deadline),
        options_(options) {
    set_options(gap(original));
    pass_model();
    set_callbacks();
  }

  MipResult run(const std::vector<size_t>& times) {
    for (size_t time : times) add_time(time);
    if (problem_.limited() && start_ != nullptr) add_fullest(*start_);
    MipResult result;
    while (!deadline_.passed()) {
      solve();
      const HighsInt status = Highs_getModelStatus(highs());
      if (status == kHighsModelStatusInfeasible) {
        result.infeasible = true;
        return result;
      }
      // Fewer memory rows than there are: still a bound.
      const double bound = dual_bound() / factor_ + constant_;
      if (std::isfinite(bound)) result.bound = std::max(result.bound, bound);
      const std::vector<double> values = found();
      if (values.empty()) return result;
      Solution solution = rounded(values);
      const Evaluation judged = evaluate(problem_, solution);
      if (judged.cost != kInfeasible) {
        result.solution = std::move(solution);
        result.optimal = status == kHighsModelStatusOptimal;
        return result;
      }
      if (judged.raw_cost == kInfeasible) return result;  // stopped before an integral solution
      const size_t before = present_.size();
      add_fullest(solution);
      if (present_.size() == before) return result;
    }
    return result;
  }

 private:
  /// Relative to the whole cost; HiGHS' is relative to what is left of it.
  double gap(const Problem& original) const {
    if (start_ == nullptr) return options_.gap;
    const double whole = evaluate(original, *start_).raw_cost;
    const double rest = evaluate(problem_, *start_).raw_cost;
    if (!(rest > 0 && rest < whole && whole < kInfeasible)) return options_.gap;
    return std::min(options_.gap * whole / rest, kMip.most_gap);
  }

  /// HiGHS' tolerances are absolute: costs are scaled to a million, bytes to fractions of the
  /// limit.
  double scale(const Solution* start) const {
    double scale = 0;
    if (start != nullptr) scale = std::abs(evaluate(problem_, *start).raw_cost);
    if (!(scale > 0) || scale == kInfeasible) {
      for (const Problem::Node& node : problem_.nodes) {
        double largest = 0;
        for (double c : node.cost)
          largest = std::max(largest, c == kInfeasible ? 0.0 : std::abs(c));
        scale += largest;
      }
    }
    return scale > 0 ? scale : 1;
  }

  void pass_model() {
    for (const Problem::Node& node : problem_.nodes) add_node(node);
    for (const Problem::Edge& edge : problem_.edges) add_edge(edge);
    const auto terms = static_cast<HighsInt>(rows_.index.size());
    size_ = static_cast<double>(terms);
    require_ok(Highs_passMip(highs(), columns_, static_cast<HighsInt>(rows_.lower.size()), terms,
                             kHighsMatrixFormatRowwise, kHighsObjSenseMinimize, 0, cost_.data(),
                             lower_.data(), upper_.data(), rows_.lower.data(), rows_.upper.data(),
                             rows_.start.data(), rows_.index.data(), rows_.value.data(),
                             integrality_.data()),
               "take the model");
  }

  HighsInt add_column(double cost, HighsInt type) {
    cost_.push_back(cost == kInfeasible ? 0.0 : cost * factor_);
    lower_.push_back(0);
    upper_.push_back(cost == kInfeasible ? 0.0 : 1.0);
    integrality_.push_back(type);
    return columns_++;
  }

  void add_node(const Problem::Node& node) {
    std::vector<HighsInt>& x = x_.emplace_back();
    for (double cost : node.cost) {
      x.push_back(add_column(cost, kHighsVarTypeInteger));
      rows_.add(x.back(), 1);
    }
    rows_.end(1, 1);
  }

  void add_edge(const Problem::Edge& edge) {
    const std::vector<HighsInt>& from = x_[static_cast<size_t>(edge.from)];
    const std::vector<HighsInt>& to = x_[static_cast<size_t>(edge.to)];
    std::vector<HighsInt>& y = y_.emplace_back();
    for (double cost : edge.cost)
      y.push_back(cost == kInfeasible ? -1 : add_column(cost, kHighsVarTypeContinuous));
    const auto add = [&](HighsInt column) {
      if (column >= 0) rows_.add(column, 1);
    };
    for (size_t a = 0; a < from.size(); ++a) {
      for (size_t b = 0; b < to.size(); ++b) add(y[a * to.size() + b]);
      rows_.add(from[a], -1);
      rows_.end(0, 0);
    }
    for (size_t b = 0; b < to.size(); ++b) {
      for (size_t a = 0; a < from.size(); ++a) add(y[a * to.size() + b]);
      rows_.add(to[b], -1);
      rows_.end(0, 0);
    }
  }

  void set_options(double gap) {
    Highs_setBoolOptionValue(highs(), "output_flag", 0);
    Highs_setIntOptionValue(highs(), "threads", 1);
    Highs_setIntOptionValue(highs(), "random_seed",
                            static_cast<HighsInt>(options_.seed & 0x7fffffff));
    Highs_setDoubleOptionValue(highs(), "mip_rel_gap", gap);
    Highs_setDoubleOptionValue(highs(), "mip_abs_gap", kMip.tolerance);
    Highs_setDoubleOptionValue(highs(), "mip_feasibility_tolerance", kMip.tolerance);
  }

  /// HiGHS' own time limit knows the wall's clock only, and is looked at in fewer places.
  void set_callbacks() {
    Highs_setCallback(
        highs(),
        [](int, const char*, const HighsCallbackDataOut* out, HighsCallbackDataIn* in, void* mip) {
          static_cast<Mip*>(mip)->called_back(out, in);
        },
        this);
    for (int kind :
         {kHighsCallbackSimplexInterrupt, kHighsCallbackIpmInterrupt, kHighsCallbackMipInterrupt})
      Highs_startCallback(highs(), kind);
  }
  void called_back(const HighsCallbackDataOut* out, HighsCallbackDataIn* in) {
    count_work(size_ * kMip.call_work);
    if (out != nullptr) count_iterations(static_cast<double>(out->mip_total_lp_iterations));
    if (in != nullptr) in->user_interrupt = deadline_.passed() ? 1 : 0;
  }
  void count_iterations(double iterations) {
    count_work(size_ * kMip.iteration_work * std::max(0.0, iterations - counted_));
    counted_ = iterations;
  }

  void add_time(size_t time) {
    if (!present_.insert(time).second) return;
    const double limit = static_cast<double>(std::max<int64_t>(1, problem_.memory_limit));
    std::vector<HighsInt> index;
    std::vector<double> value;
    for (size_t i = 0; i < problem_.nodes.size(); ++i) {
      std::vector<double> bytes(problem_.nodes[i].cost.size(), 0.0);
      for (const FlatProblem::Range& range : memory_.ranges(static_cast<int>(i))) {
        if (static_cast<int>(time) < range.first || static_cast<int>(time) >= range.end) continue;
        for (size_t a = 0; a < bytes.size(); ++a) bytes[a] += static_cast<double>(range.bytes[a]);
      }
      for (size_t a = 0; a < bytes.size(); ++a) {
        if (bytes[a] == 0) continue;
        index.push_back(x_[i][a]);
        value.push_back(bytes[a] / limit);
      }
    }
    require_ok(Highs_addRow(highs(), -Highs_getInfinity(highs()), 1.0,
                            static_cast<HighsInt>(index.size()), index.data(), value.data()),
               "add a memory row");
  }
  void add_fullest(const Solution& solution) {
    const std::vector<int64_t> use = memory_.usage(solution);
    if (use.empty()) return;
    add_time(static_cast<size_t>(std::max_element(use.begin(), use.end()) - use.begin()));
  }

  void solve() {
    if (deadline_.clock() == Deadline::Clock::wall)
      Highs_setDoubleOptionValue(highs(), "time_limit",
                                 Highs_getRunTime(highs()) + deadline_.left());
    if (start_ != nullptr) set_start();
    counted_ = 0;
    require_ok(Highs_run(highs()), "run");
    HighsInt iterations = 0;
    Highs_getIntInfoValue(highs(), "simplex_iteration_count", &iterations);
    count_iterations(static_cast<double>(iterations));
  }
  void set_start() {
    std::vector<double> known(static_cast<size_t>(columns_), 0.0);
    const auto chosen = [&](int node) {
      return static_cast<size_t>((*start_)[static_cast<size_t>(node)]);
    };
    for (size_t i = 0; i < x_.size(); ++i)
      known[static_cast<size_t>(x_[i][chosen(static_cast<int>(i))])] = 1;
    for (size_t e = 0; e < y_.size(); ++e) {
      const Problem::Edge& edge = problem_.edges[e];
      const size_t columns = x_[static_cast<size_t>(edge.to)].size();
      const HighsInt column = y_[e][chosen(edge.from) * columns + chosen(edge.to)];
      if (column >= 0) known[static_cast<size_t>(column)] = 1;
    }
    Highs_setSolution(highs(), known.data(), nullptr, nullptr, nullptr);
  }
  /// Values of the columns; none if there is no solution.
  std::vector<double> found() const {
    const double none = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values(static_cast<size_t>(columns_), none);
    Highs_getSolution(highs(), values.data(), nullptr, nullptr, nullptr);
    if (!values.empty() && std::isnan(values[0])) values.clear();
    return values;
  }
  double dual_bound() const {
    double bound = -kInfeasible;
    Highs_getDoubleInfoValue(highs(), "mip_dual_bound", &bound);
    return bound;
  }

  /// Of each node the strategy with the largest value.
  Solution rounded(const std::vector<double>& value) const {
    Solution solution;
    for (const std::vector<HighsInt>& options : x_) {
      size_t best = 0;
      for (size_t a = 1; a < options.size(); ++a) {
        if (value[static_cast<size_t>(options[a])] > value[static_cast<size_t>(options[best])])
          best = a;
      }
      solution.push_back(static_cast<int>(best));
    }
    return solution;
  }

  void* highs() const { return highs_.get(); }

  Problem problem_;
  double constant_, factor_;  // cost = objective / factor + constant
  FlatProblem memory_;
  const Solution* start_;
  const Deadline& deadline_;
  const SolveOptions& options_;
  std::vector<std::vector<HighsInt>> x_, y_;  // columns: by node and strategy, by edge and pair
  HighsInt columns_ = 0;
  Rows rows_;
  double size_ = 0, counted_ = 0;             // coefficients; iterations of a run
  std::set<size_t> present_;                  // times that have a row
  std::vector<double> cost_, lower_, upper_;  // by column
  std::vector<HighsInt> integrality_;
  std::unique_ptr<void, void (*)(void*)> highs_{Highs_create(), Highs_destroy};
};

}  // namespace

double mip_size(const Problem& problem) {
  double size = 0;
  for (const Problem::Edge& edge : problem.edges) {
    size += static_cast<double>(std::count_if(edge.cost.begin(), edge.cost.end(),
                                              [](double c) { return c != kInfeasible; }));
  }
  return size;
}

MipResult solve_mip(const Problem& problem, const Solution* start, const Deadline& deadline,
                    const SolveOptions& options, const std::vector<size_t>& times) {
  return Mip(problem, start, deadline, options).run(times);
}

std::string highs_version() { return Highs_version(); }

}  // namespace shardrun
