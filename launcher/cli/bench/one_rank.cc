// Loading a model for one rank.
#include "bench/one_rank.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/bench_models.h"
#include "bench/table.h"
#include "option_flags.h"

namespace shardrun::cli {
namespace {

/// Writes a model that is named, and adds to the call what it or the file's recipe wants.
void complete(const CLI::App& app, Arguments& args, const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> flags;
  const std::vector<std::string> known = bench_models();
  if (std::find(known.begin(), known.end(), args.model) != known.end()) {
    const BenchModel named = bench_model(args.model, "small", 1);
    args.model = folder + "/" + args.model + ".onnx";
    named.write(args.model);
    for (size_t i = 0; i + 1 < named.train.size(); i += 2)
      flags.emplace_back(named.train[i], named.train[i + 1]);
  } else {
    flags = read_recipe(args.onnx());
  }
  std::vector<std::string> words;
  for (const auto& [flag, value] : flags) {
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option == nullptr || option->count() > 0) continue;
    if (!value.empty()) words.push_back(value);
    words.push_back(flag);  // CLI11 takes words last to first
  }
  CLI::App added;
  add_one_rank_options(added, args);
  added.parse(words);
}

Model load(const CLI::App& app, Arguments& args, World& world, const std::string& folder) {
  complete(app, args, folder);
  finish_arguments(args);
  return load_model(world, args.onnx(), args.model_options);
}

TrainingPlan plan_for_one(World& world, const Model& model, PlanRequest request) {
  request.with_evaluation = false;
  return make_plan(world, model, request);
}

}  // namespace

void add_one_rank_options(CLI::App& app, Arguments& args) {
  add_step_options(app, args);
  add_device_option(app, args);
  add_field(app, args, &TrainOptions::data,
            "What a step reads, as train's (default: synthetic batches)");
  add_field(app, args, &TrainOptions::sort_edges);
  add_field(app, args, &TrainOptions::lr);
}

OneRank::OneRank(const CLI::App& app, Arguments& args)
    : world(World::threads(1)),
      model(load(app, args, world, folder.path())),
      plan(plan_for_one(world, model, args.plan)) {}

std::string describe(const Ceilings& c) {
  std::string out =
      "ceilings of " +
      (c.device == "cpu" ? std::to_string(c.threads) + (c.threads == 1 ? " thread" : " threads")
                         : c.device) +
      ": matmul";
  for (const auto& [dtype, flops] : c.flops)
    out += (dtype == c.flops.begin()->first ? " " : ", ") + dtype + " " +
           number(flops / 1e9, "%.4g") + " GFLOP/s";
  return out + "; memory " + number(c.bandwidth / 1e9, "%.3g") + " GB/s\n";
}

nlohmann::json report_head(const char* bench, const Machine& machine, const Arguments& args,
                           const Ceilings& c) {
  return {{"bench", bench},
          {"machine", to_json(machine)},
          {"model", args.model},
          {"dtype", args.model_options.dtype},
          {"ceilings",
           {{"device", c.device},
            {"threads", c.threads},
            {"flops_per_s", c.flops},
            {"bytes_per_s", c.bandwidth}}}};
}

}  // namespace shardrun::cli
