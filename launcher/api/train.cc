// The training loop of every rank.
#include "train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <tuple>

#include "backend.h"
#include "batches.h"
#include "exec/early_stopping.h"
#include "exec/executor.h"
#include "exec/metrics.h"
#include "exec/schedule.h"
#include "graph/optimizer.h"
#include "graph/passes/training.h"
#include "plan.h"
#include "same_call.h"
#include "world.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Schedule make_schedule(const TrainOptions& options) {
  Schedule schedule{parse_schedule(options.schedule), options.lr, options.min_lr, options.warmup,
                    options.steps};
  schedule.check();
  return schedule;
}

constexpr int64_t kMostProfiled = 1000;  // steps

void check_options(const TrainOptions& o) {
  SR_REQUIRE(o.steps >= 1, invalid_input, "steps is ", o.steps, ", wanted 1 or more");
  SR_REQUIRE(o.eval_every >= 0 && o.eval_batches >= 0, invalid_input,
             "eval-every and eval-batches cannot be negative");
  SR_REQUIRE(o.profile_steps >= 1 && o.profile_steps <= kMostProfiled, invalid_input,
             "profile-steps is ", o.profile_steps, ", wanted 1 to ", kMostProfiled);
  SR_REQUIRE(o.patience >= 0, invalid_input, "patience is ", o.patience, ", wanted 0 or more");
  SR_REQUIRE(o.validation >= 0 && o.validation < 1, invalid_input, "validation is ", o.validation,
             ", wanted 0 to below 1");
}

/// What has to be the same on every rank. Where files lie is each machine's own, and the first
/// rank alone writes metrics.
nlohmann::json given(const TrainOptions& o) {
  return {{"augment", o.augment},
          {"normalise", o.normalise},
          {"sort_edges", o.sort_edges},
          {"steps", o.steps},
          {"lr", o.lr},
          {"min_lr", o.min_lr},
          {"schedule", o.schedule},
          {"warmup", o.warmup},
          {"eval_every", o.eval_every},
          {"eval_batches", o.eval_batches},
          {"validation", o.validation},
          {"patience", o.patience},
          {"seed", o.seed},
          {"a profile", !o.profile.empty()},
          {"profile_summary", o.profile_summary},
          {"profile_steps", o.profile_steps}};
}

/// One rank's executors over one arena.
class RankTrainer {
 public:
  RankTrainer(RankDevice& on, const Model::Impl& model, const TrainingPlan::Impl& plan,
              const TrainOptions& options, bool recorded)
      : model_(model),
        programs_(compile_for_rank(model, plan, on.comm().rank())),
        arena_(std::make_shared<Arena>(programs_.arena_bytes(), on.comm())),
        train_(programs_.train, backend().kernels, on.comm(), model.options.seed, arena_,
               /*initialise=*/true, on.device()),
        fields_(batch_fields(model.train)),
        data_(open_batches(model.train, options)),
        spec_(options.data),
        schedule_(make_schedule(options)),
        tokens_(tokens_per_batch(fields_)) {
    require_same(on.comm().host(), "train", data_of_rank(*data_, options));
    if (programs_.evaluation) {
      evaluation_.emplace(*programs_.evaluation, backend().kernels, on.comm(), model.options.seed,
                          arena_, /*initialise=*/false, on.device());
    }
    if (recorded)
      profiler_.emplace(model, plan, options, train_, evaluation_ ? &*evaluation_ : nullptr);
    if (!fields_.empty() && !fields_[0].type.shape.empty()) samples_ = fields_[0].type.shape[0];
  }

  const Arena& arena() const { return *arena_; }

  const Profiler* profiler() const { return profiler_ ? &*profiler_ : nullptr; }

