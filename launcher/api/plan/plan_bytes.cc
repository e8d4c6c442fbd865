// Lays a plan out with more and more to keep, while all ranks fit.
#include "plan/plan_bytes.h"

#include <algorithm>

#include "base/round_up.h"
#include "error_context.h"
#include "exec/checkpoint/writer.h"
#include "explain/planned_steps.h"
#include "program/keep_casts.h"
#include "ranks/capacity.h"

namespace shardrun {
namespace {

bool fits(PlanPrograms& programs, int64_t limit) {
  return limit == 0 || programs.compared(limit).arena_bytes <= limit;
}

/// May plans for this graph keep casts?
bool casts_weights(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& node) { return casts_weight(graph, node); });
}

bool packs(const std::vector<Step>& setup) {
  return std::any_of(setup.begin(), setup.end(),
                     [](const Step& step) { return step.node.op == "pack_weights"; });
}

/// All that there is to keep of a plan. Weights in kernels' own layouts are of processors; to lay
/// these out, validation keeps their bf16 copies, too. `training`: null if it is the training step.
Plan keeping_all(const Plan& plan, MeasuredPlans& measured,
                 const std::shared_ptr<PlanPrograms>& training) {
  const Cluster& cluster = measured.cluster();
  Plan out = plan;
  out.hold_fraction = cluster.collectives == Collectives::apart ? kHoldFraction : 0;
  out.keep_casts = !training && casts_weights(measured.graph());
  out.keep_packed = false;
  if (!cluster.oversubscribes) return out;
  Plan packing = plan;
  packing.keep_casts = packing.keep_packed = true;
  const std::vector<Step> setup = measured.of(plan, training)->setup_keeping(packing);
  out.keep_packed = packs(setup);
  out.keep_casts = training ? out.keep_packed : out.keep_casts && !setup.empty();
  return out;
}

/// The limit's free bytes as a fraction of the temporary ones, at most `most`.
double fraction_left(PlanPrograms& programs, int64_t limit, double most) {
  double left = most;
  for (int64_t rank : programs.compared_ranks(limit)) {
    const Program& program = programs.of_rank(rank);
    const int64_t temporary = program.arena_bytes - program.persistent_bytes;
    if (limit == 0 || temporary == 0) continue;
    left = std::min(
        left, static_cast<double>(limit - program.arena_bytes) / static_cast<double>(temporary));
  }
  return std::max(0.0, left);
}

/// Of all that a plan would keep what fits: casts come before packed weights, and these before
/// memory that is held longer, which may be held for a part of its fraction.
Plan kept(const Plan& plan, int64_t limit, MeasuredPlans& measured,
          const std::shared_ptr<PlanPrograms>& training) {
  const auto fitting = [&](const Plan& p) { return fits(*measured.of(p, training), limit); };
  Plan out = plan;
  if (fitting(out)) return out;
  out.hold_fraction = 0;
  if (out.keep_packed && !fitting(out)) {
    out.keep_packed = false;
    if (training) out.keep_casts = false;
  }
  if (out.keep_casts && !fitting(out)) out.keep_casts = false;
  if (plan.hold_fraction > 0) {
    out.hold_fraction = fraction_left(*measured.of(out, training), limit, plan.hold_fraction);
  }
  return out;
}

/// Sets what both parts of a plan keep. `from_file`: no more than the file says.
void keep(Measures& measures, TrainingPlan::Impl& plan, int64_t limit, bool from_file) {
  const auto all = [&](const Plan& part, MeasuredPlans& measured, const auto& training) {
    return from_file ? part : keeping_all(part, measured, training);
  };
  const std::shared_ptr<PlanPrograms> none;
  plan.train = kept(all(plan.train, measures.train, none), limit, measures.train, none);
  if (!plan.with_evaluation) return;
  const Plan bare = plan.evaluation;
  const auto keep_evaluation = [&] {
    const std::shared_ptr<PlanPrograms> train = measures.train.of(plan.train);
    plan.evaluation =
        kept(all(bare, measures.evaluation, train), limit, measures.evaluation, train);
    return fits(*measures.evaluation.of(plan.evaluation, train), limit);
  };
  if (keep_evaluation()) return;
  plan.train.keep_casts = plan.train.keep_packed = false;
  keep_evaluation();
}

