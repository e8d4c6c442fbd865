// The training step of a small GPT, as the command would make it.
#pragma once

#include <unistd.h>

#include <filesystem>

#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/fuse.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "models/gpt.h"

namespace shardrun::testing {

/// Through a file, which is removed again. `options.batch` must be set.
inline Graph gpt_step(const GptOptions& options, const OptimizerOptions& optimizer = {},
                      bool bf16 = false) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / str("shardrun_gpt_step_", getpid(), ".onnx");
  write_gpt(options, path.string());
  ImportOptions import;
  import.evaluate = run_reference;
  Graph graph = import_onnx(path.string(), import);
  std::filesystem::remove(path);
  graph.name = "gpt";
  fuse(graph);
  attach_loss(graph, "");
  graph.outputs.clear();
  graph.metrics = {{"loss", graph.loss}};
  remove_dead_nodes(graph);
  if (bf16) graph = in_bf16(graph);
  attach_optimizer(graph, optimizer);
  fold_casts(graph);
  merge_equal_nodes(graph);
  return graph;
}

}  // namespace shardrun::testing
