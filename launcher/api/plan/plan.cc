// Planning: mesh, shardings, and the exact bytes of every rank.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/files/input_file.h"
#include "base/process/process_memory.h"
#include "choices.h"
#include "error_context.h"
#include "exec/data/data.h"
#include "explain/hints.h"
#include "graph/json_text.h"
#include "graph/passes/recompute.h"
#include "graph/plan_json.h"
#include "measure/cluster.h"
#include "option_json.h"
#include "plan/micro_batches.h"
#include "plan/plan_bytes.h"
#include "plan/plan_parts.h"
#include "plan/recomputed.h"
#include "planner/cost/cluster_file.h"
#include "planner/rules/rule_file.h"
#include "planner/space/plan_check.h"
#include "ranks/backend.h"
#include "ranks/capacity.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "train/batches.h"

namespace shardrun {
namespace {

/// A number below 1024 is hardly one of bytes.
std::string unit_forgotten(int64_t bytes) {
  return bytes < 1024 ? str(", with a unit, as in ", bytes, "GiB") : "";
}

/// What was asked for, else what the cluster's devices have; and no more than `capacities`, if any.
ArenaBytes memory_limit(const PlanRequest& request, const Cluster& cluster,
                        std::span<const DeviceCapacity> capacities) {
  int64_t wanted = request.memory_bytes > 0 ? request.memory_bytes : cluster.memory_bytes;
  std::string why;
  int64_t process = 0;  // of the rank whose process takes most
  for (const DeviceCapacity& rank : capacities) process = std::max(process, rank.process_bytes);
  if (request.memory_bytes > 0 && process > 0) {
    why = str("--memory ", wanted, " is of a rank's whole process, which takes ", process,
              " besides its arena");
    const std::string forgotten = unit_forgotten(wanted);
    SR_REQUIRE(forgotten.empty(), out_of_memory, why, "; give more", forgotten);
    if (wanted <= process) why += ", so that nothing is left for that";
    wanted = std::max<int64_t>(1, wanted - process);  // at 1 what a plan needs is found out
  }
  if (request.arena_bytes > 0 && (wanted == 0 || request.arena_bytes < wanted)) {
    wanted = request.arena_bytes;
    why.clear(), process = 0;
  }
  if (capacities.empty()) return {wanted, ""};
  ArenaLimit capacity = least_capacity(capacities, cluster);
  if (wanted > 0 && wanted <= capacity.bytes)
    return {wanted, std::move(why), request.memory_bytes > 0 ? process : 0};
  if (request.memory_bytes > 0) capacity.why += str("; --memory asks for ", request.memory_bytes);
  return {capacity.bytes, std::move(capacity.why)};
}

/// What inputs hold in every step. Not targets, of which masks leave out some.
InputContents contents_of(const Model::Impl& model) {
  if (model.options.data.empty()) return nullptr;
  std::vector<std::string> inputs;
  for (const BatchField& field : batch_fields(model.train)) {
    if (field.role == BatchField::Role::input) inputs.push_back(field.name);
  }
  return [&options = model.options, inputs](const std::string& name) {
    return std::find(inputs.begin(), inputs.end(), name) != inputs.end()
               ? data_contents(options.data, name, inputs, options.sort_edges)
               : std::nullopt;
  };
}

std::string read_text(const std::string& path) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  return read_input_file(path, "a plan", kMostBytes);
}

/// A plan that is made already is not made otherwise.
void check_request(const PlanRequest& request, const TrainingPlan::Impl& plan) {
  const std::map<std::string, std::string> own = {{"mesh", "mesh, " + plan.train.mesh.to_string()},
                                                  {"planner", "planner, " + plan.train.planner},
                                                  {"cluster", "cluster, " + plan.cluster.name},
                                                  {"recompute", "recomputation"},
                                                  {"tactics", "tactics"}};
  const nlohmann::json given = options_json(request, kPlanned);
  const nlohmann::json otherwise = options_json(PlanRequest(), kPlanned);
  each_option(request, [&](const OptionRow& row, const auto&) {
    if (!(row.use & kPlanned) || given[row.name] == otherwise[row.name]) return;
    const nlohmann::json& asked = given[row.name];
    const auto has = own.find(row.name);
    fail(ErrorKind::invalid_input, row.flag, " ",
         asked.is_array() ? "'" + asked[0].get<std::string>() + "'" : asked.get<std::string>(),
         " and --plan ", request.plan_file, ": the plan has its own ",
         has == own.end() ? "shardings" : has->second, "; leave out one of the two");
  });
}

void check_fields(const nlohmann::json& file, const std::string& origin) {
  for (const char* name : {"model", "request", "cluster", "train", "evaluation"}) {
    SR_REQUIRE(file.is_object() && file.contains(name), invalid_input, origin,
               ": is not a plan: field '", name, "' is missing");
  }
}

void read_plans(const std::string& text, const std::string& origin, TrainingPlan::Impl& out) {
  const nlohmann::json both = parse_json<nlohmann::json>(text, origin, "a plan");
  check_fields(both, origin);
  out.origin = read_origin(both["model"], origin + ": field model");
  out.request = read_request(both["request"], origin + ": field request");
  out.cluster = parse_cluster(both["cluster"].dump(), origin + ": cluster");
  out.train = plan_from_json(both["train"].dump(), origin + ": train");
  if (both.contains("hints")) out.hints = read_hints(both["hints"], origin + ": field hints");
  out.with_evaluation = !both["evaluation"].is_null();
  if (out.with_evaluation)
    out.evaluation = plan_from_json(both["evaluation"].dump(), origin + ": evaluation");
}

/// Validation runs with the weights as the training step leaves them.
void check_evaluation(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  const Mesh& mesh = plan.train.mesh;
  SR_REQUIRE(plan.evaluation.mesh == mesh, invalid_input, "plan: field 'mesh' is ",
             plan.evaluation.mesh.to_string(), ", the training step's is ", mesh.to_string());
  check_plan(plan.evaluation, model.evaluation);
  for (const auto& [name, sharding] : persistent_shardings(model.evaluation, plan.evaluation)) {
    const auto trained = plan.train.values.find(name);
    SR_REQUIRE(trained == plan.train.values.end() || trained->second == sharding, invalid_input,
               "plan: field values['", name, "'] is ", to_string(sharding, mesh),
               ", in the training step it is ", to_string(trained->second, mesh));
  }
}

/// The step with what the plan computes again.
void recompute(const Model::Impl& model, TrainingPlan::Impl& plan) {
  if (plan.train.recompute.empty()) return;
  within("train: plan: field 'recompute'",
         [&] { plan.recomputing = with_recomputed(model.train, plan.train.recompute); });
}

void check(const Model::Impl& model, TrainingPlan::Impl& plan, int64_t ranks) {
  recompute(model, plan);
  within("train", [&] {
    const Mesh& mesh = plan.train.mesh;
    SR_REQUIRE(mesh.size() == ranks, invalid_input, "plan: field 'mesh' is ", mesh.to_string(),
               ", ", mesh.size(), " ranks; the job has ", ranks, "; run it on ", mesh.size(),
               ", or plan for ", ranks);
    check_plan(plan.train, step_of(model, plan));
  });
  if (plan.with_evaluation) within("evaluation", [&] { check_evaluation(model, plan); });
}

bool is_of_step(const Model::Impl& model, TrainingPlan::Impl& plan) {
  try {
    recompute(model, plan);
  } catch (const Error&) {
    return false;  // it has no such nodes
  }
  return plan.train.model_hash == structural_hash(step_of(model, plan));
}

/// A plan of a file that does not fit the model says by which options.
void check_origin(const Model::Impl& model, TrainingPlan::Impl& plan) {
  if (is_of_step(model, plan)) return;
  std::string others = other_options(plan.origin.options, model.options);
  if (plan.origin.path != model.path)
    others = str("of ", plan.origin.path, others.empty() ? "" : ", and with ", others);
  else if (!others.empty())
    others = "with " + others;
  SR_REQUIRE(others.empty(), invalid_input, "train: plan: field 'model_hash' is ", std::hex,
             plan.train.model_hash, ", this model has ", structural_hash(model.train), std::dec,
             "; the plan was made ", others, "; give the same, or plan again");
}

/// What was planned here runs its nodes as their rules allow; what a file says may be otherwise.
void check_strategies(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  RuleCache rules(rule_file_path());
  within("train", [&] { check_strategies(plan.train, step_of(model, plan), rules); });
  if (!plan.with_evaluation) return;
  within("evaluation", [&] { check_strategies(plan.evaluation, model.evaluation, rules); });
}

std::string describe_held(const Graph& graph, const Plan& plan) {
  std::map<std::string, int> kinds;
  for (const Value& value : graph.values()) {
    const bool held = value.role == Role::parameter || value.role == Role::state;
    if (held && plan.values.count(value.name))
      ++kinds[to_string(plan.values.at(value.name), plan.mesh)];
  }
  std::string out;
  for (const auto& [sharding, count] : kinds)
    out += str(out.empty() ? "" : "; ", count, " x ", sharding);
  return out;
}

/// The cluster of a new plan, or all that a plan file has.
void begin_plan(World& world, const PlanRequest& request, int64_t ranks, TrainingPlan::Impl& plan) {
  if (!request.plan_file.empty()) {
    read_plans(read_text(request.plan_file), request.plan_file, plan);
    check_request(request, plan);
    if (backend().collectives == Collectives::apart) plan.cluster.collectives = Collectives::apart;
    return;
  }
  plan.cluster = planned_cluster(world, request, ranks);
}

/// What rank 0 does for all: the plan of the file, or the best that is found.
void choose_plan(World& world, const Model::Impl& model, const PlanRequest& request, int64_t ranks,
                 const std::vector<DeviceCapacity>& capacities, TrainingPlan::Impl& plan) {
  begin_plan(world, request, ranks, plan);
  const double begin = thread_seconds();
  const ArenaBytes limit = memory_limit(request, plan.cluster, capacities);
  Measures measures(model, plan.cluster);
  if (request.plan_file.empty()) {
    plan.origin = {model.path, "", model.options, 1};
    plan.request.memory_bytes = limit.bytes;
    plan.request.tactics = request.tactics;
    try {
      plan_parts(model, request, ranks, limit.bytes, measures, plan);
    } catch (const Error& e) {
      const std::optional<Plan>& least = plan.report.least;
      throw limit.refusal(e, least ? std::optional(least->bytes) : std::nullopt);
    }
  }
  plan.memory_limit = limit.bytes;
  within(request.plan_file, [&] {
    if (!request.plan_file.empty()) check_origin(model, plan);
    check(model, plan, ranks);
    if (!request.plan_file.empty()) check_strategies(model, plan);
    keep_what_fits(request, limit, measures, plan);
  });
  if (request.ranks > 0) plan.program = measures.train.of(plan.train)->of_rank(0);
  plan.recomputed = recomputed_text(model, plan);
  plan.planning_seconds = thread_seconds() - begin - plan.report.discovery_seconds;
}

std::string text_for_ranks(const TrainingPlan::Impl& plan) {
  nlohmann::json all = plans_json(plan);
  all["bytes"] = plan.bytes;
  all["persistent_bytes"] = plan.persistent_bytes;
  all["copy_bytes"] = plan.copy_bytes;
  return all.dump();
}

void read_text_of_rank0(const std::string& text, TrainingPlan::Impl& plan) {
  read_plans(text, "plan of rank 0", plan);
  const nlohmann::json all = nlohmann::json::parse(text);
  plan.bytes = all["bytes"].get<std::vector<int64_t>>();
  plan.persistent_bytes = all["persistent_bytes"].get<std::vector<int64_t>>();
  plan.copy_bytes = all["copy_bytes"].get<std::vector<int64_t>>();
}

/// Drops the plan and reads it anew, as other ranks do. What lives on was scattered over all that
/// the search took: of the pages that held it hardly any could be given back.
void gather(const Model::Impl& model, int64_t ranks, TrainingPlan::Impl& plan) {
  const std::string text = text_for_ranks(plan);
  plan.train = {};
  plan.evaluation = {};
  plan.recomputing.reset();
  trim_heap();
  read_text_of_rank0(text, plan);
  check(model, plan, ranks);
}

}  // namespace

