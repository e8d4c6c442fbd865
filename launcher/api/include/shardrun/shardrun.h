// shardrun: train an ONNX model on many processes. This is the whole public interface; the command
// line is a thin client of it.
//
// clang-format off
//   shardrun::World world = shardrun::World::launched();  // mpirun's ranks, or this process alone
//   try {
//     shardrun::ModelOptions options;
//     options.batch = 8;
//     shardrun::Model model = shardrun::load_model(world, "gpt.onnx", options);
//     shardrun::TrainingPlan plan = shardrun::make_plan(world, model, {});
//     shardrun::TrainOptions train;
//     train.data = "text:shakespeare.txt";
//     train.on_step = [&](const shardrun::StepReport& s) {
//       if (world.leader()) std::printf("%g\n", s.loss);
//     };
//     shardrun::train(world, model, plan, train);
//   } catch (const std::exception& e) {
//     return world.fail(e);  // one sentence, and every rank ends
//   }
// clang-format on
//
// Every rank makes the same calls in the same order. Rank 0's checks finish before any other rank
// starts work: what rank 0 finds wrong in a model, plan or option is thrown on every rank.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardrun/models.h"
#include "shardrun/op.h"

namespace shardrun {

class OnnxFile;

/// Everything that shardrun throws at a caller of this header. what() is a sentence: who, what was
/// found, what was wanted, what to do.
class Failure : public std::runtime_error {
 public:
  /// call: the call or its input was wrong. memory: what was asked for does not fit. run: it failed
  /// while running. peer: another rank failed and says why; nothing to add.
  enum class Kind { call, memory, run, peer };
  Failure(Kind kind, const std::string& sentence, bool everywhere = false)
      : std::runtime_error(sentence), kind_(kind), everywhere_(everywhere) {}
  Kind kind() const { return kind_; }
  /// The exit status of a command: 2 where another call would help, 1 where it failed.
  int status() const { return kind_ == Kind::call || kind_ == Kind::memory ? 2 : 1; }
  /// Every rank throws this same failure, and ends by itself; else World::fail ends the others.
  bool everywhere() const { return everywhere_; }

 private:
  Kind kind_;
  bool everywhere_;
};

/// What ranks of this process run on from now on: "cpu" or "cuda". Without this CUDA where there is
/// a GPU, else the CPU. To be called before the first plan, which is made for one of them. A
/// machine without a GPU can plan for "cuda" (PlanRequest::ranks). Throws Failure(call): another
/// name, or a build without CUDA.
void use_device(const std::string& name);
std::string device_in_use();

/// The ranks that work together.
class World {
 public:
  static World launched();          // MPI's ranks under mpirun or srun, else one rank
  static World threads(int ranks);  // ranks as threads of this process; no MPI needed
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();  // finalises MPI if launched() initialised it

  /// Threads of each rank's kernels, if the ranks of each machine then have no more of them than it
  /// has cores; else the next call throws Failure(call). Without this each has an equal part of the
  /// cores, or OMP_NUM_THREADS if that is less.
  void use_threads(int threads_per_rank);
  /// Plans are made for so many, whatever cores there are here. Nothing can run in this World.
  void assume_threads(int threads_per_rank);
  /// Ranks that wait longer than this for others, in one collective, end the job with a sentence;
  /// 0: they wait for ever. Without this 600 s.
  void use_timeout(double seconds);
  /// From now on ranks of CPUs compare each collective before they make it: its kind, group, bytes
  /// and number. Where they differ, and where ranks wait in a circle, both sides are named within a
  /// second. Every rank asks for it, or none.
  void check_collectives();

