// The masks that pick rows, and all rows as an operator may have them.
#pragma once

#include "graph/onnx/lower/builder.h"

namespace shardrun::importer {

/// The number of this mask, boolean [rows], among Builder::picks; one that is computed alike is the
/// same.
int pick_of(Builder& b, V mask);

Pick& pick_at(Builder& b, int pick);
int64_t rows_of(Builder& b, int pick);  // picked or not
V count_of(Builder& b, int pick);       // i64, a scalar: how many are picked

/// A vector of the rows beside a tensor of this rank whose dim `axis` they are.
V beside(Builder& b, V rows, int64_t rank, int64_t axis);

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

}  // namespace shardrun::importer
