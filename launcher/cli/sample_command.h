// shardrun sample: text from a model of tokens.
#pragma once

#include "options.h"
#include "shardrun/inference.h"

namespace shardrun::cli {

class SampleCommand {
 public:
  /// Adds the flags. `app` and `args` must outlive the parsing.
  SampleCommand(CLI::App& app, Arguments& args);
  void run(World& world);

 private:
  Arguments& args_;
  SampleRequest request_;
  bool recompute_ = false;
};

}  // namespace shardrun::cli
