// A validation without training.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "checkpoint/resume.h"
#include "graph/passes/training.h"
#include "plan/plan.h"
#include "ranks/same_call.h"
#include "ranks/world.h"
#include "shardrun/inference.h"
#include "train/batches.h"
#include "train/rank_trainers.h"
#include "train/train_options.h"

namespace shardrun {
namespace {

/// What training alone writes or asks for goes.
TrainOptions to_evaluate(TrainOptions options) {
  options.checkpoint.clear();
  options.checkpoint_every = options.keep = 0;
  options.metrics.clear();
  options.profile.clear();
  options.profile_summary = false;
  options.patience = 0;
  return options;
}

/// Is the loss a cross entropy over tokens, of a model of tokens?
bool predicts_tokens(const Graph& evaluation) {
  const bool compares =
      std::any_of(evaluation.nodes().begin(), evaluation.nodes().end(), takes_labels);
  return compares && evaluation.metrics.count("correct") == 0 &&
         tokens_per_batch(batch_fields(evaluation)) > 0;
}

void add(const RankTrainer::Evaluation& found, bool tokens, double& loss,
         std::optional<double>& accuracy, std::optional<double>& perplexity) {
  loss = found.loss;
  accuracy = found.accuracy;
  if (tokens) perplexity = std::exp(found.loss);
}

/// Of one rank; the same on all but for the bytes.
EvaluationReport evaluate_rank(RankTrainer& trainer, Communicator& comm, bool tokens) {
  EvaluationReport out;
  out.batches = trainer.data().batches(Split::validation);
  std::optional<RankTrainer::Evaluation> validation, test;
  if (trainer.tests_in_same_pass()) {
    std::tie(validation, test) = trainer.evaluate_both();
  } else {
    validation = trainer.evaluate(Split::validation);
    if (trainer.has(Split::test)) test = trainer.evaluate(Split::test);
  }
  add(*validation, tokens, out.loss, out.accuracy, out.perplexity);
  if (test) add(*test, tokens, out.test_loss.emplace(), out.test_accuracy, out.test_perplexity);
  out.allocated_bytes.resize(static_cast<size_t>(comm.size()));
  const int64_t mine = trainer.arena().bytes();
  comm.all_gather(&mine, out.allocated_bytes.data(),
                  std::vector<int64_t>(out.allocated_bytes.size(), 1), DType::i64);
  return out;
}

}  // namespace

std::string check_evaluation(World& world, const Model& model, const TrainOptions& given) {
  at_boundary([&] { require_trains("evaluate", "evaluated", model.impl()); });
  const TrainOptions options = to_evaluate(given);
  const std::string line = check_training(world, model, options);
  decide_on_rank0(world, [&] {
    const std::unique_ptr<DataSource> data = open_batches(model.impl().train, options);
    SR_REQUIRE(data->batches(Split::validation) > 0, invalid_input,
               options.data.empty() ? "synthetic batches" : "--data " + options.data,
               ": no part is for validation; give --validation above 0, or data with val_mask");
    return std::string();
  });
  return line;
}

EvaluationReport evaluate(World& world, const Model& model, const TrainingPlan& plan,
                          const TrainOptions& given) {
  require_same(world, "evaluate", nlohmann::json::object());
  at_boundary([&] {
    require_fits("evaluate", world, model.impl(), plan.impl());
    SR_REQUIRE(plan.impl().with_evaluation, invalid_input,
               "evaluate: the plan has no validation; plan with PlanRequest::with_evaluation");
  });
  const TrainOptions options = to_evaluate(given);
  check_evaluation(world, model, options);
  const std::string path =
      decide_on_rank0(world, [&] { return find_resumed(model.impl(), options); });
  std::optional<Resumed> resumed;
  if (!path.empty()) at_boundary([&] { resumed = open_resumed(path); });
  const bool tokens = predicts_tokens(model.impl().evaluation);
  EvaluationReport report;
  RankTrainers trainers(
      world, model.impl(), plan.impl(), options,
      [&] { return open_batches(model.impl().train, options); }, /*recorded=*/false,
      resumed ? &resumed->state : nullptr);
  trainers.run([&](RankTrainer& trainer, Communicator& comm) {
    if (resumed) {
      restore_or_offer_older(resumed->checkpoint, comm,
                             [&] { trainer.restore(resumed->checkpoint); });
    }
    const EvaluationReport found = evaluate_rank(trainer, comm, tokens);
    if (comm.rank() == 0 || world.impl().mpi) report = found;
  });
  report.checkpoint = path;
  report.step = resumed ? resumed->state.step : 0;
  report.predicted_bytes = plan.predicted_bytes();
  return report;
}

}  // namespace shardrun
