// A step, and a validation.
#include "train/rank_trainer.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "exec/checkpoint/agree.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "inference/gather.h"
#include "ranks/backend.h"
#include "ranks/process_limit.h"
#include "ranks/same_call.h"
#include "train/batches.h"
#include "train/train_options.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

const std::vector<std::string> kMetrics = {"loss", "grad_norm"};
constexpr char kNoLabel[] =
    ": none of the labels counts, for all are the ignored one; look at the targets, and at how "
    "they "
    "are masked";

/// What a NaN is printed as does not depend on its sign.
double shown(double number) { return std::isnan(number) ? std::abs(number) : number; }

/// Calls f, with `place` in front of what goes wrong there.
template <class F>
auto in(const std::string& place, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw e.with_context(place);
  }
}

/// As long as the rank's process holds all of it.
std::shared_ptr<Arena> allocate(RankDevice& on, const TrainingPlan::Impl& plan, int64_t bytes) {
  const auto rank = static_cast<size_t>(on.comm().rank());
  const int64_t copy = plan.copy_bytes.empty() ? 0 : plan.copy_bytes.at(rank);
  require_process_fits(on.comm().host(), plan.process_limit, bytes + copy, plan.process_ranks);
  return std::make_shared<Arena>(bytes, on.comm());
}

std::string name_of(Split split) {
  return split == Split::training ? "training" : split == Split::validation ? "validation" : "test";
}

}  // namespace

RankTrainer::RankTrainer(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
                         const TrainOptions& options, std::shared_ptr<const DataSource> data,
                         bool recorded, const RunState* from)
    : comm_(on.comm()),
      model_(model),
      plan_(plan),
      programs_(compile_for_rank(model, plan, on.comm().rank())),
      arena_(allocate(on, plan, programs_.arena_bytes())),
      train_(programs_.train, backend().kernels, on.comm(), model.options.seed, arena_,
             /*initialise=*/from == nullptr, on.device()),
      fields_(batch_fields(model.train, options)),
      data_(std::move(data)),
      spec_(options.data),
      tokens_(tokens_per_batch(fields_)) {
  const nlohmann::json of_data = data_of_rank(*data_, options);
  require_same(on.comm().host(), "train", of_data);
  run_options_ = options_of(model.options, options, of_data);
  graph_ = str(std::hex, plan.model_hash);
  if (programs_.evaluation) {
    evaluation_.emplace(*programs_.evaluation, backend().kernels, on.comm(), model.options.seed,
                        arena_, /*initialise=*/false, on.device());
  }
  if (recorded)
    profiler_.emplace(model, plan, options, train_, evaluation_ ? &*evaluation_ : nullptr);
  may_skip_ = steps_to_skip(options);
  check_every_ = options.check_replicas;
  if (check_every_ > 0) replicas_.emplace(train_, plan.train);
  if (!options.flight_recorder.empty()) {
    const Members& members = on.comm().members();
    const int rank = on.comm().rank();
    const std::string who = members.job ? members.job->name(rank) : str("rank ", rank);
    const std::optional<Error> met = try_together(
        on.comm().host(),
        [&] { flight_.emplace(options.flight_recorder, rank, str(who, " of ", on.comm().size())); },
        Names::none);
    if (met && flight_) flight_->discard();  // another rank's cannot be made: none trains
    if (met) throw Failure(Failure::Kind::call, met->what(), true);
    train_.record(&*flight_, "train");
    if (evaluation_) evaluation_->record(&*flight_, "validation");
  }
  if (!fields_.empty() && !fields_[0].type.shape.empty()) samples_ = fields_[0].type.shape[0];
  if (from == nullptr) return;
  train_.initialise(model.options.seed,
                    [](const Binding& b) { return !is_kept(b.role, b.zeroed_each_step); });
  begin_at(*from);
}

RunState RankTrainer::state_after(int64_t step) const {
  const int64_t taken = (step - first_step_) * micro_batches();
  RunState out;
  out.step = step;
  out.batches = first_batch_ + taken;
  out.batch_samples = samples_;
  out.draws = first_draw_ + taken;
  out.graph = graph_;
  out.options = run_options_;
  return out;
}

std::optional<int> RankTrainer::asked_to_stop() {
  if (!running_) return std::nullopt;
  return in(str("after step ", step_), [&] { return running_->asked_to_stop(); });
}

/// With `search`, until a micro-batch of some rank has what it looks for.
void RankTrainer::run_training(int64_t number, double lr, NotFinite* search, ReplicaCheck* check) {
  train_.set_scalar(kLearningRate, lr);
  train_.set_scalar(kStep, number);
  train_.begin_step();
  if (check) check->begin();
  for (int64_t micro = 0; micro < micro_batches(); ++micro) {
    const int64_t batch = first_batch(number) + micro;
    train_.set_scalar(kRandomStep, first_draw_ + batch - first_batch_);
    if (!filled_) fill(train_, batch, Split::training, profiler_ ? &profiler_->training : nullptr);
    filled_ = data_->same_each_step();
    if (search) search->look_at_batch(origin_in(batch, Split::training));
    if (check) check->before_micro();
    run_micro(train_);
    if (search && comm_.host().any_of(search->found(kMetrics) ? 1 : 0) != 0) return;
  }
  if (check) check->before_update();
  train_.run_update();
}

