// CudnnOrOwn: a call that cuDNN can be given, and a kernel of our own for it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/autotune.h"
#include "kernels/cuda/cudnn/cudnn.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// A call by cuDNN or by our own kernel: whichever was faster when a call of that shape first ran,
/// our own where cuDNN has no plan, or one that fails.
/// On::graph makes cuDNN's; On::tuned is what is known of such calls, null where there is no cuDNN;
/// On::may_measure and On::time, in milliseconds, are of the place where they run. A result that
/// takes an operand's place is our own kernel's: cuDNN allows no such thing, and measuring would
/// destroy the operand.
template <class On>
class CudnnOrOwn {
 public:
  /// By `graph`, with `workspace_bytes` for what is around it.
  using ByCudnn = std::function<void(const KernelArgs&, CudnnGraph& graph)>;
  CudnnOrOwn(std::unique_ptr<CudnnGraph> graph, std::string key, ByCudnn by_cudnn,
             int64_t workspace_bytes, PreparedKernel own)
      : graph_(std::move(graph)),
        key_(std::move(key)),
        by_cudnn_(std::move(by_cudnn)),
        own_(std::move(own)),
        workspace_bytes_(std::max(workspace_bytes, own_.workspace_bytes)) {}

  int64_t workspace_bytes() const { return workspace_bytes_; }

  void run(const KernelArgs& args) {
    if (!in_place(args) && is_cudnns(args)) {
      by_cudnn_(args, *graph_);
    } else {
      own_.run(args);
    }
  }

  /// By cuDNN, whatever is faster. Throws Error(device), with cuDNN's reason, where it has no plan.
  void run_cudnns(const KernelArgs& args) {
    std::string why;
    SR_REQUIRE(graph_->prepare(&why), device, "cuDNN has no ", key_, ": ", why);
    by_cudnn_(args, *graph_);
  }

 private:
  static bool in_place(const KernelArgs& args) {
    for (const TensorView& out : args.out) {
      for (const TensorView& in : args.in) {
        if (out.data == in.data) return true;
      }
    }
    return false;
  }

  bool is_cudnns(const KernelArgs& args) {
    if (chosen_) return cudnns_;
    std::string why;
    const auto time = [&](size_t way) -> float {
      if (way != kCudnn) return On::time(args, key_, [&] { own_.run(args); });
      if (!graph_->prepare(&why)) return -1;
      return On::time(args, key_, [&] { by_cudnn_(args, *graph_); });
    };
    if (Autotune* tuned = On::tuned()) {
      const auto way =
          fastest(*tuned, "way of " + key_, {"cuDNN", "own"}, On::may_measure(args), time);
      if (!way) return false;
      cudnns_ = *way == kCudnn && graph_->prepare(&why);
    }
    chosen_ = true;
    return cudnns_;
  }

  static constexpr size_t kCudnn = 0;
  std::unique_ptr<CudnnGraph> graph_;
  std::string key_;
  ByCudnn by_cudnn_;
  PreparedKernel own_;
  int64_t workspace_bytes_;
  bool chosen_ = false, cudnns_ = false;
};

}  // namespace shardrun::cuda
