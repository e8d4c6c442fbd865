// Where ranks sit, and the communicator for it.
#include "collectives/nccl/cuda_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/peer_communicator.h"
#include "collectives/nccl/reduce_peers.h"
#include "collectives/nccl/this_process.h"

namespace shardrun::cuda {
namespace {

/// Memory of GPUs between processes of one machine, and between threads of one process, which may
/// not open their own process's memory a second time.
class CudaPeers final : public PeerAccess {
 public:
  explicit CudaPeers(CudaDevice& device) : device_(device) {}

  Device& device() override { return device_; }

  std::string handle_of(const char* base) override {
    Handle handle{};
    handle.process = this_process();
    handle.base = const_cast<char*>(base);
    handle.ordinal = device_.ordinal();
    // Refused in some containers: only another process would miss it.
    handle.shareable =
        base == nullptr ? cudaSuccess : cudaIpcGetMemHandle(&handle.shared, handle.base);
    if (handle.shareable != cudaSuccess) cudaGetLastError();
    std::string bytes(sizeof handle, '\0');
    std::memcpy(bytes.data(), &handle, sizeof handle);
    return bytes;
  }

  std::shared_ptr<char> open(const std::string& bytes) override {
    Handle handle{};
    std::memcpy(&handle, bytes.data(), sizeof handle);
    if (handle.base == nullptr) return nullptr;
    if (handle.process == this_process()) {
      if (handle.ordinal != device_.ordinal()) enable_access(handle.ordinal);
      return {handle.base, [](char*) {}};
    }
    check(handle.shareable, "cudaIpcGetMemHandle of a rank that shares this GPU");
    void* opened = nullptr;
    const cudaError_t status =
        cudaIpcOpenMemHandle(&opened, handle.shared, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) cudaGetLastError();  // it would come again with the next launch
    check(status, "cudaIpcOpenMemHandle of a rank that shares this GPU");
    return {static_cast<char*>(opened), [](char* p) { cudaIpcCloseMemHandle(p); }};
  }

  void reduce(std::span<const void* const> in, void* out, int64_t count, DType dtype,
              Reduction op) override {
    launch_reduce(device_.cuda_stream(), in, out, count, dtype, op);
  }

 private:
  struct Handle {
    uint64_t process;
    char* base;
    int ordinal;
    cudaIpcMemHandle_t shared;
    cudaError_t shareable;
  };

  static void enable_access(int ordinal) {
    const cudaError_t status = cudaDeviceEnablePeerAccess(ordinal, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      check(status, "cudaDeviceEnablePeerAccess");
    }
  }

  CudaDevice& device_;
};

std::vector<Seat> seats_of(Communicator& host, const CudaDevice& device) {
  struct Identity {
    char gpu[16];
    char machine[240];
  };
  Identity mine{};
  const std::string uuid = device.uuid();
  std::memcpy(mine.gpu, uuid.data(), std::min(uuid.size(), sizeof mine.gpu));
  gethostname(mine.machine, sizeof mine.machine - 1);
  std::vector<Identity> all(static_cast<size_t>(host.size()));
  host.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), sizeof mine), DType::u8);
  std::vector<Seat> seats;
  for (const Identity& seat : all)
    seats.push_back({std::string(seat.gpu, sizeof seat.gpu), std::string(seat.machine)});
  return seats;
}

}  // namespace

std::unique_ptr<Communicator> make_cuda_communicator(Communicator& host, CudaDevice& device) {
  switch (connection_of(seats_of(host, device))) {
    case Connection::nccl:
      device.use();
      load_reduce();
      return make_nccl_communicator(host, device);
    case Connection::peers:
      return make_peer_communicator(host, std::make_shared<CudaPeers>(device));
  }
  return nullptr;
}

}  // namespace shardrun::cuda
