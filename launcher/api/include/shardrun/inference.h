// What a trained model is for: its loss on data, and its outputs for arrays.
//
//   shardrun::TrainedRun run = shardrun::read_trained_run("run");       // a folder of checkpoints
//   shardrun::Model model = shardrun::load_model(world, "gpt.onnx", run.model);
//   shardrun::TrainingPlan plan = shardrun::make_plan(world, model, {});
//   run.train.data = "text:prose.txt";
//   double loss = shardrun::evaluate(world, model, plan, run.train).loss;
//
//   shardrun::RunModelRequest request;
//   request.model = "gpt.onnx", request.checkpoint = "run";
//   request.input = "tokens.npz", request.output = "logits.npz";
//   shardrun::run_model(world, request);
#pragma once

#include "shardrun/shardrun.h"

namespace shardrun {

/// The run that wrote a checkpoint.
struct TrainedRun {
  std::string checkpoint;  // the path of it, of a folder of several the newest
  int64_t step = 0;
  ModelOptions model;  // what the run was asked for, without data, libraries of ops and weights
  /// How it learnt and which samples were for validation; `resume` is the checkpoint. No files.
  TrainOptions train;
};
/// Reads the manifest. Throws Failure(call): there is no checkpoint, or it is damaged.
TrainedRun read_trained_run(const std::string& path);

struct EvaluationReport {
  std::string checkpoint;  // "": there is none
  int64_t step = 0;        // of the checkpoint
  int64_t batches = 0;     // of the validation
  double loss = 0;         // of the validation, each batch weighing as many labels as count in it
  std::optional<double> accuracy;    // where the loss is a cross entropy over classes
  std::optional<double> perplexity;  // exp(loss), where it is one over the tokens of a text
  std::optional<double> test_loss, test_accuracy, test_perplexity;  // where data have a test part
  std::vector<int64_t> predicted_bytes, allocated_bytes;            // per rank
};
/// What evaluate() looks at before it starts, to be called before a long search for a plan. Returns
/// a line about the data. Throws Failure(call): as check_training does, and where the data have no
/// validation part.
std::string check_evaluation(World& world, const Model& model, const TrainOptions& options);
/// The loss on the validation part of options.data, with the parameters of options.resume, or
/// without it those that the model begins with. On the mesh and with the plan of the run that wrote
/// the checkpoint the numbers are those of its own validation, bit for bit. Collective.
EvaluationReport evaluate(World& world, const Model& model, const TrainingPlan& plan,
                          const TrainOptions& options);

struct RunModelRequest {
  std::string model;  // an ONNX file
  /// dims, batch, ops, weights, dtype and seed count; with a checkpoint all else is as its run had
  /// it. batch: how many samples a turn takes; absent: 8, or as many as there are if these are
  /// fewer.
  ModelOptions options;
  std::string checkpoint;  // its parameters; "": those of options.weights, or the model's own
  /// X.npy for a model of one input; X.npz with an array for each input. Where the first dim of
  /// every input is symbolic it counts samples, as many as the arrays have; else the arrays are one
  /// batch, whose sizes symbolic dims take.
  std::string input;
  std::string output;                // Y.npz, an array for each output; Y.npy for one output
  std::vector<std::string> outputs;  // their names; empty: all
  PlanRequest plan;
  /// Called on the leader: what the plan is, and what else one ought to know.
  std::function<void(const std::string&)> on_note;
};
struct RunModelReport {
  int64_t samples = 0, turns = 0;
  std::vector<std::string> outputs;                       // "logits f32[20, 64, 256]"
  double seconds = 0;                                     // of the turns
  std::vector<int64_t> predicted_bytes, allocated_bytes;  // per rank
};
/// The forward pass alone, without dropout, normalised by running statistics, and planned for that:
/// no gradients, no optimizer. Each rank holds its shards of the parameters and its part of every
/// output, which goes to the file piece by piece. The last turn is filled up with copies of the
/// last sample. Collective.
RunModelReport run_model(World& world, const RunModelRequest& request);

}  // namespace shardrun
