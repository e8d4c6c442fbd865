// From an ONNX file to a training step.
#include "model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/printable.h"
#include "base/regex.h"
#include "checkpoint/weights.h"
#include "choices.h"
#include "contents.h"
#include "exec/data/data.h"
#include "graph/onnx/import.h"
#include "graph/optimizer.h"
#include "graph/passes/training_step.h"
#include "graph/plan.h"
#include "inference/forward.h"
#include "inference/token_step.h"
#include "kernels/kernel.h"
#include "option_json.h"
#include "plan/micro_batches.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "train/batches.h"
#include "user_op/user_op.h"

namespace shardrun {
namespace {

/// Does some input's first dim wait for a batch size? Throws if it got two.
bool wants_batch(const OnnxFile& file, const ModelOptions& options) {
  const std::vector<SymbolicDim> dims = file.symbolic_dims();
  for (const SymbolicDim& dim : dims) {
    const auto bound = options.dims.find(dim.name);
    if (!options.batch || dim.axis != 0 || bound == options.dims.end()) continue;
    SR_REQUIRE(bound->second == *options.batch, invalid_input, file.path(), ": dim '", dim.name,
               "' is bound to ", bound->second, " by its name, and as the batch to ",
               *options.batch, "; give one of the two");
  }
  if (options.batch) return false;
  return std::any_of(dims.begin(), dims.end(), [&](const SymbolicDim& dim) {
    return dim.axis == 0 && options.dims.count(dim.name) == 0;
  });
}

/// Do first dims of different names have arrays of different sizes? Then these are no samples, but
/// one batch: words and where their bags begin, nodes and edges.
bool differ_in_first_dims(const std::vector<SymbolicDim>& dims, const DataShapes& shapes) {
  std::map<std::string, int64_t> sizes;
  for (const SymbolicDim& dim : dims) {
    const auto shape = shapes.of.find(dim.input);
    if (dim.axis == 0 && shape != shapes.of.end() && !shape->second.empty())
      sizes.emplace(dim.name, shape->second[0]);
  }
  return std::any_of(sizes.begin(), sizes.end(),
                     [&](const auto& size) { return size.second != sizes.begin()->second; });
}

/// Binds symbolic dims that nothing else binds to the sizes of the data's arrays: all of them where
/// the arrays are one batch, else all but the first of each input, which counts samples.
void bind_to_data(const OnnxFile& file, ModelOptions& options) {
  const std::vector<SymbolicDim> dims = file.symbolic_dims();
  if (dims.empty() || options.data.empty()) return;
  std::vector<std::string> inputs;
  inputs.reserve(dims.size());
  for (const SymbolicDim& dim : dims) inputs.push_back(dim.input);
  const DataShapes shapes = data_shapes(options.data, inputs);
  const bool whole = shapes.whole || differ_in_first_dims(dims, shapes);
  std::map<std::string, std::string> bound_by;
  for (const SymbolicDim& dim : dims) {
    const auto shape = shapes.of.find(dim.input);
    const bool batch = dim.axis == 0 && (!whole || options.batch);
    if (shape == shapes.of.end() || batch ||
        dim.axis >= static_cast<int64_t>(shape->second.size())) {
      continue;
    }
    const int64_t size = shape->second[static_cast<size_t>(dim.axis)];
    SR_REQUIRE(size > 0, invalid_input, "--data ", options.data, ": dim '", dim.name,
               "' is 0 in the array for '", dim.input, "', wanted at least 1");
    const auto [it, fresh] = options.dims.try_emplace(dim.name, size);
    if (fresh) bound_by[dim.name] = dim.input;
    SR_REQUIRE(fresh || it->second == size || !bound_by.count(dim.name), invalid_input, "--data ",
               options.data, ": dim '", dim.name, "' is ", it->second, " in the array for '",
               bound_by[dim.name], "', but ", size, " in that for '", dim.input, "'");
  }
}

}  // namespace

bool takes_any_batch(const OnnxFile& file, ModelOptions options) {
  options.batch.reset();
  bind_to_data(file, options);
  return wants_batch(file, options);
}

ImportOptions import_options(const ModelOptions& options) {
  ImportOptions out;
  out.dims = options.dims;
  out.batch = options.batch;
  out.seed = options.seed;
  out.freeze = options.freeze;
  out.train = options.train;
  out.train_only = options.train_only;
  out.loss_output = options.loss_output;
  out.has_own_loss = options.loss.empty();
  out.evaluate = run_reference;
  if (!options.data.empty()) {
    out.contents = [data = options.data, sorted = options.sort_edges](
                       const std::string& input, const std::vector<std::string>& inputs) {
      return data_contents(data, input, inputs, sorted);
    };
  }
  if (!options.shared.empty()) out.shared = parse_choice("shared", kSharedWeights, options.shared);
  if (!options.mode.empty()) out.mode = parse_choice("mode", kModes, options.mode);
  SR_REQUIRE(options.loss.empty() || options.loss_output.empty(), invalid_input, "loss '",
             options.loss, "' is computed on the first output, and loss-output '",
             options.loss_output, "' is one already; leave out one of the two");
  out.statistics =
      parse_choice("running statistics", kRunningStatistics, options.running_statistics);
  return out;
}

namespace {

using Contents = decltype(ImportOptions::contents);

/// `contents`, and whether it had any: then `found` is true.
Contents noting(Contents contents, bool& found) {
  return [contents = std::move(contents), &found](const std::string& input,
                                                  const std::vector<std::string>& inputs) {
    std::optional<Tensor> out = contents(input, inputs);
    found = found || out;
    return out;
  };
}

/// Where an input became a constant, the other arrays are no samples that go with it, but one
/// batch.
void check_one_batch(const ModelOptions& options, const Graph& graph) {
  std::vector<std::string> names;
  const std::vector<BatchField> fields = batch_fields(graph);
  names.reserve(fields.size());
  for (const BatchField& field : fields) names.push_back(field.name);
  const DataShapes shapes = data_shapes(options.data, names);
  for (const BatchField& field : fields) {
    const auto shape = shapes.of.find(field.name);
    SR_REQUIRE(shape == shapes.of.end() || shape->second == field.type.shape, invalid_input,
               "--data ", options.data, ": the array for '", field.name, "' is ",
               to_string(shape->second), ", but the model's input is ", to_string(field.type.shape),
               "; a graph is one batch: export the model for its sizes, or with dynamic dims");
  }
}

/// The targets of data that are one batch, whose splits differ in which of these count; else none.
std::vector<std::string> targets_of_one_batch(const ModelOptions& options, const Graph& graph) {
  if (options.data.empty()) return {};
  const std::vector<BatchField> fields = batch_fields(graph);
  std::vector<std::string> names, targets;
  for (const BatchField& field : fields) {
    names.push_back(field.name);
    if (field.role == BatchField::Role::target) targets.push_back(field.name);
  }
  const DataShapes shapes = data_shapes(options.data, names);
  for (const BatchField& field : fields) {
    const auto shape = shapes.of.find(field.name);
    if (shape != shapes.of.end() && shape->second != field.type.shape) return {};
  }
  return shapes.whole ? targets : std::vector<std::string>();
}

/// Of nothing every sum is 0: such a model would seem to train.
void check_sizes(const Graph& graph) {
  for (ValueId id : graph.with_role(Role::batch)) {
    const TensorType& type = graph.type(id);
    const auto zero = std::find(type.shape.begin(), type.shape.end(), 0);
    SR_REQUIRE(zero == type.shape.end(), invalid_input, "input '", graph.value(id).name, "' is ",
               type, ": a dim of 0 leaves nothing to learn from; give it a size");
  }
}

/// A pattern that matches nothing is a slip of the hand: what it was to freeze would be trained.
void check_patterns(const char* flag, const std::vector<std::string>& patterns, const Graph& graph,
                    const ImportReport& report) {
  std::vector<std::string> names;
  for (const auto* list : {&report.parameters, &report.constants}) {
    for (const ImportReport::Parameter& p : *list) {
      names.push_back(p.name);
      names.insert(names.end(), p.other_names.begin(), p.other_names.end());
    }
  }
  for (const Value& value : graph.values()) {
    if (is_persistent(value.role)) names.push_back(value.name);
  }
  names.insert(names.end(), report.gone.begin(), report.gone.end());
  Regexes regexes(flag, patterns);
  const std::string* unmatched = regexes.first_in_none(names);
  SR_REQUIRE(unmatched == nullptr, invalid_input, flag, " '", *unmatched,
             "': no parameter's name matches; --verbose lists them");
}

OptimizerKind optimizer_of(const ModelOptions& options) {
  return parse_choice("optimizer", kOptimizers, options.optimizer);
}

/// AdamW is the optimizer of language models, and who trains those clips at 1.
double clip_of(const ModelOptions& options) {
  return options.clip.value_or(optimizer_of(options) == OptimizerKind::adamw ? 1 : 0);
}

std::optional<LossKind> loss_of(const ModelOptions& options) {
  if (options.loss.empty()) return std::nullopt;
  return parse_choice("loss", kLosses, options.loss);
}

/// A note for each pattern of --freeze that matches something, but nothing that would be trained
/// without it.
void note_idle_patterns(const std::vector<std::string>& patterns, ImportReport& report) {
  std::vector<std::string> frozen;
  for (const ImportReport::Parameter& p : report.parameters) {
    if (!p.is_frozen) continue;
    frozen.push_back(p.name);
    frozen.insert(frozen.end(), p.other_names.begin(), p.other_names.end());
  }
  for (const std::string& pattern : patterns) {
    if (Regexes("--freeze", {pattern}).first_in_none(frozen) == nullptr) continue;
    report.notes.push_back(
        str("--freeze '", pattern, "' freezes nothing: what it matches is not trained anyway"));
  }
}

OptimizerOptions optimizer_options(const ModelOptions& options) {
  OptimizerOptions out;
  out.kind = optimizer_of(options);
  out.beta1 = options.beta1;
  out.beta2 = options.beta2;
  out.eps = options.eps;
  out.momentum = options.momentum;
  out.nesterov = options.nesterov;
  out.weight_decay = options.weight_decay;
  out.decay_all = options.decay_all;
  out.clip_norm = clip_of(options);
  out.accumulate = *options.accumulate;
  return out;
}

std::string recognised_note(const Recognised& counts) {
  std::string out;
  auto add = [&](int count, const char* what) {
    if (count > 0) out += str(out.empty() ? "recognised: " : ", ", count, " ", what);
  };
  add(counts.attention, "attention");
  add(counts.segment_softmax, "segment softmax");
  add(counts.layer_norm, "layer norm");
  add(counts.gelu, "gelu");
  add(counts.dropout, "dropout in pieces");
  add(counts.projections, "fused projections");
  add(counts.picked_weights, "products with picked weights");
  add(counts.batch_norm, "batch norm with relu");
  return out;
}

/// "the layers 'enc.0', 'enc.1'" that parameters belong to; those of no layer by their names.
std::string layers_of(const std::vector<std::string>& parameters) {
  std::vector<std::string> layers;
  for (const std::string& name : parameters) {
    const size_t dot = name.rfind('.');
    std::string layer = "'" + (dot == std::string::npos ? name : name.substr(0, dot)) + "'";
    if (std::find(layers.begin(), layers.end(), layer) == layers.end())
      layers.push_back(std::move(layer));
  }
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t i = 0; i < std::min(layers.size(), kShown); ++i)
    out += (i == 0 ? "" : ", ") + layers[i];
  return layers.size() > kShown ? str(out, " and ", layers.size() - kShown, " more") : out;
}

/// What will not learn though nobody froze it: by import's report, and by the graph with its loss.
std::string unreached_note(const ImportReport& report, const std::vector<std::string>& unreached) {
  std::vector<std::string> all = report.unreached;
  all.insert(all.end(), unreached.begin(), unreached.end());
  if (all.empty()) return "";
  constexpr size_t kShown = 3;
  std::string stops;
  bool meant = true;  // are they all detach()?
  for (size_t i = 0; i < report.gradient_stops.size(); ++i) {
    const std::string& stop = report.gradient_stops[i];
    meant = meant && stop.starts_with("detach()");
    if (i < kShown) stops += (i == 0 ? "; none passes " : ", ") + stop;
    if (i == kShown) stops += " …";
  }
  if (!meant) {
    stops +=
        " (what a custom function does backward is not in the file: write a straight-through "
        "estimator as x + (f(x) - x).detach())";
  }
  return str("no gradient of the loss reaches ", layers_of(all), ": ", all.size(),
             all.size() == 1 ? " parameter does not learn" : " parameters do not learn", stops);
}

/// Samples that the graph takes at once; 0: it takes none.
int64_t samples_of(const Graph& graph) {
  const std::vector<BatchField> fields = batch_fields(graph);
  return fields.empty() || fields[0].type.shape.empty() ? 0 : fields[0].type.shape[0];
}

/// People know outputs by their names in the file.
void name_as_in_file(Graph& graph, const ImportReport& report, std::vector<PlacedNode>& placed) {
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    Value& output = graph.value(graph.outputs[i]);
    if (output.role != Role::computed || graph.find(report.outputs[i]) != kNoValue) continue;
    rename_placed(placed, output.name, report.outputs[i]);
    output.name = report.outputs[i];
  }
}

