// dlopen and dlsym, with sentences.
#include "device/cuda/library.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string_view>

#include "base/error.h"

namespace shardrun::cuda {

/// Opened once a process and never closed: what it made may outlive everything of ours.
void* Library::handle() const {
  static std::mutex mutex;
  static std::map<std::string, void*> opened;
  const std::lock_guard lock(mutex);
  void*& handle = opened[file_];
  if (handle == nullptr) {
    // Also in the toolkit that this was built with, where the loader does not look by itself.
    for (const std::string& path : {file_, std::string(SHARDRUN_CUDA_LIBRARIES) + "/" + file_}) {
      handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
    }
    SR_REQUIRE(handle != nullptr, device, file_, " cannot be loaded: ", dlerror(), "; install ",
               package_, ", or run with --device cpu");
  }
  return handle;
}

void* Library::find(const char* function) const {
  void* found = dlsym(handle(), function);
  SR_REQUIRE(found != nullptr, device, file_, " has no function ", function, "; install ",
             package_);
  return found;
}

const Library& cublas_lt() {
  static const Library library("libcublasLt.so." SHARDRUN_CUDA_MAJOR,
                               "cuBLAS of CUDA " SHARDRUN_CUDA_MAJOR);
  return library;
}
const Library& cuda_runtime() {
  static const Library library("libcudart.so." SHARDRUN_CUDA_MAJOR,
                               "the runtime of CUDA " SHARDRUN_CUDA_MAJOR);
  return library;
}
const Library& cudnn() {
  static const Library library("libcudnn.so.9", "cuDNN 9");
  return library;
}
void* open_as_ours(const char* file, int flags) {
  const std::string_view name = file;
  if (name.starts_with("libcudart.so"))
    return name == "libcudart.so." SHARDRUN_CUDA_MAJOR ? cuda_runtime().handle() : nullptr;
  return dlopen(name == "libcuda.so" ? "libcuda.so.1" : file, flags);
}
const Library& nccl() {
  static const Library library("libnccl.so.2", "NCCL 2");
  return library;
}
const Library& nvrtc() {
  static const Library library("libnvrtc.so." SHARDRUN_CUDA_MAJOR,
                               "NVRTC of CUDA " SHARDRUN_CUDA_MAJOR);
  return library;
}

}  // namespace shardrun::cuda
