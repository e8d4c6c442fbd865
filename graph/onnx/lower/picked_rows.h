// The masks that pick rows, and all rows as an operator may have them.
#pragma once

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {

/// The number of this mask, boolean [rows], among Builder::picks; one that is computed alike is the
/// same.
int pick_of(Builder& b, V mask);

Pick& pick_at(Builder& b, int pick);
int64_t rows_of(Builder& b, int pick);  // picked or not
V count_of(Builder& b, int pick);       // i64, a scalar: how many are picked

/// A vector of the rows, reshaped to broadcast to a tensor of this rank whose dim `axis` they are.
V as_dim(Builder& b, V rows, int64_t rank, int64_t axis);

/// All rows, of which those that are not picked repeat the first that is.
V safe(Builder& b, const Picked& rows);

/// All rows, with `neutral` in those that are not picked.
V masked(Builder& b, const Picked& rows, double neutral);

/// The positions of all elements of a tensor, [rank, elements]: a constant, unless they are too
/// many for one.
V all_positions(Builder& b, const Shape& shape);

/// Are these rows, [rows, k], the positions of all elements of the first k dims of a tensor of
/// `shape`, in their order?
bool are_all_positions(Builder& b, const Picked& rows, const Shape& shape);

/// A shape in which kPickedRows stands for the number of rows that are picked, as i64 of the graph.
V counted_shape(Builder& b, const std::vector<int64_t>& dims, int pick);

/// Expand (operand 1), ConstantOfShape (0) and Reshape to such a shape make picked rows.
void lower_of_counted_shape(NodeContext& c, const Lowering& lowering, size_t operand);

/// Of a node that reads such a shape, or a number of rows: what it makes may be one, too.
void lower_counted(NodeContext& c, const Lowering& lowering);

}  // namespace shardrun::importer
