// Every vendor function that the sources name is in the library that is installed: a run on a GPU
// would find out only when it gets there.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "base/error.h"
#include "device/cuda/library.h"
#include "tests/cuda/sources.h"

namespace shardrun::cuda {
namespace {

using Functions = std::map<std::string, std::set<std::string>>;  // by library

/// SR_VENDOR(nccl(), ncclSend), and by shorter names of one library's:
///   #define SR_NCCL(function) SR_VENDOR(nccl(), function)
Functions functions_of_sources() {
  Functions out;
  each_source([&](const std::filesystem::path&, const std::string& text) {
    const auto each = [&](const std::string& pattern, auto&& found) {
      const std::regex regex(pattern);
      for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
        found(*it);
    };
    each(R"(SR_VENDOR\(\s*(\w+)\(\),\s*(\w+)\))", [&](const std::smatch& use) {
      if (use[2] != "function") out[use[1]].insert(use[2]);
    });
    each(R"(#define (SR_\w+)\(function\) SR_VENDOR\((\w+)\(\), function\))",
         [&](const std::smatch& name) {
           each(name[1].str() + R"(\(\s*(\w+)\))", [&](const std::smatch& use) {
             if (use[1] != "function") out[name[2]].insert(use[1]);
           });
         });
  });
  return out;
}

class Vendor : public testing::TestWithParam<const char*> {};

TEST_P(Vendor, HasEveryFunctionThatIsNamed) {
  const std::map<std::string, const Library*> libraries = {
      {"nccl", &nccl()}, {"cublas_lt", &cublas_lt()}, {"cudnn", &cudnn()}, {"nvrtc", &nvrtc()}};
  const Functions used = functions_of_sources();
  for (const auto& [library, functions] : used)
    ASSERT_EQ(libraries.count(library), 1u) << library << "() is not looked into";
  for (const std::string& function : used.at(GetParam())) {
    try {
      EXPECT_NE(libraries.at(GetParam())->find(function.c_str()), nullptr);
    } catch (const Error& e) {
      if (std::string(e.what()).find("cannot be loaded") != std::string::npos)
        GTEST_SKIP() << e.what();
      ADD_FAILURE() << e.what();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Vendor, testing::Values("nccl", "cublas_lt", "cudnn", "nvrtc"),
                         [](const auto& info) { return std::string(info.param); });

/// cuDNN's frontend looks for the runtimes of CUDA 12 and 13, and gives up where both are there.
TEST(OpenAsOurs, GivesOneRuntime) {
  int found = 0;
  for (const char* file : {"libcudart.so", "libcudart.so.11", "libcudart.so.12", "libcudart.so.13",
                           "libcudart.so.14"}) {
    try {
      if (void* handle = open_as_ours(file, RTLD_NOW)) {
        EXPECT_EQ(handle, cuda_runtime().handle()) << file;
        ++found;
      }
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  EXPECT_EQ(found, 1);
  EXPECT_EQ(open_as_ours("libno such library.so", RTLD_NOW), nullptr);
}

}  // namespace
}  // namespace shardrun::cuda
