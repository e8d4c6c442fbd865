// The optimizer's update as part of the Graph, so that gradients and optimizer state are planned
// like any other value.
#pragma once

#include <string>

#include "base/named.h"
#include "graph/graph.h"

namespace shardrun {

enum class OptimizerKind { adamw, adam, sgd };
inline constexpr Named<OptimizerKind> kOptimizers[] = {
    {"adamw", OptimizerKind::adamw}, {"adam", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd}};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0.9;  // sgd
  bool nesterov = false;  // sgd: a step along g + momentum * buffer
  double weight_decay =
      0.0;  // on parameters of rank >= 2 only, as GPT recipes do; `decay_all` decays the rest too
  bool decay_all = false;
  double clip_norm = 0.0;  // global norm of all gradients; 0: no clipping
  int accumulate = 1;      // micro-batches a step; gradients and the loss are their mean
};

/// Names of the scalars that the host sets before each step; no tensor of a model is called so.
inline constexpr const char* kLearningRate = "update/lr";  // f32
inline constexpr const char* kStep = "update/step";        // i64, from 1
inline constexpr const char* kRandomStep =
    "random/step";  // i64, one more each micro-batch: dropout

/// What state is called, before the name of its parameter.
inline constexpr const char *kAccumulatedPrefix = "accumulated/", *kMomentumPrefix = "momentum/",
                            *kFirstMomentPrefix = "adam_m/", *kSecondMomentPrefix = "adam_v/";

/// Differentiates graph.loss with respect to every trainable parameter and appends accumulation,
/// the gradients' norm, clipping and the update (Phase::update). Adds metrics "loss", "grad_norm".
/// Where the loss or the norm is not finite, nothing is updated; no update lets in a number that is
/// not finite (graph/ops/optimizer.cc).
/// Throws invalid_input if nothing is trainable or a trainable parameter is not reached (named).
void attach_optimizer(Graph& graph, const OptimizerOptions& options);

/// Of the state that the optimizer keeps of a parameter, "adam_m/w", the parameter: "w". Empty for
/// other names.
std::string parameter_of_state(const std::string& name);

}  // namespace shardrun
