// The part for GPUs is a library of its own, opened where it lies next to libshardrun: neither
// building libshardrun nor running it on the CPU waits for it.
#include <dlfcn.h>

#include <filesystem>

#include "ranks/backend.h"

namespace shardrun {
namespace {

struct CudaPart {
  const Backend* backend = nullptr;
  std::string missing;
};

CudaPart open_part() {
  Dl_info here{};
  static const char inside = 0;
  if (::dladdr(&inside, &here) == 0) return {nullptr, "libshardrun does not know where it lies"};
  const auto file = std::filesystem::path(here.dli_fname).replace_filename("libshardrun_cuda.so");
  std::error_code unreadable;
  if (!std::filesystem::exists(file, unreadable)) {
    return {nullptr,
            str("the part for GPUs is not built (there is no ", file.string(),
                "); 'make' builds it where there is a CUDA toolkit (docs/gpu.md), or run with "
                "--device cpu")};
  }
  // Never closed: its kernels are called until the process ends.
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return {nullptr, str("the part for GPUs cannot be loaded: ", why,
                         "; build it again with 'make', or run with --device cpu")};
  }
  auto* entry = reinterpret_cast<const Backend* (*)()>(::dlsym(handle, "shardrun_cuda_backend"));
  if (entry == nullptr) return {nullptr, file.string() + " is not the part for GPUs"};
  return {entry(), ""};
}

const CudaPart& part() {
  static const CudaPart opened = open_part();
  return opened;
}

}  // namespace

const Backend* cuda_backend() { return part().backend; }
const std::string& why_no_cuda_backend() { return part().missing; }

}  // namespace shardrun
