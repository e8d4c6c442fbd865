// A step, and a validation.
#include "rank_trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend.h"
#include "batches.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "same_call.h"
#include "train_options.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

RankTrainer::RankTrainer(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
                         const TrainOptions& options, bool recorded, const RunState* from)
    : comm_(on.comm()),
      model_(model),
      programs_(compile_for_rank(model, plan, on.comm().rank())),
      arena_(std::make_shared<Arena>(programs_.arena_bytes(), on.comm())),
      train_(programs_.train, backend().kernels, on.comm(), model.options.seed, arena_,
             /*initialise=*/from == nullptr, on.device()),
      fields_(batch_fields(model.train, options)),
      data_(open_batches(model.train, options)),
      spec_(options.data),
      schedule_(make_schedule(options)),
      tokens_(tokens_per_batch(fields_)) {
  const nlohmann::json data = data_of_rank(*data_, options);
  require_same(on.comm().host(), "train", data);
  run_options_ = options_of(model.options, options, data);
  graph_ = str(std::hex, plan.model_hash);
  if (programs_.evaluation) {
    evaluation_.emplace(*programs_.evaluation, backend().kernels, on.comm(), model.options.seed,
                        arena_, /*initialise=*/false, on.device());
  }
  if (recorded)
    profiler_.emplace(model, plan, options, train_, evaluation_ ? &*evaluation_ : nullptr);
  if (!fields_.empty() && !fields_[0].type.shape.empty()) samples_ = fields_[0].type.shape[0];
  if (from == nullptr) return;
  train_.initialise(model.options.seed,
                    [](const Binding& b) { return !is_kept(b.role, b.zeroed_each_step); });
  first_step_ = from->step;
  first_batch_ = from->next_batch(samples_);
  first_draw_ = from->draws;
}

RunState RankTrainer::state_after(int64_t step) const {
  const int64_t taken = (step - first_step_) * model_.options.accumulate;
  RunState out;
  out.step = step;
  out.batches = first_batch_ + taken;
  out.batch_samples = samples_;
  out.draws = first_draw_ + taken;
  out.graph = graph_;
  out.options = run_options_;
  return out;
}

StepReport RankTrainer::step(int64_t number) {
  const auto start = Clock::now();
  if (profiler_) profiler_->training.begin_run(number);
  const double comm_before = train_.comm_seconds();
  const int64_t micro_batches = train_.program().micro_batches;
  const double lr = schedule_.lr_at(number);
  train_.set_scalar(kLearningRate, lr);
  train_.set_scalar(kStep, number);
  train_.begin_step();
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    const int64_t before = (number - 1 - first_step_) * micro_batches + micro;
    train_.set_scalar(kRandomStep, first_draw_ + before);
    if (!filled_)
      fill(train_, first_batch_ + before, Split::training,
           profiler_ ? &profiler_->training : nullptr);
    filled_ = data_->same_each_step();
    run_micro(train_);
  }
  train_.run_update();
  StepReport report;
  report.step = number;
  report.loss = train_.metric("loss");
  report.grad_norm = train_.metric("grad_norm");
  if (profiler_) profiler_->training.end_run();
  report.lr = lr;
  report.step_ms = milliseconds_since(start);
  report.comm_ms = (train_.comm_seconds() - comm_before) * 1e3;
  report.samples_per_s = static_cast<double>(samples_ * micro_batches) / report.step_ms * 1e3;
  report.tokens_per_s = static_cast<double>(tokens_ * micro_batches) / report.step_ms * 1e3;
  report.peak_bytes = arena_->bytes();
  if (!std::isfinite(report.loss) ||
      !std::isfinite(report.grad_norm)) {  // the same numbers on every rank
    throw Failure(Failure::Kind::run,
                  str("step ", number, ": the loss is ", report.loss, " and the gradients' norm ",
                      report.grad_norm,
                      number == 1 ? "; no update was made yet: look at the weights and the data"
                                  : "; lower --lr, or clip gradients with --clip"),
                  true);
  }
  return report;
}

void RankTrainer::rehearse() {
  step(1);
  if (!has(Split::validation)) return;
  pass(0, Split::validation);
  Sums done;
  add_metrics(done, "");
}

std::optional<RankTrainer::Evaluation> RankTrainer::evaluate(Split split) {
  Sums sums;
  evaluation_->weights_changed();
  for (int64_t b = 0; b < data_->batches(split); ++b) {
    if (asked_to_stop()) return std::nullopt;
    pass(b, split);
    add_metrics(sums, "");
  }
  return mean(sums);
}

bool RankTrainer::tests_beside() const {
  return has(Split::test) && evaluation_->find_metric(kTestPrefix + "loss") != nullptr;
}

std::pair<RankTrainer::Evaluation, RankTrainer::Evaluation> RankTrainer::evaluate_both() {
  Sums validation, test;
  evaluation_->weights_changed();
  pass(0, Split::validation);
  add_metrics(validation, "");
  add_metrics(test, kTestPrefix);
  return {mean(validation), mean(test)};
}

void RankTrainer::add_metrics(Sums& sums, const std::string& prefix) const {
  const bool classes = evaluation_->find_metric(prefix + "counted") != nullptr;
  const double weight = classes ? evaluation_->metric(prefix + "counted") : 1;
  sums.loss += weight * evaluation_->metric(prefix + "loss");
  sums.counted += weight;
  if (classes) sums.correct = sums.correct.value_or(0) + evaluation_->metric(prefix + "correct");
}

RankTrainer::Evaluation RankTrainer::mean(const Sums& sums) {
  const double counted = std::max(1.0, sums.counted);
  return {sums.loss / counted,
          sums.correct ? std::optional(*sums.correct / counted) : std::nullopt};
}

void RankTrainer::pass(int64_t batch, Split split) {
  filled_ = false;  // the arena is shared
  Timeline* const timeline = profiler_ ? &profiler_->validation : nullptr;
  if (timeline) timeline->begin_run(++passes_);
  evaluation_->begin_step();
  evaluation_->set_scalar(kRandomStep, batch);  // what is drawn besides dropout
  fill(*evaluation_, batch, split, timeline);
  run_micro(*evaluation_);
  if (timeline) timeline->end_run();
}

void RankTrainer::fill(Executor& executor, int64_t batch, Split split, Timeline* timeline) {
  const double start = timeline ? Timeline::now() : 0;
  const auto read = [&](const std::string& name, Split from, const BatchField& field) {
    const Binding* binding = executor.find(name);
    if (!binding) return;
    executor.fill(*binding,
                  [&](void* shard) { data_->read(batch, from, field, binding->box, shard); });
  };
  for (const BatchField& field : fields_) {
    read(field.name, split, field);
    read(kTestPrefix + field.name, Split::test, field);
  }
  if (timeline) timeline->add(Timeline::kReading, 1, start, Timeline::now());
}

/// A plan may not fit the data's numbers, which only a step finds out.
void RankTrainer::run_micro(Executor& executor) const {
  try {
    executor.run_micro();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::invalid_input) throw;
    throw e.with_context(spec_.empty() ? "synthetic batches" : "--data " + spec_);
  }
}

}  // namespace shardrun
