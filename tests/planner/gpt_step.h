// The training step of a small model, as the command would make it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>

#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "kernels/reference/interpreter.h"
#include "models/gpt.h"

namespace shardrun::test {

/// Of the model that `write` writes to a file, which is removed again. All sizes must be set.
/// `prepare`: further passes over the model.
inline Graph written_step(const std::function<void(const std::string& path)>& write,
                          std::optional<LossKind> loss, const OptimizerOptions& optimizer = {},
                          bool bf16 = false, const std::function<void(Graph&)>& prepare = nullptr) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / str("shardrun_step_", getpid(), ".onnx");
  write(path.string());
  ImportOptions import;
  import.evaluate = run_reference;
  Graph graph = OnnxFile(path.string()).import(import);
  recognise(graph);
  if (prepare) prepare(graph);
  attach_loss(graph, loss);
  graph.outputs.clear();
  graph.metrics = {{"loss", graph.loss}};
  remove_dead_nodes(graph);
  if (bf16) graph = in_bf16(graph);
  attach_optimizer(graph, optimizer);
  fold_casts(graph);
  merge_equal_nodes(graph);
  split_losses(graph);
  for (auto& [id, source] : graph.sources) {
    if (source.kind != Source::Kind::file) continue;
    Tensor data(graph.type(id));
    read_source(source, data.type(), full_box(data.shape()), 0, data.data());
    source = Source{};
    source.kind = Source::Kind::data;
    source.data = data;
  }
  std::filesystem::remove(path);
  return graph;
}

/// A GPT with dims that 3 ranks do not divide.
inline GptOptions small() {
  GptOptions o;
  o.layers = 2;
  o.heads = 4;
  o.hidden = 16;
  o.vocab = 24;
  o.context = 8;
  o.batch = 10;
  o.weights = false;
  return o;
}

inline Graph gpt_step(const GptOptions& options, const OptimizerOptions& optimizer = {},
                      bool bf16 = false) {
  Graph graph =
      written_step([&](const std::string& path) { write_gpt(options, path); }, {}, optimizer, bf16);
  graph.name = "gpt";
  return graph;
}

}  // namespace shardrun::test
