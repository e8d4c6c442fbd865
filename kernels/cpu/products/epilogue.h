// What follows a product or a convolution within its step: as oneDNN's post-ops, or on a few rows
// of the result at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/products/gemm.h"
#include "kernels/kernel.h"
#include "program/ops/post.h"

namespace shardrun::cpu {

/// A second result would go through memory once more, as f32: where all is multiplied first, what
/// stood between lies in no cache when the post-ops come.
std::optional<std::string> refuse_more_results(const KernelCall& call);

/// The post-ops of a call as oneDNN takes them, or none if one of them is of another kind. `lies`:
/// can it take an operand of this shape?
std::optional<std::vector<GemmPost>> gemm_posts(const KernelCall& call,
                                                const std::function<bool(const Shape&)>& lies);
/// Where their operands are in a run.
struct PostOperands {
  explicit PostOperands(const KernelArgs& args);
  const void* data[kMostPosts];
  size_t count = 0;
  std::span<const void* const> span() const { return {data, count}; }
};

/// The post-ops of a call by these ops' own kernels, row by row (PreparedKernel::run_rows), on the
/// product's f32 result; rounded once. For one run at a time.
class Epilogue {
 public:
  /// Null, with the reason in *why, if one of them has no kernel that works by rows.
  static std::shared_ptr<const Epilogue> make(const KernelCall& call, std::string* why);

  /// Rows [begin, end) of the result, where all dims but the last count as one. `sums`: where row 0
  /// of the product's would lie; may be the result's own memory where that is f32. Overwritten.
  void run(const KernelArgs& args, float* sums, int64_t begin, int64_t end) const;
  int64_t rows() const { return rows_; }

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
