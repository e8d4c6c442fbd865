// NodePlan: how a node's operands and results lie on the mesh while it runs.
//
// Values lie in shards between nodes. While a node runs, a rank may hold more, less or something
// else of an operand or result: the rows of an image that its rows of a convolution need (papers:
// MetaDist, appendix A.3.1), or one piece of each operand of a concatenation (A.3.2). An exchange
// before the node brings what is missing, one after it puts results back into shards.
#pragma once

#include <string>
#include <vector>

#include "base/shape.h"
#include "graph/sharding.h"

namespace shardrun {

/// Which rows of one dim go with a row of another: with row j those from floor((num j + low) / den)
/// to floor((num j + high) / den), both included, as far as there are any. num and den are
/// positive. A result row of a convolution with kernel 3, stride 2, padding 1 needs the operand's
/// rows 2j - 1 to 2j + 1: {2, 1, -1, 1}. Its gradient for the operand's row j needs the rows of the
/// result's gradient from floor(j / 2) to floor((j + 1) / 2): {1, 2, 0, 1}. With low > high there
/// are rows that nothing goes with: kernel 1 and stride 2 give {1, 2, 1, 0}, no row for an odd j.
struct HaloWindow {
  int64_t num = 1, den = 1, low = 0, high = 0;
  /// The rows, out of `extent`, that go with any of `rows`. Empty if those are.
  Range of(Range rows, int64_t extent) const;
  friend auto operator<=>(const HaloWindow&, const HaloWindow&) = default;
};
/// Rows beyond the shard below and above, then the stride where it is not 1: "1,1", "1,0 stride 2",
/// "0,1 stride 1/2".
std::string to_string(const HaloWindow& window);

/// One dim of an operand or of a result of a node.
struct NodeDim {
  bool result = false;
  int index = 0;
  int dim = 0;
  friend auto operator<=>(const NodeDim&, const NodeDim&) = default;
};

/// A dim of an operand or result that a node takes or makes in windows of the shards of another.
/// `of` and `anchor` are cut by the same axes in the same order. Of an operand, the windows are
/// what a rank reads. Of a result they are what it makes, and where several make a row, the row is
/// the sum of theirs.
struct Halo {
  NodeDim of, anchor;
  HaloWindow window;
  friend auto operator<=>(const Halo&, const Halo&) = default;
};

/// A result that comes out in blocks along a cut dim: block k holds this rank's shard of the dim
/// `of[k]` of an operand, and globally the blocks follow each other. [a0 a1 b0] and [c0], shards of
/// two ranks joined to [a0 c0 | ...], is what a concatenation cut along its axis makes.
struct Blocks {
  NodeDim result;
  std::vector<NodeDim> of;
  friend auto operator<=>(const Blocks&, const Blocks&) = default;
};

/// A dim of an operand or result whose rows a node finds by numbers (OpDef::numbered_rows): `of` is
/// cut by the axes that cut the numbers along `by`. While the node runs, a rank has its own rows of
/// the dim and behind them those of others that its numbers name, and its numbers count these. An
/// operand's rows are fetched from their owners before the node; what it made of a result's goes to
/// their owners after it, who reduce all that there is of a row. How many rows these are depends on
/// the numbers, so there is a bound for each direction, and what exceeds it is an error when met.
///
/// Rows 0 … 9 over two ranks; rank 0 names 0, 2, 5, 2 and rank 1 names 5, 7, 4. Then rank 0 has the
/// rows 0, 1, 2, 3, 4 and 5 of rank 1, which its numbers call 0, 2, 5, 2; rank 1 has 5, 6, 7, 8, 9
/// and 4 of rank 0, and numbers 0, 2, 5. Each names one row of the other: both bounds are 1.
struct Rows {
  NodeDim of, by;               // by: a dim of an operand, the numbers
  ReduceOp op = ReduceOp::sum;  // of a result
  int64_t most_named = 0;       // rows of others that a rank names
  int64_t most_owned = 0;       // rows of a rank that others name, each as often as others do
  friend auto operator<=>(const Rows&, const Rows&) = default;
};

/// Shardings in which a node wants its operands and leaves its results, and what it does otherwise
/// while it runs. Where an operand's value is produced in another Sharding, partition puts a
/// resharding between; for halos, blocks and rows, exchanges before and after.
struct NodePlan {
  std::vector<Sharding> in, out;
  std::vector<Halo> halos = {};
  std::vector<Blocks> blocks = {};
  std::vector<Rows> rows = {};
  /// Is anything exchanged before or after the node?
  bool exchanges() const { return !halos.empty() || !blocks.empty() || !rows.empty(); }
  friend bool operator==(const NodePlan&, const NodePlan&) = default;
};
/// The axes that cut the dim, outermost first.
Axes axes_of(const NodePlan& plan, const NodeDim& dim);

/// What a rank reads of every operand and of every result that it makes. A result in
/// blocks has the box of its local shape, beginning at 0 along the blocks' dim, and in `blocks` the
/// global range of each block (empty for all other results). A dim with named rows begins at 0,
/// too, and has the rank's own rows and space for those of others.
struct NodeBoxes {
  std::vector<Box> in, out;
  std::vector<std::vector<Range>> blocks;
};
NodeBoxes node_boxes(const NodePlan& plan, const std::vector<Shape>& in,
                     const std::vector<Shape>& out, const Mesh& mesh,
                     const std::vector<int64_t>& coordinates);

/// The mesh axes over which operand or result `index` has to be exchanged: those that cut its
/// windowed dims, its blocks or its rows, in mesh order. Empty: it is read or made in shards.
std::vector<int> exchange_axes(const NodePlan& plan, bool result, int index);

/// The Sharding and what is exchanged: "[-, -, {h}, -] halo 1,1 in dim 2", of a result
/// "[-, -, {h}, -] add 1,1 in dim 2" or "[{h}] 3 blocks in dim 0"; of rows "[{h}, -] named rows in
/// dim 0".
std::string to_string(const NodePlan& plan, bool result, int index, const Mesh& mesh);

/// Throws invalid_input: a dim that is not there, a dim in two halos, a stride below 1, an anchor
/// that is cut by other axes or is itself in windows, blocks together with other blocks or windows
/// of one result, blocks that are not the whole dim, rows that other axes cut than their numbers,
/// windows beyond 2^40 and bounds of rows beyond all that there are.
void check_node_plan(const NodePlan& plan, const std::vector<Shape>& in,
                     const std::vector<Shape>& out, const Mesh& mesh);

}  // namespace shardrun