  int size() const;
  bool leader() const;  // the process that talks: MPI's rank 0
  /// Prints the sentence of `error` once (to stderr, with the rank if it is not rank 0), ends all
  /// ranks, and returns the exit status: 2 for a wrong call, else 1. Under MPI with other ranks
  /// still running it does not return.
  /// A rank that is about to print calls `speaks`, if there is one, with the sentence, and prints
  /// only where that returns true: ranks whose time is up at once agree so on one who speaks.
  int fail(const std::exception& error,
           const std::function<bool(const std::string& sentence)>& speaks = {}) noexcept;
  /// Ends the process with `status` when all ranks have come here, and leaves MPI as it is: after a
  /// signal to mpirun, Open MPI lets ranks live for a second, and MPI_Finalize would wait for two.
  [[noreturn]] void leave(int status) noexcept;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// ModelOptions::accumulate: load_and_plan finds the number.
inline constexpr int kAutoMicroBatches = 0;

struct ModelOptions {
  std::map<std::string, int64_t> dims;  // symbolic dims: {"batch", 8}
  std::optional<int64_t> batch;  // binds the inputs' first dim where it is symbolic; 8 if not given
  std::vector<std::string> ops;  // libraries of users' ops to load first (shardrun/op.h)
  /// What the model is for: train, forward (the forward pass alone), token (of a model of tokens
  /// the step that takes one, and keeps keys and values: what sample() runs). "": train, or forward
  /// where there is no loss.
  std::string step;
  std::string loss;         // "", cross-entropy, mse; "" if an output of the model is the loss
  std::string loss_output;  // which output is; "": one that is a scalar
  /// Regular expressions on names of parameters: train_only trains no others, train adds, freeze
  /// wins.
  std::vector<std::string> freeze, train, train_only;
  std::string shared;  // "", keep, split: what to do with weights that an exporter merged
  /// Weights to begin with in place of those in the file, which may have none (--no-weights): a
  /// safetensors file, an index or a folder of several, another ONNX file, a checkpoint, a folder
  /// of these (its newest). They are found by the names that the exported module has for them, or
  /// that the file has; a prefix more or less (module., model.) is allowed for. All must be there,
  /// and fit, and there may be no others, but for names in which one of weights_except,
  /// regular expressions, is found: these begin as the file has them.
  std::string weights;
  std::vector<std::string> weights_except;
  std::string mode;  // "", train: every batch normalisation by its batch, however exported
  std::string running_statistics = "pytorch";  // pytorch: of the unbiased variance; onnx
  std::string dtype = "f32";  // f32, bf16: what products compute in; weights are f32 always

  /// Plans may cut attention along its keys, too. Where they do, scores are computed twice.
  bool cut_keys = false;

  std::string optimizer = "adamw";  // adamw, adam, sgd
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, momentum = 0.9;
  bool nesterov = false;      // sgd
  double weight_decay = 0.0;  // on tensors of two or more dims; all with decay_all
  bool decay_all = false;
  std::optional<double> clip;  // global gradient norm; 0: off; absent: 1 with adamw, else off
  /// Micro-batches of `batch` a step, and samples a step. Of the three each two give the third;
  /// absent: 1 micro-batch, or as many as make up global_batch.
  std::optional<int> accumulate;
  std::optional<int64_t> global_batch;
  uint64_t seed = 0;  // fresh weights and dropout masks follow from it

  /// Validation also has the model's outputs, for Trainer::forward (shardrun/trainer.h).
  bool keep_outputs = false;

  /// TrainOptions::data: binds symbolic dims that nothing else binds to the sizes of its arrays.
  /// The integers of one batch that is the same in every step are known to the planner, in the
  /// order that TrainOptions::sort_edges gives them.
  std::string data;
  bool sort_edges = false;
};

/// One line of the table of parameters, or of the constants that look like some, behind them.
struct ParameterInfo {
  std::string name, type, why;
  bool trainable = false;
};

/// An ONNX file, named by its path. It is opened when it is first asked for something, and then
/// stays open: functions that get one object, or copies of it, open and parse the file once, and
/// read weights from the file that they found, even if its path has another by then. Not for
/// several threads at once.
class OnnxModel {
 public:
  OnnxModel(const std::string& path = "");  // NOLINT(google-explicit-constructor): a path is one
  OnnxModel(const char* path) : OnnxModel(std::string(path)) {}  // NOLINT: likewise
  const std::string& path() const;
  const OnnxFile& file() const { return *file_; }

