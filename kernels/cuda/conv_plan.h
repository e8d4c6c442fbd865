// How a convolution or a gradient of one runs on a GPU, decided by its shape.
#pragma once

#include "device/cuda/boxes.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// cuDNN takes channels-last images with weights whose channels are last too: ours are moved before
/// it, or behind it where they are the result. A part of an image that begins with rows which no
/// window reads is a convolution of the rest.
struct ConvPlan {
  bool zero = false;             // the result is all zeros
  CudnnConvolution convolution;  // of a part of the batch
  /// Parts of the batch, one after another, where cuDNN does not count to the end of all images;
  /// elements of x and y from one to the next.
  int64_t parts = 1, part_x = 0, part_y = 0;
  int64_t image_offset = 0;   // elements of x before the part that is read or made
  bool clears_image = false;  // rows of dx that are not made: zeros
  std::optional<BoxLoops> move_weights;
  int64_t weights_bytes = 0;  // moved, at the workspace's beginning
  /// For gradients of bf16 in f32: where cuDNN does not make them, they are made in bf16 and
  /// widened.
  int64_t narrow_bytes = 0;  // behind weights_bytes

  int64_t workspace_bytes() const {
    return zero ? 0 : weights_bytes + narrow_bytes + convolution.workspace_bytes();
  }
};

/// Nullopt, with the reason in *why, if cuDNN cannot run it. Needs no GPU. `most_elements`: of a
/// tensor that it is given.
std::optional<ConvPlan> plan_conv(const KernelCall& call, bool tf32, std::string* why,
                                  int64_t most_elements = kMostCudnnElements);

}  // namespace shardrun::cuda
