// Trying hints: all, then halves, then one by one.
#include "planner/hints.h"

#include <algorithm>
#include <optional>
#include <span>

#include "planner/space/requests.h"

namespace shardrun {
namespace {

/// Plans within this of each other take as long: PlanSearch ends its searches there.
constexpr double kNoLonger = 1e-4;

struct Trial {
  std::optional<Plan> plan;
  PlanReport report;
  std::string why;  // without a plan: what stands against it
};

class HintChoice {
 public:
  HintChoice(const Graph& graph, const Mesh& mesh, const PlanOptions& options,
             const PlanUnder& plan_under)
      : graph_(graph), options_(options), plan_under_(plan_under) {
    options_.requests.clear();
    const RequestFinder finder(graph, mesh);
    for (const std::string& text : options.requests) {
      if (!is_hint(text)) {
        options_.requests.push_back(text);
        continue;
      }
      hints_.push_back({finder.find(text), required(text)});
      outcomes_.push_back({text, false, std::nullopt, ""});
    }
  }

  Plan run(PlanReport& report) {
    best_.plan = plan_under_(options_, report);
    best_.report = report;
    add_time(report);
    const double without = best_.plan->seconds;
    std::vector<size_t> open;
    for (size_t h = 0; h < hints_.size(); ++h) {
      outcomes_[h].followed = follows(*best_.plan, graph_, hints_[h].request);
      if (!outcomes_[h].followed) open.push_back(h);
    }
    if (options_.least) {
      for (size_t h : open) outcomes_[h].why = "the plan of the fewest bytes is taken";
    } else {
      follow(open);
      price_rest(without);
    }
    report = best_.report;
    report.hints = outcomes_;
    report.kernel_runs = time_.kernel_runs;
    report.discovery_seconds = time_.discovery_seconds;
    report.build_seconds = time_.build_seconds;
    report.solve_seconds = time_.solve_seconds;
    return *best_.plan;
  }

 private:
  struct Hint {
    Request request;
    std::string text;  // as a request
  };

  void add_time(const PlanReport& its) {
    time_.kernel_runs += its.kernel_runs;
    time_.discovery_seconds += its.discovery_seconds;
    time_.build_seconds += its.build_seconds;
    time_.solve_seconds += its.solve_seconds;
  }

  /// The best plan that follows these hints.
  Trial require(std::span<const size_t> hints) {
    Trial out;
    PlanOptions options = options_;
    for (size_t h : hints) options.requests.push_back(hints_[h].text);
    try {
      out.plan = plan_under_(options, out.report);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::invalid_input && error.kind() != ErrorKind::out_of_memory)
        throw;
      out.why = error.what();
    }
    add_time(out.report);
    return out;
  }

  void follow(std::span<const size_t> open) {
    if (open.empty()) return;
    std::vector<size_t> together(open.begin(), open.end());
    for (size_t h = 0; h < hints_.size(); ++h) {
      if (outcomes_[h].followed) together.push_back(h);
    }
    Trial trial = require(together);
    if (trial.plan && trial.plan->seconds <= best_.plan->seconds * (1 + kNoLonger)) {
      for (size_t h : open) outcomes_[h].followed = true;
      best_ = std::move(trial);
      return;
    }
    if (open.size() == 1) {
      outcomes_[open[0]].why = trial.why;
      return;
    }
    if (splits_ == kMostSplits) {
      for (size_t h : open)
        outcomes_[h].why = str("tried with ", open.size() - 1, " others at once only");
      return;
    }
    ++splits_;
    follow(open.first(open.size() / 2));
    follow(open.subspan(open.size() / 2));
  }

  /// The first of those that are not followed.
  void price_rest(double without) {
    int prices = 0;
    for (size_t h = 0; h < hints_.size() && prices < kMostPrices; ++h) {
      if (outcomes_[h].followed) continue;
      price(h, without);
      ++prices;
    }
  }

  void price(size_t h, double without) {
    Trial alone = require(std::vector{h});
    if (!alone.plan) {
      outcomes_[h].why = alone.why;
      return;
    }
    outcomes_[h].seconds = alone.plan->seconds - without;
    if (alone.plan->seconds >= best_.plan->seconds * (1 - kNoLonger)) return;
    // A search finds what it is led to.
    best_ = std::move(alone);
    for (size_t i = 0; i < hints_.size(); ++i)
      outcomes_[i].followed = follows(*best_.plan, graph_, hints_[i].request);
  }

  const Graph& graph_;
  PlanOptions options_;  // with what is required alone
  const PlanUnder& plan_under_;
  std::vector<Hint> hints_;
  std::vector<HintOutcome> outcomes_;  // by hint
  Trial best_;
  int splits_ = 0;
  PlanReport time_;
};

}  // namespace

Plan plan_with_hints(const Graph& graph, const Mesh& mesh, const PlanOptions& options,
                     const PlanUnder& plan_under, PlanReport& report) {
  const bool any = std::any_of(options.requests.begin(), options.requests.end(),
                               [](const std::string& text) { return is_hint(text); });
  if (!any) return plan_under(options, report);
  return HintChoice(graph, mesh, options, plan_under).run(report);
}

}  // namespace shardrun
