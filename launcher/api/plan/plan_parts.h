// The search for a plan's two parts: the training step's and, with weights as they lie there,
// validation's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "graph/plan.h"
#include "graph/sharding.h"
#include "model.h"
#include "plan/plan.h"
#include "plan/plan_bytes.h"

namespace shardrun {

/// How weights, constants and the optimizer's state lie, by name.
std::map<std::string, Sharding> persistent_shardings(const Graph& graph, const Plan& plan);

/// Plans both parts: sets `train`, `evaluation`, `hints`, `meshes` and what else of `out` says how
/// they came about. `limit`: bytes of a rank's arena, of both; 0: none. Throws out_of_memory, with
/// a limit that will do for both; `out.report.least` is then of the part that needs so much.
void plan_parts(const Model::Impl& model, const PlanRequest& request, int64_t ranks, int64_t limit,
                Measures& measures, TrainingPlan::Impl& out);

/// The training plan again, under its own planner, requests and tactics, `change` aside.
Plan plan_again(const Model::Impl& model, const TrainingPlan::Impl& plan,
                const PlanRequest& request, const std::function<void(PlanOptions&)>& change);

}  // namespace shardrun
