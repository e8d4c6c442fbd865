// How a convolution or a gradient of one runs on a GPU, decided by its shape.
#pragma once

#include "device/cuda/boxes.h"
#include "kernels/cuda/cudnn/cudnn.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// cuDNN takes channels-last images with weights whose channels are last too: ours are moved before
/// it, or behind it where they are the result.
///
/// Some of its engines know one padding for both sides. Of another, cuDNN 9.19 on an H200 read
/// beyond the image or gave wrong sums, and refused nothing. Where windows do not lie as one
/// padding would have them, the part of the image that they read is therefore a copy with zeros
/// around it: in a shard of an image that is cut in space, mostly.
struct ConvPlan {
  bool zero = false;             // the result is all zeros
  CudnnConvolution convolution;  // of a part of the batch, x as in the copy if there is one
  /// Parts of the batch, one after another, where cuDNN does not count to the end of all images;
  /// elements of x and y from one to the next.
  int64_t parts = 1, part_x = 0, part_y = 0;
  /// Between x and its copy; of a gradient of x from the copy.
  std::optional<BoxLoops> copy_image;
  bool clears_copy = false;   // zeros around what is copied
  bool clears_image = false;  // rows of dx that no window reads: zeros
  std::optional<BoxLoops> move_weights;
  int64_t weights_bytes = 0;  // moved, at the workspace's beginning
  /// Weights' gradients of bf16 in f32 are made in bf16 and widened, as they are under PyTorch's
  /// autocast: cuDNN 9.19 made those of WRN-50-2 six times as fast so (an H200, 256 images).
  int64_t narrow_bytes = 0;  // behind weights_bytes
  int64_t image_bytes = 0;   // of the copy, behind narrow_bytes

  int64_t workspace_bytes() const {
    return zero ? 0 : weights_bytes + narrow_bytes + image_bytes + convolution.workspace_bytes();
  }
};

/// Nullopt, with the reason in *why, if cuDNN cannot run it. Needs no GPU. `most_elements`: of a
/// tensor that it is given.
std::optional<ConvPlan> plan_conv(const KernelCall& call, bool tf32, std::string* why,
                                  int64_t most_elements = kMostCudnnElements);

}  // namespace shardrun::cuda
