// Versions of a step that planning looks at, each with its search, as far as memory allows.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/passes/liveness.h"
#include "planner/limit_settings.h"
#include "planner/plan_search.h"
#include "planner/recompute.h"

namespace shardrun {

/// The step, with some of it computed again, under a known parallelism or at other prices, and its
/// search.
struct Version {
  PlanOptions options;
  std::optional<Graph> step;  // where anything is computed again
  std::optional<PlanSearch> search;
  PlanReport report;                            // of what is found if memory is no matter
  Solution loosest;                             // the same
  std::vector<Solution> known;                  // of versions that differ in prices alone
  std::vector<std::vector<Strategy>> proposed;  // PlanSearch::proposed
  double bound = 0;                             // of the cost of all plans
  bool possible = true;                         // no request contradicts it
  int64_t missed = 0;                           // bytes for which nothing was found
  bool least_looked_at = false;                 // for the plan of the fewest bytes
  bool posed = false, solved = false;           // once, by Versions::pose() and open()
  int64_t least_claims = 0;                     // PlanSearch::least_claims
  int64_t heap_bytes = 0;                       // of the search, while there is one
  int64_t used = 0;                             // counts uses of all: the last of this one
  std::unique_ptr<Version> hidden;              // as if sums of gradients took no time
};

/// All versions that were asked for, at addresses that stay.
class Versions {
 public:
  /// All must outlive this. `options`: of the first, where nothing is computed again. `report`: to
  /// which times of searches are added.
  Versions(const Graph& graph, MeshTables& tables, const PlanOptions& options, RuleCache& rules,
           PlanReport& report);

  /// The first.
  Version& own();
  Version& computing_again(std::set<std::string> chosen, const PlannerChoice& planner);
  /// One that was opened, as if sums of gradients took no time, as where they overlap with kernels.
  Version& hidden(Version& version);
  /// The first with such a fraction of these sums exposed, whose solutions are near two others'.
  Version& between(double exposed, const Version& left, const Version& right);
  /// Under known parallelisms in which weights and the optimizer's state may come to so many bytes
  /// of a rank, those that claim the least first.
  std::vector<Version*> baselines(int64_t bytes);

  /// Makes the search, and once more where it was closed. False if it is impossible.
  bool pose(Version& version);
  /// The same, solved as if memory were no matter, which takes longer.
  bool open(Version& version);
  /// May there be a plan of so many bytes?
  bool may_fit(Version& version, int64_t bytes);
  void add_time(const PlanReport& its);

 private:
  void close_unused();
  template <class Step>
  void attempt(Version& version, const Step& step);

  const Graph& graph_;
  MeshTables& tables_;
  const PlanOptions& options_;
  RuleCache& rules_;
  PlanReport& report_;
  std::deque<Version> all_;
  std::map<std::string, Version*> baselines_;  // by name
  int64_t uses_ = 0;
};

/// Weights and the optimizer's state come to at least so many bytes of a rank under a baseline.
int64_t least_held(const Graph& graph, const PlannerChoice& baseline, const Mesh& mesh);

/// Versions with more and more computed again, each made when it is asked for. Each claims less
/// than all before it.
class Series {
 public:
  /// What is computed again is chosen for what `base`, a plan of the step under that planner,
  /// keeps: for `capacity` bytes alive, and what that shrinks to by `factor`, again and again.
  Series(Versions& versions, const Graph& graph, const LaidOut& base, const PlannerChoice& planner,
         double capacity, double factor);

  /// The k-th, null behind the last: there is none behind some that claim no less than those before
  /// them.
  Version* member(size_t k);
  /// That which claims the least, where nothing is computed again if there is no other. Makes few
  /// of the others.
  Version& least();

 private:
  Version& at_capacity(int k);
  const Recomputed& chosen(int k);

  Versions& versions_;
  const Graph& graph_;
  const PlannerChoice planner_;
  const std::vector<double> node_seconds_;  // of the base
  const ValueBytes bytes_;                  // the same
  const double capacity_;
  const double factor_;
  int64_t whole_claims_ = 0;            // where nothing is computed again
  int capacities_ = kLimit.capacities;  // 0: nothing may be
  std::map<int, Recomputed> chosen_;    // by power of the factor
  int64_t least_claims_ = 0;            // of those made
  int looked_ = 0, idle_ = 0;           // at capacities; in a row that claimed no less
  std::vector<Version*> made_;
};

}  // namespace shardrun
