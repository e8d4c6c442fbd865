// Which pools and batch norms cuDNN can be given, decided by a call's shape. Needs no GPU.
#pragma once

#include "kernels/cuda/cudnn/cudnn.h"
#include "kernels/kernel.h"

namespace shardrun::cuda {

/// Of sum_pool and its gradient and of max_pool_grad; one pooled dim becomes two, the first of
/// size 1. Nullopt, with the reason in *why, if cuDNN has no such pool: channels must be last, each
/// window must hold some of the image, without dilation, and nothing of the image is cut off but
/// rows behind the last window.
std::optional<CudnnPool> plan_pool(const KernelCall& call, std::string* why);

/// Of batch_norm and batch_norm_grad, their channels last. Nullopt, with the reason in *why, for
/// others: the sums of batch norm are not cuDNN's, which has them only behind a convolution
/// (genstats), or adds their parts in an order that changes from run to run.
std::optional<CudnnBatchNorm> plan_batch_norm(const KernelCall& call, std::string* why);

}  // namespace shardrun::cuda
