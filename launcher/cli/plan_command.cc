// shardrun plan: plans without training.
#include <cstdio>
#include <memory>

#include "command.h"
#include "loaded.h"
#include "option_flags.h"

namespace shardrun::cli {
namespace {

/// What `shardrun plan` writes besides the plan.
struct PlanFiles {
  std::string passes, stop_after;  // programs, pass by pass
  std::string annotated;           // the model, with the plan in it
  std::string page;                // HTML
};

int run_plan(World& world, Arguments& args, const PlanFiles& files) {
  if (args.threads) world.assume_threads(*args.threads);
  check_outputs(world,
                {{"--output", args.output},
                 {"--annotate", files.annotated},
                 {"--html", files.page},
                 {"--dump-passes", files.passes, true}},
                files_read(args));
  if (args.plan.mesh.find('?') != std::string::npos && args.plan.ranks == 0)
    throw Failure(Failure::Kind::call, "--mesh " + args.plan.mesh +
                                           ": leaves a size open; give --ranks, which decides it");
  const auto [model, plan, tried] = load_and_plan(world, args);
  const std::string tactics = explain_tactics(world, model, args.plan);
  if (!world.leader()) return 0;
  std::printf("%s", tactics.c_str());
  std::printf("%s", plan_details(model, plan).c_str());
  std::fflush(stdout);  // where that is the output, too
  if (!args.output.empty()) write_output(args.output, plan_json(model, plan));
  if (!files.page.empty()) write_output(files.page, plan_page(model, plan));
  if (!files.annotated.empty())
    annotate_model(model, plan, files.annotated, args.plan.configuration);
  if (!files.passes.empty()) dump_passes(model, plan, files.passes, files.stop_after);
  return 0;
}

void add_planning_options(CLI::App& app, Arguments& args, PlanFiles& files) {
  add_model_options(app, args);
  add_plan_options(app, args);
  add_field(
      app, args, &TrainOptions::data,
      "npz:FILE: bind symbolic dims to the sizes of its arrays, and let the planner count the "
      "rows that a graph's edges name");
  add_field(app, args, &TrainOptions::sort_edges);
  add_field(app, args, &TrainOptions::checkpoint,
            "Count memory for the checkpoints of a run that has this flag");
  app.add_option("-o,--output", args.output, "Write the plan as JSON to this file");
  app.add_option("--html", files.page,
                 "Write the plan as one HTML page to this file: timeline, memory, how values are "
                 "cut, the most expensive collectives");
  app.add_option(
      "--annotate", files.annotated,
      "Write the model to this file, with the plan as sharding annotations of its nodes");
  CLI::Option* folder = app.add_option(
      "--dump-passes", files.passes,
      "Write rank 0's program to this folder as each pass leaves it, with what changed");
  app.add_option("--stop-after", files.stop_after, "--dump-passes: the last pass")
      ->check(CLI::IsMember(program_passes()))
      ->needs(folder);
}

}  // namespace

Command plan_command() {
  const auto files = std::make_shared<PlanFiles>();
  return {.name = "plan",
          .help = "Plan only, for --ranks or as many as --mesh has",
          .takes_recipe = true,
          .add_options = [files](CLI::App& app,
                                 Arguments& args) { add_planning_options(app, args, *files); },
          .run = [files](World& world, Arguments& args) { return run_plan(world, args, *files); },
          .prepare = [](Arguments& args) { take_ranks_planned_for(args); }};
}

}  // namespace shardrun::cli
