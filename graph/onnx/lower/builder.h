// Builder: appends internal ops to a Graph and computes at once whatever depends on constants only.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/onnx/file/import_budget.h"
#include "graph/onnx/import.h"

namespace shardrun::importer {

/// A value during import: a Graph value, a constant that the Graph need not hold yet, or a
/// sequence.
using V = int32_t;
inline constexpr V kNone = -1;

/// Constants and what is computed from them stay below this many elements; above, they are nodes.
inline constexpr int64_t kFoldLimit = int64_t{1} << 20;
/// What shapes are computed of has at most so many.
inline constexpr int64_t kSmall = 4096;
/// Of a large constant while it is made.
inline constexpr int64_t kCopies = 4;

/// Rows of a value that a mask picks, as x[mask] has them: how many there are depends on data. All
/// rows are computed, and what adds them up leaves out those that are not picked
/// (lower/picked.h).
struct Picked {
  V all = kNone;     // [.., rows, ..], picked or not
  int64_t axis = 0;  // the dim of the rows
  int pick = 0;      // which mask, of Builder::picks
  /// Rows that are not picked repeat one that is: nothing that is computed of them can be NaN by
  /// itself. Otherwise they are what they were.
  bool is_safe = false;
  /// Of rows that are the positions of all elements of a tensor, [rows, rank] or [rank, rows]: its
  /// shape. Else empty.
  Shape positions_in = {};
};

/// A mask that picks rows.
struct Pick {
  V mask = kNone;    // boolean [rows]
  V first = kNone;   // boolean [rows]: the first that is picked; kNone: not asked for yet
  V count = kNone;   // i64, a scalar: how many are picked; kNone: not asked for yet
  std::string name;  // of the node that picks
};

/// Stands in a shape, as Builder::counted has it, for the number of rows that are picked; times k
/// for that of k elements of each.
inline constexpr int64_t kPickedRows = -(int64_t{1} << 40);

class Builder {
 public:
  Builder(Graph& graph, const ImportOptions& options, ImportBudget& budget)
      : graph(graph), options(options), budget(budget) {}

  Graph& graph;
  const ImportOptions& options;
  ImportBudget& budget;   // takes what nodes and constants need
  std::string node_name;  // of nodes added from now on

  V value(ValueId id);
  V constant(Tensor tensor);
  V scalar(double value, DType dtype);
  V ints(const std::vector<int64_t>& values) { return constant(Tensor::vector_i64(values)); }
  V sequence(std::vector<V> items);
  V picked(const Picked& rows);

  const TensorType& type(V v) const;  // throws unsupported for a sequence, and for picked rows
  const Shape& shape(V v) const { return type(v).shape; }
  DType dtype(V v) const { return type(v).dtype; }
  int64_t rank(V v) const { return static_cast<int64_t>(shape(v).size()); }
  const Tensor* known(V v) const;  // the contents of a constant, else null
  const std::vector<V>* items(V v) const;
  const Picked* rows(V v) const;  // null: its shape is known
  /// Throws unsupported: `what` cannot do with rows that a mask picks.
  [[noreturn]] void refuse_rows(V v, const std::string& what) const;
  std::vector<Pick> picks;
  /// Vectors of i64 that depend on how many rows a mask picks, as constants with kPickedRows in
  /// that place, and the mask.
  struct Counted {
    Tensor dims;
    int pick = 0;
  };
  std::map<V, Counted> counted;
  ValueId id(V v);                                    // makes a constant a value of the Graph
  ValueId id_or_none(V v) const { return at(v).id; }  // kNoValue: the Graph does not hold it
  void forget(V v);  // nothing will ask for it any more: a constant that no node reads is dropped

  /// Appends a node, or folds it if every input is known, the results are small, and the budget
  /// allows it. Throws where there is no budget for small ones, which shapes may depend on.
  std::vector<V> add_n(const std::string& op, const std::vector<V>& inputs, Attrs attrs = {});
  V add(const std::string& op, const std::vector<V>& inputs, Attrs attrs = {});

  // Each returns its operand where there is nothing to do.
  V cast(V v, DType to);
  V reshape(V v, const Shape& shape);
  V transpose(V v, const std::vector<int64_t>& perm);
  V expand(V v, const Shape& shape);
  V slice(V v, int64_t axis, int64_t begin, int64_t end);  // [begin, end) of one dim
  V unsqueeze(V v, int64_t axis);
  V concat(const std::vector<V>& parts, int64_t axis);
  V fill(double value, DType dtype, const Shape& shape);
  V iota(int64_t count, int64_t start, int64_t step);  // i64: start, start + step, …

  /// Element-wise with a constant of v's type on the right.
  V with(const std::string& op, V v, double value) { return add(op, {v, scalar(value, dtype(v))}); }
  V sum(V v, std::vector<int64_t> axes, bool keepdims);   // reduce_sum; no axes: v itself
  V mean(V v, std::vector<int64_t> axes, bool keepdims);  // over the global counts

  /// Batched matrix product with numpy's rules (rank 1 operands, broadcast batch dims).
  V matmul(V a, V b);

 private:
  struct Entry {
    TensorType type;
    Tensor tensor;  // a constant's contents
    bool is_constant = false;
    ValueId id = kNoValue;
    std::vector<V> items;
    bool is_sequence = false;
    bool in_sequence = false;
    std::optional<Picked> rows = {};
  };
  V push(Entry entry);
  bool may_fold(const Node& node, std::span<const TensorType> in);
  const Entry& at(V v) const { return entries_[static_cast<size_t>(v)]; }
  std::deque<Entry> entries_;  // which stay where they are
  std::map<ValueId, V> of_id_;
};

/// numpy's broadcast of two shapes; throws invalid_input.
Shape broadcast(const Shape& a, const Shape& b);

}  // namespace shardrun::importer