Cluster planned_cluster(World& world, const PlanRequest& request, int64_t ranks) {
  // Those of this World, or as many as were asked for.
  const int threads =
      ranks == world.size() ? world.impl().kernel_threads : world.impl().asked.value_or(0);
  Cluster cluster = find_cluster(request.cluster, ranks)
                        .for_ranks(ranks, world.impl().mpi ? "mpi" : "threads", threads);
  if (backend().collectives == Collectives::apart) cluster.collectives = Collectives::apart;
  return cluster;
}

void check_plan_request(const PlanRequest& request) {
  parse_planner(request.planner);
  parse_choice("--recompute", kRecomputes, request.recompute);
  SR_REQUIRE(request.ranks >= 0, invalid_input, "--ranks is ", request.ranks,
             ", wanted 1 or more, or 0 for those that there are");
  SR_REQUIRE(request.memory_bytes >= 0, invalid_input, "--memory is ", request.memory_bytes,
             ", wanted 1 or more, or 0 for what there is");
  SR_REQUIRE(request.arena_bytes >= 0, invalid_input, "--arena is ", request.arena_bytes,
             ", wanted 1 or more, or 0 for what --memory leaves");
  SR_REQUIRE(request.solve_seconds >= 0 && std::isfinite(request.solve_seconds), invalid_input,
             "--plan-seconds is ", request.solve_seconds, ", wanted a number of at least 0");
}

