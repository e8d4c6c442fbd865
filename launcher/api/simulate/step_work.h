// ProgramWork: what each step of a rank's Program takes, as a Simulation takes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "explain/names.h"
#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"
#include "simulate/engine.h"
#include "simulate/step_order.h"

namespace shardrun {

/// How others run a training step, as settings. Each is of a framework, not of a measurement.
struct Assumptions {
  /// Each layer's forward pass again, collectives too, before its backward pass.
  bool recompute_layers = false;
  /// Attention as its products over all pairs, with passes over the scores in two bytes between
  /// them: mask, softmax and dropout read and write them (kForwardPasses, kBackwardPasses).
  bool unfused_attention = false;
  /// The loss of tokens kernel by kernel, each of which takes the logits through memory in f32
  /// (kLossBytes, kLossBackwardBytes).
  bool unfused_loss = false;
  /// f32 gradients are reduced in two bytes, and all of them in one call.
  bool half_gradients = false;
  /// No kernel runs during a collective: the framework waits for each where it is called.
  bool collectives_between = false;
  /// Matrices whose rows are no multiple of 16 bytes are multiplied as they lie (kUnalignedTimes).
  /// Ours are copied to such rows first.
  bool unaligned_products = false;
  /// The host asks for each kernel of a micro-batch, and for each op that is fused with a product,
  /// rather than once for all of them. The update is asked for once either way: optimizers take all
  /// parameters at a time.
  bool eager = false;
};
/// Passes over the scores, a read or a write each: of q k^T (1), of scale and mask (2), softmax
/// (2), dropout (2) and of the product with v (1); backward of the two products (4), dropout,
/// softmax, which also reads its result, and mask (6).
inline constexpr double kForwardPasses = 8, kBackwardPasses = 10;
/// Those of mask, softmax and dropout, which are no products.
inline constexpr double kScoreKernels = 3;

/// Of the loss, bytes through memory for each logit, and kernels. Forward it is converted to f32
/// (6) and its maximum taken (4); the maximum is subtracted (8), the exponential taken (8), summed
/// (4) and divided by the sum (8). Backward that is multiplied (8) and converted back (6).
/// Recalled: Megatron-LM's megatron/mpu/cross_entropy.py.
inline constexpr double kLossBytes = 38, kLossKernels = 6;
inline constexpr double kLossBackwardBytes = 14, kLossBackwardKernels = 2;

/// How many times as long a product takes whose rows begin anywhere: the three of a head with 50257
/// tokens on an H200 (docs/results/gpu.md, 49.9 and 15.9 ms).
inline constexpr double kUnalignedTimes = 3.14;

/// "": none of them; "megatron": all. Throws invalid_input.
Assumptions assumptions_named(const std::string& name);

/// What times are multiplied by, to meet measured steps: of kernels the part that is arithmetic
/// (`outside` layers by that, too) and the rest; of communication its latency, and what bytes take
/// on each kind of link.
struct TimeFactors {
  double products = 1, outside = 1, memory = 1, latency = 1, within = 1, between = 1;
  double of(TaskLink link) const {
    return link == TaskLink::within_node ? within : link == TaskLink::between_nodes ? between : 1;
  }
};

/// Where samples times heads of a rank are no multiple of four, or keys are more than 2048,
/// Megatron-LM has no kernel for masked softmax (megatron/model/fused_softmax.py), and asks for so
/// many more: conversions to f32 and back, scale and mask.
inline constexpr int kPlainSoftmaxLaunches = 4;

struct StepWork {
  TaskKind kind = TaskKind::kernel;
  TaskLink link = TaskLink::none;
  double seconds = 0;   // of one run
  double products = 0;  // of these, what a kernel's arithmetic takes
  double latency = 0;   // of these, what communication takes whatever its bytes
  int64_t sent = 0;     // bytes that one run gives to other ranks
  int launches = 0;     // that the host has to ask for
  StepPart part = StepPart::forward;
  std::string layer;  // "h.3"; "": of none
  double seconds_by(const TimeFactors& f) const {
    if (kind == TaskKind::communication)
      return latency * f.latency + (seconds - latency) * f.of(link);
    return products * f.products * (layer.empty() ? f.outside : 1) +
           (seconds - products) * f.memory;
  }
};

/// Accumulated gradients that are set to zero before the first micro-batch.
struct Zeroed {
  BufferId buffer = -1;
  double seconds = 0;
};

/// `program` is of `rank`, and outlives this.
struct ProgramWork {
  const Program* program = nullptr;
  ProgramOrder order;
  std::vector<StepWork> steps;
  std::vector<Zeroed> zeroed;
  int64_t read_bytes = 0;  // of a micro-batch
};

/// Seconds are the plan's own prices (explain/planned_steps.h) but for what is assumed otherwise.
ProgramWork work_of(const Graph& graph, const Plan& plan, const Cluster& cluster,
                    const Program& program, CommStreams streams, const Assumptions& assumed);

}  // namespace shardrun
