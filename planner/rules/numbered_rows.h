// Numbered rows: gathers and scatters that exchange what they need, where the numbers are known
// beforehand.
//
// A node that finds rows by their numbers (OpDef::numbered_rows) and is cut along its numbers needs
// the whole table, or leaves a whole partial sum. Cut the table (the sum) along its rows by the
// same axes instead, and only the rows that a rank names and does not own change ranks, and it
// holds no others (NodePlan's Rows). Whether that is little depends on the numbers alone: edges in
// the order of their targets name few targets of other ranks. So this is offered where the numbers
// follow from constants and from batch inputs that are the same in every step, the edge list of a
// graph say; then the rows are counted, for their price and as the bound that memory is reserved
// for. Elsewhere the bound would be all rows, and a reduce_scatter is cheaper than that.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/tensor.h"
#include "graph/graph.h"
#include "graph/node_plan.h"
#include "graph/op_def.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// The integers of a batch input, as i64, if they are the same in every step.
using InputContents = std::function<std::optional<Tensor>(const std::string& input)>;

/// Of a rule, the options that have a variant in which rows are exchanged, so changed:
/// [-, S0] -> [S0] of a gather along dim 0 becomes [S0{rows of 1}, S0] -> [S0], and
/// [S0, S0] -> [P(sum)] of its gradient [S0, S0] -> [S0{rows of 1}].
std::vector<SpmdRule::Option> row_options(const SpmdRule& rule, const OpDef::NumberedRows& rows);

/// Raises the bounds of plan.rows to what is exchanged by these numbers (the whole operand's).
void count_rows(const Tensor& numbers, std::span<const TensorType> in,
                std::span<const TensorType> out, const Mesh& mesh, NodePlan& plan);

class NumberedRows {
 public:
  /// Both must outlive this. `contents` may be null: no batch input is known.
  NumberedRows(const Graph& graph, const InputContents& contents);

  /// How the node numbers rows, if it does and the numbers are known.
  std::optional<OpDef::NumberedRows> of(const Node& node);

  /// count_rows with the node's numbers.
  void count(const Node& node, const Mesh& mesh, NodePlan& plan);
  /// How many nodes are numbered by the same value as this one: they share a routing.
  int64_t sharers(const Node& node) const;

 private:
  bool is_known(ValueId id);
  const Tensor& numbers(ValueId id);

  const Graph& graph_;
  const InputContents& contents_;
  std::map<ValueId, bool> known_;
  std::map<ValueId, Tensor> values_;
  /// By numbers, their Sharding, and extent and axes of the rows: most_named and most_owned.
  std::map<std::tuple<ValueId, Sharding, int64_t, Axes>, std::pair<int64_t, int64_t>> counts_;
};

}  // namespace shardrun
