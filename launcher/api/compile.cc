// Partition, memory, and one Program for each class of ranks.
#include "compile.h"

#include <algorithm>
#include <mutex>

#include "backend.h"
#include "exec/executor.h"

namespace shardrun {
namespace {

/// What the backend's kernels and collectives need, remembered for as long as the process lives.
int64_t workspace_bytes(const Program& program, const Step& step) {
  static const StepWorkspaces workspaces(backend_kernels());
  static std::mutex mutex;  // thread ranks compile at once
  const std::lock_guard lock(mutex);
  return workspaces(program, step);
}

}  // namespace

Program compile(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                const Program* beside) {
  Program program = partition(graph, plan, cluster, rank);
  place_memory(program, workspace_bytes, beside);
  return program;
}

PlanPrograms::PlanPrograms(const Graph& graph, Plan plan, const Cluster& cluster,
                           std::shared_ptr<PlanPrograms> beside)
    : graph_(graph), plan_(std::move(plan)), cluster_(cluster), beside_(std::move(beside)) {
  Cuts cuts;
  Program first = partition(graph_, plan_, cluster_, 0, &cuts);
  classes_ = rank_classes(graph_, plan_, first, cuts, workspace_bytes);
  if (beside_) classes_ = joined(classes_, beside_->classes_);
  programs_.resize(classes_.first.size());
  place_memory(first, workspace_bytes, beside_ ? &beside_->of_rank(0) : nullptr);
  programs_[0] = std::move(first);
}

const Program& PlanPrograms::of_rank(int64_t rank) {
  const auto c = static_cast<size_t>(classes_.of_rank[static_cast<size_t>(rank)]);
  if (!programs_[c]) {
    const int64_t first = classes_.first[c];
    programs_[c] =
        compile(graph_, plan_, cluster_, first, beside_ ? &beside_->of_rank(first) : nullptr);
  }
  return *programs_[c];
}

const Program& PlanPrograms::fullest(int64_t limit) {
  const Program* most = &of_rank(0);
  for (int64_t rank : classes_.first) {
    if (limit > 0 && most->arena_bytes > limit) break;
    const Program& program = of_rank(rank);
    if (program.arena_bytes > most->arena_bytes) most = &program;
  }
  return *most;
}

std::shared_ptr<PlanPrograms> MeasuredPlans::of(const Plan& plan,
                                                std::shared_ptr<PlanPrograms> beside) {
  const bool same = last_ && last_beside_ == beside && last_->plan().mesh == plan.mesh &&
                    last_->plan().nodes == plan.nodes && last_->plan().values == plan.values &&
                    last_->plan().handed == plan.handed &&
                    last_->plan().regathered == plan.regathered;
  if (!same) {
    last_ = std::make_shared<PlanPrograms>(graph_, plan, cluster_, beside);
    last_beside_ = std::move(beside);
  }
  return last_;
}

}  // namespace shardrun
