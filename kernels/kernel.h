// Kernel: one implementation of an op on one backend, and the choice among them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace shardrun {

/// A node with the types it is called with.
struct KernelCall {
  const Node& node;
  std::span<const TensorType> in;
  std::span<const TensorType> out;
};

/// Memory for one run. Views are dense row-major; an empty tensor may have data == nullptr.
struct KernelArgs {
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  void* workspace = nullptr;   // PreparedKernel::workspace_bytes bytes, 64-byte aligned
  void* stream = nullptr;      // of the device that all this memory is of (Device::stream)
  const void* kept = nullptr;  // PreparedKernel::kept_bytes bytes, 64-byte aligned
};

struct ElementChain;  // kernels/element_chain.h

/// A kernel with everything that does not change between steps done: primitives made, layouts
/// chosen.
struct PreparedKernel {
  std::function<void(const KernelArgs&)> run;
  int64_t workspace_bytes = 0;
  std::string_view impl;  // "cpu:onednn", "reference": for reports

  /// Rows [begin, end) of the result alone, on the calling thread, where all dims but the last
  /// count as one; of further results their r-th number. Row r is made of row r of each operand
  /// that has the result's shape, and of anything in the others. So several such steps can do a few
  /// rows after one another, while these lie in cache. Null: the kernel has no such way.
  std::function<void(const KernelArgs&, int64_t begin, int64_t end)> run_rows = nullptr;
  /// The rows are operand 0's, and of every result the r-th number is made of its row r.
  bool rows_of_operand = false;

  /// Does `run` do nothing but ask the device for the same work each time? Then Device::record can
  /// note it.
  bool recordable = true;

  /// Of a call that makes element i of its result from element i of its operands, or from operands
  /// that do not depend on i along some dims: makes one kernel of consecutive calls that have this
  /// same function. Its operands are chain.reads, its results chain.writes; it needs no workspace.
  /// Null: the kernel is not fused with others.
  PreparedKernel (*fuse)(const ElementChain& chain) = nullptr;

  /// Bytes of memory that is this call's alone, from run to run. Before the first run it is filled
  /// with what `keep` returns for the operands and results of all runs: their addresses, say, which
  /// then need not be sent to the device again.
  int64_t kept_bytes = 0;
  std::function<std::vector<char>(const KernelArgs&)> keep = nullptr;
};

/// `refuses` says why this implementation cannot run the call, or nullopt if it can. `prepare` may
/// keep copies of the node and types, never references.
struct KernelImpl {
  std::string op;  // empty: any
  std::string name;
  std::function<std::optional<std::string>(const KernelCall&)> refuses;
  std::function<PreparedKernel(const KernelCall&)> prepare;
};

/// Implementations of one backend, best first; those of one op are tried in order.
using KernelList = std::vector<KernelImpl>;

/// The reference kernels: every op, every dtype that the op allows, plain loops; in f64 they
/// accumulate in f64, otherwise in f64 too (rounded once at the end). Always last, always accepts.
/// Those of users' ops are not in it: they can come at any time.
const KernelList& reference_kernels();
/// Adds a user's kernel for an op of its own (register_op): the one that every backend runs. Throws
/// invalid_input if the op has a reference kernel already.
void register_reference_kernel(KernelImpl impl);
/// The kernel of a user's op; null if there is none. It stays where it is.
const KernelImpl* user_kernel(std::string_view op);

/// Prepares the first implementation in `lists` (tried in order) that accepts, or the user's kernel
/// of a user's op. Throws unsupported with every refusal if none does.
PreparedKernel select_kernel(std::span<const KernelList* const> lists, const KernelCall& call);

/// Runs one node on host tensors with the reference kernel.
std::vector<Tensor> run_reference(const Node& node, std::span<const Tensor> in);

}  // namespace shardrun
