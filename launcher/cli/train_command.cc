// shardrun train: plans a model and trains it.
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "command.h"
#include "loaded.h"
#include "process/child.h"
#include "process/restarts.h"
#include "process/signals.h"
#include "report.h"
#include "run_report.h"

namespace shardrun::cli {
namespace {

/// "go on from it with: mpirun --hostfile hosts -np 2 shardrun train gpt.onnx … --resume"
std::string how_to_resume(const World& world, const Arguments& args,
                          const std::string& checkpoint) {
  std::vector<std::string> words = {"shardrun"};
  for (size_t i = 0; i < args.words.size(); ++i) {
    const std::string& word = args.words[i];
    if (word.starts_with("--resume=")) continue;
    if (word != "--resume") {
      words.push_back(word);
    } else if (i + 1 < args.words.size() && args.words[i + 1] == args.resume[0]) {
      ++i;
    }
  }
  words.emplace_back("--resume");
  // Where none could be written to that folder the newest is still the one that was gone on from.
  if (!checkpoint.starts_with(args.train.checkpoint)) words.push_back(checkpoint);
  if (launched_processes() > 1) {
    std::vector<std::string> launcher = launcher_of_this_rank();
    if (launcher.empty()) launcher = {"mpirun", "-np", std::to_string(world.size())};
    words.insert(words.begin(), launcher.begin(), launcher.end());
  }
  return "go on from it with: " + shell_line(words);
}

/// "write its weights with: shardrun export run/step-00000100 -o gpt-trained.onnx …"
std::string how_to_export(const std::string& checkpoint, const Arguments& args) {
  const std::string name = std::filesystem::path(args.model).stem().string() + "-trained";
  return "write its weights with: " +
         shell_line({"shardrun", "export", checkpoint, "-o", name + ".onnx"}) +
         " (for PyTorch: " + shell_line({"-o", name + ".safetensors"}) + ")";
}

TrainReport run_train(World& world, Arguments& args, RunReport& run_report) {
  auto start = std::chrono::steady_clock::now();
  const auto [model, plan, tried] = load_and_plan(world, args, [&](const Model& loaded) {
    const std::string data = check_training(world, loaded, args.train);
    if (world.leader() && !args.quiet) std::printf("data: %s\n", data.c_str());
    start = std::chrono::steady_clock::now();
  });
  const std::chrono::duration<double> planning = std::chrono::steady_clock::now() - start;
  if (!args.report.empty())
    run_report.add(plan, plan_figures(world, model, plan), planning.count());
  Progress progress(args.train.steps, args.quiet);
  MpirunPatience patience;
  const bool stops_with_one = !args.train.checkpoint.empty();
  args.train.on_step = [&](const StepReport& step) {
    run_report.add(step);
    progress.step(step);
    if (stops_with_one) progress.note(patience.step(step.step_ms / 1e3));
  };
  args.train.on_note = [&](const std::string& note) {
    run_report.note(note);
    progress.note(note);
  };
  args.train.on_eval = [&](const EvalReport& eval) { progress.eval(eval); };
  args.train.on_checkpoint = [&](const CheckpointReport& checkpoint) {
    run_report.add(checkpoint);
    progress.checkpoint(checkpoint);
    if (checkpoint.failure.empty()) progress.note(patience.checkpoint(checkpoint.seconds));
  };
  const TrainReport report = train(world, model, plan, args.train);
  if (!world.leader()) return report;
  progress.finish(report);
  std::printf("%s", report.profile.c_str());
  if (!args.quiet && !report.checkpoint.empty() && !args.train.checkpoint.empty()) {
    const bool finished = report.first_step + std::ssize(report.losses) > args.train.steps;
    std::printf("checkpoint: %s; %s%s\n%s\n", report.checkpoint.c_str(),
                finished ? "with a larger --steps " : "",
                how_to_resume(world, args, report.checkpoint).c_str(),
                how_to_export(report.checkpoint, args).c_str());
  }
  run_report.finish(report);
  return report;
}

/// Tells that what was learnt is not all kept, and returns the status of that.
int not_all_written(const World& world, const TrainReport& report) {
  if (!world.leader()) return 1;
  std::fflush(stdout);
  std::fprintf(
      stderr, "shardrun: %lld checkpoint%s could not be written; %s\n",
      static_cast<long long>(report.checkpoints_failed), report.checkpoints_failed == 1 ? "" : "s",
      report.checkpoint.empty() ? "there is none"
                                : ("the newest whole one is " + report.checkpoint).c_str());
  return 1;
}

/// Tells why the run ended before its last step, and returns the status of that.
int stopped_by(const World& world, const Stopped& stopped, int64_t steps) {
  if (world.leader()) {
    const std::string by = stopped.signal == 0 ? "request" : signal_name(stopped.signal);
    std::fflush(stdout);
    std::fprintf(stderr, "shardrun: stopped by %s after step %lld of %lld\n", by.c_str(),
                 static_cast<long long>(stopped.step), static_cast<long long>(steps));
  }
  return stopped.signal == 0 ? 0 : 128 + stopped.signal;
}

int run_train(World& world, Arguments& args) {
  check_outputs(world,
                {{"--metrics", args.train.metrics},
                 {"--report", args.report},
                 {"--profile", args.train.profile},
                 {"--board", args.train.board, true},
                 {"--checkpoint", args.train.checkpoint, true}},
                files_read(args));
  RunReport run_report(args.report);  // of the rank that speaks, if the run fails
  const LastWords last_words([&](const std::string& sentence) { run_report.end(sentence); });
  try {
    const TrainReport report = run_train(world, args, run_report);
    int status = report.stopped ? stopped_by(world, *report.stopped, args.train.steps) : 0;
    if (!report.unwritten.empty()) {
      std::fprintf(stderr, "shardrun: %s\n", report.unwritten.c_str());
      status = 1;
    }
    return report.checkpoints_failed > 0 ? not_all_written(world, report) : status;
  } catch (const std::exception& e) {
    return world.fail(e, [&](const std::string& sentence) {
      if (!first_to_fail()) return false;
      run_report.fail(e, sentence);
      return true;
    });
  }
}

/// A run that a signal ended leaves with its status, once what it printed is out.
int run_or_leave(World& world, Arguments& args) {
  const int status = run_train(world, args);
  if (status > 128) world.leave(all_printed(status));
  return status;
}

void add_training_options(CLI::App& app, Arguments& args) {
  add_model_options(app, args);
  add_plan_options(app, args);
  add_train_options(app, args);
  add_checkpoint_options(app, args);
  add_output_options(app, args);
}

}  // namespace

Command train_command() {
  return {
      .name = "train",
      .help = "Plan and train a model",
      .on_all = true,
      .takes_recipe = true,
      .add_options = add_training_options,
      .run = run_or_leave,
      .delegate = [](Arguments& args) -> std::optional<int> {
        if (!args.restarts) return std::nullopt;
        return run_with_restarts(args);
      },
      .prepare = [](Arguments& args) { stop_on_signals(signal_named(args.checkpoint_signal)); }};
}

}  // namespace shardrun::cli