std::optional<Mesh> wanted_mesh(const std::string& text, int64_t ranks) {
  if (text == "auto") return std::nullopt;
  Mesh mesh = Mesh::parse(text, ranks);
  SR_REQUIRE(mesh.size() == ranks, invalid_input, "mesh ", mesh.to_string(), " has ", mesh.size(),
             " ranks, the job has ", ranks, "; start ", mesh.size(), " (mpirun -np ", mesh.size(),
             ", or --ranks ", mesh.size(), " without it), or name a mesh of ", ranks);
  return mesh;
}

void check_turns(const Model::Impl& model, const std::vector<std::string>& tactics) {
  const std::optional<int> turns = turns_of(tactics);
  if (!turns || turns == model.train.micro_batches) return;
  const std::string by =
      str("--tactic batch@turns=", turns == kAutoMicroBatches ? "auto" : str(*turns), ": ");
  SR_REQUIRE(model.no_training.empty(), invalid_input, by,
             "a forward pass takes its batch at once; leave it out");
  if (turns == kAutoMicroBatches) return;
  fail(ErrorKind::invalid_input, by, "the model was loaded for ", model.train.micro_batches,
       model.train.micro_batches == 1 ? " micro-batch" : " micro-batches",
       " a step, and all of it is planned for that; say the same by --accumulate ", *turns);
}

