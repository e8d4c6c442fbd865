// Loading and planning, and what is printed meanwhile.
#include "loaded.h"

#include <cstdio>

#include "report.h"

namespace shardrun::cli {

ModelAndPlan load_and_plan(World& world, const Arguments& args,
                           const std::function<void(const Model&)>& checked) {
  ModelAndPlan out =
      load_and_plan(world, args.model, args.model_options, args.plan, [&](const Model& model) {
        if (world.leader() && !args.recipe.empty()) std::printf("%s\n", args.recipe.c_str());
        if (world.leader()) print_model(model, args.verbose);
        if (checked) checked(model);
        std::fflush(stdout);
      });
  if (world.leader()) std::printf("%s%s", out.plan.summary().c_str(), out.tried.c_str());
  return out;
}

void take_ranks_of_plan(Arguments& args) {
  if (!args.ranks && launched_processes() <= 1 && !args.plan.plan_file.empty())
    args.ranks = read_planned_model(args.plan.plan_file).ranks;
}

}  // namespace shardrun::cli
