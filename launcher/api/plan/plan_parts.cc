// Training is planned first: validation takes weights and the optimizer's state as that leaves
// them.
#include "plan/plan_parts.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "annotations/annotated.h"
#include "choices.h"
#include "error_context.h"
#include "plan/micro_batches.h"
#include "planner/meshes/mesh_tables.h"
#include "planner/rules/rule_file.h"
#include "planner/space/requests.h"
#include "ranks/backend.h"

namespace shardrun {
namespace {

/// The same with every plan's arena, and its times, of the ranks' programs. `on_progress` hears of
/// each.
PlanOptions laying_out(PlanOptions options, const Cluster& cluster, Measures& measures,
                       const std::function<void(const std::string&)>& on_progress = nullptr) {
  options.arena_use = [&, limit = options.memory_limit, on_progress](const Plan& candidate,
                                                                     int64_t enough) {
    if (on_progress) on_progress("comparing plans on mesh " + candidate.mesh.to_string());
    const auto programs = measures.train.of(kept_if_ample(candidate, limit, measures.train));
    return arena_use(programs->compared(limit, enough), programs->graph());
  };
  const auto retime_as = [&, limit = options.memory_limit](const Plan& kept, Plan& candidate) {
    const auto programs = measures.train.of(kept);
    retime(*programs, cluster, programs->compared_ranks(limit), candidate);
  };
  options.retime = [&, retime_as, limit = options.memory_limit](Plan& candidate) {
    retime_as(kept_if_ample(candidate, limit, measures.train), candidate);
  };
  if (cluster.collectives == Collectives::apart) {
    options.retime_kept = [&, retime_as, limit = options.memory_limit](Plan& candidate) {
      retime_as(kept(candidate, limit, measures.train), candidate);
    };
  }
  return options;
}

/// Planners whose tactics are of the training step's values.
bool asks_for_tactics(PlannerKind kind) {
  return kind == PlannerKind::propagate || kind == PlannerKind::mcts ||
         kind == PlannerKind::mcts_arguments;
}

bool is_out_of_memory(const Error& error) { return error.kind() == ErrorKind::out_of_memory; }

/// Both searches, of one request, on rank 0.
class Parts {
 public:
  Parts(const Model::Impl& model, const PlanRequest& request, int64_t ranks, int64_t limit,
        Measures& measures, TrainingPlan::Impl& out)
      : model_(model),
        request_(request),
        ranks_(ranks),
        limit_(limit),
        measures_(measures),
        out_(out),
        mesh_(wanted_mesh(request.mesh, ranks)) {
    check_axes();
    check_turns(model, request.tactics);
    if (request.on_progress) {
      rules_.on_search = [&](const std::string& op) {
        request.on_progress("finding out how " + op + " can be cut");
      };
    }
    if (mesh_) tables_.emplace(*mesh_, out.cluster);
    options_ = training_options();
  }

  void plan() {
    plan_training();
    if (!out_.with_evaluation) return;
    PlanReport its;
    try {
      plan_evaluation(limit_, its);
    } catch (const Error& error) {
      if (!is_out_of_memory(error) || options_.planner.kind == PlannerKind::plain_ilp) throw;
      // As a rule the plan of the fewest bytes has the fewest that persist. It does not depend on
      // the limit, so a limit that a refusal names will do.
      options_.least = true;
      plan_training();
      plan_evaluation(limit_, its);
    }
    out_.report.discovery_seconds += its.discovery_seconds;
    out_.report.kernel_runs += its.kernel_runs;
    out_.report.distinct_rules = its.distinct_rules;
    out_.report.kept_rules = its.kept_rules;
  }

 private:
  void check_axes() const {
    const std::vector<std::string> tactics = mesh_tactics(request_.tactics);
    SR_REQUIRE(mesh_ || tactics.empty(), invalid_input, "--tactic '", tactics[0],
               "': names an axis of the mesh, so give that too, as --mesh data=2,model=4");
    for (const std::string& shard : request_.shard) {
      SR_REQUIRE(mesh_ || !names_axes(shard), invalid_input, "--shard '", shard,
                 "': names axes of the mesh, so give that too, as --mesh data=2,model=4");
    }
  }

  PlanOptions training_options() {
    PlanOptions options = laying_out(plan_options(model_, request_, limit_), out_.cluster,
                                     measures_, request_.on_progress);
    const Recompute recompute = parse_choice("--recompute", kRecomputes, request_.recompute);
    options.recompute = recompute == Recompute::automatic && model_.no_training.empty();
    AnnotationRequests annotated = annotation_requests(model_, request_, mesh_ ? &*mesh_ : nullptr);
    options.requests.insert(options.requests.end(), annotated.requests.begin(),
                            annotated.requests.end());
    out_.request.shard = options.requests;
    out_.annotation_notes = std::move(annotated.notes);
    if (mesh_) options.tables = &*tables_;
    return options;
  }

