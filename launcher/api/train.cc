// The training loop of every rank.
#include "train.h"

#include <chrono>
#include <mutex>

#include "backend.h"
#include "exec/metrics.h"
#include "plan.h"
#include "rank_trainer.h"
#include "same_call.h"
#include "validation.h"
#include "world.h"

namespace shardrun {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

}  // namespace

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
    trainer.begin();
    std::optional<Stopped> stopped;
    const auto start = Clock::now();
    Validation validation(trainer, options);
    for (int64_t step = 1; step <= options.steps && !validation.stopped() && !stopped; ++step) {
      const StepReport done = trainer.step(step);
      if (leader) {
        report.losses.push_back(done.loss);
        if (metrics) metrics->step(metrics_of(done));
        if (options.on_step) options.on_step(done);
      }
      const bool due =
          step == options.steps || (options.eval_every > 0 && step % options.eval_every == 0);
      std::optional<int> stop = trainer.asked_to_stop();
      if (due && !stop && trainer.has(Split::validation)) {
        const std::optional<EvalReport> eval = validation.take(step);
        if (!eval) stop = trainer.asked_to_stop();
        if (eval && leader) {
          report.evals.push_back(*eval);
          if (metrics) metrics->eval(metrics_of(*eval));
          if (options.on_eval) options.on_eval(*eval);
        }
      }
      if (stop) stopped = Stopped{step, *stop};
    }
    std::vector<int64_t> allocated(static_cast<size_t>(comm.size()));
    const int64_t mine = trainer.arena().bytes();
    comm.all_gather(&mine, allocated.data(), std::vector<int64_t>(allocated.size(), 1), DType::i64);
    const double seconds = seconds_since(start);
    std::string profile;
    if (const Profiler* profiler = trainer.profiler()) {
      const RankProfile own = profiler->of_rank(comm.rank());
      profile = profiler->tell(comm, own);
      if (see) see(own);
    }
    const std::lock_guard lock(mutex);
    report.stopped = stopped;
    if (leader) {
      report.profile = std::move(profile);
      if (const std::optional<TokenEntropy> entropy = trainer.data().entropy()) {
        report.unigram_entropy = entropy->unigram;
        report.bigram_entropy = entropy->bigram;
      }
      report.allocated_bytes = allocated;
      report.seconds = seconds;
    }
  });
  return report;
}

}  // namespace shardrun
