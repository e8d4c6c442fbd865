// Runs of a model's parts on a step's micro-batches, and the order in which a pipeline's stages run
// them.
#pragma once

#include <string>
#include <vector>

#include "base/named.h"
#include "simulate/step_work.h"

namespace shardrun {

/// In which order a stage runs parts: schedule_of.
enum class PipelineSchedule { one_forward_one_backward, interleaved };
inline constexpr Named<PipelineSchedule> kPipelineSchedules[] = {
    {"1f1b", PipelineSchedule::one_forward_one_backward},
    {"interleaved", PipelineSchedule::interleaved}};

/// How the layers are divided. Of `stages` * `chunks` consecutive parts of the model, part p is on
/// stage p % stages.
struct Pipeline {
  int stages = 1;
  int chunks = 1;  // of each stage; several: interleaved
  int parts() const { return stages * chunks; }
};

/// A run of a part's forward or backward pass for one micro-batch.
struct PartRun {
  enum class Pass { forward, backward };
  Pass pass = Pass::forward;
  int part = 0, micro = 0;
  friend bool operator==(const PartRun&, const PartRun&) = default;
};

/// The order of one stage. One chunk: 1F1B (Narayanan et al., PipeDream-Flush): as many forward
/// passes ahead as there are stages behind it, then one backward and one forward in turns. Several:
/// Megatron-LM's interleaved schedule, which takes `stages` micro-batches through each chunk in
/// turn. Throws invalid_input: several chunks, and micro-batches that are no multiple of stages.
std::vector<PartRun> schedule_of(const Pipeline& pipeline, int stage, int micro_batches);
/// Throws invalid_input: fewer layers than parts, where there are several.
void require_layers(const Pipeline& pipeline, int64_t layers);

/// Steps of a Program, as numbers in the order in which they run; some more than once.
struct PartSteps {
  std::vector<int> forward, backward;  // of a micro-batch
  /// Bytes of activations that the next part's steps, or later ones, read: those that a rank sends,
  /// and those that come from the others of up to `holders` ranks that hold the same.
  double sent = 0, gathered = 0;
  int64_t holders = 1;
};
struct DividedSteps {
  std::vector<PartSteps> parts;
  std::vector<std::vector<int>> update;  // by stage
  std::vector<double> zero_seconds;      // by stage: of gradients that its own steps add to
};

/// Cuts at layers' boundaries, into parts of equally many layers. What is of no layer goes to the
/// part of the step before it, in front of all layers to the first part, behind them to the last;
/// in the backward pass the other way round. `recompute_layers`: each layer's forward steps again,
/// in front of its backward steps. Throws invalid_input as require_layers does.
/// Of one part and without recomputation `backward` is the whole of a micro-batch, as the Program
/// has it, and `forward` is empty.
DividedSteps divide(const ProgramWork& work, const Pipeline& pipeline, bool recompute_layers);

}  // namespace shardrun
