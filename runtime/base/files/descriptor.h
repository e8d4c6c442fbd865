// Descriptors: writing to what may be a pipe, without waiting for ever and without SIGPIPE.
#pragma once

#include <cstdint>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun {

/// A file descriptor that is written to; -1: none.
class Descriptor {
 public:
  Descriptor() = default;
  /// Opens `path` with these flags and O_WRONLY. A pipe that nobody reads is waited for, two
  /// seconds at most. On failure is_open() is false, and error() says why.
  Descriptor(const std::string& path, int flags);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  /// "" or what went wrong last: "No space left on device".
  const std::string& error() const { return error_; }

  /// How many of the bytes were written: all, unless something went wrong. A reader that takes
  /// nothing for so many milliseconds counts as gone.
  size_t write(std::string_view bytes, int patience);
  /// From where on the next bytes are written. False for a pipe.
  bool seek(int64_t offset);
  /// False if something that was written got lost.
  bool close();

 private:
  int fd_ = -1;
  std::string error_;
};

/// A stream's buffer over a Descriptor, which outlives it.
class DescriptorBuffer final : public std::streambuf {
 public:
  explicit DescriptorBuffer(Descriptor& to);

 protected:
  int overflow(int c) override;
  int sync() override;
  std::streamsize xsputn(const char* from, std::streamsize count) override;
  pos_type seekpos(pos_type at, std::ios_base::openmode which) override;

 private:
  static constexpr int kPatience = 10000;  // ms
  bool flush();
  Descriptor& to_;
  std::vector<char> bytes_;
};

}  // namespace shardrun
