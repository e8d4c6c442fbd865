// The command line: a thin client of shardrun/shardrun.h.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <thread>

#include "bench.h"
#include "child.h"
#include "evaluate_command.h"
#include "export_command.h"
#include "model_command.h"
#include "options.h"
#include "recipe.h"
#include "report.h"
#include "run_command.h"
#include "run_report.h"
#include "sample_command.h"
#include "signals.h"

namespace shardrun::cli {
namespace {

/// What `shardrun explain` is asked.
struct Explain {
  std::string plan, model, why, other;
};

World make_world(const Arguments& args) {
  World world = args.ranks ? World::threads(*args.ranks) : World::launched();
  if (args.threads) world.use_threads(*args.threads);
  if (args.timeout) world.use_timeout(*args.timeout);
  return world;
}

/// The model and its plan. What is known before the search for a plan, which may take long, is
/// printed before it: of the model, and by `checked`.
ModelAndPlan load_and_plan(World& world, const Arguments& args,
                           const std::function<void(const Model&)>& checked = nullptr) {
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

/// "go on from it with: mpirun -np 2 shardrun train gpt.onnx --checkpoint run --resume"
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
  const std::string mpirun =
      launched_processes() > 1 ? "mpirun -np " + std::to_string(world.size()) + " " : "";
  return "go on from it with: " + mpirun + shell_line(words);
}

/// "write its weights with: shardrun export run/step-00000100 -o gpt-trained.onnx …"
std::string how_to_export(const std::string& checkpoint, const Arguments& args) {
  const std::string name = std::filesystem::path(args.model).stem().string() + "-trained";
  return "write its weights with: " +
         shell_line({"shardrun", "export", checkpoint, "-o", name + ".onnx"}) +
         " (for PyTorch: " + shell_line({"-o", name + ".safetensors"}) + ")";
}

TrainReport run_train(World& world, Arguments& args, RunReport& told) {
  auto start = std::chrono::steady_clock::now();
  const auto [model, plan, tried] = load_and_plan(world, args, [&](const Model& loaded) {
    const std::string data = check_training(world, loaded, args.train);
    if (world.leader()) std::printf("data: %s\n", data.c_str());
    start = std::chrono::steady_clock::now();
  });
  const std::chrono::duration<double> planning = std::chrono::steady_clock::now() - start;
  if (!args.report.empty()) told.add(plan, plan_figures(world, model, plan), planning.count());
  Progress progress(args.train.steps);
  MpirunPatience patience;
  const bool stops_with_one = !args.train.checkpoint.empty();
  args.train.on_step = [&](const StepReport& step) {
    told.add(step);
    progress.step(step);
    if (stops_with_one) progress.note(patience.step(step.step_ms / 1e3));
  };
  args.train.on_note = [&](const std::string& note) {
    told.note(note);
    progress.note(note);
  };
  args.train.on_eval = [&](const EvalReport& eval) { progress.eval(eval); };
  args.train.on_checkpoint = [&](const CheckpointReport& checkpoint) {
    told.add(checkpoint);
    progress.checkpoint(checkpoint);
    if (checkpoint.failure.empty()) progress.note(patience.checkpoint(checkpoint.seconds));
  };
  const TrainReport report = train(world, model, plan, args.train);
  if (!world.leader()) return report;
  progress.finish(report);
  std::printf("%s", report.profile.c_str());
  if (!report.checkpoint.empty() && !args.train.checkpoint.empty())
    std::printf("checkpoint: %s; %s\n%s\n", report.checkpoint.c_str(),
                how_to_resume(world, args, report.checkpoint).c_str(),
                how_to_export(report.checkpoint, args).c_str());
  told.finish(report);
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
                 {"--profile", args.train.profile}},
                files_read(args));
  RunReport told(args.report);  // of the rank that speaks, if the run fails
  const LastWords last_words([&](const std::string& sentence) { told.end(sentence); });
  try {
    const TrainReport report = run_train(world, args, told);
    int status = report.stopped ? stopped_by(world, *report.stopped, args.train.steps) : 0;
    if (!report.unwritten.empty()) {
      std::fprintf(stderr, "shardrun: %s\n", report.unwritten.c_str());
      status = 1;
    }
    return report.checkpoints_failed > 0 ? not_all_written(world, report) : status;
  } catch (const std::exception& e) {
    return world.fail(e, [&](const std::string& sentence) {
      if (!first_to_fail()) return false;
      told.fail(e, sentence);
      return true;
    });
  }
}

