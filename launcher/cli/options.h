// The flags that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

/// What the user asked for, before any World exists.
struct Arguments {
  std::string model;
  /// `model`, one object however often it is asked for.
  const OnnxModel& onnx() const {
    if (onnx_.path() != model) onnx_ = model;
    return onnx_;
  }
  std::optional<int> ranks;                  // --ranks N: threads of this process
  std::optional<int> threads;                // --threads N: of each rank's kernels
  std::vector<std::string> dims;             // NAME=SIZE
  std::string accumulate;                    // a number, or auto
  std::map<std::string, std::string> bytes;  // by flag: 16GiB
  bool verbose = false;
  bool quiet = false;              // --quiet: warnings and errors alone
  std::vector<std::string> words;  // of the call, for people who are to repeat it
  std::string recipe;              // what the model's file adds to the call, for people
  std::string output;              // -o
  std::string report;              // --report: a file, what a training run was
  ModelOptions model_options;
  PlanRequest plan;
  TrainOptions train;
  std::optional<int64_t> profile_steps;
  std::vector<std::string> resume;  // --resume [FOLDER]: its one text, "" without
  std::string checkpoint_signal;    // --checkpoint-on-signal
  std::string device;               // --device
  std::optional<double> timeout;
  std::string check;                // --check
  std::optional<int64_t> restarts;  // --restarts
  std::string mpirun;               // --mpirun: what starts the ranks of each of them

 private:
  mutable OnnxModel onnx_;
};

/// "16GiB", "512MiB", "1.5GB", "1000000". Throws Failure(call) naming `flag`.
int64_t parse_bytes(const std::string& text, const std::string& flag);

void add_model_options(CLI::App& app, Arguments& args);
/// The same without the model itself.
void add_step_options(CLI::App& app, Arguments& args);
/// The model, and of its options those that a call of it takes, without loss and optimizer.
void add_call_options(CLI::App& app, Arguments& args);
void add_plan_options(CLI::App& app, Arguments& args);
/// Of these, those that say where it runs and what a plan may use, for a forward pass.
void add_machine_options(CLI::App& app, Arguments& args);
void add_device_option(CLI::App& app, Arguments& args);
/// What a forward pass takes: the model, where it runs, and whose parameters it has.
void add_forward_options(CLI::App& app, Arguments& args, std::string& checkpoint);
void add_train_options(CLI::App& app, Arguments& args);
/// Of these, those that say which data there are and what of them is for validation.
void add_data_options(CLI::App& app, Arguments& args);
/// What only a run that trains writes.
void add_checkpoint_options(CLI::App& app, Arguments& args);
void add_quiet_option(CLI::App& app, Arguments& args);
void add_output_options(CLI::App& app, Arguments& args);

/// The files that the call reads, by flag.
std::vector<NamedFile> files_read(const Arguments& args);

/// What is wrong with a number's text, for CLI::Option::check; "": nothing. NaN and infinities are.
std::string not_above_0(const std::string& text);
std::string below_0(const std::string& text);

/// CLI11 takes '' for 0 and for no text, and a number that is too large for the largest that there
/// is. From now on `app` and its commands refuse both.
void refuse_empty_and_wrapped(CLI::App& app);

/// Turns the texts of --dim, --accumulate and --memory into options and checks what no other part
/// of the program would. Throws Failure(call).
void finish_arguments(Arguments& args);

}  // namespace shardrun::cli
