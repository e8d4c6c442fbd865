// Vendors' libraries, found when they are first needed: a build with CUDA also runs where they are
// not installed, and a run on the CPU does not wait for half a gigabyte of them.
#pragma once

#include <string>

namespace shardrun::cuda {

/// A shared library, opened once. Headers give the types of its functions, so a call is checked as
/// one that is linked:
///   check(SR_VENDOR(cublas_lt(), cublasLtCreate)(&handle), "cublasLtCreate");
class Library {
 public:
  /// `file` as the loader looks for it; `package`: what a user installs to have it.
  Library(std::string file, std::string package)
      : file_(std::move(file)), package_(std::move(package)) {}
  /// Throws Error(device) naming the file, the loader's words and the package.
  void* find(const char* function) const;
  /// As dlopen gives it, for headers that look functions up themselves. Throws like find.
  void* handle() const;

 private:
  std::string file_, package_;
};

const Library& cublas_lt();
const Library& cuda_runtime();  // the shared one, which some of the others' headers open
const Library& cudnn();
const Library& nccl();
const Library& nvrtc();

/// dlopen for headers that look for CUDA's own libraries under several names, and give up where
/// more than one is there, as with Python's packages for another version: of the runtimes ours
/// alone, null for others; the driver's as the driver brings it, "libcuda.so.1" for "libcuda.so".
void* open_as_ours(const char* file, int flags);

}  // namespace shardrun::cuda

#define SR_VENDOR(library, function)                                                              \
  ([]() -> decltype(&::function) {                                                                \
    static const auto found = reinterpret_cast<decltype(&::function)>((library).find(#function)); \
    return found;                                                                                 \
  }())