  void plan_training() {
    out_.meshes.clear();
    try {
      out_.train =
          mesh_ ? plan_shardings(model_.train, *mesh_, out_.cluster, options_, rules_, &out_.report)
                : plan_best_mesh(model_.train, ranks_, out_.cluster, options_,
                                 request_.solve_seconds, rules_, &out_.report, &out_.meshes);
    } catch (const Error& error) {
      if (is_out_of_memory(error) && out_.with_evaluation && out_.report.least)
        check_evaluation_fits(*out_.report.least);
      throw;
    }
    out_.hints = out_.report.hints;
  }

  /// Throws validation's refusal where the bytes that training needs are too few for that.
  void check_evaluation_fits(const Plan& training) {
    out_.train = training;
    PlanReport its;
    plan_evaluation(training.bytes, its);
  }

  /// What a refusal finds to be the least is then that of `out_.report`.
  void plan_evaluation(int64_t limit, PlanReport& report) {
    PlanOptions options = options_;
    options.memory_limit = limit;
    options.asked_limit = limit_;
    options.least = false;
    options.requests.clear();  // of the training step's values
    options.tactics.clear();
    options.strict = false;  // of these
    if (asks_for_tactics(options.planner.kind)) options.planner = {};
    options.pinned = persistent_shardings(model_.train, out_.train);
    // Weights and the optimizer's state stay while it runs.
    const std::shared_ptr<PlanPrograms> training =
        measures_.train.of(kept_if_ample(out_.train, limit, measures_.train));
    const auto programs_of = [&](const Plan& plan) {
      return measures_.evaluation.of(kept_if_ample(plan, limit, measures_.evaluation, training),
                                     training);
    };
    options.arena_use = [&](const Plan& plan, int64_t enough) {
      return arena_use(programs_of(plan)->compared(limit, enough), model_.evaluation);
    };
    options.retime = [&](Plan& plan) {
      const auto programs = programs_of(plan);
      retime(*programs, out_.cluster, programs->compared_ranks(limit), plan);
    };
    options.retime_kept = nullptr;
    try {
      within("validation, whose weights lie as in training", [&] {
        out_.evaluation = plan_shardings(model_.evaluation, out_.train.mesh, out_.cluster, options,
                                         rules_, &report);
      });
    } catch (const Error&) {
      out_.report.least = report.least;
      throw;
    }
  }

  const Model::Impl& model_;
  const PlanRequest& request_;
  const int64_t ranks_, limit_;
  Measures& measures_;
  TrainingPlan::Impl& out_;
  const std::optional<Mesh> mesh_;    // nullopt: the planner's choice
  std::optional<MeshTables> tables_;  // of both
  RuleCache rules_{rule_file_path()};
  PlanOptions options_;  // of training
};

}  // namespace

std::map<std::string, Sharding> persistent_shardings(const Graph& graph, const Plan& plan) {
  std::map<std::string, Sharding> out;
  for (const Value& value : graph.values()) {
    if (value.role == Role::parameter || value.role == Role::constant ||
        value.role == Role::state) {
      if (const auto it = plan.values.find(value.name); it != plan.values.end())
        out[value.name] = it->second;
    }
  }
  return out;
}

void plan_parts(const Model::Impl& model, const PlanRequest& request, int64_t ranks, int64_t limit,
                Measures& measures, TrainingPlan::Impl& out) {
  Parts(model, request, ranks, limit, measures, out).plan();
}

Plan plan_again(const Model::Impl& model, const TrainingPlan::Impl& plan,
                const PlanRequest& request, const std::function<void(PlanOptions&)>& change) {
  Measures measures(model, plan.cluster);
  const int64_t asked = asked_bytes(request);
  const int64_t limit = asked > 0 ? asked : plan.request.memory_bytes;
  PlanOptions options = laying_out(plan_options(model, request, limit), plan.cluster, measures);
  options.planner = parse_planner(plan.train.planner);
  options.requests = plan.request.shard;
  options.tactics = mesh_tactics(plan.request.tactics);
  options.recomputed = plan.train.recompute;
  change(options);
  RuleCache rules(rule_file_path());
  Plan out = plan_shardings(step_of(model, plan), plan.train.mesh, plan.cluster, options, rules);
  out.keep_casts = plan.train.keep_casts;  // or the two could not be compared
  out.keep_packed = plan.train.keep_packed;
  out.hold_fraction = plan.train.hold_fraction;
  const std::shared_ptr<PlanPrograms> programs = measures.train.of(out);
  out.bytes = programs->fullest().arena_bytes;
  retime(*programs, plan.cluster, programs->classes().first, out);
  return out;
}

}  // namespace shardrun
