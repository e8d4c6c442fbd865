// Consecutive steps that work row by row, done a few rows at a time, so that what one leaves is
// still in cache when the next takes it.
#pragma once

#include <span>
#include <vector>

#include "kernels/kernel.h"

namespace shardrun {

struct RowStep {
  const PreparedKernel* kernel = nullptr;
  std::span<const TensorView> in, out;
};

/// Example: e = add(a, b), leaky_relu(e), softmax(…) of f32[8, 2708, 2708] read and write 234 MB
/// each. As a chain they do 7 rows after one another, which are 76 KB of each.
class RowChain {
 public:
  /// How many of the steps, from the first on, give the same results as a chain: their kernels have
  /// run_rows, they go by the same number of rows, and no step writes what a step before
  /// it reads or writes, but for the same rows of the same memory. Example: a buffer that is placed
  /// over an operand that died a step before, but begins elsewhere, ends the chain.
  static size_t length(std::span<const RowStep> steps);

  /// Is there anything to gain: rows that fit into cache, and more in all than do.
  static bool pays(std::span<const RowStep> steps);

  explicit RowChain(std::vector<RowStep> steps);
  size_t size() const { return steps_.size(); }
  /// On the threads of the calling rank. Which rows are done together does not depend on them.
  void run() const;

 private:
  std::vector<RowStep> steps_;
  int64_t rows_ = 0, tile_ = 1;
};

}  // namespace shardrun
