// Communicators for memory of GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "device/cuda/cuda.h"

namespace shardrun::cuda {

/// A communicator of the ranks of `host`, each with its own `device`, for memory of the devices.
/// NCCL where every rank has a GPU to itself; where ranks of one machine share GPUs, by reading
/// each other's memory (collectives/nccl/peer_communicator.h). Collective; `host` and `device` must
/// outlive it. Throws invalid_input where ranks share a GPU and not all are of one machine.
///
/// Calls ask the GPU for work and return; who then waits for the device (Device::synchronize,
/// copy_out) for longer than the timeout, while a peer does not come, gets Error(comm). Sums by
/// NCCL add in NCCL's order, in the dtype itself: they repeat, but bits may differ from other
/// backends'. Between floats that NCCL compares, a NaN may lose.
std::unique_ptr<Communicator> make_cuda_communicator(Communicator& host, CudaDevice& device);

/// How ranks are connected, from what each tells of itself.
struct Seat {
  std::string gpu;      // CudaDevice::uuid
  std::string machine;  // equal on one machine
};
enum class Connection { nccl, peers };
/// Throws invalid_input naming the ranks that share a GPU, if nothing connects them.
Connection connection_of(const std::vector<Seat>& seats);

}  // namespace shardrun::cuda
