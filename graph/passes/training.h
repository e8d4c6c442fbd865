// Passes that turn an imported forward Graph into one that can be trained or evaluated.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/named.h"
#include "graph/graph.h"

namespace shardrun {

/// The input that attach_loss adds; the data source fills it.
inline constexpr const char* kTarget = "target";

/// What is computed on the first output against a new batch input kTarget.
///   cross_entropy  outputs[0] [..., classes], or its logits where it is their softmax, target i64
///                  [...]; mean over targets other than -100, NaN if there are none, as PyTorch's
///   mse            outputs[0], target of the same type; mean of squared differences
enum class LossKind { cross_entropy, mse };
inline constexpr Named<LossKind> kLosses[] = {{"cross-entropy", LossKind::cross_entropy},
                                              {"mse", LossKind::mse}};

/// Sets graph.loss, unless the model has one and `kind` is none. A floating scalar as first output
/// is the loss itself (`kind` must then be none). Otherwise it is that kind.
/// None with a non-scalar output: cross_entropy if some batch input is integer and has the shape of
/// the output without its last dim (a language model), else throws invalid_input asking for a loss.
/// Returns a sentence about what was done, empty for a loss that the model brings. It calls the
/// first output `name`, by which people know it; "": as the graph does.
std::string attach_loss(Graph& graph, std::optional<LossKind> kind, const std::string& name = "");

/// Why attach_loss(graph, {}) would throw for want of a loss; "": it would not.
std::string why_no_loss(const Graph& graph);

/// The ignore_index of a cross_entropy that counts every label: one that no data holds.
inline constexpr int64_t kNoIgnoredLabel = std::numeric_limits<int32_t>::min();

/// Does the node compare logits, its operand 0, with labels, its operand 1: a cross_entropy, or
/// what split_losses makes of one?
bool takes_labels(const Node& node);

/// After differentiate: each cross_entropy becomes a maximum, sums and their join, all of which can
/// be cut along the classes, as its gradient can (graph/ops/softmax.cc). The join has the name of
/// the node. Where a plan cuts no classes they are one step (runtime/program/fusion/rewrites.h).
void split_losses(Graph& graph);

/// After differentiate: each attention becomes the highest scores, sums relative to these and their
/// join, all of which can be cut along the keys, as its gradient can (graph/ops/attention.cc).
/// Scores are then computed twice where a plan cuts keys, and elsewhere the three are one step.
void split_attention(Graph& graph);

/// Adds two f32 metrics to a graph whose loss is one cross_entropy over the labels of a batch
/// input: "counted", how many labels are not the ignored one, and "correct", for how many of them
/// the largest logit (the first, of equal ones) is theirs. The second not for models of tokens,
/// whose labels have the shape of another integer input. Returns whether it added both.
bool attach_accuracy(Graph& graph);

/// What the names of the test's inputs and metrics begin with: "test/target".
inline const std::string kTestPrefix = "test/";

/// For data whose splits differ in the batch inputs `targets` alone, so that one pass serves the
/// validation and the test: what depends on a target is there a second time, for the inputs
/// "test/…" and with the metrics "test/…".
void measure_test_too(Graph& graph, const std::vector<std::string>& targets);

/// What validation runs: without dropout; what is kept from step to step is read as it is, and not
/// what would replace it, which is not computed. Batch normalisations that keep running statistics
/// normalise by these.
Graph evaluation_form(const Graph& graph);

/// bf16 compute, by OpDef::precision: matmul, conv, attention, element-wise and normalisation nodes
/// take and give bf16 (and compute inside in f32); parameters stay f32 and are cast where used;
/// reductions and the loss, with what lies between the last product and it, are f32.
Graph in_bf16(const Graph& graph);

/// After differentiate: a matmul, sum or conv_weight_grad of bf16 (OpDef::widens) whose only user
/// casts its result to f32 gets that result type, so that gradients of weights and biases leave it
/// in f32 and are reduced over ranks in f32.
void fold_casts(Graph& graph);

/// Parameters that the loss does not depend on become frozen; returns their names.
std::vector<std::string> freeze_unreached(Graph& graph);

}  // namespace shardrun
