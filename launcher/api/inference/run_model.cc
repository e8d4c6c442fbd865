// The forward pass of a model over arrays, turn by turn, into a file.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "call_back.h"
#include "exec/data/array_file.h"
#include "explain/names.h"
#include "files.h"
#include "graph/optimizer.h"
#include "inference/forward.h"
#include "inference/run_inputs.h"
#include "ranks/backend.h"
#include "ranks/ranks.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "shardrun/inference.h"
#include "train/batches.h"

namespace shardrun {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of an output, from a rank to the file

void require_same_request(World& world, const RunModelRequest& r) {
  require_same(world, "run_model",
               {{"a checkpoint", !r.checkpoint.empty()}, {"outputs", r.outputs}});
}

/// What can be looked at before anything takes long.
void check(const RunModelRequest& r) {
  SR_REQUIRE(!r.input.empty(), invalid_input,
             "--input: names no file; give an .npy or .npz with the model's inputs");
  SR_REQUIRE(!r.output.empty(), invalid_input,
             "--output: names no file; give an .npz for the model's outputs");
  SR_REQUIRE(r.output.ends_with(".npz") || r.output.ends_with(".npy"), invalid_input, "--output ",
             r.output, ": ends in neither .npz nor .npy");
  check_parameters_of_call(r.checkpoint, r.options.weights);
  std::vector<NamedFile> read = {{"--input", r.input}};
  for (const std::string& file : model_files(r.model)) read.push_back({"the model", file});
  for (const std::string& file : weight_files(r.options.weights))
    read.push_back({"--weights", file});
  check_files({{"--output", r.output}}, read);
}

/// Those batch inputs that a node or an output reads.
std::vector<BatchField> fields_read(const Graph& graph) {
  std::vector<bool> read(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.inputs) read[static_cast<size_t>(id)] = true;
  }
  for (ValueId id : graph.outputs) read[static_cast<size_t>(id)] = true;
  std::vector<BatchField> fields = batch_fields(graph);
  std::erase_if(fields, [&](const BatchField& field) {
    return !read[static_cast<size_t>(graph.find(field.name))];
  });
  return fields;
}

/// numpy has no bf16.
DType stored_as(DType dtype) { return dtype == DType::bf16 ? DType::f32 : dtype; }

/// An output over all turns.
struct Output {
  std::string name;
  TensorType type;       // of a turn
  bool samples = false;  // does its first dim count them?
};

