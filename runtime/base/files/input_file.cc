// Reading by parts, so that a file that grows, or says nothing of its size, is bounded, too.
#include "base/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace shardrun {
namespace {

constexpr int kMostOpen = 64;
std::atomic<int> files_open = 0;

int open_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // waits for no pipe
  SR_REQUIRE(file >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
  return file;
}

/// As many of the bytes as there are; -1: errno says why.
ssize_t read_some(int file, char* to, size_t bytes, int64_t offset) {
  for (;;) {
    const ssize_t got = ::pread(file, to, bytes, offset);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

InputFile::InputFile(std::string path, const char* what) : path_(std::move(path)) {
  const int file = open_file(path_);
  struct stat info {};
  const bool regular = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode);
  size_ = info.st_size;
  if (regular && files_open.fetch_add(1) < kMostOpen) {
    descriptor_ = file;
    return;
  }
  if (regular) --files_open;
  ::close(file);
  SR_REQUIRE(regular, invalid_input, path_, ": is not a regular file, wanted ", what);
}

InputFile::~InputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  --files_open;
}

InputFile::Use::Use(const InputFile& file)
    : descriptor_(file.descriptor_ >= 0 ? file.descriptor_ : open_file(file.path_)),
      own_(file.descriptor_ < 0) {}

InputFile::Use::~Use() {
  if (own_) ::close(descriptor_);
}

void InputFile::read(int64_t offset, int64_t bytes, void* to) const {
  const Use use(*this);
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = read_some(use.descriptor(), at, static_cast<size_t>(bytes), offset);
    SR_REQUIRE(got > 0, invalid_input, path_, ": wanted ", bytes, " bytes at offset ", offset, ", ",
               got < 0 ? std::strerror(errno) : "the file ends before");
    offset += got;
    at += got;
    bytes -= got;
  }
}

void require_regular_file(const std::string& path, const char* what) { InputFile(path, what); }

std::string read_input_file(const std::string& path, const char* what, int64_t most) {
  constexpr size_t kPart = size_t{1} << 20;
  const InputFile file(path, what);
  const InputFile::Use use(file);
  std::string out;
  for (size_t filled = 0;;) {
    out.resize(filled + kPart);
    const ssize_t got =
        read_some(use.descriptor(), out.data() + filled, kPart, static_cast<int64_t>(filled));
    SR_REQUIRE(got >= 0, invalid_input, path, ": cannot read: ", std::strerror(errno));
    filled += static_cast<size_t>(got);
    SR_REQUIRE(static_cast<int64_t>(filled) <= most, invalid_input, path, ": has more than ", most,
               " bytes, wanted ", what);
    out.resize(filled);
    if (got == 0) return out;
  }
}

}  // namespace shardrun
