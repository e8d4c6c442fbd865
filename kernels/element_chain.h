// ElementChain: calls of which one kernel can do all, element by element.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace shardrun {

/// Calls that are done together for each element of one shape. Example: gelu(a + b), of which the
/// sum is nobody else's:
///   values {a, b, sum, y}; calls {add, {0, 1}, 2}, {gelu, {2}, 3}; reads {0, 1}; writes {3}
struct ElementChain {
  struct Call {
    Node node;
    std::vector<int> in;  // places in values
    int out = 0;
  };
  std::vector<TensorType> values;
  std::vector<Call> calls;  // each result has the same shape
  std::vector<int> reads;   // values that come from memory: the kernel's operands, in this order
  std::vector<int> writes;  // values that go to memory: its results
};

}  // namespace shardrun
