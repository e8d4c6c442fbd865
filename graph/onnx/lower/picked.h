// Rows that a mask picks, as in logits[labels != -100]: how many there are depends on data.
//
// The graph computes all rows, and what adds rows up leaves out those that are not picked:
//   NonZero(mask), then GatherND(x) of that     x with all its rows, and the mask
//   element-wise operators, products with weights, norms, softmax …    the same of all rows
//   ReduceSum, ReduceMean, the losses over classes    over the picked rows, divided by their number
// Rows that are not picked repeat the first that is wherever something is computed of them. So they
// are NaN only if that one is, and gradients, which are 0 there, stay 0.
#pragma once

#include <span>

#include "graph/onnx/lower/lowering.h"

namespace shardrun::importer {

/// The positions [rank, rows] of what is not 0 in input 0, as picked rows (NonZero).
void pick_positions(NodeContext& c);

/// The parts of input 0 along `axis` where input 1, a vector of booleans, holds (Compress). No
/// axis: of all elements in a row.
void pick_parts(NodeContext& c, std::optional<int64_t> axis);

/// Is one of these operands picked rows, or a shape that counts them?
bool takes_picked(const Builder& b, std::span<const V> inputs);

/// Lowers such a node. Throws unsupported for what does something else with rows than the above.
void lower_picked(NodeContext& c, const Lowering& lowering);

/// Where `ones` are a mask as i64, `sum` of all of them is the number of rows that it picks.
void note_count(Builder& b, V ones, V sum);

}  // namespace shardrun::importer
