// Forward: a model's forward pass alone, planned and run for run_model and sample.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/resume.h"
#include "exec/executor.h"
#include "model.h"
#include "plan/plan.h"
#include "ranks/rank_device.h"

namespace shardrun {

struct ForwardRequest {
  OnnxModel model;
  ModelOptions options;
  /// Whose parameters it takes. The file is then imported as that run did, so that its tensors have
  /// the names of the checkpoint; else as it stands, and its own dropout and statistics are off.
  const Resumed* trained = nullptr;
  std::vector<std::string> outputs = {};         // names; empty: all
  std::map<std::string, Tensor> constants = {};  // inputs that are always these
  /// Another form of the graph, before it is laid out for speed: a step that takes one token, say.
  std::function<Graph(const Graph&)> reshape = nullptr;
};

/// Throws invalid_input where both a checkpoint and weights are named.
void check_parameters_of_call(const std::string& checkpoint, const std::string& weights);
/// The checkpoint that rank 0 finds the path to mean (open_newest), open on every rank; nothing for
/// "". Collective.
std::optional<Resumed> open_on_all(World& world, const std::string& checkpoint);

/// What the checkpoint's run was asked for, but for what says how a call of the model is made:
/// dims, batch, ops, dtype and seed are those given.
ModelOptions as_trained(const ModelOptions& given, const Resumed& trained);
/// Symbolic dims that are not bound, first dims apart, get the sizes that the run had bound.
void bind_as_trained(const OnnxFile& model, const Resumed& trained, ModelOptions& options);

/// A Model whose step is the forward pass: Graph::outputs are those asked for, under the file's
/// names, and stay as a plan cuts them. No loss, no dropout, batch normalisation by running
/// statistics. Throws Failure(call), also for a checkpoint of another model. Collective.
Model load_forward(World& world, const ForwardRequest& request);
/// The same for load_model, of this process. `first`: as take_weights has it.
std::unique_ptr<Model::Impl> build_forward(const ForwardRequest& request, bool first);
/// The same graph by this process alone, not planned for: its outputs' types say what depends on
/// what a dim is bound to.
Graph forward_graph(const ForwardRequest& request);

/// One rank's executor of it, with its shards of the parameters. Collective.
class ForwardRank {
 public:
  ForwardRank(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
              const Resumed* trained);
  Executor& executor() { return executor_; }
  const Program& program() const { return executor_.program(); }
  /// Every rank's arena.
  std::vector<int64_t> allocated_bytes();

 private:
  Communicator& host_;
  Executor executor_;
};

}  // namespace shardrun