/// Gives that up where some rank does not fit with it.
void drop_held(Measures& measures, TrainingPlan::Impl& plan, int64_t limit) {
  const auto fits_on_all = [&](PlanPrograms& programs) {
    return limit == 0 || programs.fullest().arena_bytes <= limit;
  };
  if (plan.train.hold_fraction > 0 && !fits_on_all(*measures.train.of(plan.train)))
    plan.train.hold_fraction = 0;
  if (plan.evaluation.hold_fraction > 0 &&
      !fits_on_all(*measures.evaluation.of(plan.evaluation, measures.train.of(plan.train))))
    plan.evaluation.hold_fraction = 0;
}

/// What a file says of a part of a plan was laid out on some machine. Workspaces depend on its
/// cores and its backend, nothing else does. `persistent`: of the rank with the least.
void check_bytes(const Plan& plan, const Program& program, int64_t persistent, int64_t limit) {
  constexpr int64_t kMostWorkspace = int64_t{1} << 40;
  int64_t most = kMostWorkspace;
  for (const Buffer& buffer : program.buffers) most += byte_size(buffer.type);
  if (limit > 0) most = std::min(most, limit);
  SR_REQUIRE(plan.bytes > 0 && plan.bytes >= persistent && plan.bytes <= most, invalid_input,
             "plan: field 'bytes' is ", plan.bytes, ", wanted what weights and state take, ",
             persistent, ", or more, up to ",
             most == limit ? "the request's limit, " : "all buffers without overlap, ", most,
             "; on this machine it is ", program.arena_bytes);
}

/// A plan from a file is counted anew: workspaces depend on the machine's cores.
void count_bytes(Measures& measures, TrainingPlan::Impl& plan, int64_t limit, bool from_file) {
  const std::shared_ptr<PlanPrograms> train = measures.train.of(plan.train);
  const std::shared_ptr<PlanPrograms> evaluation =
      plan.with_evaluation ? measures.evaluation.of(plan.evaluation, train) : nullptr;
  for (int64_t rank = 0; rank < plan.train.mesh.size(); ++rank) {
    const Program& training = train->of_rank(rank);
    plan.bytes.push_back(
        std::max(training.arena_bytes, evaluation ? evaluation->of_rank(rank).arena_bytes : 0));
    plan.persistent_bytes.push_back(training.persistent_bytes);
  }
  const auto fullest = std::max_element(plan.bytes.begin(), plan.bytes.end());
  const int64_t rank = fullest - plan.bytes.begin();
  SR_REQUIRE(limit == 0 || *fullest <= limit, out_of_memory, "rank ", rank, " needs ", *fullest,
             " bytes (training ", train->of_rank(rank).arena_bytes, "), the limit is ", limit,
             "; use more ranks, a smaller batch or bf16");
  if (from_file) {
    const int64_t least =
        *std::min_element(plan.persistent_bytes.begin(), plan.persistent_bytes.end());
    const int64_t made_for = plan.request.memory_bytes;
    within("train", [&] { check_bytes(plan.train, train->fullest(), least, made_for); });
    if (evaluation) {
      within("evaluation",
             [&] { check_bytes(plan.evaluation, evaluation->fullest(), least, made_for); });
    }
  }
  plan.train.bytes = train->fullest().arena_bytes;
  if (evaluation) plan.evaluation.bytes = evaluation->fullest().arena_bytes;
}

