// Generated CUDA source as a shared library of this machine: its kernels then run in loops over the
// threads of a small grid.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/elements/element_source.h"
#include "kernels/cuda/elements/math_text.h"

namespace shardrun::cuda {

/// One source of several kernels, each of which is named `kernel` in its own.
class ManySources {
 public:
  /// The kernel's number; equal texts get the same.
  size_t add(const std::string& text) {
    const auto [it, fresh] = numbers_.emplace(text, numbers_.size());
    if (fresh) {
      std::string own = text.substr(std::string(kMathText).size());
      const std::string name = " kernel(";
      own.replace(own.find(name), name.size(), str(" kernel", it->second, "("));
      all_ += str("namespace n", it->second, " {\n", own, "}\n");
    }
    return it->second;
  }
  size_t size() const { return numbers_.size(); }
  std::string text() const { return kMathText + all_; }
  /// What stands behind math.h.
  const std::string& kernels() const { return all_; }

 private:
  std::map<std::string, size_t> numbers_;
  std::string all_;
};

/// With the compiler that built the test.
class HostLibrary {
 public:
  explicit HostLibrary(const ManySources& sources) {
    folder_ = std::filesystem::temp_directory_path() / str("shardrun_kernels_", getpid());
    std::filesystem::create_directories(folder_);
    const std::string source = folder_ / "kernels.cc", library = folder_ / "kernels.so";
    std::ofstream out(source);
    out << R"(#include <math.h>
#include <utility>
#define __CUDACC_RTC__
#define __global__
#define __launch_bounds__(threads)
struct Dim { unsigned x; };
static Dim blockIdx{0}, threadIdx{0}, blockDim{5}, gridDim{3};
template <class... A, size_t... I>
void call_each(void (*f)(A...), void** a, std::index_sequence<I...>) {
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) f(*static_cast<A*>(a[I])...);
}
template <class... A>
void call(void (*f)(A...), void** a) { call_each(f, a, std::index_sequence_for<A...>{}); }
)" << sources.text();
    for (size_t i = 0; i < sources.size(); ++i)
      out << "extern \"C\" void run" << i << "(void** a) { call(n" << i << "::kernel" << i
          << ", a); }\n";
    out.close();
    const std::string command =
        str(SHARDRUN_CXX " -std=c++17 -O1 -w -ffp-contract=off -shared -fPIC ", source, " -o ",
            library);
    SR_REQUIRE(std::system(command.c_str()) == 0, internal, "failed: ", command);
    handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    SR_REQUIRE(handle_ != nullptr, internal, dlerror());
  }
  ~HostLibrary() {
    dlclose(handle_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  HostLibrary(const HostLibrary&) = delete;
  HostLibrary& operator=(const HostLibrary&) = delete;

  /// As a launch would.
  void run(size_t number, std::vector<void*> pointers, int64_t count) const {
    auto* f = reinterpret_cast<void (*)(void**)>(dlsym(handle_, str("run", number).c_str()));
    SR_REQUIRE(f != nullptr, internal, "no kernel ", number);
    std::vector<void*> arguments;
    for (void*& pointer : pointers) arguments.push_back(&pointer);
    arguments.push_back(&count);
    f(arguments.data());
  }

 private:
  std::filesystem::path folder_;
  void* handle_ = nullptr;
};

}  // namespace shardrun::cuda
