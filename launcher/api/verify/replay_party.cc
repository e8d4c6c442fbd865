// Parties of a replay: executors that share an arena, and the order of what they do.
#include "verify/replay_party.h"

#include <algorithm>
#include <map>

#include "graph/optimizer.h"

namespace shardrun {

std::vector<std::string> persistent_names(const Program& whole) {
  std::vector<std::string> names;
  for (const Binding& b : whole.bindings) {
    if (is_persistent(b.role) && !b.zeroed_each_step) names.push_back(b.name);
  }
  return names;
}

Party::Party(const std::vector<ReplayAct>& acts, const std::vector<const Program*>& programs,
             std::span<const KernelList* const> lists, Communicator& comm,
             const ReplayOptions& options)
    : acts_(acts),
      options_(options),
      on_(options.open ? options.open(comm) : std::make_unique<HostRank>(comm)) {
  int64_t bytes = 0;
  for (const Program* program : programs) bytes = std::max(bytes, program->arena_bytes);
  const auto arena = std::make_shared<Arena>(bytes, on_->comm());
  for (const Program* program : programs) {
    const bool first = executors_.empty();
    executors_.push_back(std::make_unique<Executor>(*program, lists, on_->comm(), options.seed,
                                                    arena, first, on_->device()));
  }
}

HostViews Party::persistent(const std::string& name) {
  const Binding* binding = executors_[0]->find(name);
  SR_REQUIRE(binding != nullptr, internal, "replay: rank ", program(0).rank, " does not hold '",
             name, "'");
  const TensorView shard = executors_[0]->view(*binding);
  return shown({&shard, 1});
}

void Party::play(size_t act, const std::function<void(Phase)>& before_phase) {
  Executor& executor = *executors_[act];
  const bool training = acts_[act].training;
  if (training) {
    executor.set_scalar(kLearningRate, options_.lr);
    executor.set_scalar(kStep, 1);
  }
  for (const auto& [name, value] : options_.scalars) executor.set_scalar(name, value);
  if (!training) executor.weights_changed();
  executor.begin_step();
  for (int64_t micro = 0; micro < executor.program().micro_batches; ++micro) {
    executor.set_scalar(kRandomStep, micro);
    for (const Binding& b : executor.program().bindings) {
      if (b.role != Role::batch) continue;
      executor.fill(b, [&](void* shard) { options_.fill(micro, !training, b.name, b.box, shard); });
    }
    before_phase(Phase::micro);
    executor.run_micro();
  }
  if (!training) return;
  before_phase(Phase::update);
  executor.run_update();
}

Stops stops_of(const std::vector<ReplayAct>& acts) {
  Stops stops;
  for (const ReplayAct& act : acts) stops.push_back(shared_steps(act.graph, act.programs));
  return stops;
}

void play_rank(const std::vector<ReplayAct>& acts, const Stops& stops, int64_t rank,
               std::span<const KernelList* const> lists, Communicator& comm,
               const ReplayOptions& options, const Show& show) {
  std::vector<const Program*> programs;
  for (const ReplayAct& act : acts) programs.push_back(&act.programs.at(static_cast<size_t>(rank)));
  Party party(acts, programs, lists, comm, options);
  const std::vector<std::string> names = persistent_names(acts[0].whole);
  for (size_t a = 0; a < acts.size(); ++a) {
    std::map<size_t, size_t> stop_at;
    for (const SharedStep& stop : stops[a])
      stop_at.emplace(stop.of_rank[static_cast<size_t>(rank)], stop_at.size());
    party.executor(a).on_step([&, a](size_t step, std::span<const TensorView> left) {
      const auto stop = stop_at.find(step);
      if (stop == stop_at.end()) return;
      HostViews shown = party.shown(left);
      show(a, stop->second, shown.views());
      shown.put_back();
    });
    party.play(a, [](Phase) {});
    for (size_t i = 0; i < names.size(); ++i) {
      HostViews shown = party.persistent(names[i]);
      show(a, stops[a].size() + i, shown.views());
      shown.put_back();
    }
  }
}

}  // namespace shardrun
