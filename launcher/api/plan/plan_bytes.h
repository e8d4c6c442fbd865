// The bytes of a plan's ranks, and what is kept between steps where memory allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "model.h"
#include "plan/plan.h"
#include "ranks/backend.h"

namespace shardrun {

/// What has been laid out, so that counting bytes is not laying out anew.
struct Measures {
  MeasuredPlans train, evaluation;
  Measures(const Model::Impl& model, const Cluster& cluster)
      : train(model.train, cluster, backend_traits()),
        evaluation(model.evaluation, cluster, backend_traits()) {}
};

/// Sets a plan's times by its programs on these ranks, to those of the rank that takes longest.
void retime(PlanPrograms& programs, const Cluster& cluster, const std::vector<int64_t>& ranks,
            Plan& plan);

/// A training step's plan that fits, with what keep_what_fits will keep of it, since its time
/// differs by that.
Plan kept(const Plan& plan, int64_t limit, MeasuredPlans& measured);
/// The same on a GPU where it takes at most half of the limit (0: none), else the plan as it is.
/// Reads `bytes`, which may be those of claims. `training`: whose memory a validation shares.
Plan kept_if_ample(const Plan& plan, int64_t limit, MeasuredPlans& measured,
                   const std::shared_ptr<PlanPrograms>& training = nullptr);

/// The limit of a rank's arena.
struct ArenaBytes {
  int64_t bytes = 0;    // 0: none
  std::string why;      // where it is not what was asked for
  int64_t process = 0;  // what a rank's process takes besides, if the limit of both was asked for

  /// An error of memory with `why` in front, and with the --memory that an arena of `needed` bytes
  /// takes, if that is known. Any other error as it is.
  Error refusal(const Error& e, std::optional<int64_t> needed) const;
};

/// Decides on casts, packed weights, held memory and copies for checkpoints, sets the times of a
/// new plan with these, and counts the bytes of each rank, of a plan from a file anew. Throws
/// out_of_memory where a rank needs more.
void keep_what_fits(const PlanRequest& request, const ArenaBytes& arena, Measures& measures,
                    TrainingPlan::Impl& plan);

}  // namespace shardrun