PlanOptions plan_options(const Model::Impl& model, const PlanRequest& request, int64_t limit) {
  PlanOptions options;
  options.planner = parse_planner(request.planner);
  options.requests = request.shard;
  options.tactics = mesh_tactics(request.tactics);
  options.strict = request.strict;
  options.solve_seconds = request.solve_seconds;
  options.seed = request.seed;
  options.memory_limit = limit;
  options.whole_sums = request.whole_sums;
  options.contents = contents_of(model);
  return options;
}

int64_t asked_bytes(const PlanRequest& request) {
  if (request.memory_bytes == 0 || request.arena_bytes == 0)
    return request.memory_bytes + request.arena_bytes;
  return std::min(request.memory_bytes, request.arena_bytes);
}

const Graph& step_of(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  return plan.recomputing ? *plan.recomputing : model.train;
}

void require_made_for(const Model::Impl& model, const TrainingPlan::Impl& plan) {
  SR_REQUIRE(plan.model_hash == structural_hash(model.train), invalid_input,
             "the plan is for another model, ", plan.origin.path,
             ", or for other options of it, than this of ", model.path, "; plan again");
  check_plan(plan.train, step_of(model, plan));
}

void require_fits(const char* call, const World& world, const Model::Impl& model,
                  const TrainingPlan::Impl& plan) {
  require_made_for(model, plan);
  const int64_t ranks = plan.train.mesh.size();
  SR_REQUIRE(world.size() == ranks, invalid_input, call, ": the plan is for ", ranks,
             " ranks, there are ", world.size());
}

int64_t RankPrograms::arena_bytes() const {
  return std::max(train.arena_bytes, evaluation ? evaluation->arena_bytes : 0);
}

