// Chains: consecutive steps of a Program that run as one, element by element or some rows at a
// time.
#pragma once

#include <functional>

#include "graph/program.h"

namespace shardrun {

/// Asked of kernels' steps. Null: each step runs alone.
using FusionOf = std::function<StepFusion(const Program& program, const Step& step)>;

/// Adds the chains of element-wise steps to Program::fused: neighbours that make results of one
/// shape. What no other step reads is unwritten.
///
///   s = add(a, b), y = gelu(s), where s is read by gelu alone: one kernel reads a and b, writes y
void fuse_elements(Program& program, const FusionOf& fusion);

/// Adds the chains of row-wise steps: neighbours that go by as many rows, none of which reads more
/// than its own rows of what the chain makes.
///
///   e = add(a, b), leaky_relu(e), softmax(…) of f32[8, 2708, 2708] read and write 234 MB each; as
///   a chain they do 7 rows after one another, which are 76 KB of each
void fuse_rows(Program& program, const FusionOf& fusion);

/// Of the chains of a placed Program leaves what its memory allows. Nothing may be written before
/// all that lies there has been read: buffers of a chain may share memory only element on element,
/// or row on row. A chain that memory divides becomes several, and rows that would be in cache
/// anyway, or do not fit into it, none.
void cut_chains(Program& program);

}  // namespace shardrun
