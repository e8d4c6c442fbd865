// Epilogue: what follows a product within its step, done on a few rows of the result at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/ops/post.h"
#include "kernels/kernel.h"

namespace shardrun::cpu {

/// The post-ops of a call by these ops' own kernels, row by row (PreparedKernel::run_rows), on the
/// product's f32 result; rounded once. For one run at a time.
class Epilogue {
 public:
  /// Null, with the reason in *why, if one of them has no kernel that works by rows.
  static std::shared_ptr<const Epilogue> make(const KernelCall& call, std::string* why);

  /// Of the whole result. `sums`: the product's; may be the result's own memory where that is f32.
  /// Overwritten.
  void run(const KernelArgs& args, float* sums) const;

 private:
  struct Stage {
    PreparedKernel kernel;
    size_t at = 0;
    std::vector<size_t> operands;
    std::vector<TensorView> in, out;
  };
  mutable std::vector<Stage> stages_;
  int64_t rows_ = 0, columns_ = 0;
};

}  // namespace shardrun::cpu
