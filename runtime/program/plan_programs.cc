// One partition for all ranks, and one Program for each class of them.
#include "program/plan_programs.h"

#include <utility>

#include "graph/passes/recompute.h"

namespace shardrun {

PlanPrograms::PlanPrograms(const Graph& graph, Plan plan, const Cluster& cluster,
                           const BackendTraits& traits, std::shared_ptr<PlanPrograms> training)
    : plan_(std::move(plan)),
      graph_(plan_.recompute.empty()
                 ? graph
                 : recomputing_.emplace(with_recomputed(graph, plan_.recompute))),
      traits_(traits),
      partition_(graph_, plan_, cluster),
      training_(std::move(training)) {
  classes_ = rank_classes(graph_, plan_, partition_.cuts(), traits.needs_of());
  if (training_) classes_ = joined(classes_, training_->classes_);
  programs_.resize(classes_.first.size());
}

/// Does a Program of so many bytes, made under `its` limits, do for others? What fits is whole, and
/// what is not more than enough has its exact bytes; all else is known to have more.
static bool serves(int64_t bytes, const ArenaLimits& its, const ArenaLimits& others) {
  const bool is_whole = bytes <= its.fits, is_exact = bytes <= its.enough;
  return (is_whole || bytes > others.fits) && (is_exact || others.enough <= its.enough);
}

const Program& PlanPrograms::of_rank(int64_t rank, const ArenaLimits& limits) {
  auto& [program, its] =
      programs_[static_cast<size_t>(classes_.of_rank[static_cast<size_t>(rank)])];
  if (program && serves(program->arena_bytes, its, limits)) return *program;
  CompileOptions options;
  options.limits = limits;
  if (training_) options.persistent_like = &training_->of_rank(rank);
  program = compile(partition_, plan_, rank, traits_, options);
  its = limits;
  return *program;
}

std::vector<Step> PlanPrograms::setup_keeping(const Plan& plan) const {
  return compile(partition_, plan, 0, traits_, {.stop_after = "keep_packed"}).setup;
}

const Program& PlanPrograms::fullest_of(const std::vector<int64_t>& ranks,
                                        const ArenaLimits& limits) {
  const Program* most = &of_rank(ranks[0], limits);
  for (int64_t rank : ranks) {
    if (most->arena_bytes > limits.enough) break;
    const Program& program = of_rank(rank, limits);
    if (program.arena_bytes > most->arena_bytes) most = &program;
  }
  return *most;
}

const Program& PlanPrograms::fullest() { return fullest_of(classes_.first, ArenaLimits()); }

std::vector<int64_t> PlanPrograms::compared_ranks(int64_t limit) {
  return compared_ranks(limit, of_rank(0));
}

std::vector<int64_t> PlanPrograms::compared_ranks(int64_t limit, const Program& first) const {
  const bool ample = limit == 0 || first.arena_bytes <= limit / 2;
  return ample ? std::vector<int64_t>{0} : classes_.first;
}

const Program& PlanPrograms::compared(int64_t limit, int64_t enough) {
  const ArenaLimits limits{enough == kAnyArena || limit == 0 ? kAnyArena : limit, enough};
  const Program& first = of_rank(0, limits);
  return first.arena_bytes > enough ? first : fullest_of(compared_ranks(limit, first), limits);
}

std::shared_ptr<PlanPrograms> MeasuredPlans::of(const Plan& plan,
                                                std::shared_ptr<PlanPrograms> training) {
  const auto is_of = [&](const Measured& m) {
    if (!m.programs || m.training != training) return false;
    const Plan& its = m.programs->plan();
    return its.mesh == plan.mesh && its.nodes == plan.nodes && its.values == plan.values &&
           its.redistributed == plan.redistributed && its.regathered == plan.regathered &&
           its.recompute == plan.recompute && its.keep_casts == plan.keep_casts &&
           its.keep_packed == plan.keep_packed && its.hold_fraction == plan.hold_fraction;
  };
  if (is_of(last_)) return last_.programs;
  std::swap(last_, before_);
  if (!is_of(last_))
    last_ = {std::make_shared<PlanPrograms>(graph_, plan, cluster_, traits_, training), training};
  return last_.programs;
}

}  // namespace shardrun
