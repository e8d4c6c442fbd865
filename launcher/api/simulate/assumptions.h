// Assumptions: how others run a training step, as settings. Each is of a framework, not of a
// measurement, but where it says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct StepWork;

struct Assumptions {
  /// Each layer's forward pass again, collectives too, before its backward pass.
  bool recompute_layers = false;
  /// Attention as its products over all pairs, with passes over the scores in two bytes between
  /// them: mask, softmax and dropout read and write them (kForwardPasses, kBackwardPasses).
  bool unfused_attention = false;
  /// Transposes and splits before attention, and behind its gradient, are views: its products read
  /// rows as they lie, and the gradients of q, k and v are written side by side.
  bool attention_views = false;
  /// The loss of tokens kernel by kernel, each of which takes the logits through memory in f32
  /// (kLossBytes, kLossBackwardBytes).
  bool unfused_loss = false;
  /// f32 gradients are kept in two bytes: added to, and reduced, all of them in one call.
  bool half_gradients = false;
  /// No kernel runs during a collective: the framework waits for each where it is called.
  bool collectives_between = false;
  /// Where a group has several ranks in each of its nodes, sums of gradients between nodes go
  /// through one of a node's network cards (kCards), and through all of them otherwise.
  bool one_card = false;
  /// Ranks that hold the same activation send a part of it each to the next stage, and gather the
  /// parts there (Narayanan et al., 2021, section 4.1).
  bool scattered_activations = false;
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

/// Of a node with eight GPUs. Steps that were measured on several nodes tell of 1.7 times as many
/// (docs/results/simulation.md); why, is not known.
inline constexpr double kCards = 4;

/// Where samples times heads of a rank are no multiple of four, or keys are more than 2048,
/// Megatron-LM has no kernel for masked softmax (megatron/model/fused_softmax.py), and asks for so
/// many more: conversions to f32 and back, scale and mask.
inline constexpr int kPlainSoftmaxLaunches = 4;

/// "": none of them; "megatron": all. Throws invalid_input.
Assumptions assumptions_named(const std::string& name);

/// What is assumed of seconds, launches and bytes of a Program's steps, in place of its own prices.
void assume(const Assumptions& assumed, const Program& program, const Cluster& cluster,
            std::vector<StepWork>& works);

}  // namespace shardrun
