// What everything that runs on a GPU shares: checked calls, owned handles, the device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>

#include "device/cuda/launches.h"
#include "device/cuda/waiting.h"
#include "device/device.h"

namespace shardrun::cuda {

/// Throws Error(device), or out_of_memory, naming the operation and CUDA's own words:
///   check(cudaStreamCreate(&stream), "cudaStreamCreate");
void check(cudaError_t status, std::string_view operation);
/// After a kernel's launch: was it one that this GPU can run? It counts. What a wait for the GPU
/// may have left, that it was at work, is no error (CUDA's programming guide, "Error Checking").
inline void check_launch(cudaStream_t stream, std::string_view kernel) {
  const cudaError_t status = cudaGetLastError();
  check(status == cudaErrorNotReady ? cudaSuccess : status, kernel);
  launched(stream);
}

/// GPUs that this process can use; 0 where there is none or no driver for it. `why`: then the
/// reason.
int device_count(std::string* why = nullptr);

/// A GPU with one stream. Makes it current for the calling thread; all calls must come from
/// threads that have called use(). Its memory is one allocation a call: shardrun's arenas, not
/// small pieces.
class CudaDevice : public Device {
 public:
  virtual cudaStream_t cuda_stream() const = 0;
  virtual int ordinal() const = 0;
  CudaDevice* side() override = 0;  // has none itself
  /// Tells GPUs apart, also those of several processes and machines: the UUID's 16 bytes.
  virtual std::string uuid() const = 0;
  virtual void use() const = 0;

  /// Called while the host waits for the stream: nothing else could tell that a peer never comes.
  using Watch = Watches::Watch;
  /// The watch goes with the returned object.
  virtual std::shared_ptr<void> add_watch(Watch watch) = 0;
};
/// Throws invalid_input if there is no such GPU.
std::unique_ptr<CudaDevice> open_device(int ordinal);

/// Events mark a place in a stream, for others to wait for.
struct EventDeleter {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;
Event make_event();

/// Host memory that GPUs copy from and to while the host goes on.
struct PinnedDeleter {
  void operator()(char* data) const { cudaFreeHost(data); }
};
using Pinned = std::unique_ptr<char[], PinnedDeleter>;
Pinned make_pinned(int64_t bytes);

}  // namespace shardrun::cuda
