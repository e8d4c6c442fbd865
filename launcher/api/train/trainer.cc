// Trainer: what its caller gives and asks, to and from the ranks' trainers.
#include "shardrun/trainer.h"

#include <cmath>

#include "checkpoint/resume.h"
#include "checkpoint/trained_model.h"
#include "elements.h"
#include "exec/checkpoint/folder.h"
#include "exec/checkpoint/layout.h"
#include "exec/checkpoint/writer.h"
#include "plan/plan.h"
#include "ranks/same_call.h"
#include "train/batches.h"
#include "train/given_batches.h"
#include "train/rank_trainers.h"

namespace shardrun {
namespace {

template <class T>
ArrayView view_of(std::span<const T> values, ElementType type, std::vector<int64_t> shape) {
  return at_boundary([&] {
    SR_REQUIRE(static_cast<int64_t>(values.size()) == element_count(shape), invalid_input,
               "an array of shape ", to_string(shape), " has ", element_count(shape),
               " elements, got ", values.size());
    return ArrayView({type, std::move(shape)}, values.data());
  });
}

template <class T>
std::span<const T> elements_of(const Array& array, ElementType type) {
  return at_boundary([&] {
    SR_REQUIRE(array.info.type == type, invalid_input, "an array of ",
               element_dtype(array.info.type), " is not one of ", element_dtype(type));
    return std::span(reinterpret_cast<const T*>(array.bytes.data()),
                     array.bytes.size() / sizeof(T));
  });
}

Array array_of(const void* data, const TensorInfo& info) {
  Array out{info, {}};
  const TensorType type{element_dtype(info.type), info.shape};
  const auto* bytes = static_cast<const std::byte*>(data);
  out.bytes.assign(bytes, bytes + byte_size(type));
  return out;
}

Region region_of(const Box& box) {
  Region out;
  for (const Range& range : box) {
    out.begin.push_back(range.begin);
    out.shape.push_back(range.size);
  }
  return out;
}

/// Of what ranks report alike, what this process returns.
bool speaks(World& world, const Communicator& comm) {
  return world.impl().mpi != nullptr || comm.rank() == 0;
}

}  // namespace

ArrayView::ArrayView(std::span<const float> values, std::vector<int64_t> shape)
    : ArrayView(view_of(values, ElementType::f32, std::move(shape))) {}
ArrayView::ArrayView(std::span<const int64_t> values, std::vector<int64_t> shape)
    : ArrayView(view_of(values, ElementType::i64, std::move(shape))) {}

std::span<const float> Array::floats() const { return elements_of<float>(*this, ElementType::f32); }
std::span<const int64_t> Array::integers() const {
  return elements_of<int64_t>(*this, ElementType::i64);
}

struct Trainer::Impl {
  Impl(World& in, const Model::Impl& of, const TrainingPlan::Impl& by)
      : world(in),
        model(of),
        plan(by),
        source(
            std::make_shared<GivenBatches>(batch_fields(of.train), of.options.accumulate.value())),
        ranks(
            world, model, plan, TrainOptions(), [this] { return source; }, false, nullptr) {
    for (const BatchField& field : source->fields())
      inputs[field.name] = {element_type(field.type.dtype), field.type.shape};
    for (const KeptValue& kept : kept_values(model.train))
      parameters[kept.name] = {element_type(kept.type.dtype), kept.type.shape};
  }

  /// Runs `body` on every rank; what the ranks return alike.
  template <class F>
  auto on_ranks(F&& body) {
    using Result = decltype(body(std::declval<RankTrainer&>(), std::declval<Communicator&>()));
    std::optional<Result> out;
    ranks.run([&](RankTrainer& trainer, Communicator& comm) {
      Result own = body(trainer, comm);
      if (speaks(world, comm)) out = std::move(own);
    });
    return std::move(*out);
  }