/// From the imported graph to the training step, with what people are shown of it.
void make_step(Graph graph, const ImportReport& report, Model::Impl& impl) {
  impl.options.accumulate = count_micro_batches(impl.options, samples_of(graph));
  if (impl.options.keep_outputs) impl.outputs = report.outputs;
  TrainingStepOptions options;
  options.loss = loss_of(impl.options);
  if (!report.outputs.empty()) options.first_output = report.outputs[0];
  options.optimizer = optimizer_options(impl.options);
  options.bf16 = parse_compute_type(impl.options.dtype) == DType::bf16;
  options.cut_keys = impl.options.cut_keys;
  options.outputs = impl.outputs;
  options.test_targets = [&](const Graph& evaluation) {
    return targets_of_one_batch(impl.options, evaluation);
  };
  TrainingStep step = make_training_step(std::move(graph), options);
  impl.train = std::move(step.train);
  impl.evaluation = std::move(step.evaluation);

  impl.notes.insert(impl.notes.end(), report.notes.begin(), report.notes.end());
  for (std::string note :
       {recognised_note(step.recognised), step.loss_note, unreached_note(report, step.unreached)}) {
    if (!note.empty()) impl.notes.push_back(std::move(note));
  }
  for (std::string& note : check_user_ops(impl.train)) impl.notes.push_back(std::move(note));

  for (const ImportReport::Parameter& p : report.parameters) {
    const bool reached =
        std::find(step.unreached.begin(), step.unreached.end(), p.name) == step.unreached.end();
    std::string why = reached ? p.why : "the loss does not depend on it";
    for (const std::string& name : p.other_names) why += str("; also '", name, "'");
    impl.parameters.push_back({p.name, to_string(p.type), std::move(why), p.trainable && reached});
  }
  for (const ImportReport::Parameter& p : report.constants)
    impl.parameters.push_back({p.name, to_string(p.type), p.why, false});
}

}  // namespace

