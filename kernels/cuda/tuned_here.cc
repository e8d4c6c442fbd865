// One Autotune for each GPU and library.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/files/cache_folder.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/autotune.h"

namespace shardrun::cuda {
namespace {

struct All {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, std::unique_ptr<Autotune>> tuned;  // by GPU and library
};
All& all() {
  static All all;
  return all;
}

int device_here() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

template <class F>
void each_here(const F& f) {
  const int device = device_here();
  const std::lock_guard lock(all().mutex);
  for (const auto& [of, tuned] : all().tuned) {
    if (of.first == device) f(*tuned);
  }
}

}  // namespace

Autotune& tuned_here(const std::string& library) {
  const int device = device_here();
  const std::lock_guard lock(all().mutex);
  std::unique_ptr<Autotune>& tuned = all().tuned[{device, library}];
  if (!tuned) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    tuned = std::make_unique<Autotune>(
        cache_folder(), str(static_cast<const char*>(properties.name), ", ", library));
  }
  return *tuned;
}

std::string choices_here() {
  std::string text;
  each_here([&](Autotune& tuned) { text += tuned.tell(); });
  return text;
}

void take_choices_here(std::span<const std::string> of_ranks) {
  each_here([&](Autotune& tuned) { tuned.take(of_ranks); });
}

std::string place_of_choices() {
  const std::string folder = cache_folder();
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  char machine[256] = {};
  gethostname(machine, sizeof machine - 1);
  return access(folder.c_str(), W_OK) == 0 ? str(machine, ":", folder) : "";
}

}  // namespace shardrun::cuda
