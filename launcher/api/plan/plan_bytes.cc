// Lays a plan out with more and more to keep, while all ranks fit.
#include "plan/plan_bytes.h"

#include <algorithm>
#include <limits>

#include "base/round_up.h"
#include "error_context.h"
#include "exec/checkpoint/writer.h"
#include "explain/planned_steps.h"
#include "program/keep_casts.h"
#include "ranks/capacity.h"

namespace shardrun {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

bool fits(PlanPrograms& programs, int64_t limit) {
  return limit == 0 || programs.compared(limit).arena_bytes <= limit;
}

/// May plans for this graph keep casts?
bool casts_weights(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& node) { return casts_weight(graph, node); });
}

/// Is there anything to keep, and memory for it in the fullest rank? Plans are the same with it, so
/// it takes what memory they leave.
bool casts_fit(Measures& measures, const TrainingPlan::Impl& plan, int64_t limit) {
  if (!casts_weights(measures.train.graph())) return false;
  Plan keeping = plan.train;
  keeping.keep_casts = true;
  if (measures.train.of(plan.train)->setup_keeping(keeping).empty()) return false;
  const std::shared_ptr<PlanPrograms> train = measures.train.of(keeping);
  return fits(*train, limit) &&
         (!plan.with_evaluation || fits(*measures.evaluation.of(plan.evaluation, train), limit));
}

bool packs(const std::vector<Step>& setup) {
  return std::any_of(setup.begin(), setup.end(),
                     [](const Step& step) { return step.node.op == "pack_weights"; });
}

/// The same of weights in kernels' own layouts, which those of processors have. Validation, which
/// updates none, then keeps bf16 copies, too, to lay these out.
void keep_packed_if_capacity(Measures& measures, TrainingPlan::Impl& plan, int64_t limit) {
  if (!plan.cluster.oversubscribes) return;  // of GPUs
  Plan train = plan.train, evaluation = plan.evaluation;
  train.keep_packed = evaluation.keep_packed = evaluation.keep_casts = true;
  const std::shared_ptr<PlanPrograms> bare = measures.train.of(plan.train);
  if (!packs(bare->setup_keeping(train)) &&
      !(plan.with_evaluation &&
        packs(measures.evaluation.of(plan.evaluation, bare)->setup_keeping(evaluation))))
    return;
  const std::shared_ptr<PlanPrograms> training = measures.train.of(train);
  const std::shared_ptr<PlanPrograms> validation =
      plan.with_evaluation ? measures.evaluation.of(evaluation, training) : nullptr;
  if (!fits(*training, limit) || (validation && !fits(*validation, limit))) return;
  plan.train = std::move(train);
  if (validation) plan.evaluation = std::move(evaluation);
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

/// Holds memory of collectives longer, at most for these fractions, and as far as there is memory.
void hold_longer(Measures& measures, TrainingPlan::Impl& plan, int64_t limit, double training,
                 double validation) {
  if (plan.cluster.collectives != Collectives::apart) return;
  const std::shared_ptr<PlanPrograms> train = measures.train.of(plan.train);
  const double held = fraction_left(*train, limit, training);
  if (plan.with_evaluation)
    plan.evaluation.hold_fraction =
        fraction_left(*measures.evaluation.of(plan.evaluation, train), limit, validation);
  plan.train.hold_fraction = held;
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

/// Keeps all that there is to keep on a GPU, if that is little beside the limit.
bool keep_if_ample(Measures& measures, TrainingPlan::Impl& plan, int64_t limit) {
  Plan train = kept_if_ample(plan.train, limit, measures.train);
  if (train.hold_fraction == 0) return false;
  if (plan.with_evaluation) {
    Plan evaluation = plan.evaluation;
    evaluation.hold_fraction = kHoldFraction;
    if (!fits(*measures.evaluation.of(evaluation, measures.train.of(train)), limit)) return false;
    plan.evaluation = std::move(evaluation);
  }
  plan.train = std::move(train);
  return true;
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

Plan kept_if_ample(const Plan& candidate, int64_t limit, MeasuredPlans& measured) {
  constexpr int64_t kOfArena = 2;  // times as much is ample, as for PlanPrograms::compared_ranks
  const Cluster& cluster = measured.cluster();
  if (cluster.collectives != Collectives::apart || cluster.oversubscribes ||
      (limit > 0 && candidate.bytes > limit / kOfArena))
    return candidate;
  Plan out = candidate;
  out.keep_casts = casts_weights(measured.graph());
  out.hold_fraction = kHoldFraction;
  return limit == 0 || measured.of(out)->compared(limit).arena_bytes <= limit / kOfArena
             ? out
             : candidate;
}

Plan kept(const Plan& candidate, int64_t limit, MeasuredPlans& measured) {
  Plan out = kept_if_ample(candidate, limit, measured);
  if (measured.cluster().collectives != Collectives::apart || out.hold_fraction > 0) return out;
  out.hold_fraction = fraction_left(*measured.of(candidate), limit, kHoldFraction);
  out.keep_casts = casts_weights(measured.graph());
  if (!out.keep_casts || fits(*measured.of(out), limit)) return out;
  out.hold_fraction = 0;
  if (!fits(*measured.of(out), limit)) out.keep_casts = false;
  out.hold_fraction = fraction_left(*measured.of(out), limit, kHoldFraction);
  return out;
}

Error ArenaBytes::refusal(const Error& e, int64_t needed) const {
  if (why.empty() || e.kind() != ErrorKind::out_of_memory) return e;
  constexpr int64_t kMiB = 1 << 20;
  if (process == 0 || needed == kUnknown) return e.with_context(why);
  return e.with_context(str(why, " (the plan that needs least fits --memory ",
                            divide_up(process + needed, kMiB), "MiB)"));
}

void keep_what_fits(const PlanRequest& request, const ArenaBytes& arena, Measures& measures,
                    TrainingPlan::Impl& plan) {
  const int64_t limit = arena.bytes;
  const bool from_file = !request.plan_file.empty();
  const auto most = [&](Plan& part) {
    const double asked = std::exchange(part.hold_fraction, 0);
    return from_file ? asked : kHoldFraction;
  };
  const double training = most(plan.train), validation = most(plan.evaluation);
  if (from_file || !keep_if_ample(measures, plan, limit)) {
    if (!from_file || plan.train.keep_casts)
      plan.train.keep_casts = casts_fit(measures, plan, limit);
    if (!from_file || plan.train.keep_packed) {
      plan.train.keep_packed = plan.evaluation.keep_packed = plan.evaluation.keep_casts = false;
      keep_packed_if_capacity(measures, plan, limit);
    }
    hold_longer(measures, plan, limit, training, validation);
  }
  drop_held(measures, plan, limit);
  try {
    count_bytes(measures, plan, limit, from_file);
  } catch (const Error& e) {
    const auto fullest = std::max_element(plan.bytes.begin(), plan.bytes.end());
    throw arena.refusal(e, fullest == plan.bytes.end() ? kUnknown : *fullest);
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