void check_model_options(const ModelOptions& o) {
  parse_compute_type(o.dtype);
  loss_of(o);
  auto in_range = [](const char* name, double value, double low, double high) {
    SR_REQUIRE(value >= low && value < high, invalid_input, name, " is ", value,
               ", wanted at least ", low, " and below ", high);
  };
  in_range("beta1", o.beta1, 0, 1);
  in_range("beta2", o.beta2, 0, 1);
  in_range("momentum", o.momentum, 0, 1);
  in_range("eps", o.eps, 0, 1);
  in_range("weight decay", o.weight_decay, 0, 1e6);
  in_range("clip", clip_of(o), 0, 1e30);
  SR_REQUIRE(o.weights_except.empty() || !o.weights.empty(), invalid_input, "--weights-except '",
             o.weights_except[0], "': wants --weights with it");
  SR_REQUIRE(!o.batch || *o.batch >= 1, invalid_input, "batch is ", *o.batch, ", wanted 1 or more");
}

void take_weights(ModelOptions& options, ImportOptions& import, bool first) {
  if (options.weights.empty()) return;
  options.weights = weights_meant(options.weights);
  import.weights =
      std::make_shared<GivenWeights>(find_weights(options.weights, options.weights_except, first));
}

namespace {

/// The model as one that is only run: its forward pass, or the step that takes one token. `why` it
/// is not trained. `options`: with what file and data bind.
std::unique_ptr<Model::Impl> build_untrained(const OnnxModel& onnx, const ModelOptions& options,
                                             ModelStep step, const std::string& why, bool first) {
  const OnnxFile& file = onnx.file();
  SR_REQUIRE(options.accumulate.value_or(1) == 1, invalid_input, onnx.path(),
             ": --accumulate counts micro-batches of a training step; ", why);
  const bool token = step == ModelStep::token;
  ForwardRequest request;
  request.model = onnx;
  request.options = options;
  request.options.accumulate = 1;
  const bool assumed = wants_batch(file, options);
  if (assumed) request.options.batch = token ? 1 : kDefaultBatch;
  if (token) {
    for (const SymbolicDim& dim : file.symbolic_dims()) {
      if (dim.axis == 0 && request.options.batch)
        request.options.dims.try_emplace(dim.name, *request.options.batch);
    }
    request.constants = constant_inputs(file, request.options);
    request.reshape = token_step;
  }
  std::unique_ptr<Model::Impl> impl = build_forward(request, first);
  check_sizes(impl->train);
  impl->no_training = why;
  if (assumed)
    impl->notes.push_back(
        str("batch: ", *request.options.batch, " (assumed; set it with --batch)"));
  impl->notes.push_back(str(
      "inference plan: ",
      token ? "the step that takes one token and keeps keys and values" : "the forward pass alone",
      options.step.empty() ? "; " + why : ""));
  return impl;
}

std::unique_ptr<Model::Impl> build(const OnnxModel& onnx, ModelOptions options, bool first) {
  const double begin = thread_seconds();
  check_model_options(options);
  for (const std::string& library : options.ops) load_ops(library);
  const OnnxFile& file = onnx.file();
  const std::string& path = onnx.path();
  if (const std::optional<int64_t> asked = asked_batch(options);
      asked && takes_any_batch(file, options))
    options.batch = asked;
  bind_to_data(file, options);
  const ModelStep step =
      options.step.empty() ? ModelStep::train : parse_choice("step", kModelSteps, options.step);
  if (step != ModelStep::train)
    return build_untrained(onnx, options, step, "its step is --step " + options.step, first);
  auto impl = std::make_unique<Model::Impl>();
  impl->onnx = onnx;
  impl->path = path;
  impl->options = options;
  impl->options.clip = clip_of(options);
  if (!options.clip && *impl->options.clip > 0)
    impl->notes.push_back(str("clip: ", *impl->options.clip, " (assumed with ", options.optimizer,
                              "; --clip 0 leaves gradients as they are)"));
  ImportReport report;
  ImportOptions import = import_options(options);
  if (wants_batch(file, options)) {
    import.batch = kDefaultBatch;
    impl->notes.push_back(str("batch: ", kDefaultBatch, " (assumed; set it with --batch)"));
  }
  take_weights(options, import, first);
  impl->options.weights = options.weights;
  bool one_batch = false;
  if (import.contents) import.contents = noting(import.contents, one_batch);
  Graph graph = file.import(import, &report);
  graph.name = path;
  name_as_in_file(graph, report, report.placed);
  try {
    check_patterns("--freeze", options.freeze, graph, report);
    check_patterns("--train", options.train, graph, report);
    check_patterns("--train-only", options.train_only, graph, report);
    note_idle_patterns(options.freeze, report);
  } catch (const Error& e) {
    throw e.with_context(path);
  }
  const std::string no_loss =
      options.step.empty() && options.loss.empty() ? why_no_loss(graph) : "";
  if (!no_loss.empty()) {
    // Imported anew, and so parsed anew: for a forward pass import lowers other nodes.
    return build_untrained(onnx, options, ModelStep::forward, no_loss, first);
  }
  try {
    check_sizes(graph);
    impl->annotations = report.annotations;
    impl->placed = report.placed;
    make_step(std::move(graph), report, *impl);
    for (const std::string& name : report.given) {
      const ValueId id = impl->train.find(name);
      if (id == kNoValue || impl->train.value(id).role == Role::constant)
        impl->given_constants.push_back(name);
    }
    if (one_batch) check_one_batch(options, impl->train);
  } catch (const Error& e) {
    throw e.with_context(path);
  }
  for (std::string& note : impl->notes) note = printable(note);
  impl->import_seconds = thread_seconds() - begin;
  return impl;
}

}  // namespace

