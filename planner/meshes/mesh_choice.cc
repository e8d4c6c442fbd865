// Trying meshes: one axis, two, three.
#include "planner/meshes/mesh_choice.h"

#include <algorithm>
#include <optional>
#include <set>

#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

constexpr int kMostMeshAxes = 3;
// Seconds that a folded node takes to plan, by axes: GPT's 200 take 0.02 s, 0.4 s and 3.5 s.
constexpr double kSecondsPerNode[kMostMeshAxes] = {1e-4, 2e-3, 1.75e-2};
constexpr double kMoreThanExpected = 3;  // times the search that was expected: no more meshes

/// Ordered factorisations of `rest` into `axes` factors of 2 or more, behind `sizes`.
void factorise(int64_t rest, int axes, std::vector<int64_t>& sizes,
               std::vector<std::vector<int64_t>>& out) {
  if (axes == 1) {
    if (rest < 2) return;
    sizes.push_back(rest);
    out.push_back(sizes);
    sizes.pop_back();
    return;
  }
  for (int64_t size = 2; size <= rest / 2; ++size) {
    if (rest % size != 0) continue;
    sizes.push_back(size);
    factorise(rest / size, axes - 1, sizes, out);
    sizes.pop_back();
  }
}

/// A mesh by how its axes lie on the nodes: the same for meshes that only swap axes which a
/// collective cannot tell apart.
std::vector<GroupSpan> nature(const Mesh& mesh, const Cluster& cluster) {
  std::vector<GroupSpan> axes;
  for (int axis = 0; axis < mesh.axis_count(); ++axis)
    axes.push_back(cluster.span_of(mesh, std::vector{axis}));
  if (cluster.regular(mesh)) std::sort(axes.begin(), axes.end());
  return axes;
}

Mesh mesh_of(const std::vector<int64_t>& sizes) {
  if (sizes.size() == 1) return Mesh({{"ranks", sizes[0]}});
  std::vector<Mesh::Axis> axes;
  for (int64_t size : sizes)
    axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), size});
  return Mesh(std::move(axes));
}

}  // namespace

std::vector<Mesh> candidate_meshes(int64_t ranks, const Cluster& cluster, int names) {
  if (ranks == 1) return {Mesh()};
  std::vector<Mesh> meshes;
  std::set<std::vector<GroupSpan>> seen;
  const bool ordered = names > 1;  // each axis has a meaning of its own
  // What one baseline does on all axes it does on one, but for links that differ.
  const int most = ordered ? names : names == 0 ? kMostMeshAxes : ranks > cluster.devices ? 2 : 1;
  for (int axes = ordered ? names : 1; axes <= most; ++axes) {
    std::vector<int64_t> sizes;
    std::vector<std::vector<int64_t>> all;
    factorise(ranks, axes, sizes, all);
    const auto largest = [](const std::vector<int64_t>& s) {
      return *std::max_element(s.begin(), s.end());
    };
    std::stable_sort(all.begin(), all.end(),
                     [&](const auto& a, const auto& b) { return largest(a) < largest(b); });
    for (const std::vector<int64_t>& candidate : all) {
      Mesh mesh = mesh_of(candidate);
      if (ordered || seen.insert(nature(mesh, cluster)).second) meshes.push_back(std::move(mesh));
    }
  }
  return meshes;
}

Plan plan_best_mesh(const Graph& graph, int64_t ranks, const Cluster& cluster,
                    const PlanOptions& options, double total_seconds, RuleCache& rules,
                    PlanReport* report, std::vector<MeshTrial>* trials) {
  const Deadline end(kMoreThanExpected * total_seconds, Deadline::Clock::work);
  const auto names = static_cast<int>(options.planner.baselines.size());
  const std::vector<Mesh> meshes = candidate_meshes(ranks, cluster, names);
  SR_REQUIRE(!meshes.empty(), invalid_input, "planner '", to_string(options.planner), "': ", ranks,
             " ranks make no mesh of ", names, " axes; give one, as --mesh data=1,model=", ranks);
  std::optional<Plan> best;
  std::optional<Error> refusal;  // of the mesh that could do with the fewest bytes
  std::optional<Plan> least;     // that one's plan of so many
  PlanReport best_report, total;
  int folded_nodes = 0;
  double expected = 0;  // seconds of all trials so far and the next
  for (const Mesh& mesh : meshes) {
    const int axes = std::max(1, mesh.axis_count());
    if (axes > 1 && &mesh != &meshes[0]) {
      expected += folded_nodes * kSecondsPerNode[axes - 1];
      if (expected > total_seconds || end.passed()) break;
    }
    MeshTrial trial{mesh, true, 0, 0, ""};
    PlanReport its_report;
    try {
      Plan plan = plan_shardings(graph, mesh, cluster, options, rules, &its_report);
      trial.seconds = plan.seconds;
      trial.bytes = plan.bytes;
      if (!best || (options.least ? plan.bytes <= best->bytes : plan.seconds < best->seconds)) {
        best = std::move(plan);
        best_report = its_report;
      }
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::out_of_memory) throw;
      trial.fits = false;
      trial.why = error.what();
      // Of equal ones the last: it has the most ways to cut.
      const bool is_least = its_report.least && (!least || its_report.least->bytes <= least->bytes);
      if (is_least) least = its_report.least;
      if (is_least || !refusal) refusal = error;
    }
    total.kernel_runs += its_report.kernel_runs;
    total.discovery_seconds += its_report.discovery_seconds;
    total.build_seconds += its_report.build_seconds;
    total.solve_seconds += its_report.solve_seconds;
    folded_nodes = its_report.folded_nodes;
    if (trials != nullptr) trials->push_back(std::move(trial));
  }
  if (!best) {
    if (report != nullptr) report->least = least;
    throw *refusal;
  }
  best_report.kernel_runs = total.kernel_runs;
  best_report.discovery_seconds = total.discovery_seconds;
  best_report.build_seconds = total.build_seconds;
  best_report.solve_seconds = total.solve_seconds;
  best_report.distinct_rules = rules.distinct_rules();
  best_report.kept_rules = rules.kept_rules();
  if (report != nullptr) *report = best_report;
  return *best;
}

}  // namespace shardrun
