// What a trained model is for: its loss on data, its outputs for arrays, and text from it.
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
/// Of a folder of checkpoints the newest, or the newest of which no byte is damaged (`whole`, which
/// reads it); "": it holds none.
std::string newest_checkpoint(const std::string& folder, bool whole = false);

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
  OnnxModel model;
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
/// no gradients, no optimizer. Each rank holds its shards of the parameters and its shard of every
/// output, which goes to the file piece by piece. The last turn is filled up with copies of the
/// last sample. Collective.
RunModelReport run_model(World& world, const RunModelRequest& request);

struct SampleRequest {
  OnnxModel model;
  ModelOptions options;    // as RunModelRequest's; a symbolic batch is 1
  std::string checkpoint;  // likewise
  /// What the text begins with: tokens; a text for a model of 256 tokens, which are its bytes; or a
  /// file of tokens as `tokens:` of TrainOptions::data. One of the three.
  std::vector<int64_t> prompt;
  std::string prompt_text, prompt_file;
  int64_t tokens = 100;          // to draw
  double temperature = 1;        // logits are divided by it; 0: the likeliest token, always
  std::optional<int64_t> top_k;  // one of so many likeliest tokens
  uint64_t seed = 0;
  /// Keeps keys and values where attention is causal and positions can be followed, and the context
  /// holds the whole text; else, and without this, the whole context is computed again for each
  /// token.
  bool keep_keys = true;
  std::string output;  // a file for all tokens, those of the prompt too, as prompt_file; "": none
  PlanRequest plan;
  /// Called on the leader: what the plan is; and each token of the prompt and behind it.
  std::function<void(const std::string&)> on_note;
  std::function<void(int64_t)> on_token;
};
struct SampleReport {
  std::vector<int64_t> tokens;  // behind the prompt
  int64_t context = 0, vocabulary = 0, prompt = 0;
  std::string computed_again;   // why the whole context is, for each token; "": keys are kept
  double prompt_seconds = 0;    // up to the first token behind the prompt
  double seconds = 0;           // of those behind the first
  int64_t parameter_bytes = 0;  // of the fullest rank
  std::vector<int64_t> predicted_bytes, allocated_bytes;  // per rank
};
/// Draws tokens one by one. A number is drawn for each position of the text, and the plan divides
/// no sum among ranks: the same seed gives the same text on any mesh. Throws Failure(call): the
/// model is none of tokens, or its logits depend on later tokens; a prompt that is empty, longer
/// than the context, or has tokens that the model does not know. Collective.
SampleReport sample(World& world, const SampleRequest& request);

}  // namespace shardrun