/// Plans are the same with them, so they take what memory these leave; on a device, of the host's.
void count_copies(Measures& measures, TrainingPlan::Impl& plan, int64_t limit) {
  const Program& program = measures.train.of(plan.train)->of_rank(0);
  std::vector<int64_t> copies;
  bool fit = true;
  int64_t all = 0;
  for (int64_t rank = 0; rank < plan.train.mesh.size(); ++rank) {
    copies.push_back(CheckpointWriter::memory_bytes(program.bindings, plan.train.mesh, rank, true));
    all += copies.back();
    fit = fit && (limit == 0 || plan.bytes[static_cast<size_t>(rank)] + copies.back() <= limit);
  }
  if (!backend().arenas_on_host)
    fit = all <= host_capacity().bytes / 2 * divide_up(plan.train.mesh.size(), backend().devices());
  if (fit) plan.copy_bytes = std::move(copies);
}

}  // namespace

void retime(PlanPrograms& programs, const Cluster& cluster, const std::vector<int64_t>& ranks,
            Plan& plan) {
  PlannedTimes slowest;
  for (int64_t rank : ranks) {
    const PlannedTimes times =
        PlannedSteps(programs.graph(), plan, cluster, programs.of_rank(rank)).times();
    if (times.step() > slowest.step()) slowest = times;
  }
  plan.compute_seconds = slowest.compute;
  plan.comm_seconds = slowest.comm;
  plan.hidden_seconds = slowest.hidden;
  plan.seconds = slowest.step();
}

Plan kept_if_ample(const Plan& plan, int64_t limit, MeasuredPlans& measured,
                   const std::shared_ptr<PlanPrograms>& training) {
  constexpr int64_t kOfArena = 2;  // times as much is ample, as for PlanPrograms::compared_ranks
  const Cluster& cluster = measured.cluster();
  if (cluster.collectives != Collectives::apart || cluster.oversubscribes ||
      (limit > 0 && plan.bytes > limit / kOfArena))
    return plan;
  Plan all = keeping_all(plan, measured, training);
  return limit == 0 || measured.of(all, training)->compared(limit).arena_bytes <= limit / kOfArena
             ? all
             : plan;
}

Plan kept(const Plan& plan, int64_t limit, MeasuredPlans& measured) {
  return kept(keeping_all(plan, measured, nullptr), limit, measured, nullptr);
}

Error ArenaBytes::refusal(const Error& e, std::optional<int64_t> needed) const {
  if (why.empty() || e.kind() != ErrorKind::out_of_memory) return e;
  constexpr int64_t kMiB = 1 << 20;
  if (process == 0 || !needed) return e.with_context(why);
  return e.with_context(str(why, " (the plan that needs least fits --memory ",
                            divide_up(process + *needed, kMiB), "MiB)"));
}

void keep_what_fits(const PlanRequest& request, const ArenaBytes& arena, Measures& measures,
                    TrainingPlan::Impl& plan) {
  const int64_t limit = arena.bytes;
  const bool from_file = !request.plan_file.empty();
  keep(measures, plan, limit, from_file);
  drop_held(measures, plan, limit);
  try {
    count_bytes(measures, plan, limit, from_file);
  } catch (const Error& e) {
    const auto fullest = std::max_element(plan.bytes.begin(), plan.bytes.end());
    throw arena.refusal(
        e, fullest == plan.bytes.end() ? std::nullopt : std::optional<int64_t>(*fullest));
  }
  if (!from_file) {
    const auto retime_whole = [&](PlanPrograms& programs, Plan& part) {
      retime(programs, plan.cluster, programs.classes().first, part);
    };
    const std::shared_ptr<PlanPrograms> train = measures.train.of(plan.train);
    retime_whole(*train, plan.train);
    if (plan.with_evaluation)
      retime_whole(*measures.evaluation.of(plan.evaluation, train), plan.evaluation);
  }
  if (plan.checkpoints) count_copies(measures, plan, limit);
}

}  // namespace shardrun
