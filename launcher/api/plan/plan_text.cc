// TrainingPlan::summary: what `shardrun plan` and `train` print of a plan.
#include <algorithm>

#include "explain/analysis.h"
#include "explain/hints.h"
#include "explain/text.h"
#include "plan/plan.h"
#include "ranks/backend.h"

namespace shardrun {
namespace {

constexpr size_t kShownNotes = 5;

std::string describe_copies(const TrainingPlan::Impl& plan) {
  if (plan.copy_bytes.empty())
    return "checkpoints: training waits while they are written; ranks have no memory for a copy of "
           "what they save";
  const int64_t most = *std::max_element(plan.copy_bytes.begin(), plan.copy_bytes.end());
  return str("checkpoints: written while training goes on, from a copy of up to ", mib(most),
             " a rank, ", backend().arenas_on_host ? "counted below" : "in the host's memory");
}

}  // namespace

std::string TrainingPlan::summary() const {
  const Plan& plan = impl_->train;
  const std::string indent(6, ' ');
  const auto two = [](double number) { return format("%.2f", number); };
  std::string out = wrapped(
      "plan: ", str("mesh ", plan.mesh.to_string(), ", planner ", plan.planner, "; predicted step ",
                    two(plan.seconds * 1e3), " ms (compute ", two(plan.compute_seconds * 1e3),
                    ", communication ", two(plan.comm_seconds * 1e3), hidden_text(plan), ")"));
  std::string cluster = "cluster " + impl_->cluster.name;
  if (!impl_->cluster.about.empty()) cluster += " (" + impl_->cluster.about + ")";
  if (impl_->memory_limit > 0) {
    cluster += "; memory limit of a rank " +
               mib(impl_->process_limit > 0 ? impl_->process_limit : impl_->memory_limit);
    if (impl_->process_limit > 0) cluster += ", of its arena " + mib(impl_->memory_limit);
  }
  out += wrapped(indent, cluster);
  const ModelOptions& planned = impl_->origin.options;
  if (planned.accumulate.value_or(1) > 1)
    out += wrapped(indent, str("micro-batches: ", *planned.accumulate, " a step",
                               planned.batch ? str(", of ", *planned.batch, " samples") : ""));
  if (impl_->meshes.size() > 1) {
    std::string tried = "meshes tried:";
    for (const MeshTrial& trial : impl_->meshes) {
      tried += str(&trial == &impl_->meshes[0] ? " " : ", ", trial.mesh.to_string(), " ",
                   trial.fits ? two(trial.seconds * 1e3) + " ms" : "does not fit");
    }
    out += wrapped(indent, tried);
  }
  const PlanReport& r = impl_->report;
  if (r.nodes > 0) {
    out += wrapped(
        indent, str(r.nodes, " nodes (", r.folded_nodes, " after folding), ", r.distinct_rules,
                    " rules", r.kept_rules > 0 ? str(" (", r.kept_rules, " kept)") : "", " from ",
                    r.kernel_runs, " kernel runs, solver ", r.solver));
    out += wrapped(indent,
                   str("processor seconds: import ", two(impl_->import_seconds), ", discovery ",
                       two(r.discovery_seconds), ", planning ", two(impl_->planning_seconds),
                       " (search ", two(r.build_seconds + r.solve_seconds), ")"));
  }
  if (r.evaluations > 0) {
    std::string tactics;
    for (const std::string& tactic : r.found_tactics) tactics += ", " + tactic;
    out += wrapped(indent, str("tree search: ", r.evaluations, " states in ", two(r.tree_seconds),
                               " s; the best ", two(r.found_seconds * 1e3),
                               " ms, with nodes that choose anew ", two(r.descended_seconds * 1e3),
                               " ms, before the integer program; its tactics: ",
                               tactics.empty() ? "none" : tactics.substr(2)));
  }
  if (!impl_->recomputed.empty()) out += wrapped(indent, impl_->recomputed);
  out += hints_text(impl_->hints);
  const std::vector<std::string>& notes = impl_->annotation_notes;
  for (size_t i = 0; i < std::min(notes.size(), kShownNotes); ++i)
    out += wrapped("note: ", notes[i]);
  if (notes.size() > kShownNotes)
    out += wrapped("note: ", str(notes.size() - kShownNotes, " more annotations are not followed"));
  out += wrapped(indent, "weights and state: " + impl_->held);
  if (impl_->checkpoints) out += wrapped(indent, describe_copies(*impl_));
  const std::vector<int64_t> all = predicted_bytes();
  const auto most = static_cast<size_t>(std::max_element(all.begin(), all.end()) - all.begin());
  std::string of_them = mib(impl_->persistent_bytes[most]) + " weights and state";
  if (all[most] > impl_->bytes[most])
    of_them += ", " + mib(all[most] - impl_->bytes[most]) + " the copy for checkpoints";
  return out + wrapped(indent, str("bytes of the fullest rank (", most, "): ", all[most], " (",
                                   mib(all[most]), "), of them ", of_them));
}

}  // namespace shardrun
