// Libraries of users' ops, for programs that know nothing of them: the command.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>

#include "base/error.h"
#include "ranks/world.h"
#include "shardrun/op.h"

namespace shardrun {

void load_ops(const std::string& library) {
  at_boundary([&] {
    constexpr const char* kEntry = "shardrun_ops";
    const std::unique_ptr<char, decltype(&std::free)> path(::realpath(library.c_str(), nullptr),
                                                           &std::free);
    SR_REQUIRE(path != nullptr, invalid_input, library, ": there is no such library of ops");
    std::error_code error;  // of a pipe the loader would wait for a writer
    SR_REQUIRE(std::filesystem::is_regular_file(path.get(), error), invalid_input, library,
               ": is not a regular file, wanted a library of ops");
    static std::mutex mutex;
    static std::set<std::string> loaded;
    const std::lock_guard lock(mutex);
    if (loaded.count(path.get()) > 0) return;
    // Never closed: its kernels are called until the process ends.
    void* handle = ::dlopen(path.get(), RTLD_NOW | RTLD_LOCAL);
    SR_REQUIRE(handle != nullptr, invalid_input, library, ": cannot be loaded: ", ::dlerror());
    auto* entry = reinterpret_cast<void (*)()>(::dlsym(handle, kEntry));
    SR_REQUIRE(entry != nullptr, invalid_input, library, ": exports no function '", kEntry,
               "'; wanted extern \"C\" void ", kEntry, "(), which registers the ops");
    try {
      entry();
    } catch (const std::exception& e) {
      fail(ErrorKind::invalid_input, library, ": ", e.what());
    } catch (...) {
      fail(ErrorKind::invalid_input, library, ": ", kEntry,
           "() throws what is no std::exception; let it throw one that says what is wrong");
    }
    loaded.insert(path.get());
  });
}

}  // namespace shardrun
