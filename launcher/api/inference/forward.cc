// From a file to a forward pass, and to a rank that runs it.
#include "inference/forward.h"

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "choices.h"
#include "exec/checkpoint/layout.h"
#include "graph/optimizer.h"
#include "graph/passes/channels_last.h"
#include "graph/passes/movement.h"
#include "graph/passes/node_order.h"
#include "graph/passes/recognise/recognise.h"
#include "graph/passes/training.h"
#include "graph/passes/training_step.h"
#include "ranks/backend.h"
#include "ranks/process_limit.h"
#include "ranks/world.h"
#include "user_op/user_op.h"

namespace shardrun {
namespace {

/// Graph::outputs, and their names, become those that are wanted.
void choose_outputs(Graph& graph, std::vector<std::string>& names,
                    const std::vector<std::string>& wanted) {
  if (wanted.empty()) return;
  std::vector<ValueId> outputs;
  for (const std::string& name : wanted) {
    const auto at = std::find(names.begin(), names.end(), name);
    std::string all;
    for (const std::string& known : names) all += (all.empty() ? "'" : ", '") + known + "'";
    SR_REQUIRE(at != names.end(), invalid_input, "no output is called '", name, "'; the model has ",
               all);
    outputs.push_back(graph.outputs[static_cast<size_t>(at - names.begin())]);
  }
  graph.outputs = std::move(outputs);
  names = wanted;
}

void name_outputs(Graph& graph, const std::vector<std::string>& names,
                  std::vector<PlacedNode>& placed) {
  std::vector<std::pair<ValueId, std::string>> before;
  for (ValueId id : graph.outputs) before.emplace_back(id, graph.value(id).name);
  name_outputs(graph, names);
  for (const auto& [id, name] : before) {
    if (graph.value(id).name != name) rename_placed(placed, name, graph.value(id).name);
  }
}

/// Every weight of the run is one of the model. (What its loss does not depend on it may lack.)
void check_is_of(const Resumed& trained, const Graph& graph) {
  const Manifest& manifest = trained.checkpoint.manifest();
  std::map<std::string, TensorType> own;
  for (const KeptValue& value : kept_values(graph)) own[value.name] = value.type;
  for (const Manifest::Tensor& tensor : manifest.tensors) {
    const auto& [name, type] = tensor.value;
    if (manifest.find(parameter_of_state(name)) != nullptr) continue;  // the optimizer's
    const auto found = own.find(name);
    SR_REQUIRE(found != own.end(), invalid_input, trained.checkpoint.path(), ": has '", name, "' (",
               type, "), which the model does not have; it is of another model");
    SR_REQUIRE(found->second == type, invalid_input, trained.checkpoint.path(), ": '", name,
               "' is ", type, ", the model's is ", found->second, "; it is of another model");
  }
}

ModelOptions options_of_run(const Resumed& trained) {
  return model_options_of(trained.state.options,
                          str(trained.checkpoint.path(), "/", Manifest::kFile, ": run.options"));
}

}  // namespace

std::unique_ptr<Model::Impl> build_forward(const ForwardRequest& request, bool first) {
  const double begin = thread_seconds();
  auto impl = std::make_unique<Model::Impl>();
  impl->onnx = request.model;
  impl->path = request.model.path();
  impl->options = request.options;
  check_model_options(impl->options);
  for (const std::string& library : impl->options.ops) load_ops(library);
  ImportOptions import = import_options(impl->options);
  take_weights(impl->options, import, first);
  import.training = request.trained != nullptr || import.weights != nullptr;
  import.has_own_loss = request.trained != nullptr && import.has_own_loss;
  import.constants = request.constants;
  ImportReport report;
  Graph graph = request.model.file().import(import, &report);
  graph.name = impl->path;
  try {
    if (request.trained != nullptr) check_is_of(*request.trained, graph);
    impl->outputs = report.outputs;
    choose_outputs(graph, impl->outputs, request.outputs);
    recognise(graph);
    put_channels_last(graph);
    graph.loss = kNoValue;
    graph.metrics.clear();
    graph = evaluation_form(graph);
    name_outputs(graph, impl->outputs, report.placed);
    graph.outputs_stay_cut = true;
    remove_dead_nodes(graph);
    if (parse_compute_type(impl->options.dtype) == DType::bf16) graph = in_bf16(graph);
    if (request.reshape) {
      reshape_before_transposes(graph);
      remove_no_ops(graph);
      fold_transposes(graph);
      graph = request.reshape(graph);
    }
    remove_movement(graph);
    merge_equal_nodes(graph);
    order_for_memory(graph);
    for (std::string& note : check_user_ops(graph)) impl->notes.push_back(std::move(note));
    if (request.trained != nullptr) {
      check_holds(request.trained->checkpoint.manifest(), kept_values(graph), Holds::at_least,
                  request.trained->checkpoint.path());
    }
  } catch (const Error& e) {
    throw e.with_context(impl->path);
  }
  impl->annotations = std::move(report.annotations);
  impl->placed = std::move(report.placed);
  impl->train = std::move(graph);
  impl->no_training = "its step is the forward pass alone";
  impl->import_seconds = thread_seconds() - begin;
  return impl;
}

void check_parameters_of_call(const std::string& checkpoint, const std::string& weights) {
  SR_REQUIRE(checkpoint.empty() || weights.empty(), invalid_input, "--resume ", checkpoint,
             " and --weights ", weights, ": both have the parameters; leave out one of the two");
}

std::optional<Resumed> open_on_all(World& world, const std::string& checkpoint) {
  if (checkpoint.empty()) return std::nullopt;
  const std::string path =
      decide_on_rank0(world, [&] { return open_newest(checkpoint).checkpoint.path(); });
  return at_boundary([&] { return std::optional(open_resumed(path)); });
}

ModelOptions as_trained(const ModelOptions& given, const Resumed& trained) {
  ModelOptions out = options_of_run(trained);
  out.accumulate = 1;
  out.dims = given.dims;
  out.batch = given.batch;
  out.ops = given.ops;
  out.dtype = given.dtype;
  out.seed = given.seed;
  return out;
}

void bind_as_trained(const OnnxFile& model, const Resumed& trained, ModelOptions& options) {
  const std::map<std::string, int64_t> bound = options_of_run(trained).dims;
  for (const SymbolicDim& dim : model.symbolic_dims()) {
    const auto size = bound.find(dim.name);
    if (dim.axis != 0 && size != bound.end()) options.dims.try_emplace(dim.name, size->second);
  }
}

Model load_forward(World& world, const ForwardRequest& request) {
  return build_on_all(world, [&](bool first) { return build_forward(request, first); });
}

Graph forward_graph(const ForwardRequest& request) {
  return std::move(build_forward(request, false)->train);
}

namespace {

/// A rank's program, for which its process has memory.
Program program_that_fits(RankDevice& on, const Model::Impl& model,
                          const TrainingPlan::Impl& plan) {
  Program program = compile_for_rank(model, plan, on.comm().rank()).train;
  require_process_fits(on.comm().host(), plan.process_limit, program.arena_bytes,
                       plan.process_ranks);
  return program;
}

}  // namespace

ForwardRank::ForwardRank(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
                         const Resumed* trained)
    : host_(on.comm().host()),
      executor_(program_that_fits(on, model, plan), backend().kernels, on.comm(),
                model.options.seed, nullptr, /*initialise=*/trained == nullptr, on.device()) {
  if (trained == nullptr) return;
  executor_.initialise(model.options.seed,
                       [](const Binding& b) { return !is_kept(b.role, b.zeroed_each_step); });
  restore_or_offer_older(trained->checkpoint, on.comm(),
                         [&] { trained->checkpoint.restore(executor_, host_); });
}

std::vector<int64_t> ForwardRank::allocated_bytes() {
  std::vector<int64_t> all(static_cast<size_t>(host_.size()));
  const int64_t mine = executor_.allocated_bytes();
  host_.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DType::i64);
  return all;
}

}  // namespace shardrun
