// RowExchange: row_route, row_fetch and row_add, the exchange of rows that a node's numbers name.
//
// Nobody knows beforehand which rows these are. row_route reads the numbers: a rank tells every
// owner which of its rows it names, each once, in the order of the owners and their rows, and
// numbers what it has: its own rows, then these. Every gather and scatter by these numbers goes by
// that one routing. row_fetch: the owners send the rows. row_add: the namers send what they made of
// them, and the owner reduces all that there is of a row in the order of the ranks, its own among
// them. What no one names stays as its owner made it, so the result is that of a reduce_scatter,
// bit for bit (but that 0 is not added to -0).
#pragma once

#include <span>
#include <vector>

#include "base/tensor.h"
#include "collectives/communicator.h"
#include "graph/program.h"

namespace shardrun {

class RowExchange {
 public:
  /// `me`: the place in the collective's group. `dtype`: of what is exchanged, or of the numbers.
  RowExchange(const Collective& collective, DType dtype, size_t me);

  int64_t workspace_bytes() const { return bytes_; }

  /// Operands and results as Collective says. Throws invalid_input where the numbers name more rows
  /// than the plan allows for.
  void run(std::span<const TensorView> in, std::span<const TensorView> out, void* workspace,
           Communicator& group) const;

 private:
  struct Workspace;
  struct Routing;
  Workspace parts(void* workspace) const;
  Routing routing(const TensorView& view) const;
  void route(const TensorView& numbers, const TensorView& renumbered, const Routing& r,
             const Workspace& w, Communicator& group) const;
  void fetch(const char* in, char* out, const Routing& r, const Workspace& w,
             Communicator& group) const;
  void add(const char* in, char* out, const Routing& r, const Workspace& w,
           Communicator& group) const;
  void check(int64_t rows, int64_t most, const char* what) const;

  Collective::Kind kind_;
  DType dtype_;
  ReduceOp op_;
  size_t me_;
  std::vector<Range> owned_;  // per member, its rows
  int64_t row_elements_ = 1;  // of what is exchanged
  RowBounds bounds_;
  int64_t bytes_ = 0;
};

}  // namespace shardrun