/// Where `shardrun plan` writes programs, pass by pass.
struct DumpPasses {
  std::string folder, stop_after;
};

void run_plan(World& world, Arguments& args, const DumpPasses& dump) {
  check_outputs(world, {{"--output", args.output}}, files_read(args));
  args.plan.ranks = args.ranks                     ? *args.ranks
                    : !args.plan.plan_file.empty() ? read_planned_model(args.plan.plan_file).ranks
                                                   : mesh_ranks(args.plan.mesh);
  const auto [model, plan, tried] = load_and_plan(world, args);
  if (!world.leader()) return;
  std::printf("%s", plan_details(model, plan).c_str());
  std::fflush(stdout);  // where that is the output, too
  if (!args.output.empty()) write_output(args.output, plan.json());
  if (!dump.folder.empty()) dump_passes(model, plan, dump.folder, dump.stop_after);
}

/// A plan file in words. The model is the one that the plan was made for, unless --model says where
/// it is now.
void run_explain(const Explain& explain, Arguments& args) {
  const PlannedModel planned = read_planned_model(explain.plan);
  World world = World::threads(planned.ranks);
  const Model model =
      load_model(world, explain.model.empty() ? planned.path : explain.model, planned.options);
  const auto read = [&](const std::string& path) {
    PlanRequest request;
    request.plan_file = path;
    request.ranks = path == explain.plan ? planned.ranks : read_planned_model(path).ranks;
    return make_plan(world, model, request);
  };
  const TrainingPlan plan = read(explain.plan);
  if (explain.why.empty() && explain.other.empty())
    std::printf("%s", explain_plan(model, plan).c_str());
  if (!explain.why.empty())
    std::printf("%s", explain_why(model, plan, explain.why, args.plan).c_str());
  if (!explain.other.empty())
    std::printf("%s", explain_difference(plan, read(explain.other)).c_str());
}

/// A plan with which training would go wrong ends with status 1.
void run_verify(World& world, Arguments& args) {
  const auto [model, plan, tried] = load_and_plan(
      world, args, [&](const Model& loaded) { check_training(world, loaded, args.train); });
  std::fflush(stdout);
  const VerifyReport report = verify(world, model, plan, args.train);
  if (!report.verified) throw Failure(Failure::Kind::run, "verify: " + report.mismatch, true);
  if (!world.leader()) return;
  std::printf("verified: %lld values agree with one rank to %.1e (%lld comparisons%s)\n",
              static_cast<long long>(report.values), report.largest,
              static_cast<long long>(report.comparisons),
              report.joined == 0 ? ""
                                 : (", " + std::to_string(report.joined) +
                                    " nodes run as a part of another's step")
                                       .c_str());
}

void run_calibrate(World& world, const CalibrateRequest& request) {
  const CalibrateReport report = calibrate(world, request);
  if (!world.leader()) return;
  std::printf("measured %d kernels and %d collectives in %.1f s: %s\n", report.kernels,
              report.collectives, report.seconds, report.path.c_str());
  if (!report.disturbed.empty()) std::printf("%s\n", report.disturbed.c_str());
}

void add_solve_options(CLI::App& app, Arguments& args) {
  SolveRequest& o = args.solve;
  app.add_option("file", o.file,
                 "A problem: JSON, plain or gzipped, our own form or the IOPDDL contest's")
      ->required();
  app.add_option("--time", o.seconds, "Seconds in all, reading the file included")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--solver", o.solver, "auto, ilp, beam, lns, ilp+lns or beam+lns")
      ->capture_default_str();
  app.add_option(
         "--nodes", o.nodes,
         "lns: stop after so many nodes of its search trees; equal calls then give equal choices")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", o.threads, "lns: the result depends on it")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
}

std::string why_none(const SolveReport& report) {
  const auto at = [](int64_t bytes, int time) {
    return std::to_string(bytes) + " bytes at time " + std::to_string(time);
  };
  const std::string limit = "the limit is " + std::to_string(report.limit_bytes);
  if (report.needed_bytes > report.limit_bytes) {
    return "no choices fit: every one needs at least " +
           at(report.needed_bytes, report.needed_time) + ", " + limit;
  }
  std::string why = report.infeasible ? "no choices are allowed and fit (proven)"
                                      : "no choices were found that fit; allow more --time";
  if (report.closest_bytes < 0) return why + "; none that was seen is allowed";
  return why + "; the closest seen needs " + at(report.closest_bytes, report.closest_time) + ", " +
         limit + ": " + std::to_string(report.closest_bytes - report.limit_bytes) + " too many";
}

