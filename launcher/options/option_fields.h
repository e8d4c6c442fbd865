// The options of a model, a plan and a training run, each once: its flag, help and JSON name, and
// where its value is kept.
//
// A new option is a field in shardrun/shardrun.h and a row here. From the row follow the flag of
// every command that takes the row's group, the line of --help, what a plan file and a checkpoint
// keep, what ranks compare, and whether a model's recipe may give it.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "search_names.h"
#include "shardrun/shardrun.h"

namespace shardrun {

/// A command takes whole groups, in the order of the rows.
enum class OptionGroup {
  none,
  call,        // of every call of a model
  step,        // what a training step computes
  machine,     // where it runs, and what a plan may use
  plan,        // plans of training steps
  data,        // which data there are
  train,       // how a run learns
  checkpoint,  // what a run that trains writes
  metrics,
  profile,
};

/// Where the value is kept, and what ranks compare.
enum OptionUse : unsigned {
  kPlanFile = 1,      // in a plan file
  kRunOptions = 2,    // in a checkpoint: the run's numbers depend on it
  kSame = 4,          // every rank must have the same value
  kSamePresence = 8,  // every rank must have one, or none: where a file lies is each machine's own
  kMayLack = 16,      // an older plan file has none
  kPlanned = 32,      // a plan has its own, so the flag is refused with --plan
};

/// The flags that a model's recipe may give, in the order in which errors list them.
enum class RecipePart { none, task, update, batch, run, data };

/// How the text of the flag becomes the value.
enum class FlagText {
  value,           // a number, a text, a flag without text, or several texts
  sizes,           // NAME=SIZE, repeatable
  bytes,           // 16GiB
  count_or_auto,   // 4, or auto
  seed,            // of the model, the plan and the run together
  folder_or_none,  // may be given without a text
  given,           // a number; that it was given counts too
};

struct OptionRow {
  const char* flag = "";  // "--beta1"; "": none of its own
  const char* name = "";  // "beta1", in JSON
  const char* help = "";
  OptionGroup group = OptionGroup::none;
  unsigned use = 0;  // OptionUse
  RecipePart recipe = RecipePart::none;
  FlagText text = FlagText::value;
  bool shows_default = false;            // in --help
  std::string (*list_help)() = nullptr;  // in place of `help`, where that lists names
};

template <class Options, class T>
struct OptionField {
  T Options::*member;
  OptionRow row;
};
template <class Options, class T>
constexpr OptionField<Options, T> field(T Options::*member, OptionRow row) {
  return {member, row};
}

// A model's fields are in a plan file and a checkpoint, and the same on every rank; not so those
// that say where files lie.
inline constexpr unsigned kOfModel = kPlanFile | kRunOptions | kSame;
inline constexpr unsigned kOfRun = kRunOptions | kSame;

inline constexpr auto kModelOptions = std::make_tuple(
    field(&ModelOptions::dims, {.flag = "--dim",
                                .name = "dims",
                                .help = "Bind a symbolic dim: NAME=SIZE (repeatable)",
                                .group = OptionGroup::call,
                                .use = kOfModel,
                                .recipe = RecipePart::run,
                                .text = FlagText::sizes}),
    field(&ModelOptions::batch,
          {.flag = "--batch",
           .name = "batch",
           .help = "Size of the inputs' first dim where it is symbolic (default 8)",
           .group = OptionGroup::call,
           .use = kOfModel,
           .recipe = RecipePart::batch}),
    field(&ModelOptions::ops,
          {.flag = "--ops",
           .name = "ops",
           .help = "Load a library of ops of your own (docs/ops.md; repeatable)",
           .group = OptionGroup::call,
           .use = kPlanFile}),
    field(&ModelOptions::weights,
          {.flag = "--weights",
           .name = "weights",
           .help = "Begin with these weights: a safetensors file, a folder of some, an ONNX file, "
                   "a checkpoint (docs/training.md)",
           .group = OptionGroup::call}),
    field(&ModelOptions::weights_except,
          {.flag = "--weights-except",
           .name = "weights_except",
           .help = "Tensors of either side whose name matches begin as the model has them "
                   "(repeatable)",
           .group = OptionGroup::call}),
    field(&ModelOptions::step,
          {.flag = "--step",
           .name = "step",
           .help = "What to plan: train, forward (the forward pass alone) or token (what sample "
                   "runs for each token; default: train, or forward where there is no loss)",
           .group = OptionGroup::step,
           .use = kPlanFile | kSame}),
    field(&ModelOptions::loss,
          {.flag = "--loss",
           .name = "loss",
           .help = "cross-entropy or mse on the first output, where no output is the loss itself",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::task}),
    field(&ModelOptions::loss_output,
          {.flag = "--loss-output",
           .name = "loss_output",
           .help = "The output that is the loss (default: the first, or the only one, that is a "
                   "scalar)",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::task}),
    field(&ModelOptions::freeze, {.flag = "--freeze",
                                  .name = "freeze",
                                  .help = "Do not train parameters whose name matches this regular "
                                          "expression (repeatable)",
                                  .group = OptionGroup::step,
                                  .use = kOfModel,
                                  .recipe = RecipePart::task}),
    field(&ModelOptions::train,
          {.flag = "--train",
           .name = "train",
           .help = "Train parameters whose name matches, whatever the file says; --freeze wins "
                   "(repeatable)",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::task}),
    field(&ModelOptions::train_only,
          {.flag = "--train-only",
           .name = "train_only",
           .help = "Train parameters whose name matches, and no others (repeatable)",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::task}),
    field(&ModelOptions::shared,
          {.flag = "--shared",
           .name = "shared",
           .help = "Weights that an exporter merged because they were equal: keep or split",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::task}),
    field(&ModelOptions::mode,
          {.flag = "--mode",
           .name = "mode",
           .help = "train: normalise by the batch's own statistics wherever batch normalisation "
                   "was exported in inference form",
           .group = OptionGroup::step,
           .use = kOfModel}),
    field(&ModelOptions::running_statistics,
          {.flag = "--running-statistics",
           .name = "running_statistics",
           .help = "What the running variance averages: pytorch (unbiased) or onnx (population)",
           .group = OptionGroup::step,
           .use = kOfModel,
           .shows_default = true}),
    field(&ModelOptions::dtype, {.flag = "--dtype",
                                 .name = "dtype",
                                 .help = "Compute type: f32 or bf16 (weights are f32)",
                                 .group = OptionGroup::call,
                                 .use = kOfModel,
                                 .recipe = RecipePart::task,
                                 .shows_default = true}),
    field(&ModelOptions::cut_keys,
          {.flag = "--cut-keys",
           .name = "cut_keys",
           .help = "Attention may be cut along its keys, too, which computes scores twice there",
           .group = OptionGroup::step,
           .use = kOfModel}),
    field(&ModelOptions::optimizer, {.flag = "--optimizer",
                                     .name = "optimizer",
                                     .help = "adamw, adam or sgd",
                                     .group = OptionGroup::step,
                                     .use = kOfModel,
                                     .recipe = RecipePart::task,
                                     .shows_default = true}),
    field(&ModelOptions::beta1, {.flag = "--beta1",
                                 .name = "beta1",
                                 .group = OptionGroup::step,
                                 .use = kOfModel,
                                 .recipe = RecipePart::update,
                                 .shows_default = true}),
    field(&ModelOptions::beta2, {.flag = "--beta2",
                                 .name = "beta2",
                                 .group = OptionGroup::step,
                                 .use = kOfModel,
                                 .recipe = RecipePart::update,
                                 .shows_default = true}),
    field(&ModelOptions::eps, {.flag = "--eps",
                               .name = "eps",
                               .group = OptionGroup::step,
                               .use = kOfModel,
                               .recipe = RecipePart::update,
                               .shows_default = true}),
    field(&ModelOptions::momentum, {.flag = "--momentum",
                                    .name = "momentum",
                                    .help = "sgd's momentum",
                                    .group = OptionGroup::step,
                                    .use = kOfModel,
                                    .recipe = RecipePart::update,
                                    .shows_default = true}),
    field(&ModelOptions::nesterov, {.flag = "--nesterov",
                                    .name = "nesterov",
                                    .help = "sgd: Nesterov's momentum",
                                    .group = OptionGroup::step,
                                    .use = kOfModel,
                                    .recipe = RecipePart::update}),
    field(&ModelOptions::weight_decay, {.flag = "--weight-decay",
                                        .name = "weight_decay",
                                        .help = "On tensors of two or more dims",
                                        .group = OptionGroup::step,
                                        .use = kOfModel,
                                        .recipe = RecipePart::update,
                                        .shows_default = true}),
    field(&ModelOptions::decay_all, {.flag = "--decay-all",
                                     .name = "decay_all",
                                     .help = "Weight decay on every tensor",
                                     .group = OptionGroup::step,
                                     .use = kOfModel,
                                     .recipe = RecipePart::update}),
    field(&ModelOptions::clip,
          {.flag = "--clip",
           .name = "clip",
           .help = "Clip gradients to this global norm; 0: off (default: 1 with adamw, else off)",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::update}),
    field(&ModelOptions::accumulate,
          {.flag = "--accumulate",
           .name = "accumulate",
           .help = "Micro-batches of --batch samples a step (default 1); auto: as many as make the "
                   "step with --global-batch samples the fastest that fits in memory",
           .group = OptionGroup::step,
           .use = kOfModel,
           .recipe = RecipePart::update,
           .text = FlagText::count_or_auto}),
    field(&ModelOptions::global_batch,  // kept as batch and accumulate
          {.flag = "--global-batch",
           .name = "global_batch",
           .help = "Samples a step: --batch times --accumulate, of which it gives the one that is "
                   "left out",
           .group = OptionGroup::step,
           .recipe = RecipePart::update}),
    field(&ModelOptions::seed, {.flag = "--seed",
                                .name = "seed",
                                .help = "Fresh weights, batches and dropout follow from it",
                                .group = OptionGroup::step,
                                .use = kOfModel,
                                .recipe = RecipePart::run,
                                .text = FlagText::seed,
                                .shows_default = true}),
    field(&ModelOptions::keep_outputs, {.name = "keep_outputs"}),
    field(&ModelOptions::data, {.name = "data", .use = kPlanFile}),
    field(&ModelOptions::sort_edges, {.name = "sort_edges", .use = kOfModel}));

inline constexpr auto kPlanRequest = std::make_tuple(
    field(&PlanRequest::mesh, {.flag = "--mesh",
                               .name = "mesh",
                               .help = "auto, named axes (data=2,model=4; ?: what the ranks "
                                       "leave; 4*2: two sub-axes) or sizes (2x4)",
                               .group = OptionGroup::machine,
                               .use = kSame | kPlanned,
                               .shows_default = true}),
    field(&PlanRequest::planner, {.flag = "--planner",
                                  .name = "planner",
                                  .group = OptionGroup::machine,
                                  .use = kSame | kPlanned,
                                  .shows_default = true,
                                  .list_help = planner_help}),
    field(&PlanRequest::shard,
          {.flag = "--shard",
           .name = "shard",
           .help = "Values whose name matches lie so: 'REGEX=[data,-]'; 'VALUE>NODE=[…]': one "
                   "node reads it so; 'NODE()=[…]': a node is cut so; ? in front: a hint "
                   "(repeatable)",
           .group = OptionGroup::machine,
           .use = kPlanFile | kSame | kPlanned}),
    field(
        &PlanRequest::tactics,
        {.flag = "--tactic",
         .name = "tactics",
         .help = "What to cut along a mesh axis, 'TARGET@AXIS' as in batch@data (repeatable, in "
                 "order); what no tactic reaches is whole, and auto@AXIS leaves it to the search; "
                 "batch@turns=4 is --accumulate 4",
         .group = OptionGroup::machine,
         .use = kPlanFile | kSame | kPlanned | kMayLack}),
    field(&PlanRequest::annotations,
          {.flag = "--annotations",
           .name = "annotations",
           .help = "Sharding annotations of the model's file (device configurations): hint, "
                   "required or ignore",
           .group = OptionGroup::machine,
           .use = kSame | kPlanned,
           .shows_default = true}),
    field(&PlanRequest::configuration,
          {.flag = "--configuration",
           .name = "configuration",
           .help = "Which device configuration of the file, where it has several",
           .group = OptionGroup::machine,
           .use = kSame | kPlanned}),
    field(&PlanRequest::strict,
          {.flag = "--strict",
           .name = "strict",
           .help = "--tactic: refuse where a node could be cut in several ways alike",
           .group = OptionGroup::machine,
           .use = kSame}),
    field(&PlanRequest::memory_bytes,
          {.flag = "--memory",
           .name = "memory_bytes",
           .help =
               "Limit of a rank's memory, such as 16GiB (default: what the cluster's devices "
               "have); where it runs no more than its part of the machine or GPU, and on CPUs "
               "of all that its process takes",
           .group = OptionGroup::machine,
           .use = kPlanFile | kSame,
           .text = FlagText::bytes}),
    field(&PlanRequest::arena_bytes, {.flag = "--arena",
                                      .name = "arena_bytes",
                                      .help = "Limit of a rank's arena alone, which holds all "
                                              "tensors (default: what --memory leaves)",
                                      .group = OptionGroup::machine,
                                      .use = kSame,
                                      .text = FlagText::bytes}),
    field(&PlanRequest::cluster,
          {.flag = "--cluster",
           .name = "cluster",
           .help = "What to plan for: host (this machine), p100, v100-32, a100-40, a100-80, h100, "
                   "h200 or tpu-v3 (a node of 8), h100:4 (4 nodes), or a JSON file; "
                   "h100:4,memory=2x,within=2x multiplies its figures",
           .group = OptionGroup::machine,
           .use = kPlanned}),
    field(&PlanRequest::solve_seconds,
          {.flag = "--plan-seconds",
           .name = "solve_seconds",
           .help = "Work of the planner's search: about so many seconds of a core, but the same on "
                   "each",
           .group = OptionGroup::machine,
           .use = kSame,
           .shows_default = true}),
    field(&PlanRequest::recompute,
          {.flag = "--recompute",
           .name = "recompute",
           .help = "auto: compute results of the forward pass again in the backward pass where a "
                   "rank's memory cannot keep them, if that takes the least time; or never",
           .group = OptionGroup::plan,
           .use = kSame | kPlanned,
           .shows_default = true}),
    field(&PlanRequest::plan_file, {.flag = "--plan",
                                    .name = "plan_file",
                                    .help = "Take the plan from this file instead of planning",
                                    .group = OptionGroup::plan,
                                    .use = kSamePresence}),
    field(&PlanRequest::seed, {.name = "seed", .use = kSame}),
    field(&PlanRequest::with_evaluation, {.name = "with_evaluation", .use = kSame}),
    field(&PlanRequest::checkpoints, {.name = "checkpoints", .use = kSame}),
    field(&PlanRequest::whole_sums, {.name = "whole_sums", .use = kSame}),
    field(&PlanRequest::ranks, {.name = "ranks", .use = kSame}));

inline constexpr auto kTrainOptions = std::make_tuple(
    field(&TrainOptions::data,  // where it lies is each machine's own; its contents are compared
          {.flag = "--data",
           .name = "data",
           .help = "text:FILE, tokens:FILE.bin, npy:X.npy,Y.npy, npz:FILE, idx:IMAGES,LABELS, "
                   "cifar:FOLDER (default: synthetic batches)",
           .group = OptionGroup::data}),
    field(&TrainOptions::augment, {.flag = "--augment",
                                   .name = "augment",
                                   .help = "Images: crop=PIXELS, flip, or both with a comma",
                                   .group = OptionGroup::train,
                                   .use = kOfRun,
                                   .recipe = RecipePart::data}),
    field(
        &TrainOptions::normalise,
        {.flag = "--normalise",
         .name = "normalise",
         .help = "rows (of a matrix, to a sum of 1), data (images, to mean 0 and deviation 1), or "
                 "MEAN/DEVIATION, a number for each channel",
         .group = OptionGroup::data,
         .use = kOfRun,
         .recipe = RecipePart::data}),
    field(&TrainOptions::sort_edges, {.flag = "--sort-edges",
                                      .name = "sort_edges",
                                      .help = "A graph's edges in the order of their targets",
                                      .group = OptionGroup::data,
                                      .use = kOfRun,
                                      .recipe = RecipePart::data}),
    field(&TrainOptions::target_shift,
          {.flag = "--target-shift",
           .name = "target_shift",
           .help = "text: and tokens: by how many tokens targets are behind the inputs: 0 or 1; "
                   "auto: 1, or 0 where the model's loss shifts them itself",
           .group = OptionGroup::data,
           .use = kOfRun,
           .recipe = RecipePart::task,
           .shows_default = true}),
    field(&TrainOptions::steps, {.flag = "--steps",
                                 .name = "steps",
                                 .group = OptionGroup::train,
                                 .use = kOfRun,
                                 .recipe = RecipePart::run,
                                 .shows_default = true}),
    field(&TrainOptions::lr, {.flag = "--lr",
                              .name = "lr",
                              .help = "Learning rate",
                              .group = OptionGroup::train,
                              .use = kOfRun,
                              .recipe = RecipePart::run,
                              .shows_default = true}),
    field(&TrainOptions::min_lr, {.flag = "--min-lr",
                                  .name = "min_lr",
                                  .help = "Where the schedule ends",
                                  .group = OptionGroup::train,
                                  .use = kOfRun,
                                  .recipe = RecipePart::run,
                                  .shows_default = true}),
    field(&TrainOptions::schedule, {.flag = "--schedule",
                                    .name = "schedule",
                                    .help = "constant, linear or cosine",
                                    .group = OptionGroup::train,
                                    .use = kOfRun,
                                    .recipe = RecipePart::run,
                                    .shows_default = true}),
    field(&TrainOptions::warmup, {.flag = "--warmup",
                                  .name = "warmup",
                                  .help = "Steps of linear warm-up",
                                  .group = OptionGroup::train,
                                  .use = kOfRun,
                                  .recipe = RecipePart::run,
                                  .shows_default = true}),
    field(&TrainOptions::eval_every, {.flag = "--eval-every",
                                      .name = "eval_every",
                                      .help = "Validate every so many steps (and at the end)",
                                      .group = OptionGroup::train,
                                      .use = kOfRun,
                                      .recipe = RecipePart::run}),
    field(&TrainOptions::eval_batches, {.flag = "--eval-batches",
                                        .name = "eval_batches",
                                        .help = "Batches a validation (default: all, at most 200)",
                                        .group = OptionGroup::data,
                                        .use = kOfRun,
                                        .recipe = RecipePart::run}),
    field(&TrainOptions::validation, {.flag = "--validation",
                                      .name = "validation",
                                      .help = "Fraction of the data kept for validation",
                                      .group = OptionGroup::data,
                                      .use = kOfRun,
                                      .recipe = RecipePart::run,
                                      .shows_default = true}),
    field(&TrainOptions::patience,
          {.flag = "--patience",
           .name = "patience",
           .help = "Stop after so many validations with neither a lower loss nor a higher accuracy "
                   "than all before (default: never)",
           .group = OptionGroup::train,
           .use = kOfRun,
           .recipe = RecipePart::run}),
    field(&TrainOptions::seed, {.name = "seed", .use = kOfRun}),
    field(&TrainOptions::checkpoint,
          {.flag = "--checkpoint",
           .name = "checkpoint",
           .help = "Write checkpoints to this folder, which all ranks see: at the end, and when "
                   "the run is asked to stop",
           .group = OptionGroup::checkpoint,
           .use = kSame}),
    field(&TrainOptions::checkpoint_every, {.flag = "--checkpoint-every",
                                            .name = "checkpoint_every",
                                            .help = "Also every so many steps",
                                            .group = OptionGroup::checkpoint,
                                            .use = kSame}),
    field(&TrainOptions::keep, {.flag = "--keep",
                                .name = "keep",
                                .help = "Remove all but so many of the newest checkpoints",
                                .group = OptionGroup::checkpoint,
                                .use = kSame}),
    field(&TrainOptions::resume,
          {.flag = "--resume",
           .name = "resume",
           .help = "Go on from this checkpoint, or the newest of this folder; without a folder "
                   "from the newest of --checkpoint's, if it has one",
           .group = OptionGroup::checkpoint,
           .use = kSame,
           .text = FlagText::folder_or_none}),
    field(&TrainOptions::metrics, {.flag = "--metrics",  // the first rank alone writes them
                                   .name = "metrics",
                                   .help = "Write one JSON object a step to this file",
                                   .group = OptionGroup::metrics}),
    field(&TrainOptions::board, {.flag = "--board",  // the first rank alone
                                 .name = "board",
                                 .help = "Write loss, validation, rates, communication and bytes "
                                         "to this folder, for TensorBoard",
                                 .group = OptionGroup::metrics}),
    field(&TrainOptions::profile, {.flag = "--profile",
                                   .name = "profile",
                                   .help = "Write a trace of every rank's steps to this file, for "
                                           "https://ui.perfetto.dev",
                                   .group = OptionGroup::profile,
                                   .use = kSamePresence}),
    field(&TrainOptions::profile_summary,
          {.flag = "--profile-summary",
           .name = "profile_summary",
           .help = "Print where a step's time goes: by op, and the most expensive calls",
           .group = OptionGroup::profile,
           .use = kSame}),
    field(&TrainOptions::profile_steps,
          {.flag = "--profile-steps",
           .name = "profile_steps",
           .help = "Record the last so many steps, and batches of validation (default 10)",
           .group = OptionGroup::profile,
           .use = kSame,
           .text = FlagText::given}),
    field(&TrainOptions::flight_recorder,
          {.flag = "--flight-recorder",
           .name = "flight_recorder",
           .help = "Keep what each rank does, the last 64 steps of its program, in a file of this "
                   "folder, which a failed or killed run leaves",
           .group = OptionGroup::profile,
           .use = kSame}),
    field(&TrainOptions::on_nan,
          {.flag = "--on-nan",
           .name = "on_nan",
           .help = "Where a step's loss or gradients are not finite: stop, or skip N: leave the "
                   "step out, N times at most; both name the first such value and its rank",
           .group = OptionGroup::train,
           .use = kSame,
           .shows_default = true}),
    field(&TrainOptions::check_replicas,
          {.flag = "--check-replicas",
           .name = "check_replicas",
           .help = "Every so many steps compare hashes of what several ranks hold, and of what "
                   "each made and read: a bit that flipped ends the run, with the value and rank",
           .group = OptionGroup::train,
           .use = kSame}));

template <class Options>
constexpr const auto& option_fields() {
  if constexpr (std::is_same_v<Options, ModelOptions>) {
    return kModelOptions;
  } else if constexpr (std::is_same_v<Options, PlanRequest>) {
    return kPlanRequest;
  } else {
    static_assert(std::is_same_v<Options, TrainOptions>);
    return kTrainOptions;
  }
}

/// visit(row, value) for each field, in the order of the table.
template <class Options, class Visit>
void each_option(Options& options, Visit&& visit) {
  std::apply([&](const auto&... fields) { (visit(fields.row, options.*fields.member), ...); },
             option_fields<std::remove_const_t<Options>>());
}

/// visit(row) for each field of all three.
template <class Visit>
void each_option_row(Visit&& visit) {
  std::apply([&](const auto&... fields) { (visit(fields.row), ...); },
             std::tuple_cat(kModelOptions, kPlanRequest, kTrainOptions));
}

/// The row of one field: option_row(&TrainOptions::lr).
template <class Options, class T>
OptionRow option_row(T Options::*member) {
  OptionRow out;
  const auto look = [&](const auto& of) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(of.member)>, T Options::*>) {
      if (of.member == member) out = of.row;
    }
  };
  std::apply([&](const auto&... fields) { (look(fields), ...); }, option_fields<Options>());
  return out;
}

}  // namespace shardrun
