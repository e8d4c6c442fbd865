// shardrun export: writes the weights of a checkpoint as ONNX or safetensors.
#pragma once

#include <CLI/CLI.hpp>

#include "shardrun/shardrun.h"

namespace shardrun::cli {

class ExportCommand {
 public:
  /// Adds the options to `app`. Must outlive the parsing.
  explicit ExportCommand(CLI::App& app);
  /// Writes, and tells what. Throws Failure.
  void run();

 private:
  ExportRequest request_;
  std::vector<std::string> tied_;
  std::string file_size_ = "5GB";
};

}  // namespace shardrun::cli
