// Libraries of users' ops, for programs that know nothing of them: the command.
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/files/input_file.h"
#include "ranks/world.h"
#include "shardrun/op.h"

namespace shardrun {

void load_ops(const std::string& library) {
  at_boundary([&] {
    constexpr const char* kEntry = "shardrun_ops";
    constexpr std::string_view kMagic =
        "\x7f"
        "ELF";
    const std::unique_ptr<char, decltype(&std::free)> path(::realpath(library.c_str(), nullptr),
                                                           &std::free);
    SR_REQUIRE(path != nullptr, invalid_input, library, ": there is no such library of ops");
    // Of what is no library the loader might wait for bytes.
    const InputFile file(path.get(), "a library of ops");
    std::string magic(kMagic.size(), '\0');
    if (file.size() >= std::ssize(magic)) file.read(0, std::ssize(magic), magic.data());
    SR_REQUIRE(magic == kMagic, invalid_input, library, ": is not a shared library");
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
