// Commands: what the program can be asked to do, in one table.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

#include "options.h"

namespace shardrun::cli {

/// A command and what it does. `args` are the program's, and outlive it. Functions may throw
/// Failure.
struct Command {
  const char* name;
  const char* help;
  /// Under mpirun it runs on every process, else on the first alone.
  bool on_all = false;
  /// What the model's recipe says counts where the call says nothing else.
  bool takes_recipe = false;
  std::function<void(CLI::App& app, Arguments& args)> add_options;
  /// Behind the first look at the call: changes what flags that it leaves out mean. True: the call
  /// is to be parsed again, and the recipe does not count. Null: nothing to do.
  std::function<bool(Arguments& args)> take_defaults = nullptr;
  /// One of the two, which returns the exit status: on a World, or without one.
  std::function<int(World& world, Arguments& args)> run = nullptr;
  std::function<int(Arguments& args)> run_alone = nullptr;
  /// In place of `run`, where it gives a status: does the call by other processes. Null: never.
  std::function<std::optional<int>(Arguments& args)> delegate = nullptr;
  /// Before there is a World. Null: nothing to do.
  std::function<void(Arguments& args)> prepare = nullptr;
};

Command train_command();
Command plan_command();
Command verify_command();
Command evaluate_command();
Command run_command();
Command sample_command();
Command rules_command();
Command play_command();
Command solve_command();
Command explain_command();
Command simulate_command();
Command calibrate_command();
Command export_command();
Command model_command();
Command bench_command();
Command manual_command();

/// In the order of --help.
inline std::vector<Command> commands() {
  return {train_command(),  plan_command(),    verify_command(),   evaluate_command(),
          run_command(),    sample_command(),  rules_command(),    play_command(),
          solve_command(),  explain_command(), simulate_command(), calibrate_command(),
          export_command(), model_command(),   bench_command(),    manual_command()};
}

}  // namespace shardrun::cli
