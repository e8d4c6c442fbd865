// The RankTrainers of this process's ranks, between calls.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ranks/rank_device.h"
#include "ranks/ranks.h"
#include "train/rank_trainer.h"

namespace shardrun {

class RankTrainers {
 public:
  using OpenData = std::function<std::shared_ptr<const DataSource>()>;

  /// The arguments are RankTrainer's; `open` is called by each rank. Collective. World, model and
  /// plan must outlive it.
  RankTrainers(World& world, const Model::Impl& model, const TrainingPlan::Impl& plan,
               const TrainOptions& options, const OpenData& open, bool recorded,
               const RunState* from);
  ~RankTrainers();
  RankTrainers(const RankTrainers&) = delete;
  RankTrainers& operator=(const RankTrainers&) = delete;

  /// As Ranks::run.
  void run(const std::function<void(RankTrainer&, Communicator&)>& body);

 private:
  struct Rank {
    std::unique_ptr<RankDevice> device;
    std::unique_ptr<RankTrainer> trainer;
  };
  Rank& of(const Communicator& comm);

  const bool mpi_;
  Ranks ranks_;
  std::vector<Rank> of_rank_;  // of this process
};

}  // namespace shardrun