  StepReport step(int64_t number) {
    const auto start = Clock::now();
    if (profiler_) profiler_->training.begin_run(number);
    const double comm_before = train_.comm_seconds();
    const int accumulate = model_.options.accumulate;
    const double lr = schedule_.lr_at(number);
    train_.set_scalar(kLearningRate, lr);
    train_.set_scalar(kStep, number);
    train_.begin_step();
    for (int micro = 0; micro < accumulate; ++micro) {
      const int64_t batch = (number - 1) * accumulate + micro;
      train_.set_scalar(kRandomStep, batch);
      if (!filled_)
        fill(train_, batch, Split::training, profiler_ ? &profiler_->training : nullptr);
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
    report.samples_per_s = static_cast<double>(samples_ * accumulate) / report.step_ms * 1e3;
    report.tokens_per_s = static_cast<double>(tokens_ * accumulate) / report.step_ms * 1e3;
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

  /// The first step and a validation, for what a device finds out when steps first run.
  void rehearse() {
    step(1);
    if (!has(Split::validation)) return;
    pass(0, Split::validation);
    Sums done;
    add_metrics(done, "");
  }

  bool has(Split split) const { return evaluation_ && data_->batches(split) > 0; }

  /// Mean loss over a split, each batch weighing as many labels as count in it, and the share of
  /// labels that the model finds, where it has classes.
  struct Evaluation {
    double loss = 0;
    std::optional<double> accuracy;
  };
  Evaluation evaluate(Split split) {
    Sums sums;
    evaluation_->weights_changed();
    for (int64_t b = 0; b < data_->batches(split); ++b) {
      pass(b, split);
      add_metrics(sums, "");
    }
    return mean(sums);
  }

  /// Does the pass over the validation's one batch measure the test too?
  bool tests_beside() const {
    return has(Split::test) && evaluation_->find_metric(kTestPrefix + "loss") != nullptr;
  }
  /// Validation and test, where tests_beside().
  std::pair<Evaluation, Evaluation> evaluate_both() {
    Sums validation, test;
    evaluation_->weights_changed();
    pass(0, Split::validation);
    add_metrics(validation, "");
    add_metrics(test, kTestPrefix);
    return {mean(validation), mean(test)};
  }

 private:
  struct Sums {
    double loss = 0, counted = 0;
    std::optional<double> correct;  // where there are classes
  };
  void add_metrics(Sums& sums, const std::string& prefix) const {
    const bool classes = evaluation_->find_metric(prefix + "counted") != nullptr;
    const double weight = classes ? evaluation_->metric(prefix + "counted") : 1;
    sums.loss += weight * evaluation_->metric(prefix + "loss");
    sums.counted += weight;
    if (classes) sums.correct = sums.correct.value_or(0) + evaluation_->metric(prefix + "correct");
  }
  static Evaluation mean(const Sums& sums) {
    const double counted = std::max(1.0, sums.counted);
    return {sums.loss / counted,
            sums.correct ? std::optional(*sums.correct / counted) : std::nullopt};
  }

  void pass(int64_t batch, Split split) {
    filled_ = false;  // the arena is shared
    Timeline* const timeline = profiler_ ? &profiler_->validation : nullptr;
    if (timeline) timeline->begin_run(++passes_);
    evaluation_->begin_step();
    evaluation_->set_scalar(kRandomStep, batch);  // what is drawn besides dropout
    fill(*evaluation_, batch, split, timeline);
    run_micro(*evaluation_);
    if (timeline) timeline->end_run();
  }

  void fill(Executor& executor, int64_t batch, Split split, Timeline* timeline) {
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
  void run_micro(Executor& executor) const {
    try {
      executor.run_micro();
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::invalid_input) throw;
      throw e.with_context(spec_.empty() ? "synthetic batches" : "--data " + spec_);
    }
  }

  const Model::Impl& model_;
  RankPrograms programs_;
  std::shared_ptr<Arena> arena_;
  Executor train_;
  std::optional<Executor> evaluation_;
  std::vector<BatchField> fields_;
  std::unique_ptr<DataSource> data_;
  std::string spec_;
  Schedule schedule_;
  int64_t tokens_ = 0, samples_ = 0;  // of one micro-batch
  int64_t passes_ = 0;                // over batches of validation, in all
  bool filled_ = false;               // does train_ hold the next step's batch already?
  std::optional<Profiler> profiler_;
};

StepMetrics metrics_of(const StepReport& r) {
  StepMetrics line{.step = r.step,
                   .loss = r.loss,
                   .lr = r.lr,
                   .grad_norm = r.grad_norm,
                   .step_ms = r.step_ms,
                   .tokens_per_s = {},
                   .samples_per_s = {},
                   .comm_ms = r.comm_ms,
                   .peak_bytes = r.peak_bytes};
  (r.tokens_per_s > 0 ? line.tokens_per_s : line.samples_per_s) =
      r.tokens_per_s > 0 ? r.tokens_per_s : r.samples_per_s;
  return line;
}

EvalMetrics metrics_of(const EvalReport& r) {
  return {.step = r.step,
          .val_loss = r.val_loss,
          .val_accuracy = r.val_accuracy,
          .best_step = r.best_step,
          .test_loss = r.test_loss,
          .test_accuracy = r.test_accuracy};
}

/// Validations of one rank's run: the best one so far, its test, and whether to stop. Every rank
/// decides alike, as every rank has the same numbers.
class Validation {
 public:
  Validation(RankTrainer& trainer, const TrainOptions& options)
      : trainer_(trainer), options_(options), stopping_(options.patience) {}

  bool stopped() const { return stopping_.exhausted(); }

  EvalReport take(int64_t step) {
    std::optional<RankTrainer::Evaluation> test;
    RankTrainer::Evaluation now;
    if (trainer_.tests_beside()) {
      std::tie(now, test) = trainer_.evaluate_both();
    } else {
      now = trainer_.evaluate(Split::validation);
    }
    EvalReport report;
    report.step = step;
    report.val_loss = now.loss;
    report.val_accuracy = now.accuracy;
    report.best = stopping_.take(now.loss, now.accuracy);
    if (report.best) {
      best_step_ = step;
      // The weights of the best step are there now and not later.
      if (!test && trainer_.has(Split::test)) test = trainer_.evaluate(Split::test);
      test_ = test;
    }
    if ((stopped() || step == options_.steps) && test_) {
      report.best_step = best_step_;
      report.test_loss = test_->loss;
      report.test_accuracy = test_->accuracy;
    }
    return report;
  }

 private:
  RankTrainer& trainer_;
  const TrainOptions& options_;
  EarlyStopping stopping_;
  int64_t best_step_ = 0;
  std::optional<RankTrainer::Evaluation> test_;
};

}  // namespace

std::string check_training(World& world, const Model& model, const TrainOptions& options) {
  require_same(world, "check_training", given(options));
  std::vector<NamedFile> read;
  for (const std::string& file : model_files(model.impl().path))
    read.push_back({"the model", file});
  for (const std::string& file : data_files(options.data)) read.push_back({"--data", file});
  check_outputs(world, {{"--metrics", options.metrics}, {"--profile", options.profile}}, read);
  return decide_on_rank0(world, [&] {
    check_options(options);
    make_schedule(options);
    check_device();
    const std::unique_ptr<DataSource> data = open_batches(model.impl().train, options);
    SR_REQUIRE(options.patience == 0 || data->batches(Split::validation) > 0, invalid_input,
               "patience ", options.patience, ": waits for validations, but ",
               options.data.empty() ? "synthetic batches" : "--data " + options.data,
               " have no validation part; give data with val_mask, or --validation above 0");
    return data->describe();
  });
}

TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options) {
  return train(world, model, plan, options, nullptr);
}

TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options, const std::function<void(const RankProfile&)>& see) {
  std::optional<MetricsWriter> metrics;  // the leader's
  require_same(world, "train", nlohmann::json::object());
  at_boundary([&] {
    require_made_for(model.impl(), plan.impl());
    const int64_t ranks = plan.impl().train.mesh.size();
    SR_REQUIRE(world.size() == ranks, invalid_input, "train: the plan is for ", ranks,
               " ranks, there are ", world.size());
  });
  check_training(world, model, options);
  decide_on_rank0(world, [&] {
    if (!options.metrics.empty()) metrics.emplace(options.metrics);
    return std::string();
  });
  TrainReport report;
  report.predicted_bytes = plan.predicted_bytes();
  report.allocated_bytes.assign(report.predicted_bytes.size(), 0);
  std::mutex mutex;  // thread ranks share the report
  run_ranks(world, [&](Communicator& comm) {
    const bool leader = comm.rank() == 0;
    const bool recorded = see || !options.profile.empty() || options.profile_summary;
    const std::unique_ptr<RankDevice> on = backend().open(comm);
    if (world.impl().timeout) on->comm().set_timeout(*world.impl().timeout);
    on->agree([&] { RankTrainer(*on, model.impl(), plan.impl(), options, false).rehearse(); });
    RankTrainer trainer(*on, model.impl(), plan.impl(), options, recorded);
    if (leader && options.on_note && !trainer.arena().why_private().empty()) {
      options.on_note("ranks of this machine exchange by messages, for they cannot share memory: " +
                      trainer.arena().why_private());
    }
    const auto start = Clock::now();
    Validation validation(trainer, options);
    for (int64_t step = 1; step <= options.steps && !validation.stopped(); ++step) {
      const StepReport done = trainer.step(step);
      if (leader) {
        report.losses.push_back(done.loss);
        if (metrics) metrics->step(metrics_of(done));
        if (options.on_step) options.on_step(done);
      }
      const bool due =
          step == options.steps || (options.eval_every > 0 && step % options.eval_every == 0);
      if (!due || !trainer.has(Split::validation)) continue;
      const EvalReport eval = validation.take(step);
      if (!leader) continue;
      report.evals.push_back(eval);
      if (metrics) metrics->eval(metrics_of(eval));
      if (options.on_eval) options.on_eval(eval);
    }
    std::vector<int64_t> allocated(static_cast<size_t>(comm.size()));
    const int64_t mine = trainer.arena().bytes();
    comm.all_gather(&mine, allocated.data(), std::vector<int64_t>(allocated.size(), 1), DType::i64);
    const double seconds = milliseconds_since(start) / 1e3;
    std::string profile;
    if (const Profiler* profiler = trainer.profiler()) {
      const RankProfile own = profiler->of_rank(comm.rank());
      profile = profiler->tell(comm, own);
      if (see) see(own);
    }
    const std::lock_guard lock(mutex);
    if (leader) {
      report.profile = std::move(profile);
      report.allocated_bytes = allocated;
      report.seconds = seconds;
    }
  });
  return report;
}

}  // namespace shardrun
