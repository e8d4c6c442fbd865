// Flags and what their texts mean.
#include "options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>

#include "option_flags.h"
#include "process/signals.h"

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

namespace {

/// The flags of a group, whichever options they are of.
void add_group(CLI::App& app, Arguments& args, OptionGroup group) {
  const auto add = [&](auto& options) {
    each_option(options, [&](const OptionRow& row, auto& value) {
      if (row.group == group) add_row(app, args, row, value);
    });
  };
  add(args.model_options);
  add(args.plan);
  add(args.train);
}

void add_model(CLI::App& app, Arguments& args) {
  app.add_option("model", args.model, "The model, an ONNX file")->required();
}

void add_timeout_option(CLI::App& app, Arguments& args) {
  app.add_option("--timeout", args.timeout,
                 "End the job when a rank has waited so many seconds for others; 0: never "
                 "(default: 600)");
  app.add_option("--check", args.check,
                 "collectives: ranks compare each collective before they make it; where they "
                 "differ, both sides are named within a second (docs/output.md)");
}

}  // namespace

void add_model_options(CLI::App& app, Arguments& args) {
  add_model(app, args);
  add_step_options(app, args);
}

void add_call_options(CLI::App& app, Arguments& args) {
  add_model(app, args);
  add_group(app, args, OptionGroup::call);
  add_field(app, args, &ModelOptions::seed, "What a model draws besides dropout follows from it");
}

void add_step_options(CLI::App& app, Arguments& args) {
  add_group(app, args, OptionGroup::call);
  add_group(app, args, OptionGroup::step);
  app.add_flag("-v,--verbose", args.verbose,
               "Print what was recognised, and the table of parameters");
}

void add_device_option(CLI::App& app, Arguments& args) {
  app.add_option("--device", args.device, "cpu or cuda (default: cuda where there is a GPU)");
}

void add_machine_options(CLI::App& app, Arguments& args) {
  app.add_option("--ranks", args.ranks,
                 "Without an MPI launcher: run this many ranks as threads (plan: plan for them)");
  app.add_option(
      "--threads", args.threads,
      "Threads of each rank's kernels (default: its part of the machine's cores, or "
      "OMP_NUM_THREADS if that is less; plan: what to plan for, whatever cores are here)");
  add_device_option(app, args);
  add_group(app, args, OptionGroup::machine);
}

void add_plan_options(CLI::App& app, Arguments& args) {
  add_machine_options(app, args);
  add_group(app, args, OptionGroup::plan);
}

void add_forward_options(CLI::App& app, Arguments& args, std::string& checkpoint) {
  add_call_options(app, args);
  add_machine_options(app, args);
  add_timeout_option(app, args);
  app.add_option("--resume", checkpoint,
                 "The parameters: of this checkpoint, or of the newest of this folder");
}

void add_data_options(CLI::App& app, Arguments& args) {
  add_timeout_option(app, args);
  add_group(app, args, OptionGroup::data);
}

void add_train_options(CLI::App& app, Arguments& args) {
  add_data_options(app, args);
  add_group(app, args, OptionGroup::train);
}

void add_checkpoint_options(CLI::App& app, Arguments& args) {
  add_group(app, args, OptionGroup::checkpoint);
  app.add_option("--checkpoint-on-signal", args.checkpoint_signal,
                 "Write a checkpoint, and go on, when this signal comes, such as USR1");
  app.add_option("--restarts", args.restarts,
                 "Where the run fails start it again from the newest checkpoint, on the hosts that "
                 "answer, so many times");
  app.add_option("--mpirun", args.mpirun,
                 "--restarts: the command that starts the ranks each time, such as "
                 "'mpirun -np 8'");
}

void add_quiet_option(CLI::App& app, Arguments& args) {
  app.add_flag("-q,--quiet", args.quiet,
               "Print nothing but warnings, notes and errors, on standard error");
}

void add_output_options(CLI::App& app, Arguments& args) {
  add_quiet_option(app, args);
  add_group(app, args, OptionGroup::metrics);
  app.add_option("--report", args.report,
                 "Write what the run was to this file when it ends, one JSON object: plan, bytes, "
                 "times of all steps");
  add_group(app, args, OptionGroup::profile);
}

std::vector<NamedFile> files_read(const Arguments& args) {
  std::vector<NamedFile> out = {{"--plan", args.plan.plan_file}};
  for (const std::string& file : model_files(args.onnx())) out.push_back({"the model", file});
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

/// Of a text that is a number, as every option of numbers checks.
std::string outside(const std::string& text, bool fine, const char* wanted) {
  return fine ? "" : "'" + text + "' is not a number " + wanted;
}

}  // namespace

std::string not_above_0(const std::string& text) {
  const double number = std::strtod(text.c_str(), nullptr);
  return outside(text, std::isfinite(number) && number > 0, "above 0");
}

std::string below_0(const std::string& text) {
  const double number = std::strtod(text.c_str(), nullptr);
  return outside(text, std::isfinite(number) && number >= 0, "of at least 0");
}

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
  const std::optional<int64_t> batch = args.model_options.batch;
  wanted(!batch || *batch >= 1, "--batch", std::to_string(batch.value_or(1)), "1 or more");
  wanted(!args.ranks || *args.ranks >= 1, "--ranks", std::to_string(args.ranks.value_or(1)),
         "1 or more");
  wanted(!args.ranks || *args.ranks <= kMostRanks, "--ranks",
         std::to_string(args.ranks.value_or(1)), "at most 65536");
  wanted(!args.threads || *args.threads >= 1, "--threads", std::to_string(args.threads.value_or(1)),
         "1 or more");
  wanted(!args.timeout || (*args.timeout >= 0 && std::isfinite(*args.timeout)), "--timeout",
         std::to_string(args.timeout.value_or(0)), "a number of at least 0");
  wanted(args.check.empty() || args.check == "collectives", "--check", "'" + args.check + "'",
         "collectives");
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
  wanted(!args.restarts || *args.restarts >= 0, "--restarts",
         std::to_string(args.restarts.value_or(0)), "a number of at least 0");
  wanted(args.mpirun.empty() || args.restarts.has_value(), "--mpirun", args.mpirun,
         "--restarts with it");
  wanted(args.checkpoint_signal.empty() || args.plan.checkpoints, "--checkpoint-on-signal",
         args.checkpoint_signal, "--checkpoint with it");
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
  for (const auto& [flag, text] : args.bytes) {
    if (text.empty()) continue;
    (flag == "--arena" ? args.plan.arena_bytes : args.plan.memory_bytes) = parse_bytes(text, flag);
  }
  args.plan.seed = args.model_options.seed = args.train.seed;
}

}  // namespace shardrun::cli