/// What is wrong is said before the loss is looked at, which may not be finite for that.
void RankTrainer::run_checked(int64_t number, double lr) {
  run_training(number, lr, nullptr, &*replicas_);
  const std::string wrong = replicas_->end(comm_.host());
  if (!wrong.empty()) {
    const std::string from =
        sound_step_ == 0 ? "begin anew"
                         : str("go on from a checkpoint of step ", sound_step_, " or before");
    throw Failure(Failure::Kind::run,
                  str("step ", number, ": ", wrong, ": memory, a processor or a network corrupts ",
                      "numbers; ", from, ", without that machine"),
                  true);
  }
  sound_step_ = number;
}

StepReport RankTrainer::step(int64_t number, double lr) {
  const auto start = Clock::now();
  if (profiler_) profiler_->training.begin_run(number);
  const double comm_before = train_.comm_seconds();
  step_ = number;
  if (flight_) flight_->begin(number);
  const bool checked = check_every_ > 0 && number % check_every_ == 0;
  in(str("step ", number),
     [&] { checked ? run_checked(number, lr) : run_training(number, lr, nullptr, nullptr); });
  StepReport report;
  report.step = number;
  report.loss = train_.metric("loss");
  report.grad_norm = train_.metric("grad_norm");
  if (profiler_) profiler_->training.end_run();
  report.lr = lr;
  report.step_ms = milliseconds_since(start);
  report.comm_ms = (train_.comm_seconds() - comm_before) * 1e3;
  report.samples_per_s = static_cast<double>(samples_ * micro_batches()) / report.step_ms * 1e3;
  report.tokens_per_s = static_cast<double>(tokens_ * micro_batches()) / report.step_ms * 1e3;
  report.peak_bytes = arena_->bytes();
  // The same numbers on every rank.
  if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
    const std::string why = why_not_finite(report);
    if (skipped_ >= may_skip_) throw Failure(Failure::Kind::run, why, true);
    report.loss = shown(report.loss);
    report.grad_norm = shown(report.grad_norm);
    report.skipped = str(why, "; the step is left out (", ++skipped_, " of ", may_skip_, ")");
  }
  return report;
}

/// Makes the step again. Parameters and moments are as it read them: where the loss or the norm is
/// not finite, updates keep everything (attach_optimizer).
std::string RankTrainer::why_not_finite(const StepReport& report) {
  const int64_t number = report.step;
  const std::string what = str("step ", number, ": the loss is ", shown(report.loss),
                               " and the gradients' norm ", shown(report.grad_norm));
  for (int64_t micro = 0; micro < micro_batches(); ++micro) {
    if (no_label_counts(first_batch(number) + micro, Split::training)) return what + kNoLabel;
  }
  filled_ = false;
  train_.record(nullptr);
  NotFinite search(train_, step_of(model_, plan_), plan_.train);
  run_training(number, std::numeric_limits<double>::quiet_NaN(), &search,
               nullptr);  // updates nothing
  filled_ = false;
  if (profiler_) train_.record(&profiler_->training);
  const NotFinite::First first = search.first(comm_.host(), kMetrics);
  const bool clips = model_.options.clip > 0;
  return str(what, first.text.empty() ? "" : "; ", first.text, "; nothing was updated",
             first.in_batch ? ": look at the data"
             : number == 1  ? ": look at the weights and the data"
             : clips        ? ": lower --lr or --clip"
                            : ": lower --lr, or clip gradients with --clip");
}

/// Does the batch have labels, and are they all the ignored one? Each rank looks at its shard.
bool RankTrainer::no_label_counts(int64_t batch, Split split) const {
  const Executor& executor = split == Split::training ? train_ : *evaluation_;
  bool labels = false, counts = false;
  for (const BatchField& field : fields_) {
    const bool target = field.role == BatchField::Role::target;
    const Binding* binding = executor.find(field.name);
    if (!target || is_float(field.type.dtype) || !field.ignore || !binding) continue;
    labels = true;
    Tensor own({field.type.dtype, box_shape(binding->box)});
    if (own.count() > 0) data_->read(batch, split, field, binding->box, own.data());
    for (int64_t i = 0; i < own.count() && !counts; ++i) counts = own.int_at(i) != *field.ignore;
  }
  return labels && comm_.host().any_of(counts ? 1 : 0) == 0;
}

void RankTrainer::rehearse() {
  step(1, 0);
  if (!has(Split::validation)) return;
  pass(0, Split::validation);
  Sums done;
  add_metrics(done, 0, Split::validation, "");
}