void require_trains(const char* call, const char* done, const Model::Impl& model) {
  SR_REQUIRE(model.no_training.empty(), invalid_input, call, ": ", model.path, " cannot be ", done,
             ": ", model.no_training);
}

OnnxModel::OnnxModel(const std::string& path) : file_(std::make_shared<const OnnxFile>(path)) {}
const std::string& OnnxModel::path() const { return file_->path(); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const std::vector<std::string>& Model::notes() const { return impl_->notes; }
const std::vector<ParameterInfo>& Model::parameters() const { return impl_->parameters; }
std::string Model::graph_text() const { return to_string(impl_->train); }

Model build_on_all(World& world,
                   const std::function<std::unique_ptr<Model::Impl>(bool first)>& build) {
  std::unique_ptr<Model::Impl> impl;
  decide_on_rank0(world, [&] {
    impl = build(true);
    return std::string();
  });
  if (!impl) impl = at_boundary([&] { return build(false); });
  require_same(world, "load_model", same_on_ranks(impl->options));
  require_same(world, "load_model",
               {{"a model whose step has the hash", str(std::hex, structural_hash(impl->train))}});
  if (world.impl().mpi && world.size() > 1) {
    at_boundary([&] {
      require_same(world, "load_model",
                   {{"weights whose contents have the hash", contents_hash(impl->train)}});
    });
  }
  return Model(std::move(impl));
}

Model load_model(World& world, const OnnxModel& onnx, const ModelOptions& options) {
  return build_on_all(world, [&](bool first) { return build(onnx, options, first); });
}

}  // namespace shardrun
