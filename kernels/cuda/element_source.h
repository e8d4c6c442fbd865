// CUDA source for calls that work element by element, one or several in one kernel. Text only: no
// GPU, no compiler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace shardrun::cuda {

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

/// One call, with its operands and result.
ElementChain chain_of(const KernelCall& call);

/// The ops that have a source, each as a function of its operands' elements or of the place.
std::vector<std::string> element_ops();

/// Why no source can be made for the call of such an op; nullopt if it can.
std::optional<std::string> element_refuses(const KernelCall& call);

/// Does the call read element i of its operands to make element i of the result, or elements that
/// do not depend on i along some dims? Only then can an operand be another call's result. A slice
/// reads others.
bool reads_own_element(const Node& node);

struct ElementSource {
  /// C++ with one kernel, `extern "C" __global__ kernel(operands…, results…, unsigned long long
  /// count)`, behind the text of math.h.
  std::string text;
  int64_t count = 0;      // elements of the shape
  int64_t threads = 0;    // that have something to do; 0: nothing is to be launched
  int64_t alignment = 0;  // bytes that each pointer has to be a multiple of
};

/// `widest`: bytes that may be moved at once, 16 where pointers are aligned to that, or 1.
ElementSource element_source(const ElementChain& chain, int64_t widest);

}  // namespace shardrun::cuda
