// NCCL: ranks that have a GPU each. cuda_communicator.h says what its calls promise.
#pragma once

#include <memory>

#include "collectives/communicator.h"
#include "device/cuda/cuda.h"

namespace shardrun::cuda {

/// Collective. `host` and `device` must outlive it. NCCL makes a communicator for each group that
/// is split off from it, and for all ranks only when one of its own calls is made.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, CudaDevice& device);

}  // namespace shardrun::cuda
