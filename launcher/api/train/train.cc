// The training loop of every rank.
#include "train/train.h"

#include <mutex>

#include "base/clock.h"
#include "base/files/output_file.h"
#include "base/process/process_memory.h"
#include "call_back.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/resume.h"
#include "checkpoint/trained_model.h"
#include "exec/board/board.h"
#include "exec/checkpoint/folder.h"
#include "exec/checks/divergence.h"
#include "exec/metrics.h"
#include "kept_plan.h"
#include "plan/plan.h"
#include "ranks/backend.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "train/batches.h"
#include "train/rank_trainers.h"
#include "train/train_options.h"
#include "train/validation.h"

namespace shardrun {
namespace {

StepMetrics metrics_of(const StepReport& r) {
  StepMetrics line{.step = r.step,
                   .loss = r.loss,
                   .lr = r.lr,
                   .grad_norm = r.grad_norm,
                   .step_ms = r.step_ms,
                   .tokens_per_s = {},
                   .samples_per_s = {},
                   .comm_ms = r.comm_ms,
                   .peak_bytes = r.peak_bytes,
                   .skipped = !r.skipped.empty()};
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

/// What a call of train() is about, the same on every rank.
struct Call {
  const Model::Impl& model;
  const TrainingPlan::Impl& plan;
  const TrainOptions& options;
  const std::function<void(const RankProfile&)>& see;
  std::optional<Resumed> resumed;
  nlohmann::json trained_model;  // the leader's: RunState::model
  std::mutex mutex = {};         // thread ranks share the report
  TrainReport report = {};
};

/// One rank's run. The leader tells what happens.
class RankRun {
 public:
  RankRun(Call& call, RankTrainer& trainer, Communicator& comm)
      : call_(call),
        options_(call.options),
        comm_(comm),
        leader_(comm.rank() == 0),
        trainer_(trainer),
        schedule_(make_schedule(call.options)),
        validation_(trainer_, call.options) {
    if (call.resumed) restore(*call.resumed);
    if (leader_) begin_as_leader();
    if (options_.checkpoint.empty()) return;
    checkpoints_.emplace(trainer_.training(), comm, call.plan, options_,
                         goes_on_there() ? step_ : -1,
                         [this](const CheckpointReport& ended) { tell(ended); });
  }

  void go() {
    trainer_.begin();
    const double start = now_seconds();
    try {
      if (call_.resumed && call_.resumed->state.validation_due) validate();
      while (!last() && !validation_.stopped() && !stopped_) take_step();
      look_after_checkpoint(true);
      if (checkpoints_) checkpoints_->finish();
      trainer_.succeeded();
    } catch (const Failure& e) {
      // All ranks fail alike: what is being written is whole before they end.
      if (e.everywhere() && checkpoints_) checkpoints_->finish();
      throw;
    }
    end(now_seconds() - start);
  }

 private:
  void restore(const Resumed& resumed) {
    validation_.restore(resumed.state);
    restore_or_offer_older(resumed.checkpoint, comm_,
                           [&] { trainer_.restore(resumed.checkpoint); });
  }

  /// Does the run write to the folder that it was resumed from?
  bool goes_on_there() const {
    return call_.resumed && !options_.checkpoint.empty() &&
           is_of_folder(call_.resumed->checkpoint.path(), options_.checkpoint);
  }

  void note(const std::string& text) const {
    if (leader_ && !text.empty()) call_back(options_.on_note, text);
  }

  void begin_as_leader() {
    const std::string& why_private = trainer_.arena().why_private();
    if (!why_private.empty()) {
      note("ranks of this machine exchange by messages, for they cannot share memory: " +
           why_private);
    }
    MetricsPosition from;
    if (options_.resume && !call_.resumed)
      note(options_.checkpoint + ": holds no checkpoint yet; the run begins at step 1");
    if (call_.resumed) {
      const Resumed& resumed = *call_.resumed;
      note(describe(resumed, trainer_.state_after(step_), options_.steps));
      if (const std::string& weights = call_.model.options.weights; !weights.empty())
        note(str("--weights ", weights, ": not used, for a run goes on with its checkpoint's"));
      if (goes_on_there()) {
        for (const std::string& path : set_aside_later(options_.checkpoint, resumed.state.step))
          note("a later checkpoint, which this run does not go on from, is now " + path);
      }
      if (!options_.metrics.empty())
        from = metrics_to_go_on(options_.metrics, resumed.state.metrics);
    }
    if (!options_.metrics.empty()) metrics_.emplace(options_.metrics, from);
    if (!options_.board.empty()) board_.emplace(options_.board, step_);
  }

  /// Does the run end with this step, whatever its validation finds?
  bool last() const { return step_ >= options_.steps; }

  void take_step() {
    ++step_;
    const StepReport done = trainer_.step(step_, schedule_.lr_at(step_));
    if (leader_) {
      call_.report.losses.push_back(done.loss);
      if (metrics_) note(metrics_->step(metrics_of(done)));
      if (board_) note(board_->step(metrics_of(done)));
      call_back(options_.on_step, done);
    }
    if (done.skipped.empty()) {
      note(divergence_.take(step_, done.loss));
    } else {
      note(done.skipped);
      if (leader_) ++call_.report.skipped;
    }
    const std::optional<int> stop = trainer_.asked_to_stop();
    if (stop) stopped_ = Stopped{step_, *stop};
    validation_due_ = (last() || (options_.eval_every > 0 && step_ % options_.eval_every == 0)) &&
                      trainer_.has(Split::validation);
    if (validation_due_ && !stopped_) validate();
    const bool every = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
    look_after_checkpoint(every || trainer_.asked_for_checkpoint());
  }

  void validate() {
    const std::optional<EvalReport> eval = validation_.take(step_, last());
    validation_due_ = !eval;
    if (!eval) stopped_ = Stopped{step_, trainer_.asked_to_stop().value_or(0)};
    if (!eval || !leader_) return;
    call_.report.evals.push_back(*eval);
    if (metrics_) note(metrics_->eval(metrics_of(*eval)));
    if (board_) note(board_->eval(metrics_of(*eval)));
    call_back(options_.on_eval, *eval);
  }

  void look_after_checkpoint(bool wanted) {
    if (!checkpoints_) return;
    checkpoints_->after_step(
        step_, wanted,
        [&] {
          RunState state = trainer_.state_after(step_);
          state.validation_due = validation_due_;
          validation_.add_to(state);
          if (metrics_) state.metrics = metrics_->position();
          state.model = call_.trained_model;
          return state;
        },
        [&] {
          if (metrics_) metrics_->sync();
        });
  }

  void tell(const CheckpointReport& ended) {
    if (ended.failure.empty()) call_.report.checkpoint = ended.path;
    call_back(options_.on_checkpoint, ended);
  }

  void end(double seconds) {
    std::vector<int64_t> allocated(static_cast<size_t>(comm_.size()));
    int64_t mine = trainer_.arena().bytes();
    if (checkpoints_ && backend().arenas_on_host) mine += checkpoints_->memory_bytes();
    comm_.all_gather(&mine, allocated.data(), std::vector<int64_t>(allocated.size(), 1),
                     DType::i64);
    std::vector<int64_t> processes(allocated.size());
    const int64_t process = process_memory().proportional;
    comm_.all_gather(&process, processes.data(), std::vector<int64_t>(allocated.size(), 1),
                     DType::i64);
    if (metrics_ && metrics_->lost() > 0)
      note(str("metrics file ", options_.metrics, ": lacks ", metrics_->lost(), " lines"));
    std::string profile, unwritten;
    if (const Profiler* profiler = trainer_.profiler()) {
      const RankProfile own = profiler->of_rank(comm_.rank());
      profile = profiler->tell(comm_, own, unwritten);
      if (call_.see) call_.see(own);
    }
    const std::lock_guard lock(call_.mutex);
    call_.report.stopped = stopped_;
    if (checkpoints_) call_.report.checkpoints_failed = checkpoints_->failed();
    if (!leader_) return;
    call_.report.profile = std::move(profile);
    if (const std::optional<TokenEntropy> entropy = trainer_.data().entropy()) {
      call_.report.unigram_entropy = entropy->unigram;
      call_.report.bigram_entropy = entropy->bigram;
    }
    call_.report.unwritten = std::move(unwritten);
    call_.report.allocated_bytes = allocated;
    call_.report.process_bytes = processes;
    call_.report.seconds = seconds;
  }

  Call& call_;
  const TrainOptions& options_;
  Communicator& comm_;
  const bool leader_;
  RankTrainer& trainer_;
  Schedule schedule_;
  Validation validation_;
  Divergence divergence_;
  std::optional<MetricsWriter> metrics_;  // the leader's; before what asks for it on a thread
  std::optional<BoardWriter> board_;      // the leader's
  std::optional<RunCheckpoints> checkpoints_;
  int64_t step_ = call_.resumed ? call_.resumed->state.step : 0;  // updates done
  bool validation_due_ = false;                                   // of that step
  std::optional<Stopped> stopped_;
};

/// With the run's checkpoints, for who goes on from them. A run does without it.
void keep_plan(const TrainingPlan& plan, const TrainOptions& options) {
  const auto ranks = static_cast<int64_t>(plan.predicted_bytes().size());
  const std::string path = kept_plan_path(options.checkpoint, ranks);
  try {
    OutputFile file(path);
    file.stream() << plan.json();
    file.finish();
  } catch (const Error& e) {
    call_back(options.on_note, str("the plan could not be kept: ", e.what()));
  }
}

}  // namespace

TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options) {
  return train(world, model, plan, options, nullptr);
}

TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options, const std::function<void(const RankProfile&)>& see) {
  require_same(world, "train", nlohmann::json::object());
  at_boundary([&] {
    require_fits("train", world, model.impl(), plan.impl());
    SR_REQUIRE(options.checkpoint.empty() || plan.impl().checkpoints, invalid_input,
               "train: checkpoint ", options.checkpoint,
               ": the plan counts no memory for checkpoints; plan with "
               "PlanRequest::checkpoints");
  });
  check_training(world, model, options);
  std::optional<FolderLock> lock;  // the leader's
  nlohmann::json trained = nlohmann::json::object();
  const std::string path = decide_on_rank0(world, [&] {
    if (!options.checkpoint.empty()) {
      lock.emplace(options.checkpoint);
      sweep(options.checkpoint);
      trained = to_json(trained_model(model.impl()));
    }
    std::string found = find_resumed(model.impl(), options);
    if (lock) keep_plan(plan, options);
    return found;
  });
  Call call{model.impl(), plan.impl(), options, see, std::nullopt, std::move(trained)};
  if (!path.empty()) {
    at_boundary([&] { call.resumed = open_resumed(path); });
    call.report.first_step = call.resumed->state.step + 1;
    call.report.checkpoint = path;
  }
  call.report.predicted_bytes = plan.predicted_bytes();
  call.report.allocated_bytes.assign(call.report.predicted_bytes.size(), 0);
  const bool recorded = see || !options.profile.empty() || options.profile_summary;
  RankTrainers trainers(
      world, call.model, call.plan, options,
      [&] { return open_batches(call.model.train, options); }, recorded,
      call.resumed ? &call.resumed->state : nullptr);
  trainers.run(
      [&](RankTrainer& trainer, Communicator& comm) { RankRun(call, trainer, comm).go(); });
  return std::move(call.report);
}

}  // namespace shardrun
