// Flags and what their texts mean.
#include "options.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "signals.h"

namespace shardrun::cli {
namespace {

int64_t parse_count(const std::string& text, const std::string& flag) {
  int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value < 1) {
    throw Failure(Failure::Kind::call, flag + ": '" + text + "' is not a positive whole number");
  }
  return value;
}

constexpr int kMostRanks = 65536;

}  // namespace

int64_t parse_bytes(const std::string& text, const std::string& flag) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto unit = kUnits.find(std::string(end, text.data() + text.size()));
  if (ec != std::errc() || unit == kUnits.end() || !(value > 0) || !std::isfinite(value) ||
      value * unit->second < 1 || value * unit->second >= 0x1p62) {
    throw Failure(Failure::Kind::call,
                  flag + ": '" + text + "' is not a size such as 16GiB, 512MiB or 2GB");
  }
  return static_cast<int64_t>(value * unit->second);
}

void add_model_options(CLI::App& app, Arguments& args) {
  app.add_option("model", args.model, "The model, an ONNX file")->required();
  add_step_options(app, args);
}

namespace {

void add_shared_options(CLI::App& app, Arguments& args) {
  ModelOptions& o = args.model_options;
  app.add_option("--dim", args.dims, "Bind a symbolic dim: NAME=SIZE (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--batch", args.batch,
                 "Size of the inputs' first dim where it is symbolic (default 8)");
  app.add_option("--ops", o.ops, "Load a library of ops of your own (docs/ops.md; repeatable)")
      ->allow_extra_args(false);
  app.add_option("--weights", o.weights,
                 "Begin with these weights: a safetensors file, a folder of some, an ONNX file, a "
                 "checkpoint (docs/training.md)");
  app.add_option("--weights-except", o.weights_except,
                 "Tensors of either side whose name matches begin as the model has them "
                 "(repeatable)")
      ->allow_extra_args(false);
  app.add_option("--dtype", o.dtype, "Compute type: f32 or bf16 (weights are f32)")
      ->capture_default_str();
}

}  // namespace

void add_call_options(CLI::App& app, Arguments& args) {
  app.add_option("model", args.model, "The model, an ONNX file")->required();
  add_shared_options(app, args);
  app.add_option("--seed", args.train.seed, "What a model draws besides dropout follows from it")
      ->capture_default_str();
}

void add_step_options(CLI::App& app, Arguments& args) {
  ModelOptions& o = args.model_options;
  add_shared_options(app, args);
  app.add_option("--loss", o.loss,
                 "cross-entropy or mse on the first output, where no output is the loss itself");
  app.add_option(
      "--loss-output", o.loss_output,
      "The output that is the loss (default: the first, or the only one, that is a scalar)");
  app.add_option("--freeze", o.freeze,
                 "Do not train parameters whose name matches this regular expression (repeatable)")
      ->allow_extra_args(false);
  app.add_option(
         "--train", o.train,
         "Train parameters whose name matches, whatever the file says; --freeze wins (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--train-only", o.train_only,
                 "Train parameters whose name matches, and no others (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--shared", o.shared,
                 "Weights that an exporter merged because they were equal: keep or split");
  app.add_option("--mode", o.mode,
                 "train: normalise by the batch's own statistics wherever batch normalisation was "
                 "exported in inference form");
  app.add_option("--running-statistics", o.running_statistics,
                 "What the running variance averages: pytorch (unbiased) or onnx (population)")
      ->capture_default_str();
  app.add_option("--optimizer", o.optimizer, "adamw, adam or sgd")->capture_default_str();
  app.add_option("--beta1", o.beta1)->capture_default_str();
  app.add_option("--beta2", o.beta2)->capture_default_str();
  app.add_option("--eps", o.eps)->capture_default_str();
  app.add_option("--momentum", o.momentum, "sgd's momentum")->capture_default_str();
  app.add_flag("--nesterov", o.nesterov, "sgd: Nesterov's momentum");
  app.add_option("--weight-decay", o.weight_decay, "On tensors of two or more dims")
      ->capture_default_str();
  app.add_flag("--decay-all", o.decay_all, "Weight decay on every tensor");
  app.add_option("--clip", o.clip,
                 "Clip gradients to this global norm; 0: off (default: 1 with adamw, else off)");
  app.add_option("--accumulate", args.accumulate,
                 "Micro-batches of --batch samples a step (default 1); auto: as many as make the "
                 "step with --global-batch samples the fastest that fits in memory");
  app.add_option("--global-batch", o.global_batch,
                 "Samples a step: --batch times --accumulate, of which it gives the one that is "
                 "left out");
  app.add_option("--seed", args.train.seed, "Fresh weights, batches and dropout follow from it")
      ->capture_default_str();
  app.add_flag("-v,--verbose", args.verbose,
               "Print what was recognised, and the table of parameters");
}

