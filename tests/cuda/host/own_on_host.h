// The GPU's own kernels, run on the host.
#pragma once

#include "kernels/cuda/own/attention.h"
#include "kernels/cuda/own/batch_norm.h"
#include "kernels/cuda/own/indexing.h"
#include "kernels/cuda/own/movement.h"
#include "kernels/cuda/own/norm.h"
#include "kernels/cuda/own/optimizer.h"
#include "kernels/cuda/own/pool.h"
#include "kernels/cuda/own/reduce.h"
#include "kernels/cuda/own/segment.h"
#include "kernels/cuda/own/softmax.h"
#include "tests/cuda/host/on_host.h"

namespace shardrun {

template <class On>
KernelList own_kernels() {
  KernelList all;
  for (auto family :
       {cuda::norm_kernels_on<On>, cuda::softmax_kernels_on<On>, cuda::optimizer_kernels_on<On>,
        cuda::batch_norm_kernels_on<On>, cuda::pool_kernels_on<On>, cuda::reduce_kernels_on<On>,
        cuda::movement_kernels_on<On>, cuda::indexing_kernels_on<On>,
        cuda::segment_kernels_on<On>}) {
    for (KernelImpl& impl : family()) all.push_back(std::move(impl));
  }
  for (KernelImpl& impl : cuda::attention_kernels_on<On>(false)) all.push_back(std::move(impl));
  return all;
}

}  // namespace shardrun