std::optional<RankTrainer::Evaluation> RankTrainer::evaluate(Split split) {
  Sums sums;
  evaluation_->weights_changed();
  for (int64_t b = 0; b < data_->batches(split); ++b) {
    if (asked_to_stop()) return std::nullopt;
    in(str("after step ", step_, ": ", name_of(split), ": batch ", b + 1), [&] { pass(b, split); });
    add_metrics(sums, b, split, "");
  }
  return mean(sums, split);
}

bool RankTrainer::tests_in_same_pass() const {
  return has(Split::test) && evaluation_->find_metric(kTestPrefix + "loss") != nullptr;
}

std::pair<RankTrainer::Evaluation, RankTrainer::Evaluation> RankTrainer::evaluate_both() {
  Sums validation, test;
  evaluation_->weights_changed();
  pass(0, Split::validation);
  add_metrics(validation, 0, Split::validation, "");
  add_metrics(test, 0, Split::test, kTestPrefix);
  return {mean(validation, Split::validation), mean(test, Split::test)};
}

/// A batch without a label that counts has no loss.
void RankTrainer::add_metrics(Sums& sums, int64_t batch, Split split, const std::string& prefix) {
  const auto of = [&](const char* name) -> std::optional<double> {
    if (!evaluation_->find_metric(prefix + name)) return std::nullopt;
    return evaluation_->metric(prefix + name);
  };
  const double weight = of("counted").value_or(1);
  const double loss = evaluation_->metric(prefix + "loss");
  if (weight > 0) {
    if (!std::isfinite(loss)) fail_pass(batch, split, prefix + "loss");
    sums.loss += weight * loss;
  }
  sums.counted += weight;
  if (const auto correct = of("correct")) sums.correct = sums.correct.value_or(0) + *correct;
}

RankTrainer::Evaluation RankTrainer::mean(const Sums& sums, Split split) const {
  if (sums.counted <= 0)
    throw Failure(Failure::Kind::run, str("step ", step_, ": ", name_of(split), kNoLabel), true);
  return {sums.loss / sums.counted,
          sums.correct ? std::optional(*sums.correct / sums.counted) : std::nullopt};
}

/// `batch` is the validation's where one pass measures the test too.
void RankTrainer::fail_pass(int64_t batch, Split split, const std::string& metric) {
  const std::string what =
      str("step ", step_, ": ", name_of(split), ": the loss of batch ", batch + 1, " of ",
          data_->batches(split), " is ", shown(evaluation_->metric(metric)));
  evaluation_->record(nullptr);
  NotFinite search(*evaluation_, model_.evaluation, plan_.evaluation);
  pass(batch, metric.rfind(kTestPrefix, 0) == 0 ? Split::validation : split, &search);
  const std::string value = search.first(comm_.host(), {metric}).text;
  throw Failure(Failure::Kind::run, str(what, value.empty() ? "" : "; ", value), true);
}

void RankTrainer::pass(int64_t batch, Split split, NotFinite* search) {
  filled_ = false;  // the arena is shared
  Timeline* const timeline = profiler_ ? &profiler_->validation : nullptr;
  if (timeline) timeline->begin_run(++passes_);
  evaluation_->begin_step();
  evaluation_->set_scalar(kRandomStep, batch);  // what is drawn besides dropout
  fill(*evaluation_, batch, split, timeline);
  if (search) search->look_at_batch(origin_in(batch, split));
  run_micro(*evaluation_);
  if (timeline) timeline->end_run();
}

NotFinite::Origin RankTrainer::origin_in(int64_t batch, Split split) const {
  return [=, this](const std::string& input, int64_t row) {
    for (const BatchField& field : fields_) {
      if (input == field.name) return data_->origin(batch, split, field, row);
      if (input == kTestPrefix + field.name) return data_->origin(batch, Split::test, field, row);
    }
    return std::string();
  };
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

std::map<std::string, Tensor> RankTrainer::forward() {
  evaluation_->weights_changed();
  pass(0, Split::validation);
  std::map<std::string, Tensor> out;
  for (size_t i = 0; i < model_.outputs.size(); ++i) {
    const Binding& output = evaluation_->program().outputs.at(i);
    out[model_.outputs[i]] = gather_whole(*evaluation_, output, comm_.host());
  }
  return out;
}

Tensor RankTrainer::parameter(const std::string& name) const {
  return gather_whole(train_, *train_.find(name), comm_.host());
}

void RankTrainer::set_parameter(const std::string& name, const void* whole) {
  const Binding& binding = *train_.find(name);
  Tensor own({binding.global.dtype, box_shape(binding.box)});
  copy_box(whole, full_box(binding.global.shape), own.data(), binding.box, binding.box,
           size_of(binding.global.dtype));
  train_.write(name, own);
}

void RankTrainer::go_on_from(const Checkpoint& checkpoint, const RunState& state) {
  checkpoint.restore(train_, comm_.host(), /*in_use=*/true);
  train_.weights_changed();
  begin_at(state);
}

void RankTrainer::begin_at(const RunState& state) {
  first_step_ = step_ = sound_step_ = state.step;
  first_batch_ = state.next_batch(samples_);
  first_draw_ = state.draws;
  filled_ = false;
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