/// The choices are the last line of stdout, "[]" if there are none; all else goes to stderr.
int run_solve(const SolveRequest& request) {
  const SolveReport report = solve_problem(request);
  std::string line = "[";
  for (size_t i = 0; i < report.choices.size(); ++i)
    line += (i == 0 ? "" : ", ") + std::to_string(report.choices[i]);
  std::printf("%s]\n", line.c_str());
  std::fflush(stdout);
  if (!report.rounded.empty()) {
    std::fprintf(stderr, "%s: %s, as 64-bit floating point has it; costs are not exact\n",
                 request.file.c_str(), report.rounded.c_str());
  }
  std::fprintf(stderr, "nodes %lld, after reduction %lld\n", static_cast<long long>(report.nodes),
               static_cast<long long>(report.core_nodes));
  if (report.found) {
    const double gap = report.cost > report.lower_bound
                           ? (report.cost - report.lower_bound) / std::abs(report.cost)
                           : 0.0;
    std::fprintf(stderr, "cost %.17g, lower bound %.17g, gap %.4g %%, solver %s, %.2f s\n",
                 report.cost, report.lower_bound, 100 * gap, report.solver.c_str(), report.seconds);
    return 0;
  }
  std::fprintf(stderr, "%s; ", why_none(report).c_str());
  if (!report.infeasible && std::isfinite(report.lower_bound))
    std::fprintf(stderr, "lower bound %.17g, ", report.lower_bound);
  std::fprintf(stderr, "solver %s, %.2f s\n", report.solver.c_str(), report.seconds);
  return 1;
}

/// "--resume gpt.onnx": the folder was left out. CLI11 would take the model's file for it.
void part_resume_from_model(std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    std::error_code error;
    if (words[i] == "--resume" && words[i + 1].ends_with(".onnx") &&
        !std::filesystem::is_directory(words[i + 1], error))
      std::swap(words[i], words[i + 1]);
  }
}

/// Words that a command does not know: CLI11 has them in no order that one reads.
std::string unknown_words(const CLI::App& app, const CLI::App& train) {
  std::string all, of_train, name = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  for (const std::string& word : app.remaining(true)) {
    all += (all.empty() ? "" : " ") + word;
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with("--") && train.get_option_no_throw(flag) != nullptr)
      of_train += (of_train.empty() ? "" : ", ") + flag;
  }
  return "'" + name + "' does not take '" + all + "'" +
         (of_train.empty() ? "" : " (" + of_train + " goes with 'shardrun train')") + "; '" + name +
         " --help' tells what it takes";
}

/// Says why a call is wrong, and returns the status. Mostly all processes find the same: the first
/// one says so, and that it ends ends the others before they speak. If it does not end, they do:
/// late enough for a launcher that is held up.
int refuse(const std::string& why) {
  if (!is_first_process()) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::cerr << "shardrun: on one process, not the first: ";
  } else {
    std::cerr << "shardrun: ";
  }
  std::cerr << why << (why.empty() || why.back() != '\n' ? "\n" : "");
  return 2;
}

/// `status`, or 1 where what was printed got lost, on a full disk say.
int all_printed(int status) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  if (errno == EPIPE) return status == 0 ? 128 + SIGPIPE : status;  // as 'head' wants it
  const std::string why = flushed ? "" : std::string(": ") + std::strerror(errno);
  std::fprintf(stderr, "shardrun: what was printed could not all be written%s\n", why.c_str());
  return status == 0 ? 1 : status;
}