 private:
  std::shared_ptr<const OnnxFile> file_;
};

/// A model with loss, gradients and optimizer: one training step as a graph. Or its forward pass
/// alone (ModelOptions::step), which is planned, explained and verified in the same way, but not
/// trained. No weights are read yet.
class Model {
 public:
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const std::vector<std::string>& notes() const;  // what was assumed, recognised or repaired
  const std::vector<ParameterInfo>& parameters() const;
  std::string graph_text() const;  // the training step, a line per node

  struct Impl;
  const Impl& impl() const { return *impl_; }
  explicit Model(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

Model load_model(World& world, const OnnxModel& onnx, const ModelOptions& options);

/// What a model's file says of how to train it: flags of `shardrun train` and their values, in the
/// order that they stand in ("" for a flag without value), from its metadata 'shardrun.train'.
/// Throws Failure(call) if they cannot be read.
std::vector<std::pair<std::string, std::string>> read_recipe(const OnnxModel& model);

struct PlanRequest {
  std::string mesh = "auto";  // auto; data=2,model=4; 2x4; data=?,model=4; model=4*2
  /// What looks for a plan; or a baseline, or several baselines joined by +, one for each mesh
  /// axis. `shardrun plan --help` lists the names; docs/planners.md says what each does.
  std::string planner = "auto";
  /// "REGEX=SHARDING", such as "h.0.mlp.c_fc.weight=[-,model]": values whose name matches lie so.
  /// "VALUE>NODE=SHARDING": a node reads an operand so. "NODE()=[-,model]": which axes cut a node
  /// in each of its ways. With a ? in front a hint, followed where that costs nothing.
  /// docs/planners.md
  std::vector<std::string> shard;
  /// "TARGET@AXIS", such as "batch@data", in order: what is cut along each mesh axis. Along an axis
  /// a node does what the first of them says that says anything of it; what none reaches is whole,
  /// unless "auto@AXIS" leaves the axis to the search. docs/planners.md lists the targets.
  /// "batch@turns=4" and "batch@turns=auto" are ModelOptions::accumulate, which load_and_plan sets.
  std::vector<std::string> tactics;
  /// Sharding annotations of the model's file (device_configurations, of IR 11 on): hint, required,
  /// ignore.
  std::string annotations = "hint";
  std::string configuration;  // of the file's device configurations; "": the only one
  bool strict = false;        // a node that tactics can cut in several ways alike is an error
  std::string cluster;        // host, h100, h100:4, a file; "": host
  /// Limit of a rank's memory; 0: what the cluster's devices have. Without `ranks`, no more than
  /// its part of what its device has, and on CPUs of its whole process: the arena has what that
  /// leaves.
  int64_t memory_bytes = 0;
  int64_t arena_bytes = 0;  // limit of a rank's arena alone; 0: none
  /// auto: results of the forward pass may be computed again in the backward pass where keeping
  /// them is too much for the limit; never.
  std::string recompute = "auto";
  double solve_seconds = 10;
  uint64_t seed = 0;
  bool with_evaluation = true;  // the arena also serves validation
  /// The run will save checkpoints (TrainOptions::checkpoint). Where every rank has memory within
  /// its limit for a copy of what it saves, the copy is counted: training goes on while it is
  /// written.
  bool checkpoints = false;
  /// No rank sums a part of what makes one number, so that the step's numbers come about alike on
  /// every mesh.
  bool whole_sums = false;
  int ranks = 0;          // plan for so many; 0: the world's
  std::string plan_file;  // read the plan from here instead
  /// Called on the leader while a plan is sought, with what is done: "finding out how conv can be
  /// cut". Often: many times a second.
  std::function<void(const std::string&)> on_progress;
};

/// The chosen sharding of every value, with predicted time and exact bytes.
class TrainingPlan {
 public:
  TrainingPlan(TrainingPlan&&) noexcept;
  TrainingPlan& operator=(TrainingPlan&&) noexcept;
  ~TrainingPlan();

  std::string summary() const;  // a few lines for people
  std::string json() const;
  double predicted_seconds() const;
  /// Of each rank: its arena, and the copy for checkpoints if that is of the same memory.
  std::vector<int64_t> predicted_bytes() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }
  explicit TrainingPlan(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

struct ModelAndPlan {
  Model model;
  TrainingPlan plan;
  std::string tried;  // for people: the numbers of micro-batches that were planned; "": one
};

/// load_model and make_plan. Where options.accumulate is kAutoMicroBatches, for that number of
/// micro-batches of the global batch for which the predicted step is the shortest of those that fit
/// in memory. `on_model` is called with the first model, before the search for a plan. Throws as
/// the two do; Failure(memory) where no number fits.
ModelAndPlan load_and_plan(World& world, const OnnxModel& onnx, const ModelOptions& options,
                           const PlanRequest& request,
                           const std::function<void(const Model&)>& on_model = nullptr);

/// How many ranks a mesh of PlanRequest::mesh has; 0: auto, or with a size that is unknown: as many
/// as there are. Throws Failure(call) if it is no mesh.
int mesh_ranks(const std::string& mesh);

/// Throws Failure(call) with the bytes needed and the limit if no plan fits.
TrainingPlan make_plan(World& world, const Model& model, const PlanRequest& request);

/// Where a plan's predicted time and bytes go, and its most expensive collectives with why they are
/// there.
std::string plan_details(const Model& model, const TrainingPlan& plan);
/// The plan as a table, layer by layer, layers that are alike printed once.
std::string explain_plan(const Model& model, const TrainingPlan& plan);
/// How `value` lies and who wants it otherwise; and the best plan in which it does not lie so, with
/// what that costs. Plans anew, with the request's memory, seconds and seed.
std::string explain_why(const Model& model, const TrainingPlan& plan, const std::string& value,
                        const PlanRequest& request);
/// What if every value that `shard` ("REGEX=SHARDING") names lay so: the cost of each alone, all
/// else as planned, and of all together, planned anew with the request's memory, seconds and seed.
std::string explain_what_if(const Model& model, const TrainingPlan& plan, const std::string& shard,
                            const PlanRequest& request);
/// What `other` has that `plan` has not: time, by computing, each kind of resharding and of
/// exchange (rows add up to the difference), bytes, and every value that lies otherwise.
std::string explain_difference(const Model& model, const TrainingPlan& plan,
                               const TrainingPlan& other);
/// The plan as PartIR's nested loops over the mesh's axes, one node after the other.
std::string explain_loops(const Model& model, const TrainingPlan& plan);

/// The plan as one HTML page that loads nothing: mesh, timeline of the predicted step, memory over
/// it, how every layer's values are cut, the most expensive collectives. `other`: a plan for the
/// same model, whose differences are shown. `report`: the file of a run's --report, whose times are
/// shown next to the predicted ones; "": none. Throws Failure(call) for a report that is none, or
/// of another mesh.
std::string plan_page(const Model& model, const TrainingPlan& plan,
                      const TrainingPlan* other = nullptr, const std::string& report = "");
/// TrainingPlan::json() with what is known of every node: op, phase, module, types of operands and
/// results, and predicted seconds. make_plan reads both.
std::string plan_json(const Model& model, const TrainingPlan& plan);
/// What each of the request's tactics adds: the step's time, the fullest rank's bytes, collectives
/// by kind, and the conflicts that are left, with what each way would cost. Plans anew for each
/// row, without a limit of memory. On rank 0 alone; "" elsewhere.
std::string explain_tactics(World& world, const Model& model, const PlanRequest& request);

/// Dims of the model's step that are cut together, in groups that look alike, and their conflicts.
std::string explain_colours(const Model& model);
/// How each operator of the model's step can be cut, nodes that are alike once.
std::string explain_rules(const Model& model);

/// Names of the passes that make a rank's program of a plan, in order.
std::vector<std::string> program_passes();
/// Writes a file for each of them to `folder`, which is made where it is missing: what the pass
/// does, its milliseconds, the lines of the program that went and came by it, and the program of
/// `rank`. `stop_after`: the last pass ("": all). Throws Failure(call): no such pass or rank, or a
/// file that cannot be written.
void dump_passes(const Model& model, const TrainingPlan& plan, const std::string& folder,
                 const std::string& stop_after = "", int rank = 0);

/// Writes the model's file to `output` with the plan as annotations of its nodes: how they read
/// inputs and leave outputs, under the device configuration `configuration` ("": called as the mesh
/// is). Parts of a sum have none. How parameters and state are held between steps is written as
/// metadata (docs/onnx.md). Gives back the files written. Throws Failure(call): files.
std::vector<std::string> annotate_model(const Model& model, const TrainingPlan& plan,
                                        const std::string& output,
                                        const std::string& configuration = "");

/// What a plan file says of the model that it is for. Throws Failure(call) naming the field that is
/// missing.
struct PlannedModel {
  std::string path, planner;
  ModelOptions options;
  int ranks = 1;
};
PlannedModel read_planned_model(const std::string& plan_file);

struct StepReport {
  int64_t step = 0;  // from 1
  double loss = 0, lr = 0, grad_norm = 0;
  double step_ms = 0, comm_ms = 0;
  double tokens_per_s = 0;  // 0 where the model has no tokens
  double samples_per_s = 0;
  int64_t peak_bytes = 0;  // arena bytes of this rank
  std::string skipped;     // why nothing was updated (TrainOptions::on_nan); "": it was
};

struct EvalReport {
  int64_t step = 0;
  double val_loss = 0;
  std::optional<double> val_accuracy;  // where the loss is a cross entropy over classes
  bool best = false;                   // of all validations so far
  /// In a run's last report, where the data have a test part: of the best validation.
  std::optional<int64_t> best_step;
  std::optional<double> test_loss, test_accuracy;
};

/// How an attempt to write a checkpoint ended.
struct CheckpointReport {
  int64_t step = 0;     // whose state it holds
  std::string path;     // its folder
  std::string failure;  // "": it is whole; else why not: training goes on, those before it stay
  std::string left;     // why an older one could not be removed; "": it could, or there was none
  int64_t bytes = 0;    // of all ranks' files
  double seconds = 0;   // until it was whole
  double stalled_seconds = 0;  // of these training stood still on the leader
};

struct TrainOptions {
  std::string data;         // "", text:FILE, tokens:FILE.bin, npy:X.npy,Y.npy, npz:FILE,
                            // idx:IMAGES,LABELS, cifar:FOLDER; "": synthetic
  std::string augment;      // images: "", crop=4, flip, crop=4,flip
  std::string normalise;    // "", rows, data, MEAN/DEVIATION
  bool sort_edges = false;  // a graph's edges in the order of their targets
  /// text and tokens: by how many tokens targets are behind the inputs, 0 or 1; auto: 1, or 0 where
  /// the model's loss shifts them itself.
  std::string target_shift = "auto";
  int64_t steps = 20;
  double lr = 3e-4, min_lr = 0;
  std::string schedule = "constant";  // constant, linear, cosine
  int64_t warmup = 0;                 // steps
  int64_t eval_every = 0;             // 0: only at the end if there is validation data
  int64_t eval_batches = 0;           // 0: all of the validation data, at most 200 batches
  double validation = 0.1;            // fraction of the data kept for validation
  /// Stop after so many validations with neither a lower loss nor a higher accuracy; 0: off.
  int64_t patience = 0;
  uint64_t seed = 0;  // the order of batches
  /// A folder for checkpoints, which all ranks see: parameters, state, and all else that a run
  /// needs to go on. PlanRequest::checkpoints counts memory for them. "": none.
  std::string checkpoint;
  int64_t checkpoint_every = 0;  // steps; 0: only when the run ends, or is asked for one
  int64_t keep = 0;              // so many, the newest; 0: all
  /// Go on from a checkpoint: this one, or of a folder of some the newest; "": of `checkpoint`,
  /// where the run begins anew if there is none yet. Options may be others than before; what
  /// depends on them, such as the learning rate, follows the new ones. `steps` counts from the
  /// first run's beginning.
  std::optional<std::string> resume;
  std::string metrics;           // JSON lines file; "": none
  std::string board;             // a folder for TensorBoard's event files; "": none
  std::string profile;           // a trace of all ranks for Chrome's viewer or Perfetto; "": none
  bool profile_summary = false;  // TrainReport::profile
  int64_t profile_steps = 10;    // the last so many steps, and batches of validation, are recorded
  /// A folder for what each rank did last, a file each that a failed run leaves. "": none.
  std::string flight_recorder;
  /// Where a loss or norm is not finite: "stop", or "skip 3": leave out up to three such steps.
  std::string on_nan = "stop";
  /// Steps from one comparison of replicas' hashes (docs/output.md) to the next. 0: none.
  int64_t check_replicas = 0;
  std::function<void(const StepReport&)> on_step;              // called on the leader
  std::function<void(const EvalReport&)> on_eval;              // called on the leader
  std::function<void(const CheckpointReport&)> on_checkpoint;  // called on the leader
  /// Called on the leader with what a user should know of the run: what it goes on from, what makes
  /// it slower than it could be, that it diverges, what could not be written.
  std::function<void(const std::string&)> on_note;
};

/// Asks train() to end when the step that runs has ended, or the batch of validation: on all ranks,
/// though one process alone was asked. Returns false, and does nothing, where no train() of this
/// process has come to its first step yet, or one was asked before: who wants an end then has to
/// end the process. For a second after a train() that was asked, it returns true and does nothing:
/// a signal to all ranks comes late to some. For any thread, and async-signal-safe. `signal`: what
/// TrainReport::stopped says; 0 where there is none.
///
/// The library handles no signals. The command blocks SIGTERM and SIGINT before it makes a World,
/// and has a thread of its own for them, as any program should:
///
///   int signal;
///   while (sigwait(&signals, &signal) == 0)
///     if (!shardrun::request_stop(signal)) _exit(128 + signal);
///
/// A handler that runs on a stack of a thread that computes corrupts what oneDNN's generated code
/// keeps below the stack pointer: it needs sigaltstack on every thread, and SA_ONSTACK.
bool request_stop(int signal = 0) noexcept;

/// Asks train() for a checkpoint of the step that runs, if it has a folder for checkpoints, and
/// goes on. As request_stop for any thread; one that no train() hears is for the next.
void request_checkpoint() noexcept;

struct Stopped {
  int64_t step = 0;  // the last one
  int signal = 0;
};

struct TrainReport {
  int64_t first_step = 1;      // of this call: behind those of the run that it goes on from
  std::vector<double> losses;  // one a step
  std::vector<EvalReport> evals;
  std::vector<int64_t> predicted_bytes, allocated_bytes;  // per rank, of its arena
  std::vector<int64_t> process_bytes;  // per rank: memory of its process at the end of the run
  int64_t skipped = 0;                 // steps (TrainOptions::on_nan)
  double seconds = 0;
  std::string profile;    // on the leader: where a step's time goes, as a table
  std::string unwritten;  // on the leader: "" or why the file of the profile could not be written
  std::optional<Stopped> stopped;  // on every rank, if request_stop ended the run
  /// On the leader, of a text's bytes, or of tokens of at most 1,024 kinds, in nats as the loss:
  /// what a model ends at that only counts tokens, or pairs of them. Of the first 16 MiB.
  std::optional<double> unigram_entropy, bigram_entropy;
  std::string checkpoint;          // on the leader: the newest whole one; "": none
  int64_t checkpoints_failed = 0;  // attempts, on every rank
};

/// What train() checks before it starts (options, the data, the files that it will write), so that
/// a caller hears of it before a long search for a plan. Returns a line about the data, on rank 0,
/// and behind it a note where the targets of a model of tokens are shifted wrongly.
/// Throws Failure(call); also for a model whose step is the forward pass alone.
std::string check_training(World& world, const Model& model, const TrainOptions& options);
/// The same before verify(), which takes a model whose step is the forward pass alone, too.
std::string check_verification(World& world, const Model& model, const TrainOptions& options);
TrainReport train(World& world, const Model& model, const TrainingPlan& plan,
                  const TrainOptions& options);

/// A file that a call reads or writes, or a folder that it makes; `name`: the flag that names it.
struct NamedFile {
  std::string name, path;  // path is empty: left out
  bool folder = false;
};
/// Looks at files before long work: throws Failure(call) where an output cannot be written, say
/// because its folder is missing, where two are one, or where one is an input. Rank 0 looks.
void check_outputs(World& world, const std::vector<NamedFile>& outputs,
                   const std::vector<NamedFile>& inputs);
/// Puts `text` where the file is, whole or not at all. Throws Failure.
void write_output(const std::string& path, const std::string& text);
/// A model's file, and those next to it that hold its weights.
std::vector<std::string> model_files(const OnnxModel& model);
/// The files that TrainOptions::data names.
std::vector<std::string> data_files(const std::string& data);
/// The files that ModelOptions::weights names.
std::vector<std::string> weight_files(const std::string& weights);

struct ExportRequest {
  std::string checkpoint;  // a checkpoint, or a folder of them: then its newest
  /// FILE.onnx: the model's file with trained weights in place of its own, all else byte for byte
  /// as it was. FILE.safetensors, or a folder (with an index where it takes several files, as
  /// Hugging Face has them): the state_dict() of the module that was exported.
  std::string output;
  std::string model;    // where the model's file is now; "": where it was when the run began
  std::string weights;  // the same of ModelOptions::weights
  /// Names of tied weights that the file does not tell: "model.shared.weight", of "lm_head.weight".
  std::map<std::string, std::string> tied;
  int64_t most_file_bytes = 5'000'000'000;  // of tensors in a file of a folder
};

struct ExportReport {
  std::string checkpoint;  // which one it was
  int64_t step = 0;
  std::vector<std::string> files;  // written
  int64_t tensors = 0, bytes = 0;  // trained ones, and what they take there
  std::vector<std::string> notes;  // what was put elsewhere, counted or left to the reader
  struct LeftOut {
    std::string name, why;
  };
  std::vector<LeftOut> left_out;  // weights that could not be written, and why
};
/// Writes what was trained in the formats of others. A few MB are in memory, however large the
/// model. Needs the file that the run began from: throws Failure(call) where it has changed, or is
/// an output too; Failure(run) where a disk is full: what was there stays. For one process.
ExportReport export_weights(const ExportRequest& request);

struct VerifyReport {
  bool verified = false;
  int64_t values = 0;  // values of the step that were compared
  int64_t comparisons =
      0;               // of them and their resharded copies, and of what persists after the update
  int64_t fused = 0;   // nodes that ranks run as a part of another's step: they leave no value
  double largest = 0;  // largest difference, relative to the value's size (or to that of the terms
                       // that cancel in it)
  std::string mismatch;  // the first value that differs: rank, element, got and wanted
};
/// Runs the first step of a training run with these options (data, seed, lr), and if the plan has
/// one a validation behind it, on the World's ranks, and on a single one. Compares every value
/// in the order of the graph: partial ones combined, resharded copies too, parameters and state
/// after the update, which the validation then must not touch. Stops at the first that differs by
/// more than rounding. Of a model whose step is the forward pass alone it is that pass, which must
/// not touch parameters. Every rank gets the report.
VerifyReport verify(World& world, const Model& model, const TrainingPlan& plan,
                    const TrainOptions& options);

/// A problem of choices in a file: the planner's search without tensors.
struct SolveRequest {
  std::string file;             // JSON or gzipped JSON: our own form or the IOPDDL contest's
  std::string solver = "auto";  // `shardrun solve --help` lists the names
  double seconds = 60;          // in all, reading the file included
  uint64_t seed = 0;
  int64_t nodes = 0;  // lns: so many nodes of its search trees, for equal results; 0: by time only
  int threads = 2;    // lns: the result depends on it
};

struct SolveReport {
  bool found = false;
  std::vector<int> choices;  // one per node; empty if none was found that fits
  double cost = 0, lower_bound = 0;
  bool infeasible = false;  // proven
  /// If none was found: what the smallest one seen needs (-1: none seen was allowed), what every
  /// one needs at least, and the limit; with the times at which that is.
  int64_t closest_bytes = -1, needed_bytes = 0, limit_bytes = 0;
  int closest_time = -1, needed_time = -1;
  std::string solver;                 // which part finished
  double seconds = 0;                 // with the reading
  int64_t nodes = 0, core_nodes = 0;  // before and after the exact reductions
  /// The file's first cost that 64-bit floating point rounds, and to what; "": all are exact.
  std::string rounded;
};
SolveReport solve_problem(const SolveRequest& request);

std::string version();

}  // namespace shardrun
