// Loading and planning, and what is printed meanwhile.
#include "loaded.h"

#include <cstdio>

#include "report.h"
#include "screen/work_line.h"

namespace shardrun::cli {
ModelAndPlan load_and_plan(World& world, const Arguments& args,
                           const std::function<void(const Model&)>& checked) {
  const bool tells = world.leader() && !args.quiet;
  if (tells && !args.recipe.empty()) std::printf("%s\n", args.recipe.c_str());
  WorkLine line("planning", tells);
  PlanRequest request = args.plan;
  request.on_progress = [&](const std::string& what) { line.at(what); };
  ModelAndPlan out =
      load_and_plan(world, args.onnx(), args.model_options, request, [&](const Model& model) {
        line.above([&] {
          if (tells) print_model(model, args.verbose);
          if (checked) checked(model);
        });
      });
  line.end();
  if (tells) std::printf("%s%s", out.plan.summary().c_str(), out.tried.c_str());
  return out;
}

void take_ranks_of_plan(Arguments& args) {
  if (!args.ranks && launched_processes() <= 1 && !args.plan.plan_file.empty())
    args.ranks = read_planned_model(args.plan.plan_file).ranks;
}

void take_ranks_planned_for(Arguments& args, int stages) {
  const PlanRequest& plan = args.plan;
  const int stage =
      plan.plan_file.empty() ? mesh_ranks(plan.mesh) : read_planned_model(plan.plan_file).ranks;
  args.plan.ranks = args.ranks.value_or(stages * stage);
  args.ranks.reset();
  const bool is_here =
      plan.cluster.empty() || plan.cluster.substr(0, plan.cluster.find(',')) == "host";
  if (is_here && plan.ranks > 0) args.ranks = plan.ranks;
}

}  // namespace shardrun::cli