/// Throws where outputs of several turns, or of one that is not full, cannot be put together.
std::vector<Output> find_outputs(const Model::Impl& model, const Turns& turns,
                                 const ForwardRequest& request) {
  const Graph& graph = model.train;
  std::vector<Output> out;
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    out.push_back({model.outputs[i], graph.type(graph.outputs[i]), false});
  if (!turns.divide()) return out;
  // What depends on how many samples a turn has shows where it has one more.
  std::vector<Shape> other;
  if (turns.symbolic) {
    ForwardRequest more = request;
    more.options.batch = turns.batch + 1;
    for (auto& [symbol, size] : more.options.dims) {
      if (turns.symbols.count(symbol) > 0) size = turns.batch + 1;
    }
    try {
      const Graph graph = forward_graph(more);
      for (ValueId id : graph.outputs) other.push_back(graph.type(id).shape);
    } catch (const Error&) {  // it is for this size alone, whatever its dims say
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Shape& shape = out[i].type.shape;
    out[i].samples = !shape.empty() && shape[0] == turns.batch &&
                     (other.empty() || other[i][0] == turns.batch + 1);
    SR_REQUIRE(out[i].samples, invalid_input, "output '", out[i].name, "' ", out[i].type,
               " has no dim that counts samples, so ", turns.samples, " of them, ", turns.batch,
               " a turn, do not make one; leave it out with --outputs",
               turns.symbolic
                   ? str(", or take all in one turn with --batch ", turns.samples)
                   : str(", or give as many samples as the model is for, ", turns.batch));
  }
  return out;
}

std::vector<ArrayFile::Array> arrays_of(const std::vector<Output>& outputs, const Turns& turns) {
  std::vector<ArrayFile::Array> out;
  for (const Output& output : outputs) {
    TensorType type = {stored_as(output.type.dtype), output.type.shape};
    if (output.samples) type.shape[0] = turns.samples;
    out.push_back({output.name, std::move(type)});
  }
  return out;
}

/// Brings what ranks hold of the outputs of a turn to rank 0, piece by piece, and into the file.
class Gathering {
 public:
  /// `file`: on rank 0.
  Gathering(ForwardRank& rank, Device& device, Communicator& host,
            const std::vector<Output>& outputs, const Turns& turns, ArrayFile* file)
      : rank_(rank), device_(device), host_(host), outputs_(outputs), turns_(turns), file_(file) {}

  void take(int64_t turn) {
    for (size_t i = 0; i < outputs_.size(); ++i) take(turn, i);
  }
  /// The first number that is none, of every output that has one: "output 'logits' …".
  const std::vector<std::string>& not_numbers() const { return not_numbers_; }

 private:
  void take(int64_t turn, size_t i) {
    const Binding& own = rank_.program().outputs[i];
    const Mesh& mesh = rank_.program().mesh;
    const std::vector<TensorView> there = {rank_.executor().view(own)};
    const HostViews shown(device_, there);
    const auto* shard = static_cast<const char*>(shown.views()[0].data);
    const int64_t width = size_of(outputs_[i].type.dtype);
    std::vector<Box> seen;
    for (int64_t from = 0; from < mesh.size(); ++from) {
      Box box = local_box(own.global.shape, own.sharding, mesh, mesh.coordinates(from));
      if (std::find(seen.begin(), seen.end(), box) != seen.end()) continue;  // a replica
      seen.push_back(box);
      for_pieces(box, std::max<int64_t>(1, kPieceBytes / width),
                 [&](const Box& part, int64_t first) {
                   const int64_t bytes = count(part) * width;
                   const char* piece = shard + first * width;
                   if (from != 0 && host_.rank() == from) host_.send(piece, bytes, 0);
                   if (host_.rank() != 0) return;
                   if (from != 0) {
                     received_.resize(static_cast<size_t>(bytes));
                     host_.recv(received_.data(), bytes, static_cast<int>(from));
                     piece = received_.data();
                   }
                   write(turn, i, part, piece);
                 });
    }
  }

  static int64_t count(const Box& box) { return element_count(box_shape(box)); }

  /// But for the copies behind the last sample.
  void write(int64_t turn, size_t i, Box box, const char* piece) {
    if (outputs_[i].samples) {
      const int64_t first = turn * turns_.batch;
      box[0].size = std::min(box[0].size, turns_.samples - first - box[0].begin);
      if (box[0].size <= 0) return;
      box[0].begin += first;
    }
    const DType dtype = outputs_[i].type.dtype, stored = stored_as(dtype);
    if (stored != dtype) {
      converted_.resize(static_cast<size_t>(count(box) * size_of(stored)));
      convert(piece, dtype, converted_.data(), stored, count(box));
      piece = converted_.data();
    }
    if (stored == DType::f32) look_for_nan(i, box, piece);
    file_->write(i, box, piece);
  }

  void look_for_nan(size_t i, const Box& box, const char* piece) {
    if (found_nan_.size() < outputs_.size()) found_nan_.resize(outputs_.size(), false);
    if (found_nan_[i]) return;
    const Shape shape = box_shape(box);
    for (int64_t e = 0, n = count(box); e < n; ++e) {
      float value = 0;
      std::memcpy(&value, piece + e * 4, 4);
      if (!std::isnan(value)) continue;
      found_nan_[i] = true;
      std::string at;
      const Shape strides = row_major_strides(shape);
      for (size_t d = 0; d < shape.size(); ++d)
        at += str(at.empty() ? "" : ", ", box[d].begin + e / strides[d] % shape[d]);
      not_numbers_.push_back(str("output '", outputs_[i].name, "' has NaN, first at [", at, "]"));
      return;
    }
  }

  ForwardRank& rank_;
  Device& device_;
  Communicator& host_;
  const std::vector<Output>& outputs_;
  const Turns& turns_;
  ArrayFile* file_;
  std::vector<char> received_, converted_;
  std::vector<bool> found_nan_;
  std::vector<std::string> not_numbers_;
};

/// What the run that wrote the checkpoint did to its inputs, and this one does not; "": nothing.
std::string changed_in_training(const std::string& checkpoint) {
  const TrainOptions run = read_trained_run(checkpoint).train;
  if (run.normalise.empty() && run.augment.empty()) return "";
  return str("--input is taken as it is, but the model was trained with ",
             run.normalise.empty() ? "--augment " + run.augment : "--normalise " + run.normalise,
             ": give arrays as that made them (docs/training.md, 'Preprocessing')");
}

/// Reads a turn's batch into the rank's shards, and runs it.
void take_turn(Executor& executor, const RunInputs& inputs, int64_t turn) {
  executor.begin_step();
  executor.set_scalar(kRandomStep, turn);
  for (const BatchField& field : inputs.fields()) {
    const Binding* binding = executor.find(field.name);
    if (binding == nullptr) continue;
    executor.fill(*binding, [&](void* shard) { inputs.read(turn, field, binding->box, shard); });
  }
  executor.run_micro();
}

}  // namespace