  void give(const Batch& batch, Pass pass, bool targets_needed) {
    at_boundary([&] {
      std::function<Box(const std::string&)> part;
      if (world.impl().mpi) part = [&](const std::string& name) { return box_of(name, pass); };
      source->give(batch, pass == Pass::training ? Split::training : Split::validation,
                   next_batch(), targets_needed, part);
    });
  }
  /// Of what this process's first rank reads.
  Box box_of(const std::string& name, Pass pass) {
    const BatchField& field = source->field(name);
    if (!world.impl().mpi) return full_box(field.type.shape);
    return on_ranks([&](RankTrainer& trainer, Communicator&) {
      const Executor* executor =
          pass == Pass::training ? &trainer.training() : trainer.evaluation();
      const Binding* binding = executor != nullptr ? executor->find(name) : nullptr;
      return binding != nullptr ? binding->box : full_box(field.type.shape);
    });
  }
  int64_t next_batch() {
    return on_ranks(
        [&](RankTrainer& trainer, Communicator&) { return trainer.first_batch(steps + 1); });
  }
  void require_evaluation(const char* call) {
    at_boundary([&] {
      SR_REQUIRE(plan.with_evaluation, invalid_input, call,
                 ": the plan has no validation; plan with PlanRequest::with_evaluation");
    });
  }
  TensorInfo require_parameter(const std::string& name) {
    return at_boundary([&] {
      const auto found = parameters.find(name);
      SR_REQUIRE(found != parameters.end(), invalid_input, "parameter '", name,
                 "': the model has none of this name; Trainer::parameters() lists them");
      return found->second;
    });
  }

