// CUDA source for calls that work element by element, one or several in one kernel. Text only: no
// GPU, no compiler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/element_chain.h"

namespace shardrun::cuda {

/// One call, with its operands and result.
ElementChain chain_of(const KernelCall& call);

/// The ops that have a source, each as a function of its operands' elements or of the place.
std::vector<std::string> element_ops();

/// Why no source can be made for the call of such an op; nullopt if it can.
std::optional<std::string> element_refuses(const KernelCall& call);

/// Can the call be one of several in a chain, whatever its operands are? A slice reads other
/// elements than its own.
bool fuses_chains(const Node& node);

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
