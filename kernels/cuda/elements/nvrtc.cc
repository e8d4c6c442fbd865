// A cached file is the key's text, a hash of the code, and the code.
#include "kernels/cuda/elements/nvrtc.h"

#include <nvrtc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/files/cache_folder.h"
#include "base/philox.h"
#include "device/cuda/cuda.h"
#include "device/cuda/library.h"

namespace shardrun::cuda {
namespace {

void check_nvrtc(nvrtcResult status, const char* operation) {
  SR_REQUIRE(status == NVRTC_SUCCESS, device, operation, ": ",
             SR_VENDOR(nvrtc(), nvrtcGetErrorString)(status));
}

std::string log_of(nvrtcProgram program) {
  size_t size = 0;
  if (SR_VENDOR(nvrtc(), nvrtcGetProgramLogSize)(program, &size) != NVRTC_SUCCESS) return "";
  std::string log(size, '\0');
  if (SR_VENDOR(nvrtc(), nvrtcGetProgramLog)(program, log.data()) != NVRTC_SUCCESS) return "";
  return log.c_str();
}

struct DestroyProgram {
  void operator()(nvrtcProgram program) const { SR_VENDOR(nvrtc(), nvrtcDestroyProgram)(&program); }
};

std::string hexadecimal(const std::string& text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (uint64_t hash = hash_name(text.data(), text.size()); out.size() < 16; hash >>= 4)
    out += kDigits[hash & 15];
  return out;
}

}  // namespace

std::string compile_cuda(const std::string& source, const std::string& architecture) {
  nvrtcProgram made = nullptr;
  check_nvrtc(SR_VENDOR(nvrtc(), nvrtcCreateProgram)(&made, source.c_str(), "kernel.cu", 0, nullptr,
                                                     nullptr),
              "nvrtcCreateProgram");
  const std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, DestroyProgram> program(made);
  const std::string target = "--gpu-architecture=" + architecture;
  const char* options[] = {target.c_str(), "--std=c++17", "--fmad=false", "-default-device"};
  const nvrtcResult status =
      SR_VENDOR(nvrtc(), nvrtcCompileProgram)(made, static_cast<int>(std::size(options)), options);
  SR_REQUIRE(status == NVRTC_SUCCESS, device, "nvrtcCompileProgram for ", architecture, ": ",
             SR_VENDOR(nvrtc(), nvrtcGetErrorString)(status), "\n", log_of(made), "of\n", source);
  size_t size = 0;
  check_nvrtc(SR_VENDOR(nvrtc(), nvrtcGetCUBINSize)(made, &size), "nvrtcGetCUBINSize");
  std::string code(size, '\0');
  check_nvrtc(SR_VENDOR(nvrtc(), nvrtcGetCUBIN)(made, code.data()), "nvrtcGetCUBIN");
  return code;
}

std::string compile_cuda_cached(const std::string& source, const std::string& architecture,
                                const std::string& folder) {
  if (folder.empty()) return compile_cuda(source, architecture);
  int major = 0, minor = 0;
  check_nvrtc(SR_VENDOR(nvrtc(), nvrtcVersion)(&major, &minor), "nvrtcVersion");
  const std::string key = str("NVRTC ", major, ".", minor, " ", architecture, "\n", source, "\n");
  const std::string path = folder + "/" + hexadecimal(key) + ".cubin";
  const std::string kept = read_cached(path);
  const size_t head = key.size() + 16;
  if (kept.size() > head && kept.compare(0, key.size(), key) == 0 &&
      kept.compare(key.size(), 16, hexadecimal(kept.substr(head))) == 0)
    return kept.substr(head);
  const std::string code = compile_cuda(source, architecture);
  write_cached(path, key + hexadecimal(code) + code);
  return code;
}

const void* runtime_kernel(const std::string& source) {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "asking for the compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "asking for the compute capability");
  const std::string architecture = str("sm_", major, minor);
  // Never unloaded: prepared kernels and recorded work hold what is in it.
  static std::mutex mutex;
  static std::map<std::string, cudaKernel_t> loaded;
  const std::lock_guard lock(mutex);
  cudaKernel_t& kernel = loaded[architecture + "\n" + source];
  if (kernel == nullptr) {
    const std::string folder = cache_folder();
    const std::string code =
        compile_cuda_cached(source, architecture, folder.empty() ? "" : folder + "/cuda");
    cudaLibrary_t library = nullptr;
    check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          "loading a compiled kernel");
    check(cudaLibraryGetKernel(&kernel, library, "kernel"), "finding a compiled kernel");
  }
  return kernel;
}

void launch_runtime_kernel(const void* kernel, int64_t threads, void** arguments,
                           cudaStream_t stream) {
  if (threads == 0) return;
  constexpr int64_t kThreads = 256, kMostBlocks = 132 * 16;  // the rest by the stride
  const auto blocks =
      static_cast<unsigned>(std::min((threads + kThreads - 1) / kThreads, kMostBlocks));
  check(cudaLaunchKernel(kernel, dim3(blocks), dim3(kThreads), arguments, 0, stream),
        "launching a compiled kernel");
  launched(stream);
}

}  // namespace shardrun::cuda
