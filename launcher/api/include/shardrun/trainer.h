// Training by a program with its own data and its own loop.
//
//   shardrun::World world = shardrun::World::launched();
//   shardrun::ModelOptions options;
//   options.batch = 32;
//   options.keep_outputs = true;                                     // for forward()
//   const shardrun::Model model = shardrun::load_model(world, "net.onnx", options);
//   const shardrun::TrainingPlan plan = shardrun::make_plan(world, model, {});
//   shardrun::Trainer trainer(world, model, plan);
//   for (int i = 0; i < 1000; ++i) {
//     const std::vector<float> x = …; const std::vector<int64_t> y = …;
//     trainer.step({{"x", {x, {32, 1, 28, 28}}}, {"y", {y, {32}}}}, 1e-3);
//   }
//   trainer.save("run");
//
// Every rank makes the same calls in the same order; each is collective. In a World of threads the
// one caller makes them for all ranks. What a call finds wrong in its arguments it throws as
// Failure(call), and nothing has changed. After any other failure the Trainer is of no use.
#pragma once

#include <cstddef>
#include <span>

#include "shardrun/shardrun.h"

namespace shardrun {

/// Dense row-major elements in the caller's memory, for as long as the call that gets them.
struct ArrayView {
  TensorInfo info;
  const void* data = nullptr;

  ArrayView(TensorInfo of, const void* at) : info(std::move(of)), data(at) {}
  /// Throw Failure(call) if there are not as many elements as the shape has.
  ArrayView(std::span<const float> values, std::vector<int64_t> shape);
  ArrayView(std::span<const int64_t> values, std::vector<int64_t> shape);
};

/// The same with memory of its own.
struct Array {
  TensorInfo info;
  std::vector<std::byte> bytes;

  /// Throw Failure(call) if the elements are of another type.
  std::span<const float> floats() const;
  std::span<const int64_t> integers() const;
  ArrayView view() const { return {info, bytes.data()}; }
};

/// Part of an array: `shape` elements from `begin` on in each dim.
struct Region {
  std::vector<int64_t> begin, shape;
  friend bool operator==(const Region&, const Region&) = default;
};
struct RegionOfArray {
  Region region;
  Array values;
};

/// Which cut is meant: of what a step reads, or of what evaluate() and forward() read.
enum class Pass { training, evaluation };

class Trainer {
 public:
  /// Arrays for the model's inputs, targets among them, by name. Each is whole, the same on every
  /// rank, or this rank's region() of it. In a step of K micro-batches the first dim is K times as
  /// long: one micro-batch, or one's region, behind the other. Floats may be f64 where the model
  /// has f32, and integers i32 where it has i64.
  using Batch = std::map<std::string, ArrayView>;

  /// Parameters and state begin as the model has them. All three must outlive it. Throws as
  /// train().
  Trainer(World& world, const Model& model, const TrainingPlan& plan);
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  ~Trainer();

  /// The model's inputs, targets among them, for one micro-batch, by name.
  const std::map<std::string, TensorInfo>& inputs() const;
  int micro_batches() const;  // of a step
  /// Which part of input `name` this rank reads of a micro-batch. In a World of threads, whose one
  /// caller is every rank, it is the whole. Throws Failure(call): no such input.
  Region region(const std::string& name, Pass pass = Pass::training) const;

  /// One update, with this learning rate. Throws Failure(run) as train() does where the loss or the
  /// gradients are not finite: no parameter has changed then.
  StepReport step(const Batch& batch, double learning_rate);
  int64_t steps() const;  // updates so far, those of a resumed run included

  /// The mean loss of one micro-batch as train() validates: no dropout, running statistics. The
  /// plan must have been made with PlanRequest::with_evaluation.
  EvalReport evaluate(const Batch& batch);
  /// The model's outputs by name, whole on every rank, for a model loaded with
  /// ModelOptions::keep_outputs; those in bf16 as f32. Targets may be left out.
  std::map<std::string, Array> forward(const Batch& batch);

  /// Writes a checkpoint to a folder of some, as train() does, and returns its path when it is
  /// whole. Throws Failure(run) if it could not be written.
  std::string save(const std::string& folder);
  /// Goes on from a checkpoint, or of a folder of some from the newest: parameters, state and
  /// steps(). One of another mesh, of train() too. Throws Failure(call): there is none, it is
  /// damaged, or of another model.
  void resume(const std::string& path);

  /// Parameters and state that a checkpoint would hold, by the model's names, as its file has them.
  const std::map<std::string, TensorInfo>& parameters() const;
  /// Whole, on every rank. Throws Failure(call): no such parameter.
  Array parameter(const std::string& name);
  /// What this rank holds of it: mostly one region. Of rank 0 in a World of threads.
  std::vector<RegionOfArray> own_parameter(const std::string& name);
  /// From now on it is this; whole. Throws Failure(call): another shape or type, or a NaN.
  void set_parameter(const std::string& name, const ArrayView& value);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardrun
