// The training loop of every rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "backend.h"
#include "batches.h"
#include "exec/executor.h"
#include "exec/metrics.h"
#include "exec/schedule.h"
#include "graph/optimizer.h"
#include "plan.h"
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

void check_options(const TrainOptions& o) {
  SR_REQUIRE(o.steps >= 1, invalid_input, "steps is ", o.steps, ", wanted 1 or more");
  SR_REQUIRE(o.eval_every >= 0 && o.eval_batches >= 0, invalid_input,
             "eval-every and eval-batches cannot be negative");
  SR_REQUIRE(o.validation >= 0 && o.validation < 1, invalid_input, "validation is ", o.validation,
             ", wanted 0 to below 1");
}

/// One rank's executors over one arena.
class RankTrainer {
 public:
  RankTrainer(Communicator& comm, const Model::Impl& model, const TrainingPlan::Impl& plan,
              const TrainOptions& options)
      : model_(model),
        programs_(compile_for_rank(model, plan, comm.rank())),
        arena_(std::make_shared<Arena>(programs_.arena_bytes())),
        train_(programs_.train, backend_kernels(), comm, model.options.seed, arena_),
        fields_(batch_fields(model.train)),
        data_(open_batches(model.train, options)),
        schedule_(make_schedule(options)),
        tokens_(tokens_per_batch(fields_)) {
    if (programs_.evaluation) {
      evaluation_.emplace(*programs_.evaluation, backend_kernels(), comm, model.options.seed,
                          arena_, /*initialise=*/false);
    }
    if (!fields_.empty() && !fields_[0].type.shape.empty()) samples_ = fields_[0].type.shape[0];
  }

  int64_t allocated_bytes() const { return arena_->bytes(); }

  StepReport step(int64_t number) {
    const auto start = Clock::now();
    const double comm_before = train_.comm_seconds();
    const int accumulate = model_.options.accumulate;
    const double lr = schedule_.lr_at(number);
    train_.set_scalar(kLearningRate, lr);
    train_.set_scalar(kStep, number);
    train_.begin_step();
    for (int micro = 0; micro < accumulate; ++micro) {
      const int64_t batch = (number - 1) * accumulate + micro;
      train_.set_scalar(kRandomStep, batch);
      fill(train_, batch, false);
      train_.run_micro();
    }
    train_.run_update();
    StepReport report;
    report.step = number;
    report.loss = train_.metric("loss");
    report.grad_norm = train_.metric("grad_norm");
    report.lr = lr;
    report.step_ms = milliseconds_since(start);
    report.comm_ms = (train_.comm_seconds() - comm_before) * 1e3;
    report.samples_per_s = static_cast<double>(samples_ * accumulate) / report.step_ms * 1e3;
    report.tokens_per_s = static_cast<double>(tokens_ * accumulate) / report.step_ms * 1e3;
    report.peak_bytes = allocated_bytes();
    if (!std::isfinite(report.loss) ||
        !std::isfinite(report.grad_norm)) {  // the same numbers on every rank
      throw Failure(Failure::Kind::run,
                    str("step ", number, ": the loss is ", report.loss, " and the gradients' norm ",
                        report.grad_norm, "; lower --lr, or clip gradients with --clip"),
                    true);
    }
    return report;
  }

  bool can_evaluate() const { return evaluation_ && data_->validation_batches() > 0; }

  EvalReport evaluate(int64_t step) {
    const int64_t batches = data_->validation_batches();
    double sum = 0;
    for (int64_t b = 0; b < batches; ++b) {
      evaluation_->begin_step();
      fill(*evaluation_, b, true);
      evaluation_->run_micro();
      sum += evaluation_->metric("loss");
    }
    return {step, sum / static_cast<double>(batches)};
  }

 private:
  void fill(Executor& executor, int64_t batch, bool validation) {
    for (const BatchField& field : fields_) {
      const Binding* binding = executor.find(field.name);
      if (binding)
        data_->read(batch, validation, field, binding->box, executor.view(*binding).data);
    }
  }

  const Model::Impl& model_;
  RankPrograms programs_;
  std::shared_ptr<Arena> arena_;
  Executor train_;
  std::optional<Executor> evaluation_;
  std::vector<BatchField> fields_;
  std::unique_ptr<DataSource> data_;
  Schedule schedule_;
  int64_t tokens_ = 0, samples_ = 0;  // of one micro-batch
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

}  // namespace

void check_training(World& world, const Model& model, const TrainOptions& options) {
  decide_on_rank0(world, [&] {
    check_options(options);
    make_schedule(options);
    open_batches(model.impl().train, options);
    if (!options.metrics.empty()) MetricsWriter(options.metrics, /*append=*/true);
    return std::string();
  });
}

TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options) {
  std::optional<MetricsWriter> metrics;  // the leader's
  check_training(world, model, options);
  decide_on_rank0(world, [&] {
    if (!options.metrics.empty()) metrics.emplace(options.metrics, /*append=*/false);
    return std::string();
  });
  TrainReport report;
  report.predicted_bytes = plan.predicted_bytes();
  report.allocated_bytes.assign(report.predicted_bytes.size(), 0);
  std::mutex mutex;  // thread ranks share the report
  run_ranks(world, [&](Communicator& comm) {
    const bool leader = comm.rank() == 0;
    RankTrainer trainer(comm, model.impl(), plan.impl(), options);
    const auto start = Clock::now();
    auto evaluate = [&](int64_t step) {
      const EvalReport eval = trainer.evaluate(step);
      if (!leader) return;
      report.evals.push_back(eval);
      if (metrics) metrics->eval(eval.step, eval.val_loss);
      if (options.on_eval) options.on_eval(eval);
    };
    for (int64_t step = 1; step <= options.steps; ++step) {
      const StepReport done = trainer.step(step);
      if (leader) {
        report.losses.push_back(done.loss);
        if (metrics) metrics->step(metrics_of(done));
        if (options.on_step) options.on_step(done);
      }
      const bool due = options.eval_every > 0
                           ? step % options.eval_every == 0 || step == options.steps
                           : step == options.steps;
      if (due && trainer.can_evaluate()) evaluate(step);
    }
    std::vector<int64_t> allocated(static_cast<size_t>(comm.size()));
    const int64_t mine = trainer.allocated_bytes();
    comm.all_gather(&mine, allocated.data(), std::vector<int64_t>(allocated.size(), 1), DType::i64);
    const std::lock_guard lock(mutex);
    if (leader) {
      report.allocated_bytes = allocated;
      report.seconds = milliseconds_since(start) / 1e3;
    }
  });
  return report;
}

}  // namespace shardrun
