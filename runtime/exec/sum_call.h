// SumCall: several all_reduces by one call of a Communicator.
#pragma once

#include <vector>

#include "base/tensor.h"
#include "collectives/communicator.h"
#include "graph/sharding.h"

namespace shardrun {

/// Neighbouring steps of one Step::call: each is summed where it lies.
class SumCall {
 public:
  SumCall(DType dtype, ReduceOp op);
  /// Another step's memory. What is summed together is alive in each of the steps, so any one's
  /// workspace lies apart from it; the largest serves all. Throws internal if the step is not in
  /// place.
  void add(const TensorView& operand, const TensorView& result, void* workspace, int64_t bytes);
  void run(Communicator& group) const;

 private:
  DType dtype_;
  Reduction op_;
  std::vector<Reduced> buffers_;
  void* staging_ = nullptr;
  int64_t staging_bytes_ = 0;
};

}  // namespace shardrun
