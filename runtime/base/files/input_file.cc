// Reading by parts, so that a file that grows, or says nothing of its size, is bounded, too.
#include "base/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace shardrun {
namespace {

/// Open for reading.
class InputFile {
 public:
  InputFile(const std::string& path, const char* what)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // waits for no pipe
    SR_REQUIRE(file_ >= 0, invalid_input, path, ": cannot open: ", std::strerror(errno));
    struct stat info {};
    const bool regular = ::fstat(file_, &info) == 0 && S_ISREG(info.st_mode);
    if (regular) return;
    ::close(file_);
    fail(ErrorKind::invalid_input, path, ": is not a regular file, wanted ", what);
  }
  ~InputFile() { ::close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  ssize_t read(char* to, size_t bytes) const {
    for (;;) {
      const ssize_t got = ::read(file_, to, bytes);
      if (got >= 0 || errno != EINTR) return got;
    }
  }

 private:
  int file_;
};

}  // namespace

void require_regular_file(const std::string& path, const char* what) { InputFile(path, what); }

std::string read_input_file(const std::string& path, const char* what, int64_t most) {
  constexpr size_t kPart = size_t{1} << 20;
  const InputFile file(path, what);
  std::string out;
  for (size_t filled = 0;;) {
    out.resize(filled + kPart);
    const ssize_t got = file.read(out.data() + filled, kPart);
    SR_REQUIRE(got >= 0, invalid_input, path, ": cannot read: ", std::strerror(errno));
    filled += static_cast<size_t>(got);
    SR_REQUIRE(static_cast<int64_t>(filled) <= most, invalid_input, path, ": has more than ", most,
               " bytes, wanted ", what);
    out.resize(filled);
    if (got == 0) return out;
  }
}

}  // namespace shardrun
