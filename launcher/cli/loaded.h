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

/// Of a call that only plans: --ranks, or for each of the stages those of the plan, or of a mesh
/// that has all its sizes. Before there is a World: where they run, they share a machine's cores.
void take_ranks_planned_for(Arguments& args, int stages = 1);

}  // namespace shardrun::cli