RankPrograms compile_for_rank(const Model::Impl& model, const TrainingPlan::Impl& plan,
                              int64_t rank) {
  RankPrograms out;
  out.train = compile(step_of(model, plan), plan.train, plan.cluster, rank, backend_traits());
  if (plan.with_evaluation)
    out.evaluation = compile(model.evaluation, plan.evaluation, plan.cluster, rank,
                             backend_traits(), {.persistent_like = &out.train});
  const int64_t predicted = plan.bytes.at(static_cast<size_t>(rank));
  SR_REQUIRE(out.arena_bytes() == predicted, internal, "rank ", rank, ": its programs need ",
             out.arena_bytes(), " bytes, the plan says ", predicted);
  return out;
}

int mesh_ranks(const std::string& mesh) {
  return at_boundary([&] {
    return mesh == "auto" || Mesh::has_unknown_size(mesh)
               ? 0
               : static_cast<int>(Mesh::parse(mesh).size());
  });
}

TrainingPlan make_plan(World& world, const Model& model, const PlanRequest& request) {
  require_same(world, "make_plan", same_on_ranks(request));
  at_boundary([&] { check_plan_request(request); });  // the same on every rank
  auto impl = std::make_unique<TrainingPlan::Impl>();
  const bool trains = model.impl().no_training.empty();
  impl->with_evaluation = request.with_evaluation && trains;
  impl->checkpoints = request.checkpoints && trains;
  impl->import_seconds = model.impl().import_seconds;
  impl->model_hash = structural_hash(model.impl().train);
  at_boundary([&] { share_cores(world.impl()); });  // workspaces are those of as many threads
  const int64_t ranks = request.ranks > 0 ? request.ranks : world.size();
  std::vector<DeviceCapacity> capacities;
  if (request.ranks == 0) {
    return_freed_memory_at_once();  // or a rank that plans would hold more than the others
    decide_on_rank0(world, [] {
      check_device();
      return std::string();
    });
    capacities = capacities_of_ranks(world);
    if (backend().arenas_on_host) impl->process_limit = request.memory_bytes;
    if (!world.impl().mpi) impl->process_ranks = world.size();
  }
  const std::string text = decide_on_rank0(world, [&] {
    choose_plan(world, model.impl(), request, ranks, capacities, *impl);
    return world.impl().mpi ? text_for_ranks(*impl) : std::string();  // else nobody to tell
  });
  at_boundary([&] {
    if (!world.leader()) {
      read_text_of_rank0(text, *impl);
      check(model.impl(), *impl, ranks);
    } else if (impl->process_limit > 0) {
      gather(model.impl(), ranks, *impl);
    }
  });
  impl->held = describe_held(model.impl().train, impl->train);
  trim_heap();  // of what the search took
  return TrainingPlan(std::move(impl));
}

PlannedModel read_planned_model(const std::string& plan_file) {
  return at_boundary([&] {
    const auto root = parse_json<nlohmann::json>(read_text(plan_file), plan_file, "a plan");
    check_fields(root, plan_file);
    PlannedModel out = read_origin(root["model"], plan_file + ": field model");
    const Plan plan = plan_from_json(root["train"].dump(), plan_file + ": train");
    out.ranks = static_cast<int>(plan.mesh.size());
    out.planner = plan.planner;
    return out;
  });
}

TrainingPlan::TrainingPlan(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainingPlan::TrainingPlan(TrainingPlan&&) noexcept = default;
TrainingPlan& TrainingPlan::operator=(TrainingPlan&&) noexcept = default;
TrainingPlan::~TrainingPlan() = default;

nlohmann::json plans_json(const TrainingPlan::Impl& plan) {
  nlohmann::json both = {
      {"model", origin_json(plan.origin)},
      {"request", request_json(plan.request)},
      {"cluster", nlohmann::json::parse(cluster_json(plan.cluster))},
      {"train", json_of(plan.train)},
      {"evaluation", plan.with_evaluation ? json_of(plan.evaluation) : nlohmann::json()}};
  if (!plan.hints.empty()) both["hints"] = hints_json(plan.hints);
  return both;
}

std::string TrainingPlan::json() const { return plans_json(*impl_).dump(1) + "\n"; }
double TrainingPlan::predicted_seconds() const { return impl_->train.seconds; }
std::vector<int64_t> TrainingPlan::predicted_bytes() const {
  std::vector<int64_t> out = impl_->bytes;
  if (backend().arenas_on_host) {
    for (size_t rank = 0; rank < impl_->copy_bytes.size(); ++rank)
      out[rank] += impl_->copy_bytes[rank];
  }
  return out;
}

}  // namespace shardrun
