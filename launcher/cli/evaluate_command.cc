// shardrun evaluate: the validation's loss, without training.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command.h"
#include "loaded.h"
#include "report.h"
#include "shardrun/inference.h"

namespace shardrun::cli {
namespace {

std::string measures(double loss, const std::optional<double>& accuracy,
                     const std::optional<double>& perplexity) {
  char text[96];
  std::snprintf(text, sizeof text, "loss %.4f", loss);
  std::string out = text;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (!value) return;
    std::snprintf(text, sizeof text, "  %s %.4f", name, *value);
    out += text;
  };
  add("accuracy", accuracy);
  add("perplexity", perplexity);
  return out;
}

void write_report(const std::string& path, const EvaluationReport& found) {
  nlohmann::json out = {{"checkpoint", found.checkpoint},
                        {"step", found.step},
                        {"batches", found.batches},
                        {"val_loss", found.loss},
                        {"predicted_bytes", found.predicted_bytes},
                        {"allocated_bytes", found.allocated_bytes}};
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) out[name] = *value;
  };
  add("val_accuracy", found.accuracy);
  add("val_perplexity", found.perplexity);
  add("test_loss", found.test_loss);
  add("test_accuracy", found.test_accuracy);
  add("test_perplexity", found.test_perplexity);
  write_output(path, out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void add_evaluate_options(CLI::App& app, Arguments& args) {
  add_model_options(app, args);
  add_plan_options(app, args);
  add_data_options(app, args);
  app.add_option(
         "--resume", args.resume,
         "Evaluate this checkpoint, or the newest of this folder; flags that the call leaves "
         "out are those of its run")
      ->expected(1)
      ->type_name("TEXT");
  app.add_option("--report", args.report,
                 "Write loss, accuracy and perplexity to this file, one JSON object");
}

/// --resume: what the checkpoint's run was asked for stands where the call says nothing else.
bool take_options_of_run(Arguments& args) {
  if (args.resume.empty()) return false;
  if (!args.model_options.weights.empty()) {
    throw Failure(Failure::Kind::call, "--resume " + args.resume[0] + " and --weights " +
                                           args.model_options.weights +
                                           ": both have the parameters; leave out one of the two");
  }
  const TrainedRun run = read_trained_run(args.resume[0]);
  const std::vector<std::string> ops = args.model_options.ops;
  args.model_options = run.model;
  args.model_options.ops = ops;
  args.train = run.train;
  return true;
}

int run_evaluate(World& world, Arguments& args) {
  check_outputs(world, {{"--report", args.report}}, files_read(args));
  const Model model = load_model(world, args.onnx(), args.model_options);
  if (world.leader()) print_model(model, args.verbose);
  const std::string data = check_evaluation(world, model, args.train);
  if (world.leader()) {
    std::printf("data: %s\n", data.c_str());
    std::fflush(stdout);
  }
  const TrainingPlan plan = make_plan(world, model, args.plan);
  if (world.leader()) {
    std::printf("%s", plan.summary().c_str());
    std::fflush(stdout);
  }
  const EvaluationReport found = evaluate(world, model, plan, args.train);
  if (!world.leader()) return 0;
  std::printf("%s: validation of %lld batches: %s\n",
              (found.checkpoint.empty() ? args.model : found.checkpoint).c_str(),
              static_cast<long long>(found.batches),
              measures(found.loss, found.accuracy, found.perplexity).c_str());
  if (found.test_loss)
    std::printf("test: %s\n",
                measures(*found.test_loss, found.test_accuracy, found.test_perplexity).c_str());
  print_bytes(found.predicted_bytes, found.allocated_bytes);
  if (!args.report.empty()) write_report(args.report, found);
  return 0;
}

}  // namespace

Command evaluate_command() {
  return {.name = "evaluate",
          .help = "Loss, accuracy and perplexity of a checkpoint, or of a model as it stands",
          .on_all = true,
          .takes_recipe = true,
          .add_options = add_evaluate_options,
          .take_defaults = take_options_of_run,
          .run = run_evaluate,
          .prepare = take_ranks_of_plan};
}

}  // namespace shardrun::cli