void add_machine_options(CLI::App& app, Arguments& args) {
  PlanRequest& o = args.plan;
  app.add_option("--ranks", args.ranks,
                 "Without an MPI launcher: run this many ranks as threads (plan: plan for them)");
  app.add_option(
      "--threads", args.threads,
      "Threads of each rank's kernels (default: its share of the machine's cores, or "
      "OMP_NUM_THREADS if that is less; plan: what to plan for, whatever cores are here)");
  app.add_option("--device", args.device, "cpu or cuda (default: cuda where there is a GPU)");
  app.add_option("--mesh", o.mesh, "auto, named axes (data=2,model=4) or sizes (2x4)")
      ->capture_default_str();
  app.add_option(
         "--planner", o.planner,
         "auto, ilp, beam, plain-ilp; or a baseline: dp, zero1, zero2, fsdp (ZeRO-3), megatron, "
         "megatron-sp; or one for each mesh axis: fsdp+megatron")
      ->capture_default_str();
  app.add_option("--shard", o.shard,
                 "Values whose name matches lie so: 'REGEX=[data,-]' (repeatable)")
      ->allow_extra_args(false);
  app.add_option("--memory", args.memory,
                 "Limit of a rank's memory, such as 16GiB (default: what the cluster's devices "
                 "have); where it "
                 "runs no more than its share of the machine or GPU");
  app.add_option("--cluster", o.cluster,
                 "What to plan for: host (this machine), v100-32, a100-80, h100 or h200 (a node of "
                 "8), h100:4 (4 nodes), or a JSON file");
  app.add_option(
         "--plan-seconds", o.solve_seconds,
         "Work of the planner's search: about so many seconds of a core, but the same on each")
      ->capture_default_str();
}

void add_plan_options(CLI::App& app, Arguments& args) {
  PlanRequest& o = args.plan;
  add_machine_options(app, args);
  app.add_option("--recompute", o.recompute,
                 "auto: compute results of the forward pass again in the backward pass where a "
                 "rank's memory cannot keep them, if that takes the least time; or never")
      ->capture_default_str();
  app.add_option("--plan", o.plan_file, "Take the plan from this file instead of planning");
}

void add_timeout_option(CLI::App& app, Arguments& args) {
  app.add_option("--timeout", args.timeout,
                 "End the job when a rank has waited so many seconds for others; 0: never "
                 "(default: 600)");
}

void add_data_options(CLI::App& app, Arguments& args) {
  TrainOptions& o = args.train;
  add_timeout_option(app, args);
  app.add_option("--data", o.data,
                 "text:FILE, tokens:FILE.bin, npy:X.npy,Y.npy, npz:FILE, idx:IMAGES,LABELS, "
                 "cifar:FOLDER (default: synthetic batches)");
  app.add_option("--normalise", o.normalise,
                 "rows (of a matrix, to a sum of 1), data (images, to mean 0 and deviation 1), or "
                 "MEAN/DEVIATION, a number for each channel");
  app.add_flag("--sort-edges", o.sort_edges, kSortEdges);
  app.add_option(
         "--target-shift", o.target_shift,
         "text: and tokens: by how many tokens targets are behind the inputs: 0 or 1; auto: "
         "1, or 0 where the model's loss shifts them itself")
      ->capture_default_str();
  app.add_option("--eval-batches", o.eval_batches,
                 "Batches a validation (default: all, at most 200)");
  app.add_option("--validation", o.validation, "Share of the data kept for validation")
      ->capture_default_str();
}

