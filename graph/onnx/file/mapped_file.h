// A file's bytes, mapped: only those that somebody looks at are read.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/input_file.h"

namespace shardrun::importer {

/// `length` bytes of a file from `offset` on; -1: all of them. Throws invalid_input with the
/// reason.
class MappedFile {
 public:
  explicit MappedFile(const InputFile& file, int64_t offset = 0, int64_t length = -1) {
    if (length < 0) length = file.size() - offset;
    if (length <= 0) return;
    const InputFile::Use use(file);
    const int64_t page = offset / 4096 * 4096;
    mapped_bytes_ = static_cast<size_t>(offset - page + length);
    mapped_ = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, use.descriptor(), page);
    SR_REQUIRE(mapped_ != MAP_FAILED, invalid_input, "cannot map '", file.path(),
               "': ", std::strerror(errno));
    data_ = static_cast<const char*>(mapped_) + (offset - page);
    size_ = static_cast<size_t>(length);
  }
  ~MappedFile() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
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
