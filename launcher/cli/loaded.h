// load_and_plan: the model and its plan, with which train, plan and verify begin.
#pragma once

#include <functional>

#include "options.h"

namespace shardrun::cli {

/// The model and its plan. What is known before the search for a plan, which may take long, is
/// printed before it: of the model, and by `checked`.
ModelAndPlan load_and_plan(World& world, const Arguments& args,
                           const std::function<void(const Model&)>& checked = nullptr);

/// A plan file says for how many ranks it is: those that a call which names none runs on.
void take_ranks_of_plan(Arguments& args);

/// Of a call that only plans, `plan.ranks`: --ranks, or for each of the stages those of the plan,
/// or of a mesh that has all its sizes; 0: it does not say. A World has as many, who share this
/// machine's cores, but of another cluster one, which has them all.
void take_ranks_planned_for(Arguments& args, int stages = 1);

}  // namespace shardrun::cli
