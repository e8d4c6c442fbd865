// What one call sums.
#include "exec/sum_call.h"

#include "exec/collective_step.h"

namespace shardrun {

SumCall::SumCall(DType dtype, ReduceOp op) : dtype_(dtype), op_(reduction_of(op)) {}

void SumCall::add(const TensorView& operand, const TensorView& result, void* workspace,
                  int64_t bytes) {
  SR_REQUIRE(operand.data == result.data, internal, "is summed with others, and not in place");
  if (result.count() > 0) buffers_.push_back({result.data, result.count()});
  if (bytes <= staging_bytes_) return;
  staging_ = workspace;
  staging_bytes_ = bytes;
}

void SumCall::run(Communicator& group) const {
  group.all_reduce_each(buffers_, dtype_, op_, staging_);
}

}  // namespace shardrun
