// shardrun simulate: the timeline of a planned step on a cluster that need not be there.
#include <charconv>
#include <cstdio>
#include <memory>

#include "command.h"
#include "loaded.h"
#include "option_flags.h"
#include "screen/work_line.h"
#include "search_names.h"
#include "shardrun/input.h"
#include "shardrun/simulate.h"
#include "simulate/constants.h"
#include "simulate/weak_scaling.h"

namespace shardrun::cli {
namespace {

struct Simulate {
  SimulateRequest request;
  std::vector<std::string> slow;  // RANK=FACTOR
  std::string trace, json, constants;
  SimulatedScaling scaling;
  CLI::App* scales = nullptr;  // `simulate weak-scaling`
};

std::map<int64_t, double> slow_ranks(const std::vector<std::string>& texts) {
  std::map<int64_t, double> out;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    int64_t rank = 0;
    double factor = 0;
    const char* const end = text.data() + text.size();
    bool good = equals != std::string::npos;
    if (good) {
      const char* const middle = text.data() + equals;
      const auto first = std::from_chars(text.data(), middle, rank);
      const auto second = std::from_chars(middle + 1, end, factor);
      good = first.ec == std::errc() && first.ptr == middle && second.ec == std::errc() &&
             second.ptr == end && factor <= 1e6;
    }
    if (!good)
      throw Failure(Failure::Kind::call, "--slow: '" + text + "' is not RANK=FACTOR, as in 3=1.2");
    if (!out.emplace(rank, factor).second)
      throw Failure(Failure::Kind::call,
                    "--slow: rank " + std::to_string(rank) + " is there twice");
  }
  return out;
}

/// What the call itself says of the host counts before the file. `cluster`: the call's. `tells`:
/// that the file is of another one.
void take_constants(const std::string& path, const std::string& cluster, bool tells,
                    SimulateRequest& request) {
  const ConstantsFile file = read_constants(path);
  if (file.assume != request.assume) {
    throw Failure(Failure::Kind::call, "--constants: '" + path + "' was fitted with --assume '" +
                                           shortened(file.assume) + "', the call has '" +
                                           request.assume + "'");
  }
  if (tells && !file.cluster.empty() && file.cluster != cluster) {
    std::fprintf(stderr,
                 "note: --constants: '%s' was fitted with --cluster '%s': its factors are of "
                 "that one's figures\n",
                 path.c_str(), shortened(file.cluster).c_str());
  }
  const std::optional<double> dispatch = request.constants.dispatch_us;
  request.constants = file.constants;
  if (dispatch) request.constants.dispatch_us = dispatch;
}

/// What stands before the command's own is of a model, and would do nothing.
void refuse_flags_before(const CLI::App& own) {
  for (const CLI::Option* option : own.get_parent()->get_options()) {
    if (option->count() == 0) continue;
    throw Failure(Failure::Kind::call, "simulate " + own.get_name() + ": " + option->get_name() +
                                           " before '" + own.get_name() +
                                           "' does nothing; leave it out");
  }
}

/// The search prices what shardrun runs, and not what --assume does otherwise. So plans of
/// baselines are simulated beside the one that it found, and the fastest is taken.
void take_fastest(World& world, const Arguments& args, SimulateRequest request, ModelAndPlan& of) {
  const PlanRequest& asked = args.plan;
  if (request.assume.empty() || asked.planner != "auto" || !asked.plan_file.empty() ||
      !asked.shard.empty() || !asked.tactics.empty())
    return;
  request.jitter = 0, request.mtbf_hours = 0;
  const bool tells = world.leader() && !args.quiet;
  WorkLine line("planning as " + request.assume + " runs", tells);
  const auto seconds = [&](const TrainingPlan& plan) {
    return simulate(world, of.model, plan, request).seconds;
  };
  double least = seconds(of.plan);
  std::string taken = "auto", simulated;
  const auto note = [&](const std::string& name, double time) {
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3f", simulated.empty() ? "" : ", ", name.c_str(),
                  time * 1e3);
    simulated += text;
  };
  note("auto", least);
  for (const Named<Baseline>& baseline : kBaselines) {
    PlanRequest other = asked;
    other.planner = baseline.name;
    line.at(other.planner);
    try {
      TrainingPlan plan = make_plan(world, of.model, other);
      const double time = seconds(plan);
      note(other.planner, time);
      if (time >= least) continue;
      least = time, taken = other.planner, of.plan = std::move(plan);
    } catch (const Failure&) {  // it does not fit, or has no such mesh
    }
  }
  line.end();
  if (!tells) return;
  std::printf("ms of a step as %s runs: %s; the plan of %s is taken\n", request.assume.c_str(),
              simulated.c_str(), taken.c_str());
  if (taken != "auto") std::printf("%s", of.plan.summary().c_str());
}

