// Recognition: what exporters decompose becomes one op again. Each pass returns how many places it
// changed.
#pragma once

#include "graph/graph.h"

namespace shardrun {

/// Nodes of one op, attributes and operands become one, and so do small constants of equal
/// contents. Random ops differ by their key attribute.
int merge_equal_nodes(Graph& graph);

/// identity, double transpose, reshape and cast to the same type vanish.
int remove_no_ops(Graph& graph);

/// A reshape of a transpose goes before it where it leaves the dims alone that change places, so
/// that transposes come to lie behind one another. Of x [4, 32, 8]:
///   reshape(transpose(x, {0, 2, 1}), [1, 4, 8, 32])
///   becomes  transpose(reshape(x, [1, 4, 32, 8]), {0, 1, 3, 2})
int reshape_before_transposes(Graph& graph);

/// pow(x, 2) becomes x x, and pow(x, -1) the reciprocal: the norms of LLaMA's kind are full of
/// squares.
int fold_powers(Graph& graph);

/// Formulas that f32 has no numbers for get a form that stays finite, as in PyTorch:
///   log(sigmoid(x)) = -softplus(-x), log(1 - sigmoid(x)) = -softplus(x): a sigmoid is 1 from 17 on
///   log(exp(a) + exp(b)) = max(a, b) + softplus(-|a - b|): an exponential is 0 below -104
///   max(log(p), -100), of a binary cross entropy, has a finite gradient where p is 0
///   atan(y / x), of an atan2, has one where x is 0
int take_stable_forms(Graph& graph);

/// where(c, dropout(x), 0) becomes dropout(where(c, x, 0)), as happens to the gradient of dropout
/// behind a mask: whatever is drawn for a zero, it stays one, so kernels need not draw for it.
int mask_before_dropout(Graph& graph);

/// A transpose of an operand or of the only use of a result becomes letters of the matmul's
/// equation.
int fold_transposes(Graph& graph);

/// 0.5 x (1 + erf(x / sqrt 2)) and 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), however they
/// are bracketed, become gelu. Constants must agree to 1e-4.
int recognise_gelu(Graph& graph);

/// (x - mean) / sqrt(variance + eps) [* scale] [+ bias] over the last dims becomes layer_norm.
int recognise_layer_norm(Graph& graph);

/// mask / keep and (x / keep) mask become dropout, where the mask is u < keep, u >= 1 - keep or
/// floor(u + keep) of uniform numbers u: stochastic depth, and dropout of channels. So validation
/// does without.
int recognise_dropout(Graph& graph);

/// softmax(scale q k' [+ masks]) v, with or without dropout and a guard against NaN between,
/// becomes attention. A constant triangular mask, however it is written, becomes causal=1; other
/// masks stay masks, unless they depend on what trains: attention has no gradient for its mask.
/// Graph attention's leaky_relu(a + b') in place of the product, with a number a for each query and
/// b for each key, and weights that are zeroed where the mask hides keys, are attention too.
int recognise_attention(Graph& graph);

/// A projection to 3 C columns that is then split in 3 (query, key, value) becomes one with a
/// parameter of shape [.., 3, C]: its C can be cut like heads are. The parameter's elements stay as
/// they are stored.
int split_projections(Graph& graph);

/// exp(x - m[rows]) / sum[rows], sums of a graph's edges by their targets, become segment_softmax
/// with the segments' maxima and sums of its own (graph/ops/segment.cc), whatever m was.
int recognise_segment_softmax(Graph& graph);

/// x[n] W[rows[n]], where a matrix of W [experts, i, j] is copied for each of many rows, becomes
/// one product over experts and j, of x [n, experts, j] that is 0 but for the row's expert. So no
/// copies are made, and experts are a dim that can be cut; but all experts are computed for each
/// row. The copies stay where they are fewer than the experts, as in a step that takes one token,
/// and where experts are more than i: there they take no more memory than what replaces them.
int multiply_picked_weights(Graph& graph);

/// relu(batch_norm(…)) and relu(batch_norm(…) + residual) become one batch_norm.
int recognise_batch_norm(Graph& graph);

struct Recognised {
  int gelu = 0, dropout = 0, layer_norm = 0, attention = 0, segment_softmax = 0, projections = 0,
      picked_weights = 0, batch_norm = 0;
};
/// All of the above, in order, and dead nodes removed.
Recognised recognise(Graph& graph);

}  // namespace shardrun