RunModelReport run_model(World& world, const RunModelRequest& r) {
  require_same_request(world, r);
  std::optional<GivenArrays> arrays;
  decide_on_rank0(world, [&] {
    check(r);
    arrays.emplace(r.input);
    return std::string();
  });
  const std::optional<Resumed> trained = open_on_all(world, r.checkpoint);
  ForwardRequest request{r.model, r.options, trained ? &*trained : nullptr, r.outputs};
  Turns turns;
  at_boundary([&] {
    if (!arrays) arrays.emplace(r.input);
    if (trained) request.options = as_trained(r.options, *trained);
  });
  const auto bind = [&] {
    turns = bind_to_arrays(r.model.file(), *arrays, request.options);
    if (trained) bind_as_trained(r.model.file(), *trained, request.options);
    return std::string();
  };
  decide_on_rank0(world, bind);
  if (!world.leader()) at_boundary(bind);
  const Model model = load_forward(world, request);
  std::optional<RunInputs> inputs;
  std::vector<Output> outputs;
  const auto look = [&] {
    inputs.emplace(*arrays, fields_read(model.impl().train),
                   r.model.file().declared_inputs().size(), turns);
    outputs = find_outputs(model.impl(), turns, request);
    return std::string();
  };
  decide_on_rank0(world, look);
  if (!inputs) at_boundary(look);
  std::optional<ArrayFile> file;  // rank 0's
  decide_on_rank0(world, [&] {
    file.emplace(r.output, arrays_of(outputs, turns));
    return std::string();
  });
  const TrainingPlan plan = make_plan(world, model, r.plan);
  at_boundary([&] { require_fits("run_model", world, model.impl(), plan.impl()); });
  const auto note = [&](const std::string& text) {
    if (world.leader()) call_back(r.on_note, text);
  };
  for (const std::string& text : model.notes()) note(text);
  if (trained && world.leader()) {
    if (const std::string text = changed_in_training(r.checkpoint); !text.empty()) note(text);
  }
  note(plan.summary());

  RunModelReport report;
  report.samples = turns.samples;
  report.turns = turns.count();
  report.predicted_bytes = plan.predicted_bytes();
  for (const ArrayFile::Array& array : arrays_of(outputs, turns))
    report.outputs.push_back(str(array.name, " ", array.type));
  run_ranks(world, [&](Communicator& comm) {
    name_places(comm, plan.impl().train.mesh);
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    if (world.impl().timeout) on->comm().set_timeout(*world.impl().timeout);
    on->agree([&] {
      ForwardRank first(*on, model.impl(), plan.impl(), nullptr);
      take_turn(first.executor(), *inputs, 0);
    });
    ForwardRank rank(*on, model.impl(), plan.impl(), trained ? &*trained : nullptr);
    Gathering gathering(rank, on->device(), on->comm().host(), outputs, turns,
                        comm.rank() == 0 ? &*file : nullptr);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t turn = 0; turn < turns.count(); ++turn) {
      take_turn(rank.executor(), *inputs, turn);
      gathering.take(turn);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::vector<int64_t> allocated = rank.allocated_bytes();
    if (comm.rank() != 0) return;
    file->finish();
    report.seconds = seconds.count();
    report.allocated_bytes = allocated;
    for (const std::string& text : gathering.not_numbers()) note(text);
  });
  return report;
}

}  // namespace shardrun
