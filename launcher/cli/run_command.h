// shardrun run: a model's outputs for arrays.
#pragma once

#include "options.h"
#include "shardrun/inference.h"

namespace shardrun::cli {

class RunCommand {
 public:
  /// Adds the flags. `app` and `args` must outlive the parsing.
  RunCommand(CLI::App& app, Arguments& args);
  void run(World& world);

 private:
  Arguments& args_;
  RunModelRequest request_;
};

}  // namespace shardrun::cli
