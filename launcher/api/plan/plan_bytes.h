// The bytes of a plan's ranks, and what is kept between steps where memory allows.
#pragma once

#include <cstdint>
#include <string>

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

/// Decides on casts, packed weights and copies for checkpoints, sets the times of a new plan with
/// these, and counts the bytes of each rank, of a plan from a file anew. `limit`: bytes of a rank;
/// 0: none; `why`: where it comes from. Throws out_of_memory where a rank needs more.
void keep_what_fits(const PlanRequest& request, int64_t limit, const std::string& why,
                    Measures& measures, TrainingPlan::Impl& plan);

}  // namespace shardrun
