// shardrun model: writes one of the models that it knows as ONNX.
#pragma once

#include <CLI/CLI.hpp>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

class ModelCommand {
 public:
  /// Adds the models as subcommands of `app`. Must outlive the parsing.
  explicit ModelCommand(CLI::App& app);
  /// Writes the model that was asked for. Throws Failure(call).
  void run() const;

 private:
  CLI::App *gpt_command_, *gat_command_, *wide_resnet_command_;
  GptModel gpt_;
  GatModel gat_;
  WideResNetModel wide_resnet_;
  bool dense_ = false, sparse_ = false;
  std::string output_;
};

}  // namespace shardrun::cli