  World& world;
  const Model::Impl& model;
  const TrainingPlan::Impl& plan;
  std::shared_ptr<GivenBatches> source;
  RankTrainers ranks;
  std::map<std::string, TensorInfo> inputs, parameters;
  int64_t steps = 0;
};

Trainer::Trainer(World& world, const Model& model, const TrainingPlan& plan) {
  require_same(world, "Trainer", nlohmann::json::object());
  at_boundary([&] {
    require_trains("Trainer", "trained", model.impl());
    require_fits("Trainer", world, model.impl(), plan.impl());
  });
  impl_ = std::make_unique<Impl>(world, model.impl(), plan.impl());
}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

const std::map<std::string, TensorInfo>& Trainer::inputs() const { return impl_->inputs; }
int Trainer::micro_batches() const { return impl_->model.options.accumulate.value(); }
int64_t Trainer::steps() const { return impl_->steps; }

Region Trainer::region(const std::string& name, Pass pass) const {
  return at_boundary([&] { return region_of(impl_->box_of(name, pass)); });
}

StepReport Trainer::step(const Batch& batch, double learning_rate) {
  at_boundary([&] { check_learning_rate(learning_rate); });
  impl_->give(batch, Pass::training, true);
  const int64_t number = impl_->steps + 1;
  const StepReport report = impl_->on_ranks(
      [&](RankTrainer& trainer, Communicator&) { return trainer.step(number, learning_rate); });
  impl_->steps = number;
  impl_->source->drop();
  return report;
}

EvalReport Trainer::evaluate(const Batch& batch) {
  impl_->require_evaluation("evaluate");
  impl_->give(batch, Pass::evaluation, true);
  const RankTrainer::Evaluation found = impl_->on_ranks(
      [&](RankTrainer& trainer, Communicator&) { return *trainer.evaluate(Split::validation); });
  impl_->source->drop();
  EvalReport out;
  out.step = impl_->steps;
  out.val_loss = found.loss;
  out.val_accuracy = found.accuracy;
  return out;
}

std::map<std::string, Array> Trainer::forward(const Batch& batch) {
  impl_->require_evaluation("forward");
  at_boundary([&] {
    SR_REQUIRE(impl_->model.options.keep_outputs, invalid_input,
               "forward: the model was loaded without its outputs; set ModelOptions::keep_outputs");
  });
  impl_->give(batch, Pass::evaluation, false);
  const std::map<std::string, Tensor> outputs =
      impl_->on_ranks([&](RankTrainer& trainer, Communicator&) { return trainer.forward(); });
  impl_->source->drop();
  std::map<std::string, Array> out;
  for (const auto& [name, tensor] : outputs) {
    Tensor given = tensor;
    if (tensor.dtype() == DType::bf16) {
      given = Tensor({DType::f32, tensor.shape()});
      convert(tensor.data(), DType::bf16, given.data(), DType::f32, tensor.count());
    }
    out[name] = array_of(given.data(), {element_type(given.dtype()), given.shape()});
  }
  return out;
}

std::string Trainer::save(const std::string& folder) {
  std::optional<FolderLock> lock;  // the leader's
  decide_on_rank0(impl_->world, [&] {
    SR_REQUIRE(!folder.empty(), invalid_input, "save: names no folder");
    lock.emplace(folder);
    sweep(folder);
    for (const FoundCheckpoint& found : checkpoints_in(folder)) {
      SR_REQUIRE(found.step != impl_->steps, invalid_input, "save: ", found.path,
                 " is there already; name another folder");
    }
    return std::string();
  });
  const Saved saved = impl_->on_ranks([&](RankTrainer& trainer, Communicator& comm) {
    CheckpointWriter writer(trainer.training(), comm, {folder, 0, /*asynchronous=*/false});
    RunState state = trainer.state_after(impl_->steps);
    if (comm.rank() == 0) state.model = to_json(trained_model(impl_->model));
    std::optional<Saved> done = writer.save(impl_->steps, to_json(state));
    if (!done) done = writer.finish();
    return *done;
  });
  if (!saved.failure.empty()) throw Failure(Failure::Kind::run, "save: " + saved.failure, true);
  return saved.path;
}

void Trainer::resume(const std::string& from) {
  TrainOptions options;
  options.resume.emplace(from);
  const std::string path = decide_on_rank0(impl_->world, [&] {
    SR_REQUIRE(!from.empty(), invalid_input, "resume: names no checkpoint");
    return find_resumed(impl_->model, options);
  });
  const Resumed resumed = at_boundary([&] { return open_resumed(path); });
  impl_->ranks.run([&](RankTrainer& trainer, Communicator& comm) {
    restore_or_offer_older(resumed.checkpoint, comm,
                           [&] { trainer.go_on_from(resumed.checkpoint, resumed.state); });
  });
  impl_->steps = resumed.state.step;
}

const std::map<std::string, TensorInfo>& Trainer::parameters() const { return impl_->parameters; }

Array Trainer::parameter(const std::string& name) {
  const TensorInfo info = impl_->require_parameter(name);
  const Tensor whole =
      impl_->on_ranks([&](RankTrainer& trainer, Communicator&) { return trainer.parameter(name); });
  return array_of(whole.data(), info);
}

std::vector<RegionOfArray> Trainer::own_parameter(const std::string& name) {
  const TensorInfo info = impl_->require_parameter(name);
  return impl_->on_ranks([&](RankTrainer& trainer, Communicator&) {
    const Binding& binding = *trainer.training().find(name);
    const Tensor own = trainer.training().read(binding);
    const int64_t width = size_of(binding.global.dtype);
    std::vector<RegionOfArray> out;
    if (is_empty(binding.box)) return out;
    for (const auto& [file, value] :
         parts_of(binding.file_shape, binding.global.shape, binding.box)) {
      Tensor part({binding.global.dtype, box_shape(file)});
      copy_box(own.data(), binding.box, part.data(), value, value, width);
      const Region region = region_of(file);
      out.push_back({region, array_of(part.data(), {info.type, region.shape})});
    }
    return out;
  });
}

void Trainer::set_parameter(const std::string& name, const ArrayView& value) {
  const TensorInfo info = impl_->require_parameter(name);
  at_boundary([&] {
    const TensorType wanted{element_dtype(info.type), info.shape},
        got{element_dtype(value.info.type), value.info.shape};
    SR_REQUIRE(got == wanted, invalid_input, "parameter '", name, "' is ", wanted, ", got ", got);
    SR_REQUIRE(value.data != nullptr || element_count(wanted.shape) == 0, invalid_input,
               "parameter '", name, "': the array has no data");
    check_numbers(value.data, wanted, str("parameter '", name, "'"));
  });
  impl_->ranks.run(
      [&](RankTrainer& trainer, Communicator&) { trainer.set_parameter(name, value.data); });
}

}  // namespace shardrun