int run_simulate(World& world, Arguments& args, Simulate& simulate) {
  if (simulate.scales->parsed()) {
    check_weak_scaling(world, simulate.scaling);
    return run_weak_scaling(simulate.scaling);
  }
  if (args.threads) world.assume_threads(*args.threads);
  SimulateRequest& request = simulate.request;
  request.slow = slow_ranks(simulate.slow);
  request.seed = args.model_options.seed;
  if (!simulate.constants.empty())
    take_constants(simulate.constants, args.plan.cluster, world.leader(), request);
  std::vector<NamedFile> read = files_read(args);
  read.push_back({"--constants", simulate.constants});
  check_outputs(world, {{"--trace", simulate.trace}, {"--json", simulate.json}}, read);
  if (args.plan.ranks == 0) {
    throw Failure(Failure::Kind::call,
                  "say for how many ranks: --ranks 8, or a --mesh with all its sizes");
  }
  args.plan = request_of_stage(world, args.plan, request);
  ModelAndPlan of = load_and_plan(world, args, [&](const Model& model) {
    if (args.model_options.accumulate != kAutoMicroBatches) check_stages(model, request);
  });
  take_fastest(world, args, request, of);
  const SimulateReport report = shardrun::simulate(world, of.model, of.plan, request);
  if (!world.leader()) return 0;
  std::printf("%s", report.text.c_str());
  if (!simulate.trace.empty()) write_output(simulate.trace, report.trace);
  if (!simulate.json.empty()) write_output(simulate.json, report.json);
  return 0;
}

void add_failure_options(CLI::App& app, SimulateRequest& r) {
  CLI::Option* const mtbf =
      app.add_option("--mtbf", r.mtbf_hours,
                     "Hours between failures of one rank, on average (Llama 3's on H100s: 50700): "
                     "prints the goodput")
          ->check(not_above_0, "");
  app.add_option("--checkpoint-minutes", r.checkpoint_minutes, "--mtbf: between checkpoints")
      ->needs(mtbf)
      ->capture_default_str();
  app.add_option("--checkpoint-stall", r.checkpoint_stall_seconds,
                 "--mtbf: seconds that training waits for a checkpoint")
      ->needs(mtbf)
      ->capture_default_str();
  app.add_option("--restart-minutes", r.restart_minutes,
                 "--mtbf: from a failure until training goes on")
      ->needs(mtbf)
      ->capture_default_str();
}

void add_simulate_options(CLI::App& app, Arguments& args, Simulate& simulate) {
  SimulateRequest& r = simulate.request;
  add_model_options(app, args);
  app.get_option("model")->required(false);  // weak-scaling has one of its own
  simulate.scales = add_weak_scaling(app, simulate.scaling);
  add_plan_options(app, args);
  app.add_option("--stages", r.stages,
                 "Pipeline stages over which the layers and --ranks are divided (simulated "
                 "only: they cannot be run)")
      ->capture_default_str();
  CLI::Option* const schedule =
      app.add_option("--schedule", r.schedule, "--stages: 1f1b or interleaved")
          ->configurable(false)  // a recipe's is of learning rates
          ->capture_default_str();
  app.add_option("--chunks", r.chunks,
                 "--schedule interleaved: parts of the model on each stage (default: 2)")
      ->needs(schedule);
  app.add_option("--assume", r.assume,
                 "megatron: full recomputation of layers, unfused attention, gradients reduced in "
                 "two bytes, the host asks for each kernel");
  app.add_option("--comm-streams", r.comm_streams,
                 "one stream for all collectives, as runs have on GPUs (the default there); none: "
                 "between kernels, as on CPUs; axes: one for each set of mesh axes");
  app.add_flag("!--no-host", r.host, "Launches, batches and zeroing take no time");
  app.add_option("--dispatch-us", r.constants.dispatch_us,
                 "Microseconds of the host for a phase, or with --assume megatron for a kernel "
                 "(default: 10 on GPUs, 0 on CPUs)");
  app.add_option("--constants", simulate.constants,
                 "Constants that 'calibrate --rows' found in measured steps");
  app.add_option("--input-rate", r.input_gb_s, "GB/s at which a batch comes to a GPU")
      ->capture_default_str();
  app.add_option("--beside", r.overlap_slowdown,
                 "Kernels take so many times as long while their rank communicates")
      ->capture_default_str();
  app.add_option("--slow", simulate.slow,
                 "RANK=FACTOR: a rank whose kernels and host take so many times as long "
                 "(repeatable)");
  CLI::Option* const jitter =
      app.add_option("--jitter", r.jitter,
                     "Relative standard deviation of a rank's time for a micro-batch: prints p50 "
                     "and p95 of the step");
  app.add_option("--draws", r.draws, "--jitter: steps that are simulated")
      ->needs(jitter)
      ->capture_default_str();
  add_failure_options(app, r);
  app.add_option("--trace", simulate.trace,
                 "Write the step's events to this file, for https://ui.perfetto.dev");
  app.add_option("--json", simulate.json, "Write the figures to this file");
}

}  // namespace

Command simulate_command() {
  const auto simulate = std::make_shared<Simulate>();
  return {
      .name = "simulate",
      .help = "Simulate a step of a plan on a cluster that need not be there",
      .takes_recipe = true,
      .add_options = [simulate](CLI::App& app,
                                Arguments& args) { add_simulate_options(app, args, *simulate); },
      .take_defaults =
          [simulate](Arguments& args) {
            if (simulate->scales->parsed()) {  // its models have no recipe
              refuse_flags_before(*simulate->scales);
              return true;
            }
            if (args.model.empty())
              throw Failure(Failure::Kind::call,
                            "simulate: name a model, 'shardrun simulate MODEL.onnx'");
            return false;
          },
      .run = [simulate](World& world,
                        Arguments& args) { return run_simulate(world, args, *simulate); },
      .prepare =
          [simulate](Arguments& args) {
            if (!simulate->scales->parsed()) take_ranks_planned_for(args, simulate->request.stages);
          }};
}

}  // namespace shardrun::cli