int run(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "shardrun trains an ONNX model on many processes: it plans how every tensor is cut over "
      "them, and runs each\n"
      "one's share. Under mpirun the ranks are MPI's. 'shardrun MODEL.onnx' is 'shardrun train "
      "MODEL.onnx'.",
      "shardrun");
  app.set_version_flag("--version", version());
  CLI::App* train_command = app.add_subcommand("train", "Plan and train a model");
  add_model_options(*train_command, args);
  add_plan_options(*train_command, args);
  add_train_options(*train_command, args);
  add_checkpoint_options(*train_command, args);
  add_output_options(*train_command, args);
  CLI::App* plan_command =
      app.add_subcommand("plan", "Plan only, for --ranks or as many as --mesh has");
  add_model_options(*plan_command, args);
  add_plan_options(*plan_command, args);
  plan_command->add_option("--data", args.train.data,
                           "npz:FILE: bind symbolic dims to the sizes of its arrays, and let "
                           "the planner count the rows that a graph's edges name");
  plan_command->add_flag("--sort-edges", args.train.sort_edges, kSortEdges);
  plan_command->add_option("--checkpoint", args.train.checkpoint,
                           "Count memory for the checkpoints of a run that has this flag");
  plan_command->add_option("-o,--output", args.output, "Write the plan as JSON to this file");
  DumpPasses dump;
  CLI::Option* dump_option = plan_command->add_option(
      "--dump-passes", dump.folder,
      "Write rank 0's program to this folder as each pass leaves it, with what changed");
  plan_command->add_option("--stop-after", dump.stop_after, "--dump-passes: the last pass")
      ->check(CLI::IsMember(program_passes()))
      ->needs(dump_option);
  CLI::App* verify_command = app.add_subcommand(
      "verify",
      "Run one step and one validation of a plan, under mpirun or on --ranks threads, and compare "
      "every value with one rank's");
  add_model_options(*verify_command, args);
  add_plan_options(*verify_command, args);
  add_train_options(*verify_command, args);
  CLI::App* evaluate_command = app.add_subcommand(
      "evaluate", "Loss, accuracy and perplexity of a checkpoint, or of a model as it stands");
  add_evaluate_options(*evaluate_command, args);
  CLI::App* run_command = app.add_subcommand(
      "run", "A model's outputs for the arrays of a file: the forward pass alone");
  RunCommand forward(*run_command, args);
  CLI::App* sample_command =
      app.add_subcommand("sample", "Text, or tokens, drawn one by one from a model of them");
  SampleCommand sampling(*sample_command, args);
  CLI::App* solve_command = app.add_subcommand("solve", "Solve a planning problem in a file");
  add_solve_options(*solve_command, args);
  Explain explain;
  CLI::App* explain_command = app.add_subcommand("explain", "Show a plan layer by layer");
  explain_command
      ->add_option("plan", explain.plan, "The plan, a file that 'shardrun plan -o' wrote")
      ->required();
  explain_command->add_option(
      "--why", explain.why,
      "Why this value lies as it does: its next-best sharding and what that would cost");
  explain_command->add_option("--diff", explain.other,
                              "What another plan for the same model does differently");
  explain_command->add_option("--model", explain.model,
                              "Where the model is now (default: where it was when it was planned)");
  explain_command->add_option("--memory", args.memory, "--why: limit of a rank's memory");
  explain_command
      ->add_option("--plan-seconds", args.plan.solve_seconds, "--why: time for the search")
      ->capture_default_str();
  CalibrateRequest measure;
  CLI::App* calibrate_command = app.add_subcommand(
      "calibrate",
      "Measure this machine's cores or GPUs for the planner; under mpirun, collectives between its "
      "processes");
  calibrate_command->add_option("-o,--output", measure.output,
                                "Another cluster file than the one that plans read by themselves");
  calibrate_command->add_option("--device", args.device,
                                "cpu or cuda (default: cuda where there is a GPU)");
  calibrate_command->add_option(
      "--threads", args.threads,
      "Measure ranks with so many threads each, beside what is known of others (default: the cores "
      "shared out over 1, 2, 4 ... ranks)");
  calibrate_command
      ->add_option("--seconds", measure.seconds,
                   "How long it may take, about; a quarter longer where something else slows the "
                   "machine down")
      ->capture_default_str();
  CLI::App* export_app = app.add_subcommand(
      "export", "Write the trained weights of a checkpoint for PyTorch or ONNX Runtime");
  ExportCommand export_command(*export_app);
  CLI::App* model_command = app.add_subcommand("model", "Write a model as ONNX");
  ModelCommand write_model(*model_command);
  CLI::App* bench_command = app.add_subcommand("bench", "Measure, so that anybody can repeat it");
  BenchCommand bench(*bench_command);

  refuse_empty_and_wrapped(app);
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::vector<std::string> own = {"train",     "plan",   "verify",  "evaluate", "run",
                                        "export",    "sample", "explain", "model",    "solve",
                                        "calibrate", "bench",  "-h",      "--help",   "--version"};
  if (!words.empty() && std::find(own.begin(), own.end(), words[0]) == own.end()) {
    words.insert(words.begin(), "train");
  }
  part_resume_from_model(words);
  args.words = words;
  const auto parse = [&](std::vector<std::string> from_the_back) {
    std::reverse(from_the_back.begin(), from_the_back.end());  // CLI11 takes them so
    app.parse(from_the_back);
  };
  try {
    parse(words);
    if (evaluate_command->parsed() && !args.resume.empty()) {
      take_options_of_run(args);
      parse(words);
    }
    for (const CLI::App* command :
         {train_command, plan_command, verify_command, evaluate_command}) {
      if (!command->parsed() || (command == evaluate_command && !args.resume.empty())) continue;
      const Recipe recipe = add_recipe(*command, words, args.model);
      args.recipe = recipe.told;
      if (recipe.words != words) parse(recipe.words);
      break;
    }
  } catch (const Failure& e) {
    return refuse(e.what());
  } catch (const CLI::ExtrasError&) {
    return refuse(unknown_words(app, *train_command));
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    const int status = app.exit(e, out, err);
    if (is_first_process()) std::cout << out.str();
    return status == 0 ? 0 : refuse(err.str());
  }

  const bool runs_on_all = train_command->parsed() || verify_command->parsed() ||
                           evaluate_command->parsed() || run_command->parsed() ||
                           sample_command->parsed() || calibrate_command->parsed();
  try {  // each process finds the same here; one says so
    finish_arguments(args);
    if (app.get_subcommands().empty()) {
      throw Failure(
          Failure::Kind::call,
          "name a model, 'shardrun MODEL.onnx', or a command: train, plan, verify, "
          "evaluate, run, sample, export, explain, model, solve, calibrate, bench; --help tells "
          "more");
    }
    if (runs_on_all && args.ranks && launched_processes() > 1) {
      throw Failure(Failure::Kind::call,
                    "--ranks " + std::to_string(*args.ranks) +
                        ": runs threads of one process, but the launcher started " +
                        std::to_string(launched_processes()) + "; leave out one of the two");
    }
  } catch (const Failure& e) {
    return refuse(e.what());
  }
  const bool bench_on_all = bench.chosen() != nullptr && bench.chosen()->on_all;
  if (!runs_on_all && !bench_on_all && !is_first_process()) return 0;  // work for one
  if (model_command->parsed() || solve_command->parsed() || export_app->parsed() ||
      bench.chosen()) {
    try {
      if (solve_command->parsed()) return run_solve(args.solve);
      if (model_command->parsed()) write_model.run();
      if (export_app->parsed()) export_command.run();
      if (bench.chosen()) return bench.chosen()->run();
      return 0;
    } catch (const Failure& e) {
      if (is_first_process()) std::fprintf(stderr, "shardrun: %s\n", e.what());
      return e.status();
    }
  }
  if (explain_command->parsed()) {
    try {
      run_explain(explain, args);
      return 0;
    } catch (const Failure& e) {
      std::fprintf(stderr, "shardrun: %s\n", e.what());
      return e.status();
    }
  }
  try {
    if ((verify_command->parsed() || evaluate_command->parsed()) && !args.ranks &&
        launched_processes() <= 1 && !args.plan.plan_file.empty())
      args.ranks = read_planned_model(args.plan.plan_file).ranks;
    if (train_command->parsed()) stop_on_signals(signal_named(args.checkpoint_signal));
    World world = runs_on_all
                      ? make_world(args)
                      : World::threads(args.ranks.value_or(std::max(1, launched_processes())));
    try {
      if (train_command->parsed()) {
        const int status = run_train(world, args);
        if (status > 128) world.leave(all_printed(status));
        if (status != 0) return status;
      }
      if (plan_command->parsed()) {
        if (args.threads) world.assume_threads(*args.threads);
        run_plan(world, args, dump);
      }
      if (verify_command->parsed()) run_verify(world, args);
      if (evaluate_command->parsed()) run_evaluate(world, args);
      if (run_command->parsed()) forward.run(world);
      if (sample_command->parsed()) sampling.run(world);
      if (calibrate_command->parsed()) run_calibrate(world, measure);
      return 0;
    } catch (const std::exception& e) {
      return world.fail(e, [](const std::string&) { return first_to_fail(); });
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "shardrun: %s\n", e.what());
    return 1;
  }
}

/// Where the caller closed standard input, output or errors, the next file that is opened would
/// take its place, and what is printed would end up there.
void open_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

}  // namespace
}  // namespace shardrun::cli

int main(int argc, char** argv) {
  shardrun::cli::open_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // ulimit -f: a write that fails says so instead
  std::signal(SIGPIPE, SIG_IGN);  // who reads what is printed may go, and training goes on
  // Planning makes and drops millions of small things between large ones. glibc would lay small
  // free blocks aside, and go over all of them whenever a large one is wanted.
  mallopt(M_MXFAST, 0);
  return shardrun::cli::all_printed(shardrun::cli::run(argc, argv));
}
