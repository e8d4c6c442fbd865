// Building and solving the mixed-integer program with HiGHS.
#include "planner/solver/highs_mip.h"

#include <Highs.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "planner/solver/flat_problem.h"
#include "planner/solver/work.h"

namespace shardrun {
namespace {

/// Rows and columns collected one by one, then handed over column-wise.
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

/// Per coefficient of the program: operations between two calls back, and of a simplex iteration.
constexpr double kWorkOfCall = 50, kWorkOfIteration = 8;

void require_ok(HighsStatus status, const char* what) {
  SR_REQUIRE(status != HighsStatus::kError, internal, "HiGHS refused to ", what);
}

}  // namespace

double mip_size(const Problem& problem) {
  double size = 0;
  for (const Problem::Edge& edge : problem.edges) {
    size += static_cast<double>(std::count_if(edge.cost.begin(), edge.cost.end(),
                                              [](double c) { return c != kInfeasible; }));
  }
  return size;
}

namespace {

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

}  // namespace

MipResult solve_mip(const Problem& original, const Solution* start, const Deadline& deadline,
                    const SolveOptions& options, const std::vector<size_t>& times) {
  Problem problem = original;
  const double constant = normalise(problem);
  double gap = options.gap;  // relative to the whole cost, HiGHS' to what is left of it
  if (start != nullptr) {
    const double whole = evaluate(original, *start).raw_cost;
    const double rest = evaluate(problem, *start).raw_cost;
    if (rest > 0 && rest < whole && whole < kInfeasible) gap = std::min(gap * whole / rest, 0.5);
  }
  // HiGHS' tolerances are absolute: costs are scaled to a million, bytes to shares of the limit.
  double scale = 0;
  if (start != nullptr) scale = std::abs(evaluate(problem, *start).raw_cost);
  if (!(scale > 0) || scale == kInfeasible) {
    for (const Problem::Node& node : problem.nodes) {
      double largest = 0;
      for (double c : node.cost) largest = std::max(largest, c == kInfeasible ? 0.0 : std::abs(c));
      scale += largest;
    }
  }
  if (!(scale > 0)) scale = 1;
  const double factor = 1e6 / scale;

  HighsModel model;
  HighsLp& lp = model.lp_;
  std::vector<std::vector<HighsInt>> x(problem.nodes.size());
  HighsInt columns = 0;
  Rows rows;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    for (double cost : problem.nodes[i].cost) {
      lp.col_cost_.push_back(cost == kInfeasible ? 0.0 : cost * factor);
      lp.col_lower_.push_back(0);
      lp.col_upper_.push_back(cost == kInfeasible ? 0.0 : 1.0);
      lp.integrality_.push_back(HighsVarType::kInteger);
      rows.add(columns, 1);
      x[i].push_back(columns++);
    }
    rows.end(1, 1);
  }
  std::vector<std::vector<HighsInt>> y(problem.edges.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const Problem::Edge& edge = problem.edges[e];
    const std::vector<HighsInt>& from = x[static_cast<size_t>(edge.from)];
    const std::vector<HighsInt>& to = x[static_cast<size_t>(edge.to)];
    for (double cost : edge.cost) {
      if (cost == kInfeasible) {
        y[e].push_back(-1);
        continue;
      }
      lp.col_cost_.push_back(cost * factor);
      lp.col_lower_.push_back(0);
      lp.col_upper_.push_back(1);
      lp.integrality_.push_back(HighsVarType::kContinuous);
      y[e].push_back(columns++);
    }
    for (size_t a = 0; a < from.size(); ++a) {
      for (size_t b = 0; b < to.size(); ++b) {
        if (y[e][a * to.size() + b] >= 0) rows.add(y[e][a * to.size() + b], 1);
      }
      rows.add(from[a], -1);
      rows.end(0, 0);
    }
    for (size_t b = 0; b < to.size(); ++b) {
      for (size_t a = 0; a < from.size(); ++a) {
        if (y[e][a * to.size() + b] >= 0) rows.add(y[e][a * to.size() + b], 1);
      }
      rows.add(to[b], -1);
      rows.end(0, 0);
    }
  }
  lp.num_col_ = columns;
  lp.num_row_ = static_cast<HighsInt>(rows.lower.size());
  lp.row_lower_ = rows.lower;
  lp.row_upper_ = rows.upper;
  lp.a_matrix_.format_ = MatrixFormat::kRowwise;
  lp.a_matrix_.start_ = rows.start;
  lp.a_matrix_.index_ = rows.index;
  lp.a_matrix_.value_ = rows.value;
  lp.sense_ = ObjSense::kMinimize;

