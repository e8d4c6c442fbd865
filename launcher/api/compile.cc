// Partition, memory, and one Program for each class of ranks.
#include "compile.h"

#include <omp.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "backend.h"
#include "exec/executor.h"
#include "graph/ops/post.h"
#include "graph/passes/recompute.h"
#include "kernels/joined_step.h"
#include "planner/join_steps.h"
#include "planner/join_updates.h"
#include "planner/keep_packed.h"
#include "planner/memory.h"
#include "planner/partition.h"
#include "planner/share_groups.h"

namespace shardrun {
namespace {

/// Of the backend's kernels and collectives, remembered for as long as the process lives.
/// Workspaces grow with the threads of a rank, and a process may have several Worlds.
StepBytes needs(const Program& program, const Step& step) {
  static std::map<std::pair<std::string_view, int>, StepNeeds> known;
  static std::mutex mutex;  // thread ranks compile at once
  const std::lock_guard lock(mutex);
  const std::pair key(std::string_view(backend().name), omp_get_max_threads());
  return known.try_emplace(key, backend().kernels).first->second(program, step);
}

bool by_same_kernel(const KernelCall& more, const KernelCall& alone) {
  return runs_alike(backend().kernels, more, alone);
}

/// Remembered, like the above.
bool takes_step(const Node& node, const std::vector<TensorType>& in,
                const std::vector<TensorType>& out) {
  static std::map<std::string, bool> known;
  static std::mutex mutex;
  std::string key = str(backend().name, "|", node.op, "|", to_string(node.attrs));
  for (const auto* types : {&in, &out}) {
    for (const TensorType& type : *types) key += "|" + to_string(type);
  }
  const std::lock_guard lock(mutex);
  const auto [it, fresh] = known.try_emplace(key, false);
  if (!fresh) return it->second;
  return it->second = has_post_ops(node.op) ? runs_joined(backend().kernels, {node, in, out})
                                            : backend().packs_products;
}

void join(Program& program, const Plan& plan) {
  join_steps(program, takes_step);
  if (plan.keep_casts) keep_casts(program);
  if (plan.keep_packed && backend().packed_weights != nullptr) {
    keep_packed(program, backend().packed_weights, by_same_kernel);
  }
  join_updates(program, by_same_kernel);
  share_groups(program);
}

}  // namespace

Program compile(const Graph& graph, const Plan& plan, const Cluster& cluster, int64_t rank,
                const Program* beside, Steps steps) {
  Program program = Partition(graph, plan, cluster, backend().collectives).program(rank);
  if (steps == Steps::joined) join(program, plan);
  place_memory(program, needs, beside);
  return program;
}

PlanPrograms::PlanPrograms(const Graph& graph, Plan plan, const Cluster& cluster,
                           std::shared_ptr<PlanPrograms> beside)
    : plan_(std::move(plan)),
      graph_(plan_.recompute.empty()
                 ? graph
                 : recomputing_.emplace(with_recomputed(graph, plan_.recompute))),
      partition_(graph_, plan_, cluster, backend().collectives),
      beside_(std::move(beside)) {
  classes_ = rank_classes(graph_, plan_, partition_.cuts(), needs);
  if (beside_) classes_ = joined(classes_, beside_->classes_);
  programs_.resize(classes_.first.size());
}

const Program& PlanPrograms::of_rank(int64_t rank) {
  std::optional<Program>& program =
      programs_[static_cast<size_t>(classes_.of_rank[static_cast<size_t>(rank)])];
  if (!program) {
    program = partition_.program(rank);
    join(*program, plan_);
    place_memory(*program, needs, beside_ ? &beside_->of_rank(rank) : nullptr);
  }
  return *program;
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
  const bool same =
      last_ && last_beside_ == beside && last_->plan().mesh == plan.mesh &&
      last_->plan().nodes == plan.nodes && last_->plan().values == plan.values &&
      last_->plan().handed == plan.handed && last_->plan().regathered == plan.regathered &&
      last_->plan().recompute == plan.recompute && last_->plan().keep_casts == plan.keep_casts &&
      last_->plan().keep_packed == plan.keep_packed;
  if (!same) {
    last_ = std::make_shared<PlanPrograms>(graph_, plan, cluster_, beside);
    last_beside_ = std::move(beside);
  }
  return last_;
}

}  // namespace shardrun