void add_train_options(CLI::App& app, Arguments& args) {
  TrainOptions& o = args.train;
  add_data_options(app, args);
  app.add_option("--augment", o.augment, "Images: crop=PIXELS, flip, or both with a comma");
  app.add_option("--steps", o.steps)->capture_default_str();
  app.add_option("--lr", o.lr, "Learning rate")->capture_default_str();
  app.add_option("--min-lr", o.min_lr, "Where the schedule ends")->capture_default_str();
  app.add_option("--schedule", o.schedule, "constant, linear or cosine")->capture_default_str();
  app.add_option("--warmup", o.warmup, "Steps of linear warm-up")->capture_default_str();
  app.add_option("--eval-every", o.eval_every, "Validate every so many steps (and at the end)");
  app.add_option(
      "--patience", o.patience,
      "Stop after so many validations with neither a lower loss nor a higher accuracy than "
      "all before (default: never)");
}

void add_checkpoint_options(CLI::App& app, Arguments& args) {
  TrainOptions& o = args.train;
  app.add_option("--checkpoint", o.checkpoint,
                 "Write checkpoints to this folder, which all ranks see: at the end, and when the "
                 "run is asked to stop");
  app.add_option("--checkpoint-every", o.checkpoint_every, "Also every so many steps");
  app.add_option("--keep", o.keep, "Remove all but so many of the newest checkpoints");
  app.add_option("--resume", args.resume,
                 "Go on from this checkpoint, or the newest of this folder; without a folder from "
                 "the newest of --checkpoint's, if it has one")
      ->expected(0, 1)
      ->type_name("TEXT");
  app.add_option("--checkpoint-on-signal", args.checkpoint_signal,
                 "Write a checkpoint, and go on, when this signal comes, such as USR1");
}

void add_output_options(CLI::App& app, Arguments& args) {
  TrainOptions& o = args.train;
  app.add_option("--metrics", o.metrics, "Write one JSON object a step to this file");
  app.add_option("--report", args.report,
                 "Write what the run was to this file when it ends, one JSON object: plan, bytes, "
                 "times of all steps");
  app.add_option("--profile", o.profile,
                 "Write a trace of every rank's steps to this file, for https://ui.perfetto.dev");
  app.add_flag("--profile-summary", o.profile_summary,
               "Print where a step's time goes: by op, and the dearest calls");
  app.add_option("--profile-steps", args.profile_steps,
                 "Record the last so many steps, and batches of validation (default 10)");
}

std::vector<NamedFile> files_read(const Arguments& args) {
  std::vector<NamedFile> out = {{"--plan", args.plan.plan_file}};
  for (const std::string& file : model_files(args.model)) out.push_back({"the model", file});
  std::error_code error;
  if (std::filesystem::exists(args.plan.cluster, error))
    out.push_back({"--cluster", args.plan.cluster});
  for (const std::string& library : args.model_options.ops) out.push_back({"--ops", library});
  for (const std::string& file : weight_files(args.model_options.weights))
    out.push_back({"--weights", file});
  for (const std::string& file : data_files(args.train.data)) out.push_back({"--data", file});
  return out;
}

namespace {

/// "" where the text is a number of an option's type as CLI11 calls it; else what is wrong with it.
std::string no_number(const std::string& type, std::string_view text) {
  if (text.rfind("+", 0) == 0) text.remove_prefix(1);
  const auto read = [&](auto value) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    return end == text.data() + text.size() ? code : std::errc::invalid_argument;
  };
  const bool whole = type.rfind("FLOAT", 0) != 0;
  const std::errc code = !whole                       ? read(double())
                         : type.rfind("UINT", 0) == 0 ? read(uint64_t())
                                                      : read(int64_t());
  if (code == std::errc()) return "";
  const std::string kind = type.rfind("UINT", 0) == 0 ? "whole number of at least 0"
                           : whole                    ? "whole number"
                                                      : "number";
  return "'" + std::string(text) +
         (code == std::errc::result_out_of_range ? "' is too large" : "' is not a " + kind);
}

}  // namespace