  Highs highs;
  highs.setOptionValue("output_flag", false);
  highs.setOptionValue("threads", 1);
  highs.setOptionValue("random_seed", static_cast<HighsInt>(options.seed & 0x7fffffff));
  highs.setOptionValue("mip_rel_gap", gap);
  highs.setOptionValue("mip_abs_gap", 1e-9);
  highs.setOptionValue("mip_feasibility_tolerance", 1e-9);
  require_ok(highs.passModel(std::move(model)), "take the model");
  // HiGHS' own time limit knows the wall's clock only, and is looked at in fewer places.
  const double size = static_cast<double>(rows.index.size());
  double counted = 0;  // iterations of a run
  const auto count_iterations = [&](double iterations) {
    count_work(size * kWorkOfIteration * std::max(0.0, iterations - counted));
    counted = iterations;
  };
  // Callbacks of the simplex have the bounds as they start, infinite.
  const auto settled = [&](const HighsCallbackOutput& now) {
    const double left = (now.mip_primal_bound - now.mip_dual_bound) / factor;
    return options.steps > 0 && std::isfinite(left) && left * options.steps <= deadline.elapsed();
  };
  highs.setCallback(
      [&](int, const std::string&, const HighsCallbackOutput* out, HighsCallbackInput* in, void*) {
        count_work(size * kWorkOfCall);
        if (out != nullptr) count_iterations(static_cast<double>(out->mip_total_lp_iterations));
        if (in != nullptr)
          in->user_interrupt = deadline.passed() || (out != nullptr && settled(*out));
      });
  for (HighsCallbackType kind :
       {kCallbackSimplexInterrupt, kCallbackIpmInterrupt, kCallbackMipInterrupt})
    highs.startCallback(kind);

  const FlatProblem memory(problem);
  std::set<size_t> present;
  const double limit = static_cast<double>(std::max<int64_t>(1, problem.memory_limit));
  const auto add_time = [&](size_t time) {
    if (!present.insert(time).second) return;
    std::vector<HighsInt> index;
    std::vector<double> value;
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      std::vector<double> bytes(problem.nodes[i].cost.size(), 0.0);
      for (const FlatProblem::Range& range : memory.ranges(static_cast<int>(i))) {
        if (static_cast<int>(time) < range.first || static_cast<int>(time) >= range.end) continue;
        for (size_t a = 0; a < bytes.size(); ++a) bytes[a] += static_cast<double>(range.bytes[a]);
      }
      for (size_t a = 0; a < bytes.size(); ++a) {
        if (bytes[a] == 0) continue;
        index.push_back(x[i][a]);
        value.push_back(bytes[a] / limit);
      }
    }
    require_ok(highs.addRow(-kHighsInf, 1.0, static_cast<HighsInt>(index.size()), index.data(),
                            value.data()),
               "add a memory row");
  };
  const auto add_fullest = [&](const Solution& solution) {
    const std::vector<int64_t> use = memory.usage(solution);
    if (use.empty()) return;
    add_time(static_cast<size_t>(std::max_element(use.begin(), use.end()) - use.begin()));
  };
  for (size_t time : times) add_time(time);
  if (problem.limited() && start != nullptr) add_fullest(*start);

  MipResult result;
  while (!deadline.passed()) {
    if (deadline.clock() == Deadline::Clock::wall)
      highs.setOptionValue("time_limit", highs.getRunTime() + deadline.left());
    if (start != nullptr) {
      HighsSolution known;
      known.col_value.assign(static_cast<size_t>(columns), 0.0);
      for (size_t i = 0; i < x.size(); ++i)
        known.col_value[static_cast<size_t>(x[i][static_cast<size_t>((*start)[i])])] = 1;
      for (size_t e = 0; e < y.size(); ++e) {
        const size_t a = static_cast<size_t>((*start)[static_cast<size_t>(problem.edges[e].from)]);
        const size_t b = static_cast<size_t>((*start)[static_cast<size_t>(problem.edges[e].to)]);
        const HighsInt column = y[e][a * x[static_cast<size_t>(problem.edges[e].to)].size() + b];
        if (column >= 0) known.col_value[static_cast<size_t>(column)] = 1;
      }
      known.value_valid = true;
      highs.setSolution(known);
    }
    counted = 0;
    require_ok(highs.run(), "run");
    count_iterations(static_cast<double>(highs.getInfo().simplex_iteration_count));
    const HighsModelStatus status = highs.getModelStatus();
    if (status == HighsModelStatus::kInfeasible) {
      result.infeasible = true;
      return result;
    }
    // Fewer memory rows than there are: still a bound.
    const double bound = highs.getInfo().mip_dual_bound / factor + constant;
    if (std::isfinite(bound)) result.bound = std::max(result.bound, bound);
    const std::vector<double>& value = highs.getSolution().col_value;
    if (value.size() != static_cast<size_t>(columns)) return result;
    Solution solution;
    for (const std::vector<HighsInt>& options : x) {
      size_t best = 0;
      for (size_t a = 1; a < options.size(); ++a) {
        if (value[static_cast<size_t>(options[a])] > value[static_cast<size_t>(options[best])])
          best = a;
      }
      solution.push_back(static_cast<int>(best));
    }
    const Evaluation judged = evaluate(problem, solution);
    if (judged.cost != kInfeasible) {
      result.solution = std::move(solution);
      result.optimal = status == HighsModelStatus::kOptimal;
      return result;
    }
    if (judged.raw_cost == kInfeasible) return result;  // stopped before an integral solution
    const size_t before = present.size();
    add_fullest(solution);
    if (present.size() == before) return result;
  }
  return result;
}

std::string highs_version() { return highsVersion(); }

}  // namespace shardrun
