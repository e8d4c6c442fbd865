// Steps of one rank's Program that run as one where a plan leaves nothing between them.
#pragma once

#include <functional>

#include "graph/program.h"

namespace shardrun {

/// Does the backend run a joined step as well as what it is joined of? Asked of products. Null:
/// any.
using TakesStep = std::function<bool(const Node& node, const std::vector<TensorType>& in,
                                     const std::vector<TensorType>& out)>;

/// Joins steps of a Program that has not been placed yet; what stood between them, and nobody else
/// reads, is no buffer any more. Plans are made of whole nodes, so this takes no cut from them: a
/// sum that is still partial behind a step, or gathered behind it, is simply not joined.
///
/// add(gather_grad(dy, rows), x) becomes add_rows(x, dy, rows): where an embedding is the head too,
/// the table's gradient is not made a second time, only the rows that were looked up are added.
///
/// add(dx, r) of dx, … = layer_norm_grad(…) becomes dx, … = layer_norm_grad(…, r), where r is there
/// by then, as the gradient that goes past a block is; of rms_norm_grad, too.
///
/// losses, lse = cross_entropy(x, labels) and cross_entropy_grad(dlosses, x, labels, lse) become
/// losses, dx = cross_entropy_and_grad(dlosses, x, labels) where dlosses is not made of the losses
/// (a mean's is 1 / count): a row of logits is read from memory once, and dx written over it.
///
/// matmul(x, cast(w)) of bf16 x and an f32 weight w becomes matmul(x, w) where all who read the
/// cast are products of kManyRows rows or more and `takes` says so: where they pack their operand
/// anyway, no bf16 copy of the weight lives through the step.
///
/// top = segment_max(x, rows), total = segment_exp_sum(x, top, rows) and
/// segment_softmax(x, top, total, rows) become segment_softmax(x, rows), and
/// segment_softmax_grad(dy, y, segment_softmax_reduce_grad(dy, y, rows), rows) becomes
/// segment_softmax_grad(dy, y, rows): segments that no cut divides are done in one pass.
///
/// add(x, matmul(a, b)), and what else may follow a product element by element
/// (runtime/program/ops/post.h), becomes matmul_post(a, b, x) where `takes` says so of the joined
/// step; behind conv and conv_data_grad, too. What stood between and others read, too, is its
/// second result then, as GELU's argument is for GELU's gradient; of one step, one.
///
/// dw = matmul(x, dy) and db = reduce_sum(dy) over the same dims, a bias's gradient beside its
/// weight's, become dw, db = matmul_post(x, dy), where `takes` says so.
void join_steps(Program& program, const TakesStep& takes = nullptr);

inline constexpr int64_t kManyRows = 1024;

/// Keeps the bf16 copies of weights from step to step, in a Program with an update that has not
/// been placed yet: the update writes a weight's copy in the pass that writes the weight, and only
/// Program::setup casts. Casts of shards, before they are gathered, too; those of frozen weights
/// need no update. Not where the old copy is still read behind the update, nor where the update
/// does not write the weight itself (it is gathered behind it).
///
///   n = cast(w); … product(x, n) … w', m', v' = adamw(w, …)    becomes
///   setup n = cast(w);    product(x, n) … w', m', v', n' = adamw{copy=bf16}(w, …), in their places
void keep_casts(Program& program);

}  // namespace shardrun
