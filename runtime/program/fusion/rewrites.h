// The rewrites of fusion patterns: each on all steps of a Program that has not been placed yet.
#pragma once

#include "graph/program.h"
#include "program/fusion/patterns.h"

namespace shardrun {

/// Losses over classes that no cut divides are done in one pass.
///   top = reduce_max(x), sums = cross_entropy_sums(x, labels, top),
///   cross_entropy_join(labels, top, sums) → cross_entropy(x, labels)
void fuse_loss_parts(Program& program, const TakesStep& takes);

/// Attention that no cut divides along its keys is done in one pass.
///   top = attention_top(q, k), o, total = attention_sums(q, k, v, top),
///   attention_join(top, o, total) → attention(q, k, v)
void fuse_attention_parts(Program& program, const TakesStep& takes);

/// Where dlosses is not made of the losses (a mean's is 1 / count): a row of logits is read from
/// memory once, and dx written over it.
///   losses, lse = cross_entropy(x, labels), dx = cross_entropy_grad(dlosses, x, labels, lse)
///   → losses, dx = cross_entropy_and_grad(dlosses, x, labels), where dx was made
void fuse_loss_gradient(Program& program, const TakesStep& takes);

/// Where an embedding is the head too, the table's gradient is not made a second time: only the
/// rows that were looked up are added.
///   add(gather_grad(dy, rows), x) → add_rows(x, dy, rows)
void fuse_looked_up_rows(Program& program, const TakesStep& takes);

/// Where r is there by then, as the gradient that goes past a block is; of rms_norm_grad, too.
///   add(dx, r) of dx, … = layer_norm_grad(…) → dx, … = layer_norm_grad(…, r)
void fuse_norm_residual(Program& program, const TakesStep& takes);

/// Of bf16 x and an f32 weight w, where all who read the cast are products of kManyRows rows or
/// more and `takes` says so: where they pack their operand anyway, no bf16 copy of the weight lives
/// through the step.
///   matmul(x, cast(w)) → matmul(x, w)
void fuse_weight_casts(Program& program, const TakesStep& takes);

inline constexpr int64_t kManyRows = 1024;

/// Segments that no cut divides are done in one pass.
///   top = segment_max(x, rows), total = segment_exp_sum(x, top, rows),
///   segment_softmax(x, top, total, rows) → segment_softmax(x, rows)
///   segment_softmax_grad(dy, y, segment_softmax_reduce_grad(dy, y, rows), rows)
///   → segment_softmax_grad(dy, y, rows)
void fuse_segment_softmax(Program& program, const TakesStep& takes);

/// And what else may follow a product element by element (runtime/program/ops/post.h), where
/// `takes` says so; behind conv and conv_data_grad, too. What stood between and others read, too,
/// is its second result then, as GELU's argument is for GELU's gradient; of one step, one.
///   add(x, matmul(a, b)) → matmul_post(a, b, x)
void fuse_post_ops(Program& program, const TakesStep& takes);

/// Over the same dims, where `takes` says so.
///   dw = matmul(x, dy), db = reduce_sum(dy) → dw, db = matmul_post(x, dy)
void fuse_operand_sums(Program& program, const TakesStep& takes);

}  // namespace shardrun
