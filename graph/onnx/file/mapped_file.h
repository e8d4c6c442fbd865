// A file's bytes, mapped: only those that somebody looks at are read.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace shardrun::importer {

/// `length` bytes of a regular file from `offset` on; -1: all of them. Throws invalid_input with
/// the reason.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, int64_t offset = 0, int64_t length = -1) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // waits for no pipe
    SR_REQUIRE(fd >= 0, invalid_input, "cannot open '", path, "': ", std::strerror(errno));
    struct stat info {};
    const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (length < 0) length = info.st_size - offset;
    if (regular && length > 0) {
      const int64_t page = offset / 4096 * 4096;
      mapped_bytes_ = static_cast<size_t>(offset - page + length);
      mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, fd, page);
      data_ = static_cast<const char*>(mapped_) + (offset - page);
    }
    const int map_errno = errno;
    ::close(fd);
    SR_REQUIRE(regular, invalid_input, "'", path, "' is not a regular file");
    SR_REQUIRE(mapped_ != MAP_FAILED, invalid_input, "cannot map '", path,
               "': ", std::strerror(map_errno));
    size_ = static_cast<size_t>(std::max<int64_t>(length, 0));
  }
  ~MappedFile() {
    if (mapped_ != nullptr && mapped_ != MAP_FAILED) ::munmap(mapped_, mapped_bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {data_, size_}; }
  void* release(size_t* mapped_bytes) {
    *mapped_bytes = mapped_bytes_;
    return std::exchange(mapped_, nullptr);
  }
  const char* data() const { return data_; }

 private:
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace shardrun::importer
