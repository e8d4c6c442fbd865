// The passes, in order.
#include "graph/passes/training_step.h"

#include <algorithm>

#include "graph/passes/channels_last.h"
#include "graph/passes/movement.h"
#include "graph/passes/node_order.h"
#include "graph/passes/pass_table.h"

namespace shardrun {
namespace {

using Options = TrainingStepOptions;

struct Pass {
  std::string_view name;
  void (*run)(TrainingStep& step, const Options& options);
};

/// Until `evaluation` passes work on `train`, the forward pass; behind it on one or both.
constexpr Pass kPasses[] = {
    {"recognise",
     [](TrainingStep& step, const Options&) { step.recognised = recognise(step.train); }},
    {"channels_last", [](TrainingStep& step, const Options&) { put_channels_last(step.train); }},
    {"loss",
     [](TrainingStep& step, const Options& options) {
       step.loss_note = attach_loss(step.train, options.loss, options.first_output);
       step.train.metrics = {{"loss", step.train.loss}};
     }},
    {"freeze_unreached",
     [](TrainingStep& step, const Options&) { step.unreached = freeze_unreached(step.train); }},
    {"evaluation",
     [](TrainingStep& step, const Options& options) {
       if (options.outputs.empty()) step.train.outputs.clear();
       remove_dead_nodes(step.train);
       step.evaluation = evaluation_form(step.train);
       if (options.outputs.empty()) return;
       name_outputs(step.evaluation, options.outputs);
       step.evaluation.outputs_stay_cut = true;
       step.train.outputs.clear();  // a step is asked for its loss alone; logits may stay cut
       remove_dead_nodes(step.train);
     }},
    {"accuracy",
     [](TrainingStep& step, const Options& options) {
       attach_accuracy(step.evaluation);
       remove_dead_nodes(step.evaluation);
       if (options.test_targets)
         measure_test_too(step.evaluation, options.test_targets(step.evaluation));
     }},
    {"bf16",
     [](TrainingStep& step, const Options& options) {
       if (!options.bf16) return;
       step.train = in_bf16(step.train);
       step.evaluation = in_bf16(step.evaluation);
     }},
    {"optimizer", [](TrainingStep& step,
                     const Options& options) { attach_optimizer(step.train, options.optimizer); }},
    {"fold_casts", [](TrainingStep& step, const Options&) { fold_casts(step.train); }},
    {"mask_before_dropout",
     [](TrainingStep& step, const Options&) { mask_before_dropout(step.train); }},
    {"remove_movement",
     [](TrainingStep& step, const Options&) {
       remove_movement(step.train);
       remove_movement(step.evaluation);
     }},
    {"merge_equal_nodes",
     [](TrainingStep& step, const Options&) {
       merge_equal_nodes(step.train);
       merge_equal_nodes(step.evaluation);
     }},
    {"split_losses",
     [](TrainingStep& step, const Options&) {
       split_losses(step.train);
       split_losses(step.evaluation);
     }},
    {"split_attention",
     [](TrainingStep& step, const Options& options) {
       if (!options.cut_keys) return;
       split_attention(step.train);
       split_attention(step.evaluation);
     }},
    {"order_for_memory",
     [](TrainingStep& step, const Options&) {
       order_for_memory(step.train);
       order_for_memory(step.evaluation);
     }},
};

}  // namespace

std::vector<std::string_view> training_step_passes() { return pass_names(kPasses); }

TrainingStep make_training_step(Graph graph, const TrainingStepOptions& options) {
  require_pass(kPasses, options.stop_after);
  TrainingStep step;
  step.train = std::move(graph);
  for (const Pass& pass : kPasses) {
    pass.run(step, options);
    if (options.after) options.after(pass.name, step);
    if (pass.name == options.stop_after) break;
  }
  return step;
}

void name_outputs(Graph& graph, const std::vector<std::string>& names) {
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    ValueId& id = graph.outputs[i];
    const bool taken =
        std::find(graph.outputs.begin(), graph.outputs.begin() + static_cast<std::ptrdiff_t>(i),
                  id) != graph.outputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (graph.value(id).role != Role::computed || taken)
      id = graph.add("reshape", {id}, {{"shape", graph.type(id).shape}}, names[i]);
    if (graph.find(names[i]) == kNoValue) graph.value(id).name = names[i];
  }
}

}  // namespace shardrun