void refuse_empty_and_wrapped(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (option->get_items_expected_max() == 0) continue;  // a flag
    if (type.rfind("TEXT", 0) == 0) {
      if (option->check_lname("recipe")) continue;  // '': a model without one
      option->check(
          [](const std::string& text) {
            return text.empty()
                       ? std::string("got an empty text; leave the flag out, or give it a value")
                       : std::string();
          },
          "");
    } else {
      option->check([type](const std::string& text) { return no_number(type, text); }, "");
    }
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) refuse_empty_and_wrapped(*command);
}

void finish_arguments(Arguments& args) {
  for (const std::string& dim : args.dims) {
    const size_t equals = dim.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw Failure(Failure::Kind::call, "--dim: '" + dim + "' is not NAME=SIZE");
    }
    const std::string name = dim.substr(0, equals);
    const int64_t size = parse_count(dim.substr(equals + 1), "--dim " + name);
    if (!args.model_options.dims.emplace(name, size).second)
      throw Failure(Failure::Kind::call, "--dim " + name + ": is given twice");
  }
  auto wanted = [](bool fine, const std::string& flag, const std::string& got, const char* want) {
    if (!fine) throw Failure(Failure::Kind::call, flag + ": got " + got + ", wanted " + want);
  };
  wanted(!args.batch || *args.batch >= 1, "--batch", std::to_string(args.batch.value_or(1)),
         "1 or more");
  wanted(!args.ranks || *args.ranks >= 1, "--ranks", std::to_string(args.ranks.value_or(1)),
         "1 or more");
  wanted(!args.ranks || *args.ranks <= kMostRanks, "--ranks",
         std::to_string(args.ranks.value_or(1)), "at most 65536");
  wanted(!args.threads || *args.threads >= 1, "--threads", std::to_string(args.threads.value_or(1)),
         "1 or more");
  wanted(!args.timeout || (*args.timeout >= 0 && std::isfinite(*args.timeout)), "--timeout",
         std::to_string(args.timeout.value_or(0)), "a number of at least 0");
  if (!args.device.empty()) use_device(args.device);
  const double seconds = args.plan.solve_seconds;
  wanted(seconds >= 0 && std::isfinite(seconds), "--plan-seconds", std::to_string(seconds),
         "a number of at least 0");
  wanted(!args.profile_steps || !args.train.profile.empty() || args.train.profile_summary,
         "--profile-steps", std::to_string(args.profile_steps.value_or(0)),
         "--profile or --profile-summary with it");
  if (args.profile_steps) args.train.profile_steps = *args.profile_steps;
  if (!args.resume.empty()) args.train.resume = args.resume[0];
  args.plan.checkpoints = !args.train.checkpoint.empty();
  signal_named(args.checkpoint_signal);
  wanted(args.checkpoint_signal.empty() || args.plan.checkpoints, "--checkpoint-on-signal",
         args.checkpoint_signal, "--checkpoint with it");
  args.model_options.batch = args.batch;
  if (args.accumulate == "auto") {
    args.model_options.accumulate = kAutoMicroBatches;
  } else if (!args.accumulate.empty()) {
    const int64_t count = parse_count(args.accumulate, "--accumulate");
    wanted(count <= std::numeric_limits<int>::max(), "--accumulate", args.accumulate,
           "at most 2147483647");
    args.model_options.accumulate = static_cast<int>(count);
  }
  args.model_options.data = args.train.data;
  args.model_options.sort_edges = args.train.sort_edges;
  if (!args.memory.empty()) args.plan.memory_bytes = parse_bytes(args.memory, "--memory");
  args.plan.seed = args.model_options.seed = args.train.seed;
}

}  // namespace shardrun::cli
