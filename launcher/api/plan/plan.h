// TrainingPlan's inside, and the Programs that follow from it.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "graph/plan.h"
#include "graph/program.h"
#include "model.h"
#include "plan/plan_origin.h"
#include "planner/meshes/mesh_choice.h"
#include "planner/planner.h"
#include "program/plan_programs.h"
#include "shardrun/shardrun.h"

namespace shardrun {

struct TrainingPlan::Impl {
  Plan train;
  Plan evaluation;                   // parameters lie as in `train`
  std::optional<Graph> recomputing;  // the model's step with what `train` computes again, if any
  uint64_t model_hash = 0;           // of the model's step as it is without that
  /// Rank 0's of the training step, as it was laid out, where this process planned for a job that
  /// it is none of: `plan` then says what is in it.
  std::optional<Program> program;
  bool with_evaluation = true;
  PlanReport report;  // of this process's planning; empty on ranks that received the plan
  std::vector<std::string> annotation_notes;  // of this process's planning: what is not followed
  std::vector<HintOutcome> hints;  // as the planner left them, also of a plan from a file
  std::vector<MeshTrial> meshes;   // --mesh auto: what was tried, by this process
  Cluster cluster;                 // as a job of so many ranks sees it
  int64_t memory_limit = 0;        // of a rank's arena; 0: none
  int64_t process_limit = 0;       // of a rank's process, where it runs on CPUs here; 0: none
  int process_ranks = 1;           // ranks that share a process
  double import_seconds = 0;       // of the model, processor time
  double planning_seconds = 0;     // of this process's planning without discovery, processor time
  std::vector<int64_t> bytes;      // arena of each rank
  std::vector<int64_t> persistent_bytes;
  bool checkpoints = false;         // as was asked for
  std::vector<int64_t> copy_bytes;  // what each rank copies for one; empty: training waits instead
  PlannedModel origin;              // the model's path and options
  PlanRequest request;              // under which it was made: the fields of request_json
  std::string recomputed;  // what is computed again and what that costs and saves; "": nothing
  std::string held;        // how weights and optimizer state lie: "13 x [{ranks}, -]; …"
};

/// What TrainingPlan::json() writes as text.
nlohmann::json plans_json(const TrainingPlan::Impl& plan);

/// The least of the limits that were asked for; 0: none.
int64_t asked_bytes(const PlanRequest& request);

/// The step that the plan is for.
const Graph& step_of(const Model::Impl& model, const TrainingPlan::Impl& plan);

/// Throws invalid_input unless the plan was made for this model, with these options.
void require_made_for(const Model::Impl& model, const TrainingPlan::Impl& plan);

/// Throws invalid_input unless it was, for as many ranks as there are. `call`: who asks.
void require_fits(const char* call, const World& world, const Model::Impl& model,
                  const TrainingPlan::Impl& plan);

/// What one rank runs: the training step, and validation in the same arena.
struct RankPrograms {
  Program train;
  std::optional<Program> evaluation;
  int64_t arena_bytes() const;
};
RankPrograms compile_for_rank(const Model::Impl& model, const TrainingPlan::Impl& plan,
                              int64_t rank);

/// Throws invalid_input: a field that no plan can be made or read with.
void check_plan_request(const PlanRequest& request);
/// The mesh of a request for so many ranks; nullopt: the planner's choice. Throws invalid_input: it
/// has other ranks.
std::optional<Mesh> wanted_mesh(const std::string& text, int64_t ranks);
/// Throws invalid_input where tactics say other turns than the model has micro-batches.
void check_turns(const Model::Impl& model, const std::vector<std::string>& tactics);
/// What a plan for so many ranks that is made here predicts with.
Cluster planned_cluster(World& world, const PlanRequest& request, int64_t ranks);
/// The request to the planner; nothing is laid out. `limit`: bytes of a rank; 0: none.
PlanOptions plan_options(const Model::Impl& model, const PlanRequest& request, int64_t limit);

}  // namespace shardrun
