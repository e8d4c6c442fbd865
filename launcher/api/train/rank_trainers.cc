// Each rank makes its own on its own thread, and ends it there.
#include "train/rank_trainers.h"

#include "explain/names.h"
#include "ranks/backend.h"

namespace shardrun {

RankTrainers::RankTrainers(World& world, const Model::Impl& model, const TrainingPlan::Impl& plan,
                           const TrainOptions& options, const OpenData& open, bool recorded,
                           const RunState* from)
    : mpi_(world.impl().mpi != nullptr), ranks_(world) {
  of_rank_.resize(mpi_ ? 1 : static_cast<size_t>(world.size()));
  ranks_.run([&](Communicator& comm) {
    name_places(comm, plan.train.mesh);
    Rank& own = of(comm);
    own.device = backend().open(comm);
    if (world.impl().timeout) own.device->comm().set_timeout(*world.impl().timeout);
    const std::shared_ptr<const DataSource> data = open();
    const auto make = [&](bool is_recorded, const RunState* state) {
      return std::make_unique<RankTrainer>(*own.device, model, plan, options, data, is_recorded,
                                           state);
    };
    own.device->agree([&] { make(false, nullptr)->rehearse(); });
    own.trainer = make(recorded, from);
  });
}

RankTrainers::~RankTrainers() {
  try {
    ranks_.run([&](Communicator& comm) {
      of(comm).trainer.reset();
      of(comm).device.reset();
    });
  } catch (const Failure&) {  // a call before has failed, and was reported
  }
}

RankTrainers::Rank& RankTrainers::of(const Communicator& comm) {
  return of_rank_[mpi_ ? 0 : static_cast<size_t>(comm.rank())];
}

void RankTrainers::run(const std::function<void(RankTrainer&, Communicator&)>& body) {
  ranks_.run([&](Communicator& comm) { body(*of(comm).trainer, comm); });
}

}  // namespace shardrun
