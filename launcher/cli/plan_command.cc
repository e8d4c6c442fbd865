// shardrun plan: plans without training.
#include <cstdio>
#include <memory>

#include "command.h"
#include "loaded.h"
#include "option_flags.h"

namespace shardrun::cli {
namespace {

/// Where `shardrun plan` writes programs, pass by pass.
struct DumpPasses {
  std::string folder, stop_after;
};

int run_plan(World& world, Arguments& args, const DumpPasses& dump) {
  if (args.threads) world.assume_threads(*args.threads);
  check_outputs(world, {{"--output", args.output}}, files_read(args));
  args.plan.ranks = args.ranks                     ? *args.ranks
                    : !args.plan.plan_file.empty() ? read_planned_model(args.plan.plan_file).ranks
                                                   : mesh_ranks(args.plan.mesh);
  const auto [model, plan, tried] = load_and_plan(world, args);
  const std::string tactics = args.plan.tactics.empty() && args.plan.planner != "propagate"
                                  ? ""
                                  : explain_tactics(world, model, args.plan);
  if (!world.leader()) return 0;
  std::printf("%s", tactics.c_str());
  std::printf("%s", plan_details(model, plan).c_str());
  std::fflush(stdout);  // where that is the output, too
  if (!args.output.empty()) write_output(args.output, plan_json(model, plan));
  if (!dump.folder.empty()) dump_passes(model, plan, dump.folder, dump.stop_after);
  return 0;
}

void add_planning_options(CLI::App& app, Arguments& args, DumpPasses& dump) {
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
  CLI::Option* folder = app.add_option(
      "--dump-passes", dump.folder,
      "Write rank 0's program to this folder as each pass leaves it, with what changed");
  app.add_option("--stop-after", dump.stop_after, "--dump-passes: the last pass")
      ->check(CLI::IsMember(program_passes()))
      ->needs(folder);
}

}  // namespace

Command plan_command() {
  const auto dump = std::make_shared<DumpPasses>();
  return {.name = "plan",
          .help = "Plan only, for --ranks or as many as --mesh has",
          .takes_recipe = true,
          .add_options = [dump](CLI::App& app,
                                Arguments& args) { add_planning_options(app, args, *dump); },
          .run = [dump](World& world, Arguments& args) { return run_plan(world, args, *dump); }};
}

}  // namespace shardrun::cli
