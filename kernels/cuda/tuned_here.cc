// One Autotune for each GPU and library.
#include <map>
#include <memory>
#include <mutex>

#include "base/cache_folder.h"
#include "base/error.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/autotune.h"

namespace shardrun::cuda {

Autotune& tuned_here(const std::string& library) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, std::unique_ptr<Autotune>> all;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  std::unique_ptr<Autotune>& tuned = all[{device, library}];
  if (!tuned) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    tuned = std::make_unique<Autotune>(
        cache_folder(), str(static_cast<const char*>(properties.name), ", ", library));
  }
  return *tuned;
}

}  // namespace shardrun::cuda
