// shardrun explain: a plan file in words.
#include <cstdio>
#include <memory>

#include "command.h"
#include "option_flags.h"

namespace shardrun::cli {
namespace {

struct Explain {
  const CLI::App* app = nullptr;  // the command's
  std::string plan, model, why, what_if, other, page, report;
  bool colours = false, loops = false;
};

/// A plan file in words. The model is the one that the plan was made for, unless --model says where
/// it is now.
int run_explain(const Explain& explain, Arguments& args) {
  for (const char* flag : {"--memory", "--plan-seconds"}) {
    if (explain.app->count(flag) > 0 && explain.why.empty() && explain.what_if.empty())
      throw Failure(Failure::Kind::call,
                    std::string(flag) + ": is of the search for --why or --what-if; give one");
  }
  const PlannedModel planned = read_planned_model(explain.plan);
  World world = World::threads(planned.ranks);
  const std::string path = explain.model.empty() ? planned.path : explain.model;
  const Model model = load_model(world, path, planned.options);
  const auto read = [&](const std::string& file) {
    PlanRequest request;
    request.plan_file = file;
    request.ranks = file == explain.plan ? planned.ranks : read_planned_model(file).ranks;
    return make_plan(world, model, request);
  };
  check_outputs(world, {{"--html", explain.page}},
                {{"the plan", explain.plan},
                 {"the model", path},
                 {"--diff", explain.other},
                 {"--report", explain.report}});
  const TrainingPlan plan = read(explain.plan);
  if (!explain.page.empty()) {
    const std::optional<TrainingPlan> other =
        explain.other.empty() ? std::nullopt : std::optional(read(explain.other));
    write_output(explain.page, plan_page(model, plan, other ? &*other : nullptr, explain.report));
    return 0;
  }
  if (explain.why.empty() && explain.what_if.empty() && explain.other.empty() && !explain.colours &&
      !explain.loops)
    std::printf("%s", explain_plan(model, plan).c_str());
  if (!explain.why.empty())
    std::printf("%s", explain_why(model, plan, explain.why, args.plan).c_str());
  if (!explain.what_if.empty())
    std::printf("%s", explain_what_if(model, plan, explain.what_if, args.plan).c_str());
  if (!explain.other.empty())
    std::printf("%s", explain_difference(model, plan, read(explain.other)).c_str());
  if (explain.loops) std::printf("%s", explain_loops(model, plan).c_str());
  if (explain.colours) std::printf("%s", explain_colours(model).c_str());
  return 0;
}

void add_explain_options(CLI::App& app, Arguments& args, Explain& explain) {
  explain.app = &app;
  app.add_option("plan", explain.plan, "The plan, a file that 'shardrun plan -o' wrote")
      ->required();
  CLI::Option* page =
      app.add_option("--html", explain.page,
                     "Write the plan as one HTML page to this file, with what --diff says, and "
                     "print nothing");
  app.add_option("--why", explain.why,
                 "Why this value lies as it does: its next-best sharding and what that would cost")
      ->excludes(page);
  app.add_option("--what-if", explain.what_if,
                 "'REGEX=[data,-]': what it would cost if these values lay so, each alone and all "
                 "together")
      ->excludes(page);
  app.add_flag("--loops", explain.loops,
               "Every node as loops over the mesh's axes, with the slices of its operands")
      ->excludes(page);
  app.add_option(
      "--diff", explain.other,
      "What another plan for the same model does differently, and where its time differs");
  app.add_option(
         "--report", explain.report,
         "--html: the file of a run's --report, whose times are shown next to the predicted ones")
      ->needs(page);
  app.add_flag(
         "--colours", explain.colours,
         "Dims that are cut together, in groups that look alike, and where nodes can cut them "
         "in several ways")
      ->excludes(page);
  app.add_option("--model", explain.model,
                 "Where the model is now (default: where it was when it was planned)");
  add_field(app, args, &PlanRequest::memory_bytes, "--why, --what-if: limit of a rank's memory");
  add_field(app, args, &PlanRequest::solve_seconds, "--why, --what-if: time for the search");
}

}  // namespace

Command explain_command() {
  const auto explain = std::make_shared<Explain>();
  return {.name = "explain",
          .help = "Show a plan layer by layer",
          .add_options = [explain](CLI::App& app,
                                   Arguments& args) { add_explain_options(app, args, *explain); },
          .run_alone = [explain](Arguments& args) { return run_explain(*explain, args); }};
}

}  // namespace shardrun::cli
