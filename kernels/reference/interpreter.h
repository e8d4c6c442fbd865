// Interpreter: runs a whole Graph on host tensors with the reference kernels. The slow, plain
// answer that tests, import and debugging compare everything else with.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace shardrun {

using NamedTensors = std::map<std::string, Tensor>;

/// Holds a Graph's parameters, state and constants between steps. Keeps a reference to the graph.
///
///   Interpreter run(graph, /*seed=*/7);
///   double before = run.step({{{"tokens", x}, {"lr", lr}}}, {{graph.loss}})[0].at(0);
class Interpreter {
 public:
  /// Reads or makes every persistent value from its Source.
  explicit Interpreter(const Graph& graph, uint64_t seed = 0);
  explicit Interpreter(Graph&& graph, uint64_t seed = 0) = delete;  // it has to outlive this

  /// Runs the micro nodes once per element of `micro_feeds` (values of role batch and scalar, by
  /// name), then the update nodes once, and returns `wanted` as they were after the last run. An
  /// update (Graph::updates) that a micro node makes is stored after each micro-batch, any other at
  /// the end. Throws invalid_input if a fed value is missing or has another type.
  std::vector<Tensor> step(const std::vector<NamedTensors>& micro_feeds,
                           std::span<const ValueId> wanted);

  const Tensor& persistent(const std::string& name) const;

 private:
  void run_phase(Phase phase, const NamedTensors& feeds);
  void store_updates(Phase phase);
  const Tensor& value(ValueId id) const;

  const Graph& graph_;
  std::vector<Tensor> values_;  // by ValueId; empty where not computed
};

/// One step without updates being kept: graph.outputs in order.
std::vector<Tensor> evaluate_graph(const Graph& graph, const NamedTensors& feeds,
                                   uint64_t seed = 0);
/// The same for any values.
std::vector<Tensor> evaluate_graph(const Graph& graph, const NamedTensors& feeds,
                                   std::span<const ValueId> wanted, uint64_t seed = 0);

}  // namespace shardrun
