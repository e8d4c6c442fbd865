// Movement: removes copies that only hold what is there already.
#pragma once

#include "graph/graph.h"

namespace shardrun {

/// Does the transpose of a `shape` by `perm` leave all elements where they are, because only dims
/// of size 1 change places? [8, 1, 4] by {1, 0, 2} does.
bool moves_only_ones(const Shape& shape, const std::vector<int64_t>& perm);

/// Such transposes become reshapes, which take their operand's memory. After all that looks for
/// transposes: fold_transposes, recognise_attention. Returns how many there were.
int reshape_transposes(Graph& graph);

/// Element-wise ops spread their operands themselves: they take what an expand takes, and where
/// the result is then smaller, it is what gets expanded. Example, of f32 a [4, 1] and bf16 y [4,
/// 6]:
///   mul(cast(expand(a)), y)  becomes  mul(cast(a), y),    neg(expand(a))  becomes  expand(neg(a))
/// The numbers are the same. Returns how many nodes take something smaller.
int sink_expands(Graph& graph);

/// Pieces that are padded with zeros to lie side by side along a dim, and then summed, become their
/// concat, as happens to the gradient of what is taken apart by slices. Of x [6, 4]:
///   add(add(pad(a [2, 4], after 4), y), pad(b [4, 4], before 2))  becomes  add(concat(a, b), y)
/// Returns how many pieces there were.
int join_pieces(Graph& graph);

/// All three, and what does nothing then vanishes, what held gradients back included: for a whole
/// training step.
void remove_movement(Graph& graph);

}  // namespace shardrun
